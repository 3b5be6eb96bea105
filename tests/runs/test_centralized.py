"""All source domains on one client: `--centralized`, and testing a finished run by another rule."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tests.small_runs import assembled, settings
from unseen.cli import app
from unseen.core.tensors import snapshot
from unseen.core.types import Server
from unseen.engines.local import LocalEngine
from unseen.federation.client_state import ClientStates
from unseen.federation.ledger import Ledger
from unseen.federation.server import federate
from unseen.runs.directory import RunDirectory


def invoke(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.exit_code, result.output


@pytest.mark.parametrize("method", ["mixstyle", "stablefdg", "dann"])
def test_methods_run_centralized(method: str, tmp_path: Path) -> None:
    chosen = settings(
        method=method, target="street", protocol="digits", partition="pooled", rounds=1, local_steps=2, batch_size=16
    )
    run = assembled(chosen)
    (site,) = run.data.sites.values()
    assert site.client == "all sources"
    assert len(site.train.domains.unique()) == len(site.validation.domains.unique()) == 3
    torch.set_num_threads(1)
    server = Server(snapshot(run.net, sorted(run.share.up | run.share.down)), chosen.seed)
    with LocalEngine(run.runner(ClientStates(tmp_path)), list(run.data.sites), 1) as engine:
        (played,) = federate(run.method, run.share, chosen.plan, engine, server, Ledger())
    assert played.loss > 0 and not played.refused
    if method == "dann":
        assert played.metrics["all sources"]["loss.domains"] > 0


def test_erm_centralized_and_evaluated_by_other_rules(tmp_path: Path) -> None:
    words = ["run", "--method", "erm", "--centralized", "--target", "street", "--rounds", 1, "--local-steps", 2]
    code, text = invoke(*words, "--workers", 1, "--test-every", 0, "--out", tmp_path)
    assert code == 0, text
    (path,) = tmp_path.iterdir()
    assert json.loads((path / "config.json").read_text())["data"]["partition"] == "pooled"
    accuracy = json.loads((path / "result.json").read_text())["accuracy"]
    for rule, *more in (["own"], ["iabn"], ["random-alpha"], ["random-alpha", "--again"], ["random-alpha"]):
        code, text = invoke("evaluate", path, "--inference", rule, "--device", "cpu", *more)
        assert code == 0, text
        assert "unseen accuracy" in text
    lines = [json.loads(line) for line in (path / "evaluations.jsonl").read_text().splitlines()]
    assert lines[0]["accuracy"] == accuracy
    assert lines[1]["fields"] == {"k": 4.0, "smallest": 1}
    assert len(lines) == 4 and lines[2] == lines[3]  # the same draws every time; what is known is not tested again
    assert list(RunDirectory(path).evaluations()) == ["own", "iabn", "random-alpha"]
    assert f"{100 * lines[1]['accuracy']:.2f} % by the inference rule iabn" in invoke("show", path)[1]
    code, text = invoke("evaluate", path, "--inference", "tnb")
    assert code == 2 and 'Did you mean "tbn"' in text


def test_centralized_and_a_partition_are_two_words_for_two_things() -> None:
    code, text = invoke("run", "--centralized", "--partition", "pairs", "--target", "street")
    assert code == 2 and "--centralized" in text
