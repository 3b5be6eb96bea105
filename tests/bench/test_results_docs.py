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
    assert "| ink | gPerXAN | 55.1 | FedFD-A | 60.1 | 50.1 | 5.0 | +5.0 |" in said
    assert "| mean | | | | | | 5.0 | +5.0 |" in said and "runs of 7 rounds and seeds 0" in said and "street" not in said
    assert "FedAvg has a mean regret of 10.0,\na candidate drawn at random 5.0." in said
    # Runs that were made for this table alone go before the recorded ones.
    made = {"ink": {"fedavg": [0.7, 0.8], "gperxan": [0.8], "fedfd-a": [0.6]}}
    write_json(tmp_path / "regret" / "digits-hindsight.json", made)
    assert "| ink | gPerXAN | 80.0 | gPerXAN | 80.0 | 75.0 | 0.0 | +5.0 |" in script.regret("digits")


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
        return {"largest logit": 0.5, "energy": value - 0.1, script.BOTH: value}

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
    assert "| energy | 60.0 % | 85.0 % | 80.0 % | 70.0 % | 3 |" in script.familiarity("digits")


def test_looks_are_compared_by_sources_alone(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "RECORDS", tmp_path)
    assert "No record yet" in script.look("digits")
    found = [
        {"numbers": "pixels", "distance": "d", "left_out": out, "targets": [target], "auroc": auroc, "flagged": 0.04, "found": 0.5,
         "flagged_changed": {"jpeg": 0.08, "darker": 0.06}}
        for out, target, auroc in (("a", "b", 0.9), ("c", "b", 0.7), ("a", "c", 1.0))
    ]  # fmt: skip
    write_json(tmp_path / "look" / "digits.json", {"images_of_a_domain": 9, "found": found})
    lines = script.look("digits").splitlines()
    assert lines[0].startswith("| numbers | distance | for b | for c | flagged | known |")
    assert lines[2] == "| pixels | d | 80.0 % | 100.0 % | 50.0 % | 4.0 % | 8.0 % | 6.0 % |"
