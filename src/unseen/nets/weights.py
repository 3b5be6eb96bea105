"""Pretrained weights from a file. It must fit the backbone exactly; its classifier is ignored."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from unseen.core.errors import UserError
from unseen.core.types import Tensors
from unseen.nets.net import Anatomy

SHOWN = 3  # tensors named in an error


def read_file(path: str | Path) -> Tensors:
    """The tensors of a .safetensors file. Nothing is unpickled, so .pth files are converted once by who trusts them."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f'There is no weights file "{path}": give none, imagenet or a .safetensors file.')
    if path.suffix != ".safetensors":
        raise UserError(f'"{path}" is not a .safetensors file: docs/cli.md has the line that makes one of a .pth file.')
    try:
        return load_file(path)
    except SafetensorError as error:
        raise UserError(
            f'The weights file "{path}" is cut off or not of its kind: get it again, or give another file.'
        ) from error


def load_weights(backbone: nn.Module, path: str | Path, anatomy: Anatomy) -> None:
    """Load a file into a backbone, strictly but for the file's classifier."""
    classifier = classifier_name(backbone)
    own = backbone.state_dict()
    translated = anatomy.translate(backbone, read_file(path))
    # Only now: of a CLIP file's projection, timm's translation makes a classifier.
    tensors = {
        name: value for name, value in translated.items() if name in own or not name.startswith(f"{classifier}.")
    }
    # Files from before 2018 lack this counter, which nothing reads while momentum is a number.
    missing = [name for name in own if name not in tensors and not name.endswith("num_batches_tracked")]
    unexpected = [name for name in tensors if name not in own]
    misshapen = [
        f"{name} {tuple(value.shape)} for {tuple(own[name].shape)}"
        for name, value in tensors.items()
        if name in own and value.shape != own[name].shape
    ]
    odd = [
        f"{name} {str(value.dtype).removeprefix('torch.')}"
        for name, value in tensors.items()
        if name in own and own[name].is_floating_point() and not value.is_floating_point()
    ]
    complaints = [
        f"{len(names)} {what} ({', '.join(names[:SHOWN])}{', ...' if len(names) > SHOWN else ''})"
        for what, names in (
            ("missing", missing),
            ("unexpected", unexpected),
            ("of another shape", misshapen),
            ("that are no floats", odd),
        )
        if names
    ]
    if complaints:
        raise UserError(f'The tensors of "{path}" do not fit the backbone: {"; ".join(complaints)}.')
    with torch.no_grad():
        for name, value in tensors.items():
            own[name].copy_(value)


def classifier_name(backbone: nn.Module) -> str:
    """The state prefix of the classifier this backbone was published with."""
    name = getattr(backbone, "classifier_name", None)  # our own networks
    if name is None:
        name = backbone.pretrained_cfg["classifier"]  # type: ignore[index]
    return str(name)
