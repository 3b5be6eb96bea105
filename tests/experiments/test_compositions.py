"""benchmarks/compose.py: compositions chosen by sources that were left out, never by the unseen domain."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from types import ModuleType

import pytest

from tests.experiments.test_results_docs import script as script  # a fixture
from tests.reports.runs import invent
from unseen.core.errors import UserError
from unseen.experiments.grid import plan_bench
from unseen.registry import registered

FOLDER = Path(__file__).parents[2] / "benchmarks"
DOMAINS = ("ink", "street", "colour", "outline")


@pytest.fixture
def compose(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location("unseen_compose", FOLDER / "compose.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(__import__("sys").modules, "unseen_compose", module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def one_line(text: str) -> str:
    """Paragraphs without their line ends."""
    return " ".join(text.split())


class Runs(dict):  # type: ignore[type-arg]
    """All runs that were ever wanted, as if each were carried out when it is."""

    def __init__(self, worth: Mapping[str, float]) -> None:
        super().__init__()
        self.worth = worth

    def carry_out(self, name: str, pair: frozenset[str]) -> None:
        value = sum(self.worth[part] for part in name.split("+"))
        # A part that is called after a domain is wonderful there, and nowhere else.
        self[name, pair] = {domain: 1.0 if domain in name else value for domain in pair}


def chosen(compose: ModuleType, target: str, runs: Runs, singles: list[str], **widths: object):  # type: ignore[no-untyped-def]
    while True:
        found = compose.search(target, DOMAINS, singles, runs, compose.Widths(**widths))
        if not found.wanted:
            return found
        for name, pair in found.wanted:
            assert target in pair
            runs.carry_out(name, pair)


def test_every_pair_of_domains_comes_once_and_the_first_ones_serve_all(compose: ModuleType) -> None:
    found = compose.meetings(DOMAINS)
    assert sorted(map(sorted, found)) == sorted(map(sorted, map(set, combinations(DOMAINS, 2))))
    for place in (0, 2, 4):
        assert found[place] | found[place + 1] == set(DOMAINS)


def test_the_best_of_three_parts_that_compose_is_found(compose: ModuleType) -> None:
    # rsc and mixup both own the loss; the others go together.
    worth = {"fedavg": 0.2, "fedprox": 0.21, "mixstyle": 0.24, "swad": 0.23, "rsc": 0.25, "mixup": 0.22, "ga": 0.1}
    runs = Runs(worth)
    found = chosen(compose, "ink", runs, list(worth), kept=(5, 3, 2), stems=2, partners=3)
    assert [name for name, _ in found.ranked[1]] == ["rsc", "mixstyle", "swad", "mixup", "fedprox", "fedavg"]
    assert found.best[0] == "mixstyle+swad+rsc" and found.best[1] == pytest.approx(0.72)
    assert not any({"rsc", "mixup"} <= set(name.split("+")) for name, _ in runs)
    met = {pair for name, pair in runs if name == "ga"}
    assert len(met) == 1  # it was worst with the first source left out, and met no other
    assert len({pair for name, pair in runs if name == "fedavg"}) == 3  # what all are compared with meets all
    # All; rsc and mixstyle with three each, once where they meet; both best pairs have the same best third parts.
    assert found.looked == 7 + 5 + len({name for name, _ in runs if name.count("+") == 2})


def test_a_partner_that_clashes_takes_no_place(compose: ModuleType) -> None:
    """Where the best methods all own the loss, the best one still meets parts that go with it."""
    worth = {"fedavg": 0.2, "rsc": 0.5, "mixup": 0.49, "fedsr": 0.48, "selfreg": 0.47, "swad": 0.1, "mixstyle": 0.05}
    runs = Runs(worth)
    found = chosen(compose, "ink", runs, list(worth), kept=(4, 2, 1), stems=1, partners=2)
    assert [name for name, _ in found.ranked[2]] == ["rsc+swad", "rsc+mixstyle"]
    assert found.best[0] == "rsc+swad+mixstyle"
    assert list(compose.grown(["gperxan"], ["guide", "swad"], ["gperxan", "guide", "swad"], 2)) == ["gperxan+swad"]


def test_all_methods_are_all_but_those_that_are_left_out_with_a_reason(compose: ModuleType) -> None:
    out = {name for names in compose.LEFT_OUT.values() for name in names}
    every = compose.every_method()
    assert every[0] == "fedavg" and len(set(every)) == len(every)
    assert set(every) | out == set(registered()) and not set(every) & out
    assert set(compose.METHODS) <= set(every)


def test_accuracy_on_the_unseen_domain_is_never_read(compose: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that is perfect on the target and poor elsewhere is not chosen for it, but for the other domains."""
    import unseen.registry

    known = unseen.registry.registered()
    monkeypatch.setattr(compose, "parse", lambda name: known.get(name))
    worth = {"fedavg": 0.5, "for-ink": 0.1, "good": 0.6}
    runs = Runs(worth)
    widths = {"kept": (3, 1, 1), "stems": 1, "partners": 1}
    assert chosen(compose, "ink", runs, list(worth), **widths).ranked[1][0] == ("good", pytest.approx(0.6))
    street = dict(chosen(compose, "street", runs, list(worth), **widths).ranked[1])
    assert street["for-ink"] == pytest.approx((1.0 + 0.1 + 0.1) / 3)


