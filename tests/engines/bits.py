"""The same bits: of two runs' final servers."""

from __future__ import annotations

from pathlib import Path

import torch

from unseen.core.types import Server, Tensors
from unseen.runs.directory import RunDirectory


def final(directory: Path) -> Server:
    """The server as the run's checkpoint has it."""
    restored = RunDirectory(directory).restore()
    assert restored is not None
    return restored[0]


def assert_same_tensors(one: Tensors, other: Tensors) -> None:
    assert list(one) == list(other)
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


def assert_same(one: Path, other: Path) -> None:
    """Model, what the method's server remembers, the rounds, and who took part."""
    a, b = final(one), final(other)
    assert (a.round, a.met) == (b.round, b.met)
    assert_same_tensors(a.state, b.state)
    assert_same_tensors(dict(sorted(a.memory.items())), dict(sorted(b.memory.items())))
    # What calibrates the model came back over the wire, to the last bit.
    assert RunDirectory(one).calibration() == RunDirectory(other).calibration()
