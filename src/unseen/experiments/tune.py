"""A small search for each method, the same for all, that looks at source images only.

A trial is a method with some of its settings changed: the default, and a few random draws from the ranges that stand
with a method (`Method.ranges`); a method without ranges, FedAvg among them, draws its learning rate. Trials are runs
like any other, on a seed of their own, with one domain left out as the target, which is never measured: the score is the
accuracy of the selected model on the *sources'* validation images. Trials first run a third of the rounds; the better
half then runs all of them.

Each target has its own search, because its sources are other images. What was chosen is a file (`Choices`) that
`unseen bench --tuned FILE` reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from unseen.core.errors import UserError
from unseen.core.files import read_json, write_json
from unseen.core.seeding import numpy_generator
from unseen.core.shown import Row, Shown
from unseen.experiments.sweep import Job, Watching, make_jobs, sweep
from unseen.method import Method, Range, name_of, parts_of
from unseen.runs.planning import Experiment, read_method, spell_method
from unseen.runs.run import PlannedRun

VERSION = 1
SEED = 1000  # no table has runs of this seed
RATES = Range(0.1, 10.0)  # of the protocol's learning rate
FIRST = 3  # the first pass has a third of the rounds
SHOWN = 4  # digits of a drawn number


@dataclass(frozen=True)
class Trial:
    """A method with some settings changed: fields of the method, and the learning rate as a multiple."""

    fields: dict[str, Any] = field(default_factory=dict)
    lr_factor: float = 1.0

    @property
    def label(self) -> str:
        words = [
            f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
            for name, value in self.fields.items()
        ]
        return ", ".join([*words, *([f"lr x {self.lr_factor:g}"] if self.lr_factor != 1 else [])]) or "default"


@dataclass(frozen=True)
class Scored:
    """A trial and what the sources' validation images said of it."""

    trial: Trial
    score: float | None  # accuracy of the selected model; None: it failed
    rounds: int


@dataclass(frozen=True)
class Choice:
    """What was chosen for a method and a target."""

    method: str
    target: str
    trial: Trial
    scores: list[Scored] = field(default_factory=list)


@dataclass(repr=False)
class Choices(Shown):
    """All that was chosen for one experiment: the file that `bench --tuned` reads."""

    about: dict[str, Any]
    chosen: list[Choice]

    def of(self, method: str, target: str) -> Trial | None:
        return next((c.trial for c in self.chosen if (c.method, c.target) == (method, target)), None)

    def lines(self) -> list[str]:
        about = self.about
        first = f"chosen by source validation on {about.get('data', '-')}, {about.get('trials', '-')} trials each"
        return [first, *(f"{one.method}, unseen {one.target}: {one.trial.label}" for one in self.chosen)]

    def rows(self) -> list[Row]:
        """A row per trial. Scores are the sources' validation accuracy, as fractions."""
        return [
            {
                "method": one.method,
                "target": one.target,
                "trial": scored.trial.label,
                "rounds": scored.rounds,
                "validation": scored.score,
                "chosen": scored.trial == one.trial,
            }
            for one in self.chosen
            for scored in one.scores
        ]

    def draw(self, axes: Any) -> None:
        """Every trial that ran all rounds, by method; what was chosen is filled."""
        names = list(dict.fromkeys(one.method for one in self.chosen))
        longest = max((row["rounds"] for row in self.rows()), default=0)
        for row in self.rows():
            if row["validation"] is not None and row["rounds"] == longest:
                face = "#c2410c" if row["chosen"] else "none"
                axes.plot([100 * row["validation"]], [names.index(row["method"])], "o", mec="#c2410c", mfc=face)
        axes.set_yticks(range(len(names)), names)
        axes.set(xlabel="accuracy on the sources' validation images (%)", title="trials; filled: chosen")

    def write(self, path: Path) -> None:
        write_json(
            path, {"version": VERSION, "about": self.about, "chosen": [asdict(choice) for choice in self.chosen]}
        )

    @classmethod
    def read(cls, path: Path) -> Choices:
        value = read_json(path)
        try:
            chosen = [
                Choice(
                    one["method"],
                    one["target"],
                    Trial(**one["trial"]),
                    [Scored(Trial(**s["trial"]), s["score"], s["rounds"]) for s in one["scores"]],
                )
                for one in value["chosen"]
            ]
            return cls(value["about"], chosen)
        except (KeyError, TypeError) as error:
            raise UserError(f"{path} is not a file of `unseen tune` ({error}).") from None


def trials_of(method: Method, count: int) -> list[Trial]:
    """The default and `count - 1` draws. The same for the same method: they do not depend on data or target."""
    ranges = {
        (name if len(parts_of(method)) == 1 else f"{part.name}.{name}"): own
        for part in parts_of(method)
        for name, own in part.ranges.items()
    }
    dice = numpy_generator(SEED, client=name_of(method), purpose="tune")
    trials = [Trial()]
    for _ in range(count - 1):
        if ranges:
            trials.append(Trial({name: _short(one.at(dice.random())) for name, one in ranges.items()}))
        else:
            trials.append(Trial(lr_factor=_short(RATES.at(dice.random()))))
    return trials