def test_one_that_failed_is_out(compose: ModuleType) -> None:
    worth = {"fedavg": 0.2, "mixstyle": 0.3, "swad": 0.4}
    runs = Runs(worth)
    runs["swad", frozenset({"ink", "colour"})] = None
    found = chosen(compose, "ink", runs, list(worth), kept=(3, 2, 2), stems=2, partners=2)
    assert [name for name, _ in found.ranked[1]] == ["mixstyle", "fedavg"] and found.best[0] == "mixstyle"


def test_a_search_that_was_stopped_goes_on_from_its_record(
    compose: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    worth = {"fedavg": 0.2, "mixstyle": 0.3, "swad": 0.4}
    done: list[str] = []

    class Trials:
        domains = list(DOMAINS)

        def __init__(self, *_: object) -> None: ...

        def job(self, method: str, pair: frozenset[str]) -> None:
            if len(done) == 7:
                raise KeyboardInterrupt
            done.append(f"{method} {sorted(pair)}")

        def outcome(self, method: str, pair: frozenset[str], job: None) -> dict[str, object]:
            told = dict.fromkeys(sorted(pair), sum(worth[part] for part in method.split("+")))
            fails = method == "swad" and "before" not in done
            return {"method": method, "without": sorted(pair), "accuracy": None if fails else told, "why": "broke"}

    monkeypatch.setattr(compose, "Trials", Trials)
    monkeypatch.setattr(compose, "sweep", lambda *_, **__: None)
    words = ["digits", "--work", str(tmp_path), "--records", str(tmp_path), "--methods", ",".join(worth)]
    monkeypatch.setattr("sys.argv", ["compose.py", *words])
    with pytest.raises(KeyboardInterrupt):
        compose.main()
    kept = json.loads((tmp_path / "digits.json").read_text())
    assert len(kept["runs"]) == 7 and not any(found["finished"] for found in kept["found"])
    good = [run for run in kept["runs"] if run["accuracy"]]
    assert len(good) == 5 and "swad, without ink and street: failed: broke" in capsys.readouterr().out
    done.clear()
    done.extend(["before"] * 8)  # the limit above does not hold any more, and nothing breaks
    monkeypatch.setattr("sys.argv", ["compose.py", *words, "--again"])
    compose.main()
    whole = json.loads((tmp_path / "digits.json").read_text())
    assert whole["runs"][:5] == good and all(found["finished"] for found in whole["found"])
    # Three methods and one pair, each without every pair of domains: a run serves two targets.
    assert len(whole["runs"]) == 4 * 6 and len(set(done)) == len(whole["runs"]) - 5 + 1
    assert capsys.readouterr().out.count("mixstyle+swad, 70.0 % on left-out sources") == 4
    for other in (["--rounds", "9"], ["--image-size", "16"], ["--weights", "net.safetensors"]):
        monkeypatch.setattr("sys.argv", ["compose.py", *words, *other])
        with pytest.raises(UserError, match="move it away"):
            compose.main()


def test_the_choices_are_trained_with_the_fields_of_the_search(
    compose: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--final` plans each target's choice on the real protocol, with what the record says of its parts."""
    ranked = {"1": [["gperxan", 0.7]], "2": [["scaffold+gperxan", 0.8], ["mixstyle+swad", 0.6]]}
    found = [{"target": "ink", "finished": True, "looked": 3, "ranked": ranked},
             {"target": "street", "finished": True, "looked": 3, "ranked": {"1": [["swad", 0.9]]}}]  # fmt: skip
    value = {"about": {"fields": {"gperxan.variant": "gentle"}}, "found": found, "runs": []}
    (tmp_path / "digits.json").write_text(json.dumps(value))
    planned: list[tuple[str, str, object]] = []

    def bench(**words: object) -> None:
        kept = {name: words[name] for name in ("data", "root", "protocol", "weights", "methods", "targets", "seeds")}
        for run in plan_bench(kept).runs:
            planned.append((run.settings.method, run.settings.target, dict(run.settings.fields)))

    monkeypatch.setattr(compose.unseen, "bench", bench)
    words = ["compose.py", "digits", "--work", str(tmp_path), "--records", str(tmp_path), "--final", "--seeds", "0"]
    monkeypatch.setattr("sys.argv", words)
    compose.main()
    assert planned == [("scaffold+gperxan", "ink", {"gperxan.variant": "gentle"}), ("swad", "street", {})]
    monkeypatch.setattr("sys.argv", [*words, "--set", "gperxan.variant=paper"])
    with pytest.raises(UserError, match="leave --set out"):
        compose.main()


@pytest.mark.parametrize("word", ["variant=gentle", "gperxn.variant=gentle", "gperxan.variant", "gperxan.variant=wild"])
def test_a_field_that_no_part_has_is_refused(compose: ModuleType, word: str) -> None:
    with pytest.raises(UserError):
        compose.read_fields([word], ["fedavg", "gperxan"])
    assert compose.read_fields(["gperxan.variant=gentle"], ["gperxan"]) == {"gperxan.variant": "gentle"}


def test_the_table_says_what_was_searched_and_what_was_found(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script.kept, "RECORDS", tmp_path / "records")
    assert script.compose("digits").startswith("No search")
    invent(tmp_path / "out", {"fedavg": 0.5, "fedfd": 0.6}, targets=("ink", "street"))
    script.keep(tmp_path / "out", "digits")
    run = {
        "method": "swad",
        "without": ["ink", "street"],
        "accuracy": {"ink": 0.5, "street": 0.5},
        "seconds": 90.0,
        "why": "",
    }
    ranked = {"1": [["mixstyle", 0.7], ["fedavg", 0.5]], "2": [["mixstyle+swad", 0.75]]}
    value = {
        "version": 1,
        "about": {
            "data": "digits",
            "rounds": 8,
            "seed": 0,
            "methods": ["fedavg", "mixstyle", "swad"],
            "widths": {"kept": [6, 3, 2], "stems": 3, "partners": 4},
            "left_out": {"they need a vision transformer": ["fedins"]},
        },
        "found": [{"target": t, "finished": t == "ink", "looked": 4, "ranked": ranked} for t in ("ink", "street")],
        "runs": [run, {**run, "method": "mixstyle+swad"}, {**run, "accuracy": None}],
    }
    (tmp_path / "records" / "compose").mkdir()
    (tmp_path / "records" / "compose" / "digits.json").write_text(json.dumps(value))
    text = one_line(script.compose("digits"))
    assert "| ink | mixstyle 70.0 | **mixstyle+swad 75.0** | - | 50.0 | 4 |" in text
    assert "1 methods, 1 pairs and 0 of three parts were tried, in 2 runs of 8 rounds each, seed 0, 3 minutes" in text
    assert "1 runs failed." in text and "**The search is not finished.**" in text
    assert (
        "Methods: fedavg, mixstyle, swad." in text
        and "best 6 methods, 3 pairs and 2 of three parts meet the others" in text
    )
    assert "because they need a vision transformer: fedins." in text
    wanted = text.partition("for want of time: ")[2]
    assert "rsc" in wanted and "fedins" not in wanted.partition(".")[0] and "mixstyle" not in wanted.partition(".")[0]
    assert "have not been trained" in text
    invent(tmp_path / "final", {"mixstyle+swad": 0.65}, targets=("ink", "street"))
    script.keep(tmp_path / "final", "compose/digits")
    text = one_line(script.compose("digits"))
    # Scores are score + t/100 + s/1000: 65.0, 65.1 and 65.2, whose interval is 4.303 * 0.1 / sqrt(3) wide each way.
    assert "| ink | mixstyle+swad | 65.1 ± 0.2 | 50.1 ± 0.2 | 60.1 ± 0.2 |" in text
    assert "- against FedAvg: +15.0 points" in text and "ahead in 6 of 6 pairs" in text
    assert "beats every system of the four papers" in text


def test_only_runs_under_the_same_protocol_stand_beside_a_composition(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script.kept, "RECORDS", tmp_path / "records")
    invent(tmp_path / "out", {"fedavg": 0.5, "fedfd": 0.7}, targets=("ink",))
    script.keep(tmp_path / "out", "digits")
    invent(tmp_path / "final", {"swad": 0.65}, targets=("ink",))
    script.keep(tmp_path / "final", "compose/digits")
    value = {
        "about": {"data": "digits", "rounds": 8, "seed": 0, "methods": ["fedavg", "swad"]},
        "found": [{"target": "ink", "finished": True, "looked": 2, "ranked": {"1": [["swad", 0.7], ["fedavg", 0.5]]}}],
        "runs": [],
    }
    (tmp_path / "records" / "compose" / "digits.json").write_text(json.dumps(value))
    text = one_line(script.compose("digits"))
    assert "| ink | swad | 65.1 ± 0.2 | 50.1 ± 0.2 | 70.1 ± 0.2 |" in text
    assert "does not beat all of the papers' systems: it is not ahead of FedFD" in text
    for run in (tmp_path / "records" / "compose" / "digits").glob("*/config.json"):
        told = json.loads(run.read_text())
        run.write_text(json.dumps(told | {"protocol": "pacs-quick"}))
    text = one_line(script.compose("digits"))
    assert "| ink | swad | 65.1 ± 0.2 |" in text and "FedFD" not in text
    assert "under the same protocol yet" in text


def test_a_part_has_its_field_wherever_it_stands(compose: ModuleType) -> None:
    fields = {"gperxan.variant": "gentle"}
    pair = compose.parse("mixstyle+gperxan", compose.own_fields("mixstyle+gperxan", fields))
    assert [part.variant for part in pair.parts if part.name == "gperxan"] == ["gentle"]
    assert compose.own_fields("gperxan", fields) == fields
    assert compose.own_fields("mixstyle", fields) == {} == compose.own_fields("gperxan", None)


def test_a_search_with_other_fields_is_another_search(compose: ModuleType, tmp_path: Path) -> None:
    about = {"data": "digits", **dict.fromkeys(compose.BUDGET), "fields": None}
    record = compose.Record.open(tmp_path / "digits.json", about)
    record.write([])
    with pytest.raises(UserError, match="go on with the same words"):
        compose.Record.open(record.path, about | {"fields": {"gperxan.variant": "gentle"}})
