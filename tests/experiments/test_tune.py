"""`unseen tune`: the same small search for every method, by source images only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from unseen.core.errors import UserError
from unseen.core.files import write_json
from unseen.experiments import tune as tuning
from unseen.experiments.collect import collect
from unseen.experiments.grid import begin, plan_bench
from unseen.experiments.sweep import Job
from unseen.experiments.tune import Choices, Trial, trials_of, tune
from unseen.registry import parse, registered
from unseen.runs.planning import Experiment
from unseen.runs.results import RoundLine, RunResult, Validation


def finish(job: Job, validation: float, unseen: float, remark: str = "") -> None:
    """A finished run with these numbers."""
    s = job.settings
    job.directory.append(RoundLine(1, 1.0, validation=Validation(1, validation)))
    record = RunResult(s.method, s.data.name, s.target, s.seed, s.protocol, unseen, validation, 1, s.plan.rounds, "x")
    write_json(job.directory.path / "result.json", {**record.to_json(), "remark": remark})
    job.directory.model_path.touch()
    job.status = "finished"


@pytest.fixture
def swept(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Runs are not trained: fedprox likes a small mu, fedavg its own rate; the unseen domain would say the opposite."""
    jobs: list[Job] = []

    def sweep(todo: Sequence[Job], *_: Any, **__: Any) -> None:
        for job in todo:
            if job.result is None:
                jobs.append(job)
                mu = job.settings.fields.get("mu", 0.1)
                score = 1 - mu if job.settings.method == "fedprox" else 0.5
                finish(job, score, 1 - score)

    monkeypatch.setattr(tuning, "sweep", sweep)
    return jobs


def test_it_chooses_by_source_validation_and_never_measures_the_target(tmp_path: Path, swept: list[Job]) -> None:
    experiment = Experiment.of({"data": "digits", "rounds": 9})
    choices = tune(experiment, ["fedavg", "fedprox"], ["street"], tmp_path, trials=5)
    assert choices.of("fedavg", "street") == Trial()  # all its trials score the same: a draw must be better
    chosen = choices.of("fedprox", "street")
    drawn = [trial.fields["mu"] for trial in trials_of(parse("fedprox"), 5)[1:]]
    assert chosen is not None and chosen.fields["mu"] == min(drawn) and chosen.lr_factor == 1
    assert {job.settings.seed for job in swept} == {tuning.SEED}
    assert {job.settings.plan.test_every for job in swept} == {0}
    first = [job for job in swept if job.settings.plan.rounds == 3]
    whole = [job for job in swept if job.settings.plan.rounds == 9]
    assert (len(first), len(whole)) == (10, 6), (
        "five trials each; the better half of them, the default among it, goes on"
    )
    rates = {job.settings.plan.optimizer.lr for job in first if job.settings.method == "fedavg"}
    assert len(rates) == 5, "fedavg has as many trials over its learning rate"
    again = Choices.read(tmp_path / "choices.json")
    assert again.chosen == choices.chosen and again.about["trials"] == 5


def test_trials_are_the_same_for_everyone_and_within_their_ranges() -> None:
    for name, kind in registered().items():
        assert len(kind.ranges) <= 2, f"{name}: at most two fields are searched"
        assert set(kind.ranges) <= set(kind.__dataclass_fields__), name
        trials = trials_of(parse(name), 5)
        assert trials[0] == Trial() and len(trials) == 5 and trials == trials_of(parse(name), 5)
        for trial in trials[1:]:
            parse(name, trial.fields)  # a value that the method takes
            assert all(kind.ranges[f].low <= v <= kind.ranges[f].high for f, v in trial.fields.items())
            assert bool(trial.fields) != (trial.lr_factor != 1)


def test_chosen_stands_beside_default_in_one_table(tmp_path: Path) -> None:
    trial = Trial({"mu": 0.02})
    choices = Choices({}, [
        tuning.Choice("fedprox", "street", trial), tuning.Choice("fedprox", "ink", Trial()),
        tuning.Choice("fedavg", "street", Trial(lr_factor=0.5)), tuning.Choice("fedavg", "ink", Trial()),
    ])  # fmt: skip
    choices.write(tmp_path / "choices.json")
    given = {"data": "digits", "methods": "fedavg,fedprox", "targets": "street,ink", "tuned": tmp_path / "choices.json"}
    plan = plan_bench(given)
    assert len(plan.runs) == 6, "four defaults, and two that were chosen otherwise"
    jobs = begin(plan, tmp_path / "out")
    for place, job in enumerate(jobs):
        finish(job, 0.5, 0.5 + place / 100)
    (group,) = collect(tmp_path / "out").groups  # another learning rate is no other table
    rows = {row.label: row for row in group.rows}
    assert set(rows) == {"fedavg", "fedavg, chosen", "fedprox", "fedprox, chosen"}
    assert set(rows["fedprox, chosen"].results) == {("street", 0), ("ink", 0)}
    assert rows["fedprox, chosen"].results["ink", 0] == rows["fedprox"].results["ink", 0]
    assert rows["fedprox, chosen"].results["street", 0] != rows["fedprox"].results["street", 0]


def test_chosen_defaults_of_a_method_with_a_remark(tmp_path: Path) -> None:
    """The remark is a part of the label, so the label alone does not say which row is the default."""
    choices = Choices(
        {}, [tuning.Choice("fedfd", "street", Trial({"lambda1": 0.2})), tuning.Choice("fedfd", "ink", Trial())]
    )
    choices.write(tmp_path / "choices.json")
    plan = plan_bench(
        {"data": "digits", "methods": "fedfd", "targets": "street,ink", "tuned": tmp_path / "choices.json"}
    )
    remark = plan.runs[0].method.about.remark
    for place, job in enumerate(begin(plan, tmp_path / "out")):
        finish(job, 0.5, 0.5 + place / 100, remark=remark)
    (group,) = collect(tmp_path / "out").groups
    default, chosen = group.rows
    assert [row.is_default for row in group.rows] == [True, False] and chosen.chosen
    assert default.label == f"fedfd ({remark})" and chosen.label == f"fedfd, chosen ({remark})"
    assert set(chosen.results) == {("street", 0), ("ink", 0)}
    assert chosen.results["ink", 0] == default.results["ink", 0]


def test_bad_words(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--trials"):
        tune(Experiment.of({"data": "digits"}), ["fedavg"], ["ink"], tmp_path, trials=0)
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(UserError, match="not a file of `unseen tune`"):
        Choices.read(tmp_path / "a.json")
