"""The numbers in the pages are those of the records."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from tests import attempts
from tests.reports.runs import invent
from unseen.core.files import write_json
from unseen.experiments.choose import Candidate, Choice
from unseen.experiments.grid import read_file
from unseen.registry import parse

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


def test_the_readme_says_which_systems_are_not_quite_their_papers() -> None:
    text = " ".join((SCRIPT.parents[1] / "README.md").read_text().split())
    found = re.search(r"The defaults of ([^.]*) differ from their papers", text)
    assert found is not None
    told = set(re.split(r", | and ", found[1]))
    systems = {
        "FedFD": "fedfd",
        "FedFD-A": "fedfd-a",
        "gPerXAN": "gperxan",
        "StableFDG": "stablefdg",
        "FedADG": "fedadg",
    }
    assert told == {name for name, method in systems.items() if parse(method).about.remark}


def test_parts_are_made_of_kept_records(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script.kept, "RECORDS", tmp_path / "records")
    invent(tmp_path / "out", {"fedavg": 0.5, "fedfd-a": 0.6, "stablefdg": 0.45}, targets=("ink", "street"))
    assert script.keep(tmp_path / "out", "digits") == 18
    board = script.leaderboard("digits").splitlines()
    assert board[0].startswith(
        "| method | mean | Δ to FedAvg | wins | p | ink | street | without ink | worst | in-domain |"
    )
    # Scores are score + t/100 + s/1000: fedfd-a has 60.1 and 61.1, so 60.6 over both, and +10 everywhere.
    assert board[2].startswith("| FedFD-A | **60.6 ± 0.1** | +10.0") and "| **60.1** | **61.1** | 61.1 |" in board[2]
    assert "| 6/6 | 0.062 |" in board[2] and board[2].endswith("| 3 |") and board[4].startswith("| StableFDG \\* |")
    words = script.sentences("digits")
    assert "**FedFD-A** has the best mean" in words and "StableFDG is behind FedAvg by 5.0 points" in words
    assert "FedAvg against itself" in words and "seeds 0, 1, 2" in script.runs("digits")
    invent(tmp_path / "others", {"mixup": 0.55}, targets=("ink", "street"))
    script.keep(tmp_path / "others", "digits")
    assert "Mixup" in script.leaderboard("digits") and "Mixup" not in script.leaderboard("digits", "systems")
    assert "18 runs" in script.runs("digits", "systems") and "24 runs" in script.runs("digits")
    assert "results-digits-systems.svg" in script.figure("digits", "systems", draws=False)
    invent(tmp_path / "more", {"gperxan": 0.9}, targets=("ink", "street"), seeds=(0,))
    script.keep(tmp_path / "more", "digits")
    said = script.runs("digits")
    assert "--methods fedavg,fedfd-a,mixup,stablefdg --seeds 0-2 --out digits" in said
    assert "--methods gperxan --seeds 0 --out digits" in said
    alone = next(line for line in script.leaderboard("digits").splitlines() if line.startswith("| gPerXAN"))
    assert "| 90.5 |" in alone and "**" not in alone and alone.endswith("| 1 |"), (
        "a single seed is not ranked among three"
    )
    assert "**FedFD-A** has the best mean" in script.sentences("digits")
    page = "x\n<!-- results: method fedfd-a digits -->\nold\n<!-- end -->\n"
    assert "FedFD-A 60.6 ± 0.1 %, +10.0 to FedAvg (6 of 6 pairs)" in script.generated(page, draws=False)
    invent(tmp_path / "part", {"moon": 0.55}, targets=("ink",), seeds=(0,))
    script.keep(tmp_path / "part", "digits")
    assert "- `digits`, unseen ink only: MOON 55.0 %, +5.0 to FedAvg (1 of 1 pairs)" in script.method("moon", "digits")
    assert not list((tmp_path / "records").rglob("*.safetensors"))


def test_more_rows_do_not_change_what_is_said_of_the_papers_systems(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script.kept, "RECORDS", tmp_path / "records")
    invent(tmp_path / "out", {"fedavg": 0.5, "fedfd-a": 0.6, "stablefdg": 0.45}, targets=("ink", "street"))
    script.keep(tmp_path / "out", "digits")
    before = script.sentences("digits")
    assert "p = 0.062" in before  # 2 / 2**6, twice
    invent(tmp_path / "more", {"moon": 0.55, "rsc": 0.4, "ga": 0.52}, targets=("ink", "street"))
    script.keep(tmp_path / "more", "digits")
    assert script.sentences("digits") == before
    moon = next(line for line in script.leaderboard("digits").splitlines() if line.startswith("| MOON"))
    assert "| 6/6 | 0.094 |" in moon  # one of three others


def test_a_seed_that_is_half_done_changes_nothing(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records come run by run: a table has whole seeds, and what a row gains on some targets is no mean."""
    monkeypatch.setattr(script.kept, "RECORDS", tmp_path / "records")
    invent(
        tmp_path / "out", {"fedavg": 0.5, "fedfd-a": 0.6, "stablefdg": 0.55}, targets=("ink", "street"), seeds=(0, 1)
    )
    script.keep(tmp_path / "out", "digits")
    before = script.leaderboard("digits"), script.sentences("digits")
    assert "Bold: the best of those with 2 seeds or more." in before[0] and "| **60." in before[0]
    invent(tmp_path / "half", {"fedavg": 0.9}, targets=("ink",), seeds=(2,))
    script.keep(tmp_path / "half", "digits")
    assert (script.leaderboard("digits"), script.sentences("digits")) == before
    invent(tmp_path / "some", {"moon": 0.99}, targets=("street",), seeds=(0,))
    script.keep(tmp_path / "some", "digits")
    assert script.leaderboard("digits") == before[0]
    first = script.some("digits", "street").splitlines()[2]
    assert first.startswith("| MOON | +48.0 | 1/1 | 99.0 |") and first.endswith("| 1 |")
    assert "is not shown" in script.figure("digits", draws=False)


