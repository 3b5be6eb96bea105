"""Nets from settings, and trained models from run directories."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from unseen.core.calibration import LOOK, Calibration, softmax
from unseen.core.errors import UserError
from unseen.core.files import read_tensors, tensors_digest
from unseen.core.look import look_of
from unseen.core.platform import keep_freed_memory
from unseen.core.tensors import load
from unseen.data.domains import SUFFIXES, Pixels
from unseen.data.pictures import Converted, decode, picture_of
from unseen.federation.measure import precision
from unseen.method import Method
from unseen.nets.backbones import create_net
from unseen.nets.net import Net
from unseen.registry import parse
from unseen.runs import own_methods
from unseen.runs.directory import RunDirectory
from unseen.runs.settings import Settings

BATCH = 64


if TYPE_CHECKING:
    from unseen.core.calibration import Booleans, Numbers


def build_net(settings: Settings, method: Method, classes: int) -> Net:
    """The net a method trains, the same bits wherever it is built from the same settings."""
    with torch.random.fork_rng(devices=[]):
        net = create_net(
            settings.net.backbone,
            classes,
            image_size=settings.data.image_size,
            bottleneck=settings.net.bottleneck,
            weights=settings.net.weights,
            seed=settings.seed,
        )
        torch.manual_seed(settings.seed)
        net = method.build(net)
    return net.to(torch.device(settings.plan.device))


# What a model takes: tensors B x 3 x H x W in [0, 1] at its own size, and everything else as `unseen.data.pictures` has it.
Images = Any


@dataclass(frozen=True)
class Trained:
    """A selected model with all that is needed to use it.

    Images are files, Pillow's images, arrays (H x W or H x W x 3: uint8, uint16, or floats in [0, 1]), one or a list of
    them, or a tensor B x 3 x H x W in [0, 1] at the model's size. Answers have one row per image.
    """

    net: Net
    method: Method
    classes: tuple[str, ...]
    settings: Settings
    selected_round: int
    calibration: Calibration | None = None  # None in runs of earlier versions: `unseen calibrate` makes it

    def predict(self, images: Images) -> np.ndarray[Any, np.dtype[np.str_]]:
        """The most probable class."""
        named: np.ndarray[Any, np.dtype[np.str_]] = np.array(self.classes)[self.logits(images).argmax(axis=1)]
        return named

    def predict_proba(self, images: Images) -> Numbers:
        """The probability of each class, in the order of `classes`, at the temperature of the calibration."""
        return self.probabilities(self.logits(images))

    def predict_set(self, images: Images, coverage: float = 0.9) -> list[tuple[str, ...]]:
        """The classes that cannot be ruled out. For images like those of training, `coverage` of the sets hold the class."""
        return self.named_sets(self.logits(images), coverage)

    def familiar(self, images: Images) -> Booleans:
        """Is each image like those of training? Of such images 5 % are said not to be."""
        return np.array([not unlike for unlike in self.unlike(images)])

    def unlike(self, images: Images) -> list[tuple[str, ...]]:
        """In what each image is unlike those of training: "look" (colours, textures), "content" (no class fits), or ()."""
        x = as_batch(images, self.settings.data.image_size)
        looks = [look_of(part.cpu().numpy()) for part in torch.split(x, BATCH)]
        own = self.calibrated()
        return own.unlike(own.strangeness(self.logits(x), np.concatenate(looks)))

    def logits(self, images: Images) -> Numbers:
        """What the method's own rule gives before the softmax."""
        x = as_batch(images, self.settings.data.image_size)
        self.net.eval()
        found = []
        for part in torch.split(x, BATCH):
            with torch.inference_mode(), precision(self.settings.plan):
                found.append(self.method.predict(self.net, part.to(self.settings.plan.device)).float().cpu())
        values: Numbers = torch.cat(found).double().numpy()
        return values

    def probabilities(self, logits_NK: Numbers) -> Numbers:
        return softmax(logits_NK) if self.calibration is None else self.calibration.probabilities(logits_NK)

    def named_sets(self, logits_NK: Numbers, coverage: float) -> list[tuple[str, ...]]:
        inside_NK = self.calibrated().sets(logits_NK, coverage)
        return [tuple(name for name, here in zip(self.classes, row, strict=True) if here) for row in inside_NK]

    def calibrated(self) -> Calibration:
        if self.calibration is None:
            raise UserError("This model has no calibration: its run is of an earlier version; see `unseen calibrate`.")
        return self.calibration


def as_batch(images: Images, size: int) -> Tensor:
    """B x 3 x H x W in [0, 1], of whatever images are given as."""
    if isinstance(images, Tensor):
        x = images if images.dim() == 4 else images[None]
        if x.dim() != 4 or x.shape[1] != 3 or not x.is_floating_point():
            raise UserError(
                f"A tensor of images is B x 3 x H x W in [0, 1], not {tuple(images.shape)} of {images.dtype}."
            )
        return x
    single = isinstance(images, (str, Path, Image.Image)) or (isinstance(images, np.ndarray) and images.ndim in (2, 3))
    pixels = [_pixels(image, size) for image in ([images] if single else images)]
    if not pixels:
        raise UserError("There are no images to classify: the list is empty.")
    return _tensor(pixels)


def _pixels(image: Any, size: int) -> Pixels:
    if isinstance(image, (str, Path)):
        if not Path(image).is_file():
            raise UserError(f"There is no image {image}.")
        try:
            return decode(Path(image), size)
        except Exception as error:  # decoders raise all kinds for a broken file
            raise UserError(f"The image {image} cannot be read ({error}).") from None
    if not isinstance(image, (Image.Image, np.ndarray)):
        raise UserError(f"An image is a path, a Pillow image, an array or a tensor, not {type(image).__name__}.")
    return picture_of(image, size)


