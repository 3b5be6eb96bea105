"""Costs beside FedAvg: exact bytes and parameters; of the times only that they are there."""

from __future__ import annotations

import math

import pytest
import torch

from unseen.experiments.cost import measure_costs, noise
from unseen.methods.alignment import CORAL
from unseen.registry import registered


def test_bytes_and_parameters_of_a_round() -> None:
    found = measure_costs(["fedfd-a", "stablefdg"], batch_size=8, classes=4, steps=1, repeats=1)
    fedavg, adapted, stable = found
    assert [one.method for one in found] == ["fedavg", "fedfd-a", "stablefdg"]
    assert fedavg.step_ratio == 1.0 and fedavg.inference_ratio == 1.0 and fedavg.per_pass == 1.0
    assert adapted.per_pass == pytest.approx(adapted.step_ratio / registered()["fedfd-a"].passes)
    assert fedavg.bytes_up_statistics == 0 and adapted.bytes_up_statistics == 0
    assert stable.bytes_up_statistics > 0  # a style per round
    assert adapted.parameters > fedavg.parameters
    # All state is float32, but for the norms' counters, and all of it goes up.
    assert fedavg.bytes_up >= 4 * fedavg.parameters
    assert all(math.isfinite(one.inference_ratio) and one.inference_seconds > 0 for one in found)


def test_all_is_every_method_that_fits_and_says_who_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {name: registered()[name] for name in ("doprompt", "fedavg", "fedprox")}
    monkeypatch.setattr("unseen.experiments.cost.registered", lambda: known)
    said: list[str] = []
    found = measure_costs(["all"], batch_size=4, steps=1, repeats=1, said=said.append)
    assert [one.method for one in found] == ["fedavg", "fedprox"]
    assert any(line.startswith("left out:") and "vision transformer" in line for line in said)


def test_the_images_are_of_two_domains_that_both_have_all_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one domain, CORAL and its like would be measured as FedAvg."""
    images = noise(16, 8, 4)
    assert {(int(d), int(y)) for d, y in zip(images.domains, images.labels, strict=True)} == {
        (domain, label) for domain in range(2) for label in range(4)
    }
    distances: list[float] = []
    usual = CORAL.distance

    def seen(self: CORAL, one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
        distance = usual(self, one, two)
        distances.append(distance.item())
        return distance

    monkeypatch.setattr(CORAL, "distance", seen)
    measure_costs(["coral"], batch_size=8, classes=4, steps=1, repeats=1)
    assert distances and all(distance > 0 for distance in distances)


def test_frozen_towers_say_less_than_a_pass() -> None:
    """A pass without gradients of weights counts two thirds, one without backward a third."""
    passes = {name: registered()[name].passes for name in ("doprompt", "fedclip", "feddgmoe", "fedins", "promptfl")}
    assert passes == {"doprompt": 1, "fedclip": 0.33, "feddgmoe": 0.67, "fedins": 1, "promptfl": 0.67}
    found = measure_costs(list(passes), backbone="test_vit", batch_size=4, classes=4, steps=1, repeats=1)
    assert [one.passes for one in found] == [1, *passes.values()]
