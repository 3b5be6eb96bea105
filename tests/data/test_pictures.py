"""Images as sites have them: each kind with pixels that are known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from unseen.core.errors import UserError
from unseen.data.pictures import Converted, conversions, decode, picture_of

S = 4


def grey(values: list[list[int]]) -> np.ndarray:
    return np.array(values, dtype=np.uint16)


def same_in_all_channels(pixels: np.ndarray) -> list[list[int]]:
    assert (pixels[..., 0] == pixels[..., 1]).all() and (pixels[..., 1] == pixels[..., 2]).all()
    return pixels[..., 0].tolist()


def test_eight_bits_are_as_they_were(tmp_path: Path) -> None:
    """By Pillow's plain conversion and resize: the bits of earlier versions."""
    rng = np.random.default_rng(0)
    colour = rng.integers(0, 256, (9, 7, 3), dtype=np.uint8)
    for name, image in {
        "a.png": Image.fromarray(colour),
        "b.png": Image.fromarray(colour[..., 0]),
        "c.jpg": Image.fromarray(colour),
        "d.jpg": Image.fromarray(colour[..., 1]),
        "e.png": Image.fromarray(colour).quantize(16),
        "f.bmp": Image.fromarray(colour),
        "g.png": Image.fromarray(colour[..., 2] > 99),
    }.items():
        image.save(tmp_path / name)
        found = Converted()
        with Image.open(tmp_path / name) as opened:
            plain = np.asarray(opened.convert("RGB").resize((S, S), Image.Resampling.BILINEAR))
        assert np.array_equal(decode(tmp_path / name, S, found), plain), name
        assert not found, name


@pytest.mark.parametrize("name", ["x.png", "x.tif"])
def test_sixteen_bits_are_scaled_by_their_depth(tmp_path: Path, name: str) -> None:
    found = Converted()
    Image.fromarray(grey([[0, 65535], [32768, 257 * 7]])).save(tmp_path / name)
    assert same_in_all_channels(decode(tmp_path / name, 2, found)) == [[0, 255], [128, 7]]
    # 12 bits in 16: no pixel above 4095. Before, all of it above 255 was white.
    Image.fromarray(grey([[0, 4095], [2048, 16]])).save(tmp_path / name)
    assert same_in_all_channels(decode(tmp_path / name, 2, found)) == [[0, 255], [128, 1]]
    assert sum(found.values()) == 2 and "12-bit grey in 16 bits, scaled by 4095" in found
    assert "1 images were converted: 16-bit grey, scaled by 65535" in conversions(found)


