"""Images as sites have them -> 8-bit RGB, by one rule for training and prediction.

8-bit grey and RGB     as they are; grey is three equal channels
16-bit grey            value / (2^bits - 1): bits is 12 where no pixel of the image is above 4095 (what most scanners and
                       cameras store in 16 bits), else 16. 16-bit colour: the upper byte of each value
floats                 must be in [0, 1]; anything else is an error
transparency           laid over white
palette                its colours
CMYK, YCbCr, LAB       to RGB by Pillow's formulas, without colour profiles
EXIF orientation       turned upright
several pages          the first
DICOM                  rescale slope and intercept, then the first window (without one: all that the stored bits can
                       hold), MONOCHROME1 inverted; colour as RGB. Needs `pip install unseen[dicom]`

What had to be converted is counted by name, so that a run can say it once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from unseen.core.errors import UserError
from unseen.data.domains import DICOM, Pixels

Converted = Counter[str]  # what was done -> to how many images
WHITE = (255, 255, 255, 255)
SIXTEEN_BITS = "16-bit grey, scaled by 65535"
TWELVE_BITS = "12-bit grey in 16 bits, scaled by 4095"
EXIF_ORIENTATION = 0x0112


def decode(file: Path, size: int, converted: Converted | None = None) -> Pixels:
    """One image file, squeezed to size x size as the papers do, RGB."""
    note = _noter(converted)
    if file.suffix.lower() in DICOM:
        return squeezed(_read_dicom(file, note).convert("RGB"), size)
    with Image.open(file) as image:
        # A large JPEG is decoded at a half, quarter or eighth, never below twice the wanted size: fast, and no worse.
        image.draft("RGB", (2 * size, 2 * size))
        if getattr(image, "n_frames", 1) > 1:
            note("several pages, of which the first is read")
        colour = as_rgb(image, note)
    return squeezed(colour, size)


def picture_of(image: Image.Image | np.ndarray[Any, Any], size: int, converted: Converted | None = None) -> Pixels:
    """An image in memory: Pillow's, or an array H x W, H x W x 1, 3 or 4 of uint8, uint16, or floats in [0, 1]."""
    note = _noter(converted)
    if isinstance(image, Image.Image):
        return squeezed(as_rgb(image, note), size)
    if image.ndim == 3 and image.shape[2] == 1:
        image = image[:, :, 0]
    if image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[2] not in (3, 4)):
        raise UserError(f"An array of shape {image.shape} is no image: give H x W, or H x W x 3, or a list of such.")
    if image.dtype == np.uint16:
        image = _from_16_bits(image, note)
    elif np.issubdtype(image.dtype, np.floating):
        image = _from_floats(image, note)
    elif image.dtype != np.uint8:
        raise UserError(f"An image of {image.dtype} is not understood: give uint8, uint16, or floats in [0, 1].")
    return squeezed(as_rgb(Image.fromarray(image), note), size)


def as_rgb(image: Image.Image, note: Callable[[str], None]) -> Image.Image:
    """8-bit RGB, upright."""
    if image.getexif().get(EXIF_ORIENTATION, 1) != 1:
        image = ImageOps.exif_transpose(image)
        note("turned upright by its EXIF orientation")
    if image.mode.startswith("I"):  # I;16, I;16B and 32-bit integers
        image = Image.fromarray(_from_16_bits(np.asarray(image), note))
    elif image.mode == "F":
        image = Image.fromarray(_from_floats(np.asarray(image), note))
    if image.has_transparency_data:
        note("transparent, laid over white")
        above = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", above.size, WHITE), above)
    elif image.mode not in ("RGB", "L", "1", "P"):
        note(f"{image.mode}, converted without a colour profile")
    return image.convert("RGB")


def squeezed(colour: Image.Image, size: int) -> Pixels:
    if colour.size != (size, size):
        colour = colour.resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(colour, dtype=np.uint8)


