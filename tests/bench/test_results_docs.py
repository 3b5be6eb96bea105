"""The numbers in the pages are those of the records."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from tests.report.runs import invent
from unseen.core.files import write_json
from unseen.experiments.choose import Candidate, Choice

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "results.py"


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("unseen_results", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_is_what_its_records_say(script: ModuleType) -> None:
    assert script.stale() == [], "run `make results`"


def test_parts_are_made_of_kept_records(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "RECORDS", tmp_path / "records")
    monkeypatch.setattr(script, "CHECKING", True)
    invent(tmp_path / "out", {"fedavg": 0.5, "fedfd-a": 0.6, "stablefdg": 0.45}, targets=("ink", "street"))
    assert script.keep(tmp_path / "out", "digits") == 18
    board = script.leaderboard("digits").splitlines()
    assert board[0].startswith("| method | ink | street | mean | without ink | in-domain |")
    # Scores are score + t/100 + s/1000: fedfd-a has 60.1 and 61.1, so 60.6 over both, and +10 everywhere.
    assert board[2].startswith("| FedFD-A | **60.1** | **61.1** | **60.6 ± 0.1** | 61.1 |") and "+10.0" in board[2]
    assert "6/6" in board[2] and board[4].startswith("| StableFDG \\* |")
    words = script.sentences("digits")
    assert "**FedFD-A** has the best mean" in words and "StableFDG is behind FedAvg by 5.0 points" in words
    assert "FedAvg against itself" in words and "seeds 0, 1, 2" in script.runs("digits")
    page = "x\n<!-- results: method fedfd-a digits -->\nold\n<!-- end -->\n"
    assert "FedFD-A 60.6 ± 0.1 %, +10.0 to FedAvg (6 of 6 pairs)" in script.generated(page)
    assert not list((tmp_path / "records").rglob("*.safetensors"))


def test_regret_is_of_the_recommended_method(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "RECORDS", tmp_path)
    assert script.regret("digits") == script.NOTHING
    invent(tmp_path / "digits", {"fedavg": 0.5, "fedfd-a": 0.6, "gperxan": 0.55, "fedsam": 0.9})
    standing = {"gperxan": "recommended", "fedavg": "behind", "fedfd-a": "as good"}
    candidates = [Candidate(name, {}, name, word, {}) for name, word in standing.items()]
    Choice("gperxan", {}, "", "", [], candidates, ["a", "b", "c"], [0], "folder", "digits", 7).write(
        tmp_path / "regret" / "digits-ink.json"
    )
    said = script.regret("digits")
    # The mean over three seeds of score + s/1000. fedsam was no candidate, so it is not the best in hindsight.
    assert "| ink | gperxan | 55.1 | fedfd-a | 60.1 | 50.1 | 5.0 | +5.0 |" in said
    assert "| mean | | | | | | 5.0 | +5.0 |" in said and "runs of 7 rounds and seeds 0" in said and "street" not in said


def test_trust_is_told_by_method_with_means_over_its_runs(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "RECORDS", tmp_path)
    assert script.trust("digits") == script.familiarity("digits") == script.NOTHING

    def where(coverage: float, error: float) -> dict[str, object]:
        return {
            "coverage": {"0.95": coverage},
            "set_size": {"0.95": 1.5},
            "error_before": error,
            "error_after": error / 2,
        }

    def scores(value: float) -> dict[str, float]:
        return {"largest logit": value, "energy": value - 0.1}

    for place, (label, target, unseen) in enumerate(
        [("fedfd-a", "ink", 0.7), ("fedavg", "ink", 0.8), ("fedavg", "street", 0.6)]
    ):
        record = {
            "label": label, "target": target, "in_domain": where(0.91, 0.04), "unseen": where(unseen, 0.2),
            "auroc": {"unseen": scores(unseen), "noise": scores(0.95), "letters": scores(0.9)},
            "mistakes": scores(0.8) if place else {},
        }  # fmt: skip
        write_json(tmp_path / "trust" / "digits" / f"{place}.json", record)
    lines = script.trust("digits").splitlines()
    assert lines[2] == (
        "| fedavg | ink, street | 91.0 % | 70.0 % | 1.50 | 1.50 | 4.0 % | 2.0 % | 20.0 % | 10.0 % | 70 % | 95 % | 90 % |"
    )
    assert lines[3].startswith("| fedfd-a | ink | 91.0 % | 70.0 % |") and "3 runs" in lines[5]
    assert "| energy | 85.0 % | 80.0 % | 70.0 % |" in script.familiarity("digits")


def test_tables_of_speed_are_made_of_records(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "RECORDS", tmp_path)
    assert script.speed() == script.clients() == script.cost("convnet") == script.NOTHING
    about = {"command": "python x.py --keep", "commit": "abc1234", "cpu": "Chip", "cores": 2}

    def kept(name: str, load: float, **found: object) -> None:
        write_json(tmp_path / "speed" / f"{name}.json", {**about, "load": load, **found})

    net = {"backbone": "convnet", "image_size": 32}
    kept("overhead-convnet", 1.5, **net, pairs=12, steps=20, batch_size=32, clients=3, ratio=1.02, low=1.01, high=1.04)
    kept("allocator", 3.0, backbone="resnet18", image_size=112, default=0.6, kept=0.4)
    said = script.speed()
    assert (
        "| 1.02x, half of 12 pairs of rounds from 1.01 to 1.04 (convnet at 32 px; 3 clients x 20 steps of 32) |" in said
    )
    assert "1.50x faster (resnet18 at 112 px, batch 32)" in said and "`python x.py --keep`" in said
    assert said.endswith("Chip, 2 cores; load 1.5 to 3 meanwhile; commits abc1234.\n")

    one = {"10": {"peak": 300.0, "seconds": 0.02}, "100000": {"peak": 330.0, "seconds": 0.021}}
    kept("clients", 1.0, rounds=20, selected=10, methods={"fedbn": one})
    assert "| FedBN | 300 MB (1.00x) | 330 MB (1.10x) | 20.0 ms (1.00x) | 21.0 ms (1.05x) |" in script.clients()

    row = {"parameters": 1234, "step_seconds": 0.02, "inference_seconds": 0.005, "step_ratio": 1.0,
           "inference_ratio": 1.25, "bytes_up": 2e6, "bytes_down": 2e6, "bytes_up_statistics": 0}  # fmt: skip
    rows = [{"method": "fedavg", **row}, {"method": "fedfd", **row, "step_ratio": 2.1}]
    budget = {**net, "batch_size": 32, "steps": 3, "repeats": 5}
    kept("cost-convnet", 1.0, settings=budget, left_out=["No tokens."], methods=rows)
    said = " ".join(script.cost("convnet").split())
    assert "| FedFD | 1,234 | 2.10x | 1.25x | 2.00 MB | 0 | 2.00 MB |" in said
    assert "Left out: No tokens." in said and "FedAvg's step takes 20.0 ms" in said
