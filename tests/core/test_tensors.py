"""Snapshot, load, mean: known answers and properties."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from unseen.core import tensors
from unseen.core.errors import UserError
from unseen.core.tensors import RunningMean, load, pick, prefixed, snapshot, squared_distance, unprefixed


def test_snapshot_does_not_follow_later_steps() -> None:
    layer = nn.Linear(2, 1)
    before = snapshot(layer)
    with torch.no_grad():
        layer.weight.add_(1)
    assert not torch.equal(before["weight"], layer.weight)
    load(layer, before)
    assert torch.equal(before["weight"], layer.weight)


def test_load_refuses_unknown_names() -> None:
    with pytest.raises(UserError, match='"nothing" does not fit this net'):
        load(nn.Linear(2, 1), {"nothing": torch.zeros(1)})


def test_running_mean_by_hand() -> None:
    mean = RunningMean()
    mean.add({"w": torch.tensor([1.0, 2.0]), "n": torch.tensor(3)}, 1)
    mean.add({"w": torch.tensor([4.0, 8.0]), "n": torch.tensor(2)}, 2)
    result = mean.result()
    assert result["w"].tolist() == [3.0, 6.0]
    assert result["n"].item() == 3 and result["n"].dtype == torch.int64


@settings(max_examples=50, deadline=None)
@given(
    values=st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=6),
    weights=st.lists(st.floats(0.01, 1e4), min_size=6, max_size=6),
)
def test_running_mean_is_the_weighted_mean(values: list[float], weights: list[float]) -> None:
    mean = RunningMean()
    for value, weight in zip(values, weights, strict=False):
        mean.add({"w": torch.tensor(value)}, weight)
    used = np.array(weights[: len(values)])
    expected = float((np.array(values, dtype=np.float64) * used).sum() / used.sum())
    assert mean.result()["w"].item() == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert min(values) - 1e-3 <= mean.result()["w"].item() <= max(values) + 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_mean_in_pieces_has_the_bits_of_the_whole(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = torch.Generator().manual_seed(0)
    values = [torch.randn(5, 7, 3, generator=rng).to(dtype) for _ in range(3)]
    values.append(values[0].mT.contiguous().mT)  # another layout than the others'

    def mean() -> torch.Tensor:
        found = RunningMean()
        for weight, value in zip((0.3, 1.7, 0.1, 2.0), values, strict=True):
            found.add({"w": value}, weight)
        return found.result()["w"]

    whole = mean()
    monkeypatch.setattr(tensors, "PIECE", 32)
    assert len(list(tensors.in_pieces(values[0]))) == 4
    assert torch.equal(mean(), whole) and whole.dtype == dtype


def test_the_mean_does_not_write_into_what_it_was_given() -> None:
    first = torch.ones(2, dtype=torch.float64)
    mean = RunningMean()
    mean.add({"w": first}, 3.0)
    mean.add({"w": first}, 3.0)
    assert first.tolist() == [1.0, 1.0]


def test_zero_weights_are_an_error() -> None:
    mean = RunningMean()
    mean.add({"w": torch.ones(1)}, 0.0)
    with pytest.raises(ValueError, match="positive"):
        mean.result()


def test_squared_distance_by_hand() -> None:
    layer = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0], [3.0]]))
    distance = squared_distance(layer, {"weight": torch.tensor([[0.0], [1.0]])})
    assert distance.item() == 5.0
    distance.backward()
    assert layer.weight.grad is not None and layer.weight.grad.tolist() == [[2.0], [4.0]]


def test_names() -> None:
    tensors = {"a": torch.zeros(2), "b": torch.zeros(3, dtype=torch.int64)}
    assert unprefixed("x/", prefixed("x/", tensors)).keys() == tensors.keys()
    assert pick(tensors, ["a", "zz"]).keys() == {"a"}
