"""A look into a real, tiny run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.small_runs import assembled, run_local, settings
from unseen.core.errors import UserError
from unseen.core.files import read_tensors, write_tensors
from unseen.core.tensors import snapshot
from unseen.experiments.insight import FILE, REFERENCE, insight_of, look_into
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


@pytest.mark.parametrize("reference", ["generated", "normal"])
def test_features_beside_the_reference_before_and_after_training(tmp_path: Path, reference: str) -> None:
    """FedADG, Figs. 3 and 4: the sources' features and the reference's own points, at the start and at the end."""
    chosen = settings(
        method="fedadg", target="street", protocol="digits", fields={"reference": reference},
        rounds=1, local_steps=2, batch_size=16, test_every=0,
    )  # fmt: skip
    result = run_local(chosen, out=tmp_path)
    assert result.directory is not None
    run = RunDirectory(result.directory)
    tensors, about = read_tensors(look_into(run))
    for when in ("before", "after"):
        assert tensors[f"{when}/place"].shape == (3 * 80, 2)  # of the sources alone
        assert tensors[f"{when}/reference"].shape == (REFERENCE, 2)
        assert bool(torch.isfinite(tensors[f"{when}/reference"]).all())
        if reference == "generated":
            assert tensors[f"{when}/reference.class"].bincount().tolist() == [12] * 10
        else:
            assert f"{when}/reference.class" not in tensors
    assert not torch.equal(tensors["before/place"], tensors["after/place"])
    less = {name: value for name, value in tensors.items() if not name.startswith(("before/", "after/"))}
    write_tensors(run.path / FILE, less, about)  # as an earlier version left it
    again, _ = read_tensors(look_into(run))
    assert torch.equal(again["before/place"], tensors["before/place"])


def test_before_training_is_the_model_that_training_began_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the first model in the last one's place the pictures are the same; without its weights there is one."""
    chosen = settings(method="fedadg", target="street", protocol="digits", rounds=1, local_steps=1, test_every=0)
    result = run_local(chosen, out=tmp_path)
    assert result.directory is not None
    run = RunDirectory(result.directory)
    assembly = assembled(chosen)
    about = read_tensors(run.model_path)[1]
    write_tensors(run.model_path, snapshot(assembly.net, assembly.share.up), about)
    run.calibration_path.unlink()
    tensors, _ = read_tensors(look_into(run))
    assert torch.equal(tensors["before/place"], tensors["after/place"])
    assert torch.equal(tensors["before/reference"], tensors["after/reference"])

    def gone(*_: object) -> None:
        raise UserError("no such weights")

    (run.path / FILE).unlink()
    monkeypatch.setattr("unseen.experiments.insight.build_net", gone)
    tensors, _ = read_tensors(look_into(run))
    assert "after/place" in tensors and "before/place" not in tensors
