"""A look into a real, tiny run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.small_runs import run_local, settings
from unseen.experiments.insight import insight_of, look_into
from unseen.runs.directory import RunDirectory


@pytest.mark.parametrize(("method", "shows"), [("fedfd-a", "inspected/alpha"), ("stablefdg", "shown/attention")])
def test_features_predictions_and_what_the_method_shows(tmp_path: Path, method: str, shows: str) -> None:
    chosen = settings(
        method=method, target="street", protocol="digits", rounds=1, local_steps=1, batch_size=16, test_every=0
    )
    result = run_local(chosen, out=tmp_path)
    assert result.directory is not None
    run = RunDirectory(result.directory)
    assert insight_of(run) is None
    written = look_into(run).stat().st_mtime_ns
    found = insight_of(run)
    assert found is not None
    tensors, about = found
    assert about["target"] == "street" and about["domains"][-1] == "street"  # type: ignore[index]
    assert tensors["place"].shape == (240 + 3 * 80, 2) and bool(torch.isfinite(tensors["place"]).all())
    assert len(tensors["image"]) == len(tensors["image.label"]) > 0
    right = tensors["image.prediction"] == tensors["image.label"]
    assert right.tolist() == sorted(right.tolist(), reverse=True)  # right ones first
    assert float(tensors[shows].min()) >= 0 and float(tensors[shows].max()) <= 1
    clients = about["clients"]
    assert isinstance(clients, dict) and set(clients) == {"ink", "colour", "outline"}
    assert look_into(run).stat().st_mtime_ns == written  # made once