def conversions(converted: Converted) -> list[str]:
    """A sentence for each kind of conversion."""
    return [f"{count:,} images were converted: {what}" for what, count in sorted(converted.items())]


def _noter(converted: Converted | None) -> Callable[[str], None]:
    def note(what: str) -> None:
        if converted is not None:
            converted[what] += 1

    return note


def _from_16_bits(values: np.ndarray[Any, Any], note: Callable[[str], None]) -> Pixels:
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > 65535:
        raise UserError(f"values from {low} to {high} do not fit 16 bits; rescale them first")
    largest = 4095 if high <= 4095 else 65535
    note(TWELVE_BITS if largest == 4095 else SIXTEEN_BITS)
    return _eight_bits(values.astype(np.float64) / largest)


def _from_floats(values: np.ndarray[Any, Any], note: Callable[[str], None]) -> Pixels:
    if not bool(np.isfinite(values).all()) or values.min() < 0 or values.max() > 1:
        raise UserError("floats must be from 0 to 1; rescale them first")
    note("floats, scaled by 255")
    return _eight_bits(values.astype(np.float64))


def _eight_bits(shares: np.ndarray[Any, Any]) -> Pixels:
    """From [0, 1] to the nearest of 0 to 255."""
    scaled: Pixels = np.floor(np.clip(shares, 0, 1) * 255 + 0.5).astype(np.uint8)
    return scaled


def _read_dicom(file: Path, note: Callable[[str], None]) -> Image.Image:
    try:
        import pydicom
        from pydicom.pixels.processing import apply_color_lut, convert_color_space
    except ImportError:
        raise UserError("DICOM needs pydicom: pip install 'unseen[dicom]'") from None
    data = pydicom.dcmread(file)
    values, kind = data.pixel_array, str(data.PhotometricInterpretation)
    if int(data.get("NumberOfFrames") or 1) > 1:
        values = values[0]
        note("several pages, of which the first is read")
    note(f"DICOM ({kind})")
    if kind == "PALETTE COLOR":
        values = apply_color_lut(values, data)
        return Image.fromarray(_eight_bits(values / (255 if values.dtype == np.uint8 else 65535)))
    if kind.startswith("YBR"):
        values, kind = convert_color_space(values, kind, "RGB"), "RGB"
    if kind == "RGB":
        return Image.fromarray(_eight_bits(values / (2 ** int(data.BitsStored) - 1)))
    if not kind.startswith("MONOCHROME"):
        raise UserError(f"DICOM of the photometric interpretation {kind} is not read")
    shares = _windowed(values, data)
    return Image.fromarray(_eight_bits(1 - shares if kind == "MONOCHROME1" else shares))


def _windowed(stored: np.ndarray[Any, Any], data: Any) -> np.ndarray[Any, Any]:
    """Stored values -> the modality's (slope, intercept) -> [0, 1] by the first window, linear (DICOM PS3.3 C.11.2)."""
    slope, intercept = float(data.get("RescaleSlope", 1) or 1), float(data.get("RescaleIntercept", 0) or 0)
    values = stored.astype(np.float64) * slope + intercept
    if data.get("WindowCenter") is not None and data.get("WindowWidth") is not None:
        centre, width = _first(data.WindowCenter), _first(data.WindowWidth)
        if width <= 1:
            return (values > centre - 0.5).astype(np.float64)
        return np.clip((values - (centre - 0.5)) / (width - 1) + 0.5, 0, 1)
    bits, signed = int(data.BitsStored), int(data.get("PixelRepresentation", 0)) == 1
    lowest = -(2 ** (bits - 1)) if signed else 0
    low, high = sorted((lowest * slope + intercept, (lowest + 2**bits - 1) * slope + intercept))
    shares: np.ndarray[Any, Any] = (values - low) / (high - low)
    return shares


def _first(value: Any) -> float:
    """A window may be several; the first is the default view."""
    return float(value[0] if hasattr(value, "__len__") and not isinstance(value, str) else value)