def _short(value: float) -> float:
    """A number that a person can read and type: four digits are more than a search of a few trials can tell apart."""
    return float(f"{value:.{SHOWN}g}")


def as_chosen(run: PlannedRun, trial: Trial) -> PlannedRun:
    """A run with a trial's settings, which remembers what they were before."""
    settings, before = run.settings, {}
    if trial.lr_factor != 1:
        before = {"lr": settings.plan.optimizer.lr}
        settings = settings.with_changes({"lr": settings.plan.optimizer.lr * trial.lr_factor})
    method = read_method(settings.method, {**settings.fields, **trial.fields})
    _, fields = spell_method(method)
    return PlannedRun(replace(settings, fields=fields, chosen_from=before), method, run.index)


def score_of(job: Job) -> float | None:
    """The sources' validation accuracy of the selected round: nothing of the target."""
    result = job.result
    if result is None:
        return None
    measured = [line.validation for line in job.directory.rounds()] + [result.validation_last]
    found = [v.accuracy for v in measured if v is not None and v.accuracy is not None]
    return max(found, default=None)


def tune(
    experiment: Experiment,
    methods: Sequence[str],
    targets: Sequence[str],
    out: Path,
    *,
    trials: int = 5,
    workers: int = 1,
    watching: Watching | None = None,
    said: Callable[[str], None] = lambda sentence: None,
) -> Choices:
    """Choose for each method and target; goes on where it was stopped. `out` has the runs, and at the end choices.json."""
    if trials < 1:
        raise UserError(f"--trials must be at least 1, not {trials}.")
    rounds = experiment.settings.plan.rounds
    short = Experiment(
        experiment.protocol,
        # Nothing of the target is measured, not even for a curve.
        experiment.settings.with_changes({"rounds": max(1, rounds // FIRST), "test_every": 0}),
        experiment.index,
    )
    whole = Experiment(experiment.protocol, experiment.settings.with_changes({"test_every": 0}), experiment.index)
    pairs = [(method, target) for target in targets for method in methods]
    every = {method: trials_of(read_method(method), trials) for method in methods}
    first = _scores(short, {pair: every[pair[0]] for pair in pairs}, out, workers, watching)
    kept = {pair: _better_half(scored) for pair, scored in first.items()}
    saved = sum(len(every[pair[0]]) - len(kept[pair]) for pair in pairs)
    said(f"{saved} of {sum(len(every[m]) for m, _ in pairs)} trials were stopped after a third of the rounds")
    last = _scores(whole, kept, out, workers, watching)
    chosen = [
        Choice(method, target, _best(last[method, target]).trial, [*last[method, target], *first[method, target]])
        for method, target in pairs
    ]
    about = {
        "data": experiment.settings.data.name,
        "protocol": experiment.settings.protocol,
        "seed": SEED,
        "trials": trials,
    }
    choices = Choices(about, chosen)
    choices.write(out / "choices.json")
    return choices


def _scores(
    experiment: Experiment,
    trials: Mapping[tuple[str, str], Sequence[Trial]],
    out: Path,
    workers: int,
    watching: Watching | None,
) -> dict[tuple[str, str], list[Scored]]:
    places = [(pair, trial) for pair, some in trials.items() for trial in some]
    runs = [as_chosen(experiment.run(read_method(name), target, SEED), trial) for (name, target), trial in places]
    jobs = make_jobs([run.settings for run in runs], out)
    sweep(jobs, workers, watching or _Silent())
    found: dict[tuple[str, str], list[Scored]] = {pair: [] for pair in trials}
    for (pair, trial), job in zip(places, jobs, strict=True):
        found[pair].append(Scored(trial, score_of(job), experiment.settings.plan.rounds))
    return found


def _order(scored: Scored) -> float:
    return math.inf if scored.score is None else -scored.score


def _better_half(scored: Sequence[Scored]) -> list[Trial]:
    """The better half, and always the default: what was chosen is compared with it."""
    ranked = sorted(scored, key=_order)[: max(1, (len(scored) + 1) // 2)]
    kept = [one.trial for one in ranked if one.score is not None]
    return kept if Trial() in kept else [*kept, Trial()]


def _best(scored: Sequence[Scored]) -> Scored:
    """The first of the best: a draw must be better than the default to be taken."""
    default_first = sorted(scored, key=lambda one: (one.trial != Trial(),))
    return min(default_first, key=_order)


class _Silent:
    def looked(self, jobs: Sequence[Job]) -> None: ...

    def ended(self, job: Job) -> None: ...