@pytest.mark.parametrize(("validation", "shown"), [(0.93, "50.6 ± 0.1 |"), (0.96, "70.6 ± 0.1 (`gentle`) |")])
def test_a_variant_stands_for_a_system_where_the_sources_clearly_prefer_it(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, validation: float, shown: str
) -> None:
    monkeypatch.setattr(script.kept, "RECORDS", tmp_path / "records")
    invent(tmp_path / "out", {"fedavg": 0.4, "gperxan": 0.5})  # whose validation is 0.92
    for run in invent(tmp_path / "out", {"gperxan": 0.7}, fields={"variant": "gentle"}):
        file = run.path / "result.json"
        told = json.loads(file.read_text())
        told["validation_last"]["accuracy"] = validation
        file.write_text(json.dumps(told))
    script.keep(tmp_path / "out", "digits")
    row = next(line for line in script.systems("digits").splitlines() if "gPerXAN" in line)
    assert row.endswith(shown)


def test_regret_is_of_the_recommended_method(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script.kept, "RECORDS", tmp_path)
    assert script.regret("digits") == script.kept.NOTHING
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
    assert "always taking FedAvg: 10.0; of a candidate drawn at random: 5.0." in said
    # Runs that were made for this table alone go before the recorded ones.
    made = {"ink": {"fedavg": [0.7, 0.8], "gperxan": [0.8], "fedfd-a": [0.6]}}
    write_json(tmp_path / "regret" / "digits-hindsight.json", made)
    assert "| ink | gPerXAN | 80.0 | gPerXAN | 80.0 | 75.0 | 0.0 | +5.0 |" in script.regret("digits")


def test_trust_is_told_by_method_with_means_over_its_runs(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script.kept, "RECORDS", tmp_path)
    assert script.trust("digits") == script.familiarity("digits") == script.kept.NOTHING

    def where(coverage: float, error: float) -> dict[str, object]:
        return {
            "coverage": {"0.95": coverage},
            "set_size": {"0.95": 1.5},
            "error_before": error,
            "error_after": error / 2,
        }

    def scores(value: float) -> dict[str, float]:
        return {"largest logit": 0.5, "energy": value - 0.1, "look or largest logit": value}

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
    monkeypatch.setattr(script.kept, "RECORDS", tmp_path)
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


def test_liars_are_told_by_the_budget_with_most_records(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script.kept, "RECORDS", tmp_path)
    assert "No record yet" in script.robust("digits", "3")
    base = {"target": "street", "seed": 0, "rounds": 10, "steps": 45, "backdoor": 0.02, "stopped": "", "commit": "c"}
    cases = [("krum", "none", 0.6), ("fedavg", "none", 0.7), ("fedavg", "scaled", None), ("fedavg", "backdoor", 0.5)]
    for number, (method, attack, accuracy) in enumerate(cases):
        record = {**base, "method": method, "attack": attack, "accuracy": accuracy}
        write_json(tmp_path / "robust" / f"digits-3-{number}.json", record)
    write_json(
        tmp_path / "robust" / "digits-3-few.json", {**base, "rounds": 1, "method": "fedavg", "attack": "sign flip"}
    )
    write_json(
        tmp_path / "robust" / "digits-30-0.json", {**base, "method": "median", "attack": "none", "accuracy": 0.1}
    )
    lines = script.robust("digits", "3").splitlines()
    assert lines[0] == "| method | none | scaled | backdoor | backdoor opens | without one |"
    assert lines[2:4] == ["| fedavg | 70.0 | stopped | 50.0 | 2.0 | 2.0 |", "| krum | 60.0 | - | - | - | 2.0 |"]
    assert "10 rounds of 45 steps" in script.robust("digits", "3") and "median" in script.robust("digits", "30")