def test_an_array_is_read_as_the_file_with_the_same_pixels(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    deep = rng.integers(0, 60000, (6, 5)).astype(np.uint16)
    Image.fromarray(deep).save(tmp_path / "deep.png")
    assert np.array_equal(decode(tmp_path / "deep.png", S), picture_of(deep, S))
    colour = rng.integers(0, 256, (6, 5, 3), dtype=np.uint8)
    Image.fromarray(colour).save(tmp_path / "colour.png")
    for given in (colour, Image.fromarray(colour), colour.astype(np.float64) / 255):
        assert np.array_equal(decode(tmp_path / "colour.png", S), picture_of(given, S))
    assert picture_of(colour[..., :1], S).shape == (S, S, 3)
    for wrong in (colour.astype(np.int32), colour / 1.0, np.zeros((2, 2, 5), dtype=np.uint8), np.zeros(3)):
        with pytest.raises(UserError):
            picture_of(wrong, S)


def test_transparency_is_laid_over_white_and_cmyk_converted(tmp_path: Path) -> None:
    clear = np.zeros((2, 2, 4), dtype=np.uint8)
    clear[0, 0] = (255, 0, 0, 255)
    clear[0, 1] = (0, 0, 0, 128)
    found = Converted()
    Image.fromarray(clear).save(tmp_path / "clear.png")
    pixels = decode(tmp_path / "clear.png", 2, found)
    assert pixels[0, 0].tolist() == [255, 0, 0] and pixels[1, 1].tolist() == [255, 255, 255]
    assert pixels[0, 1].tolist() == [127, 127, 127]
    Image.new("CMYK", (2, 2), (0, 255, 255, 0)).save(tmp_path / "print.tif")
    assert decode(tmp_path / "print.tif", 2, found)[0, 0].tolist() == [255, 0, 0]
    assert set(found) == {"transparent, laid over white", "CMYK, converted without a colour profile"}


def test_orientation_and_pages(tmp_path: Path) -> None:
    found = Converted()
    upright = np.zeros((4, 4, 3), dtype=np.uint8)
    upright[0] = 255  # white above
    exif = Image.Exif()
    exif[0x0112] = 3  # turned by 180 degrees
    Image.fromarray(upright[::-1, ::-1].copy()).save(tmp_path / "turned.png", exif=exif)
    assert np.array_equal(decode(tmp_path / "turned.png", 4, found), upright)
    Image.new("L", (4, 4), 10).save(tmp_path / "pages.tif", save_all=True, append_images=[Image.new("L", (4, 4), 200)])
    assert (decode(tmp_path / "pages.tif", 4, found) == 10).all()
    assert set(found) == {"turned upright by its EXIF orientation", "several pages, of which the first is read"}


def test_floats_must_be_shares(tmp_path: Path) -> None:
    Image.fromarray(np.array([[0.0, 1.0], [0.5, 0.25]], dtype=np.float32)).save(tmp_path / "f.tif")
    assert same_in_all_channels(decode(tmp_path / "f.tif", 2)) == [[0, 255], [128, 64]]
    Image.fromarray(np.array([[0.0, 900.0]], dtype=np.float32)).save(tmp_path / "f.tif")
    with pytest.raises(UserError, match="from 0 to 1"):
        decode(tmp_path / "f.tif", 2)


# --- DICOM -----------------------------------------------------------------------------------------------------------
@pytest.fixture
def dicom(tmp_path: Path) -> Callable[..., Path]:
    """Writes a file by pydicom itself."""
    pydicom = pytest.importorskip("pydicom", reason="the extra `dicom` is not installed")
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

    def write(pixels: np.ndarray, kind: str = "MONOCHROME2", bits: int = 12, **tags: Any) -> Path:
        meta = FileMetaDataset()
        meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = SecondaryCaptureImageStorage, generate_uid()
        meta.TransferSyntaxUID = ExplicitVRLittleEndian
        data = Dataset()
        data.file_meta = meta
        data.SOPClassUID, data.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
        colour = kind == "RGB"
        data.Rows, data.Columns = pixels.shape[-3:-1] if colour else pixels.shape[-2:]
        data.SamplesPerPixel, data.PhotometricInterpretation = (3 if colour else 1), kind
        data.PlanarConfiguration = 0
        data.BitsAllocated = 8 * pixels.dtype.itemsize
        data.BitsStored, data.HighBit = bits, bits - 1
        data.PixelRepresentation = int(np.issubdtype(pixels.dtype, np.signedinteger))
        for name, value in tags.items():
            setattr(data, name, value)
        data.PixelData = pixels.tobytes()
        pydicom.dcmwrite(tmp_path / "x.dcm", data, enforce_file_format=True)
        return tmp_path / "x.dcm"

    return write


def test_dicom_by_its_window_after_slope_and_intercept(dicom: Callable[..., Path]) -> None:
    # Stored 0, 1000, 1040, 1100 are -1024, -24, 16, 76 by the intercept; the window is 40 of width 101: -10.5 to 89.5.
    stored = np.array([[0, 1000], [1040, 1100]], dtype=np.uint16)
    window = {"RescaleSlope": 1, "RescaleIntercept": -1024, "WindowCenter": [40, 600], "WindowWidth": [101, 2000]}
    found = Converted()
    # (16 - 39.5) / 100 + 0.5 = 0.265; (76 - 39.5) / 100 + 0.5 = 0.865
    assert same_in_all_channels(decode(dicom(stored, **window), 2, found)) == [[0, 0], [68, 221]]
    inverted = same_in_all_channels(decode(dicom(stored, "MONOCHROME1", **window), 2, found))
    assert inverted == [[255, 255], [187, 34]]
    assert set(found) == {"DICOM (MONOCHROME2)", "DICOM (MONOCHROME1)"}


def test_dicom_without_a_window_by_its_stored_bits(dicom: Callable[..., Path]) -> None:
    stored = np.array([[0, 4095], [2048, 819]], dtype=np.uint16)
    assert same_in_all_channels(decode(dicom(stored), 2)) == [[0, 255], [128, 51]]
    signed = np.array([[-2048, 2047], [0, -1229]], dtype=np.int16)
    assert same_in_all_channels(decode(dicom(signed), 2)) == [[0, 255], [128, 51]]


def test_dicom_in_colour_and_of_several_frames(dicom: Callable[..., Path]) -> None:
    colour = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    assert np.array_equal(decode(dicom(colour, "RGB", bits=8), 2), colour)
    frames = np.stack([np.full((2, 2), 255, dtype=np.uint8), np.zeros((2, 2), dtype=np.uint8)])
    found = Converted()
    assert (decode(dicom(frames, bits=8, NumberOfFrames=2), 2, found) == 255).all()
    assert "several pages, of which the first is read" in found
