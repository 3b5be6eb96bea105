"""Nets from settings, and trained models from run directories."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from unseen.core.errors import UserError
from unseen.core.files import read_tensors
from unseen.core.platform import keep_freed_memory
from unseen.core.tensors import load
from unseen.data.domains import SUFFIXES, Pixels
from unseen.data.store import decode
from unseen.federation.measure import precision
from unseen.method import Method
from unseen.nets.backbones import create_net
from unseen.nets.net import Net
from unseen.registry import parse
from unseen.runs import own_methods
from unseen.runs.directory import RunDirectory
from unseen.runs.settings import Settings


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


@dataclass(frozen=True)
class Trained:
    """A selected model with all that is needed to use it."""

    net: Net
    method: Method
    classes: tuple[str, ...]
    settings: Settings
    selected_round: int

    def predict(self, x: Tensor) -> Tensor:
        """Class probabilities of images in [0, 1], B x 3 x H x W."""
        self.net.eval()
        with torch.inference_mode(), precision(self.settings.plan):
            return self.method.predict(self.net, x.to(self.settings.plan.device)).float().softmax(1).cpu()


def load_trained(path: Path, device: str | None = None) -> Trained:
    """The selected model of a finished run, on the device it was trained on or on another."""
    keep_freed_memory()
    directory = RunDirectory.open(path)
    if not directory.model_path.exists():
        raise UserError(f"The run in {path} is not finished: go on with it by `unseen run --resume {path}`.")
    state, about = read_tensors(directory.model_path)
    try:
        settings, classes, round = Settings.from_json(about["settings"]), about["classes"], int(about["selected_round"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{directory.model_path} is not a model of unseen ({error}).") from None
    if device is not None:
        settings = settings.with_changes({"device": device})
    own_methods.recall(path, settings.method)
    method = parse(settings.method, settings.fields)
    # The file has the weights; those the training began with need not be at hand.
    net = build_net(settings.with_changes({"weights": "none"}), method, len(classes))
    load(net, state)
    net.eval()
    return Trained(net, method, tuple(classes), settings, round)


# --- files to classes ------------------------------------------------------------------------------------------------
BATCH = 64


@dataclass(frozen=True)
class Prediction:
    """What a model says of one image."""

    image: str  # its path, relative to the folder that was given
    label: str
    probability: float


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


def predict_files(trained: Trained, place: Path, broken: list[str] | None = None) -> Iterator[Prediction]:
    """One image, or all below a folder, in order. Decoding runs ahead of the net by a batch."""
    files = find_images(place)
    parts = [files[start : start + BATCH] for start in range(0, len(files), BATCH)]
    size = trained.settings.data.image_size
    with ThreadPoolExecutor(1) as ahead:
        waiting = ahead.submit(_decode, parts[0], size, broken)
        for number in range(len(parts)):
            good, pixels = waiting.result()
            if number + 1 < len(parts):
                waiting = ahead.submit(_decode, parts[number + 1], size, broken)
            if good:
                x = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).to(torch.float32).div_(255)
                values, labels = trained.predict(x).max(dim=1)
                for file, value, label in zip(good, values.tolist(), labels.tolist(), strict=True):
                    name = file.relative_to(place) if place.is_dir() else file
                    yield Prediction(name.as_posix(), trained.classes[label], value)


def _decode(files: Sequence[Path], size: int, broken: list[str] | None) -> tuple[list[Path], list[Pixels]]:
    good: list[Path] = []
    pixels: list[Pixels] = []
    for file in files:
        try:
            pixels.append(decode(file, size))
            good.append(file)
        except Exception as error:  # decoders raise all kinds for a broken file
            if broken is None:
                raise UserError(
                    f"The image {file} cannot be read ({error}); mend or delete it, or go on without such images with "
                    f"--skip-broken."
                ) from None
            broken.append(str(file))
    return good, pixels
