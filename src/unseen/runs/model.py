"""Nets from settings, and trained models from run directories."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from unseen.core.allocator import keep_freed_memory
from unseen.core.errors import UserError
from unseen.core.files import read_tensors
from unseen.core.tensors import load
from unseen.federation.measure import precision
from unseen.method import Method
from unseen.nets.backbones import create_net
from unseen.nets.net import Net
from unseen.registry import parse
from unseen.runs.directory import RunDirectory
from unseen.runs.protocols import Settings


def build_net(settings: Settings, method: Method, classes: int) -> Net:
    """The net a method trains, the same bits wherever it is built from the same settings."""
    with torch.random.fork_rng(devices=[]):
        net = create_net(
            settings.backbone,
            classes,
            image_size=settings.image_size,
            bottleneck=settings.bottleneck,
            weights=settings.weights,
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
    settings = Settings.from_json(about["settings"])
    if device is not None:
        settings = replace(settings, plan=replace(settings.plan, device=device))
    method = parse(settings.method, settings.fields)
    # The file has the weights; those the training began with need not be at hand.
    net = build_net(replace(settings, weights="none"), method, len(about["classes"]))
    load(net, state)
    net.eval()
    return Trained(net, method, tuple(about["classes"]), settings, int(about["selected_round"]))