def test_attacks_are_summed_over_the_tests_that_play_them(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script.kept, "RECORDS", tmp_path)
    assert "No record yet" in script.attacks()
    tests = {"passed": 1, "failed": 0, "skipped": 1}
    files = {
        "tests/test_a.py": {"commit": "a", "tests": tests, "attempts": {"kill": [1200, 1199]}},
        "tests/test_b.py": {"commit": "b", "tests": tests, "attempts": {"kill": [1, 1], "form": [3, 3]}},
    }
    write_json(tmp_path / "attacks.json", {"kinds": {"form": "lies", "kill": "kills", "disk": "disks"}, "files": files})
    lines = script.attacks().splitlines()
    assert lines[2:4] == [
        "| lies | 3 | 3 | 0 | `test_b.py` |",
        "| kills | 1,201 | 1,200 | 1 | `test_a.py`, `test_b.py` |",
    ]
    assert "2 tests skipped; commits a, b" in lines[5]


def test_commands_of_earlier_sessions_are_kept(script: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    script._keep_about({"commands": ["one"], "labels": {"a": "A"}, "chosen": None}, file)
    script._keep_about({"commands": ["two", "one"], "labels": {"b": "B"}, "chosen": None}, file)
    assert json.loads(file.read_text()) == {"commands": ["one", "two"], "labels": {"a": "A", "b": "B"}, "chosen": None}


def test_an_attempt_is_held_if_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: dict[str, list[int]] = {}
    monkeypatch.setattr(attempts, "COUNTS", counts)
    with attempts.attempt("slow", 130):
        pass
    with pytest.raises(ZeroDivisionError), attempts.attempt("slow"):
        raise ZeroDivisionError
    assert counts == {"slow": [131, 130]}


def test_times_are_told_against_the_first_engine(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script.kept, "RECORDS", tmp_path)
    assert "No record yet" in script.flower("flower") and "No record yet" in script.overhead()
    rows = [{"engine": "local", "first": 3.0, "seconds": 0.25}, {"engine": "deployment", "first": 20.4, "seconds": 1.0}]
    about = {"commit": "c", "rounds": 5, "megabytes": 9.0, "cores": 2, "load": 1.25}
    write_json(tmp_path / "speed" / "flower.json", {**about, "rows": rows})
    assert "| deployment | 1.00 | 0.75 s | 20 s |" in script.flower("flower")
    assert "load 1.2 before" in script.flower("flower")
    row = {"clients": 3, "steps": 45, "pairs": 6, "seconds": 2.0, "ratio": 1.004}
    write_json(
        tmp_path / "speed" / "checks.json",
        {"commit": "c", "rows": [{**row, "way": "fedavg"}, {**row, "way": "krum", "ratio": 1.02}]},
    )
    said = script.overhead()
    assert "| checks and audit log, against none | 1.004x |" in said and "| `krum`, against FedAvg | 1.020x |" in said


def test_tables_of_speed_are_made_of_records(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script.kept, "RECORDS", tmp_path)
    assert script.speed() == script.clients() == script.cost("convnet") == script.kept.NOTHING
    about = {"command": "python x.py --keep", "commit": "abc1234", "cpu": "Chip", "cores": 2}

    def kept(name: str, load: float, **found: object) -> None:
        write_json(tmp_path / "speed" / f"{name}.json", {**about, "load": load, **found})

    net = {"backbone": "convnet", "image_size": 32}
    kept("overhead-convnet", 1.5, **net, pairs=12, steps=20, batch_size=32, clients=3, ratio=1.02, low=1.01, high=1.04)
    kept("allocator", 3.0, backbone="resnet18", image_size=112, default=0.6, kept=0.4)
    nets = {"convnet": {"image_size": 32, "native": 0.02, "avx2": 0.03, "bfloat16": 0.01},
            "resnet18": {"image_size": 112, "native": 1.0, "avx2": 1.2}}  # fmt: skip
    kept("kernels", 2.0, nets=nets)
    said = script.speed()
    assert "1.50x (convnet at 32 px), 1.20x (resnet18 at 112 px)" in said and "| 0.50x (convnet at 32 px) |" in said
    assert (
        "| 1.02x, half of 12 pairs of rounds from 1.01 to 1.04 (convnet at 32 px; 3 clients x 20 steps of 32) |" in said
    )
    assert "1.50x faster (resnet18 at 112 px, batch 32)" in said and "`python x.py --keep`" in said
    assert said.endswith("Chip, 2 cores; load 1.5 to 3 meanwhile; commits abc1234.\n")

    one = {"10": {"peak": 300.0, "seconds": 0.02}, "100000": {"peak": 330.0, "seconds": 0.021}}
    kept("clients", 1.0, rounds=20, selected=10, methods={"fedbn": one})
    assert "| FedBN | 300 MB (1.00x) | 330 MB (1.10x) | 20.0 ms (1.00x) | 21.0 ms (1.05x) |" in script.clients()

    row = {"parameters": 1234, "step_seconds": 0.02, "inference_seconds": 0.005, "step_ratio": 1.0,
           "inference_ratio": 1.25, "bytes_up": 2e6, "bytes_down": 2e6, "bytes_up_statistics": 0, "passes": 1.0}  # fmt: skip
    rows = [{"method": "fedavg", **row}, {"method": "fedfd", **row, "step_ratio": 2.1, "passes": 2.0}]
    rows.append({"method": "fedbn+ga", **row, "passes": None})
    budget = {**net, "batch_size": 32, "steps": 3, "repeats": 5}
    kept("cost-convnet", 1.0, settings=budget, left_out=["No tokens."], methods=rows)
    said = " ".join(script.cost("convnet").split())
    assert "| FedFD | 1,234 | 2.10x | 2 | 1.05 | 1.25x | 2.00 MB | 0 | 2.00 MB |" in said
    assert "| FedBN+GA | 1,234 | 1.00x | - | - |" in said  # what a composition should cost is not known
    assert "Left out: No tokens." in said and "FedAvg's step takes 20.0 ms" in said


def test_an_ablation_is_judged_by_the_interval_and_the_papers_direction(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script.kept, "RECORDS", tmp_path)
    assert script.ablations("digits") == script.kept.NOTHING
    place = tmp_path / "ablations" / "digits"
    invent(place, {"fedfd": 0.8, "fedfd-a": 0.7, "silobn": 0.7})
    invent(place, {"fedfd": 0.75}, fields={"u": [0.5, 0.5]})
    invent(place, {"fedadg": 0.6}, fields={"variant": "paper", "generator_lr": 0.007, "discriminator_lr": 0.007})
    found = script.ablations("digits").splitlines()
    assert (
        "| FedFD-A Table 2 | FedFD (u ~ U(0, 1)) | FedFD (u = 0.5) | +0.6 | +5.0 | +5.0 to +5.0 | 6/6 | agrees |"
        in found
    )
    assert "| FedFD-A Table 3 | FedFD | SiloBN | +3.3 | +10.0 | +10.0 to +10.0 | 6/6 | agrees |" in found
    assert "| FedFD-A Table 3 | FedFD-A | FedFD | +1.5 | -10.0 | -10.0 to -10.0 | 0/6 | **disagrees** |" in found
    assert len([line for line in found if line.startswith("|")]) == 2 + 3, "what was not run has no row"


def test_what_the_flagship_table_has_is_taken_from_there(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script.kept, "RECORDS", tmp_path)
    invent(tmp_path / "digits", {"fedfd": 0.8, "fedavg": 0.5}, targets=("ink", "street", "outline"))
    invent(tmp_path / "ablations" / "digits", {"fedfd": 0.75}, targets=("ink", "street"), fields={"u": [0.5, 0.5]})
    found = script.ablations("digits")
    assert "| FedFD (u ~ U(0, 1)) | FedFD (u = 0.5) | +0.6 | +5.0 | +5.0 to +5.0 | 6/6 | agrees |" in found
    assert "unseen ink, street, seeds 0, 1, 2" in " ".join(found.split()), "only the ablations' targets"


def test_every_claim_of_an_ablation_is_in_the_file_that_runs_it(script: ModuleType) -> None:
    claims = sys.modules["tables.ablations"].CLAIMS
    listed = read_file(SCRIPT.parent / "paper" / "small-ablations.toml")["methods"]
    runs = [(one, {}) if isinstance(one, str) else (one["name"], one["set"]) for one in listed]
    for _, proposal, others in claims:
        assert all((one.method, one.fields) in runs for one in (proposal, *others))


def test_the_plan_counts_the_runs_that_its_script_asks_for(script: ModuleType) -> None:
    """plan.sh and the table of docs/runs.md name the same methods."""
    steps = importlib.import_module("tables.plan").STEPS
    said = (script.kept.TOP / "benchmarks" / "plan.sh").read_text()
    others = said.partition('others="')[2].partition('"')[0].split()
    assert len(set(others)) == len(others) and steps[2].wanted == 4 * len(others)
    for number, name, runs in ((7, "small-variants", 4 * 2), (10, "small-ablations", 2 * 3)):
        found = tomllib.loads((script.kept.TOP / "benchmarks" / "paper" / f"{name}.toml").read_text())
        assert steps[number - 1].wanted == runs * len(found["methods"])
    assert all(f"    {number}) " in said for number in range(1, len(steps) + 1))