def _tensor(pixels: Sequence[Pixels]) -> Tensor:
    return torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).to(torch.float32).div_(255)


def load_trained(path: str | Path, device: str | None = None) -> Trained:
    """The selected model of a finished run, on the device it was trained on or on another."""
    keep_freed_memory()
    directory = RunDirectory.open(Path(path))
    if not directory.model_path.exists():
        if directory.result() is not None:  # records that were kept without their weights
            raise UserError(f"The run in {path} is finished, but its model ({directory.model_path.name}) is not there.")
        raise UserError(f"The run in {path} is not finished: go on with it by `unseen run --resume {path}`.")
    state, about = read_tensors(directory.model_path)
    try:
        settings, classes, round = Settings.from_json(about["settings"]), about["classes"], int(about["selected_round"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{directory.model_path} is not a model of unseen ({error}).") from None
    if device is not None:
        settings = settings.with_changes({"device": device})
    own_methods.recall(Path(path), settings.method)
    method = parse(settings.method, settings.fields)
    # The file has the weights; those the training began with need not be at hand.
    net = build_net(settings.with_changes({"weights": "none"}), method, len(classes))
    load(net, state)
    net.eval()
    calibration = directory.calibration()
    if calibration is not None and calibration.model != tensors_digest(state):
        raise UserError(
            f"{directory.calibration_path} is not of this model; delete it, or make it again by `unseen calibrate {path}`."
        )
    return Trained(net, method, tuple(classes), settings, round, calibration)


# --- files to classes ------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Prediction:
    """What a model says of one image."""

    image: str  # its path, relative to the folder that was given
    label: str
    probability: float  # of that class
    probabilities: dict[str, float]  # of all classes
    set: tuple[str, ...] | None  # the classes that cannot be ruled out; None where the model has no calibration
    unlike: tuple[str, ...] | None  # in what it is unlike those of training: look, content; None likewise
    look: float | None = None  # how strange it looks: from 1 on, unlike; None where the model knows no looks

    @property
    def familiar(self) -> bool | None:
        """Is it like the images of training? None where the model has no calibration."""
        return None if self.unlike is None else not self.unlike


def find_images(place: Path) -> list[Path]:
    """One image, or all below a folder, in an order that is the same everywhere."""
    if not place.exists():
        raise UserError(f"There is no image or folder {place}.")
    files = (
        [place]
        if place.is_file()
        else [path for path in place.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file()]
    )
    if not files:
        raise UserError(f"There are no images in {place}: they end in {', '.join(sorted(SUFFIXES))}.")
    return sorted(files)


def predict_files(
    trained: Trained,
    place: Path,
    broken: list[str] | None = None,
    coverage: float = 0.9,
    converted: Converted | None = None,
) -> Iterator[Prediction]:
    """One image, or all below a folder, in order."""
    known = trained.calibration is not None
    for files, logits_NK, looks_ND in read_files(trained, find_images(place), broken, converted):
        p_NK = trained.probabilities(logits_NK)
        sets = trained.named_sets(logits_NK, coverage) if known else [None] * len(files)
        strange = trained.calibrated().strangeness(logits_NK, looks_ND) if known else {}
        unlike = trained.calibrated().unlike(strange) if known else [None] * len(files)
        looks = strange[LOOK].tolist() if LOOK in strange else [None] * len(files)
        for file, p_K, chosen, why, look in zip(files, p_NK, sets, unlike, looks, strict=True):
            name = file.relative_to(place) if place.is_dir() else file
            named = dict(zip(trained.classes, p_K.tolist(), strict=True))
            best = int(p_K.argmax())
            yield Prediction(name.as_posix(), trained.classes[best], float(p_K[best]), named, chosen, why, look)


class Read(NamedTuple):
    """Files that could be read, their logits, and how they look."""

    files: list[Path]
    logits: Numbers  # N x K
    looks: Numbers  # N x 35


def read_files(
    trained: Trained, files: Sequence[Path], broken: list[str] | None = None, converted: Converted | None = None
) -> Iterator[Read]:
    """Batch by batch. Decoding runs ahead of the net by a batch."""
    parts = [files[start : start + BATCH] for start in range(0, len(files), BATCH)]
    size = trained.settings.data.image_size
    with ThreadPoolExecutor(1) as ahead:
        waiting = ahead.submit(_decode, parts[0], size, broken, converted)
        for number in range(len(parts)):
            good, pixels = waiting.result()
            if number + 1 < len(parts):
                waiting = ahead.submit(_decode, parts[number + 1], size, broken, converted)
            if good:
                x = _tensor(pixels)
                yield Read(good, trained.logits(x), look_of(x.numpy()))


def _decode(
    files: Sequence[Path], size: int, broken: list[str] | None, converted: Converted | None
) -> tuple[list[Path], list[Pixels]]:
    good: list[Path] = []
    pixels: list[Pixels] = []
    for file in files:
        try:
            pixels.append(decode(file, size, converted))
            good.append(file)
        except Exception as error:  # decoders raise all kinds for a broken file
            if broken is None:
                raise UserError(
                    f"The image {file} cannot be read ({error}); mend or delete it, or go on without such images with "
                    f"--skip-broken."
                ) from None
            broken.append(str(file))
    return good, pixels
