"""Which method for these sites? Each site is left out in turn, over seeds, and methods are compared on the one left out.

The recommendation is the *simplest* method within one standard error of the best (`rule="best"`: the best). Its parts:

- A method's score at a site is its mean accuracy over seeds when the site was left out.
- The next site is like a further draw of such sites, so the standard error is over sites: of the paired differences
  between the best method and another one, one difference per site.
- Simpler is: sends nothing beyond the model's weights; then changes fewer things (FedAvg none, `a+b` two); then takes
  less time, in steps of a tenth of the fastest one's.

After the first seed the weaker half of the candidates is dropped, but never FedAvg, nor a method that is within one
standard error of the best: it might still be recommended. No run is wasted: those of the first seed count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from unseen.core.errors import UserError
from unseen.core.files import read_json, write_json
from unseen.core.shown import Row, Shown
from unseen.core.words import megabytes
from unseen.experiments import grid
from unseen.experiments.collect import BASELINE
from unseen.experiments.statistics import Cell, compare, summarise
from unseen.experiments.sweep import Job, Watching
from unseen.method import Method, overrides, parts_of
from unseen.runs.planning import spell_method
from unseen.runs.results import label_of
from unseen.runs.settings import Settings

VERSION = 1
METHODS = ("fedavg", "mixstyle", "fedfd-a", "gperxan", "stablefdg", "fedadg")
SEEDS = "0-1"
STEP = 0.1  # times within a tenth of the fastest one's are the same
Rule = Literal["simplest", "best"]
Standing = Literal["recommended", "as good", "behind", "dropped", "failed"]
VERBS = (
    "build", "share", "surveys", "brief", "prepare", "augment", "loss", "penalty", "gradient", "step", "report",
    "admit", "hear", "weigh", "merge", "evaluated", "predict",
)  # fmt: skip


@dataclass(frozen=True)
class Candidate:
    """A method, and what was measured of it. Accuracies are fractions, on sites that were left out."""

    method: str
    fields: dict[str, Any]
    label: str
    standing: Standing
    accuracy: dict[str, list[float]]  # by site that was left out, one per seed
    mean: float | None = None  # over sites
    worst: float | None = None  # the site where it is worst
    behind: float | None = None  # the best method's mean less this one's
    error: float | None = None  # the standard error of that, over sites
    to_baseline: list[float] | None = None  # FedAvg: difference, and its 95 % interval over seeds if there are several
    seconds: float | None = None  # of a run
    bytes_up: float | None = None  # per client and round
    bytes_down: float | None = None
    sends: str = ""  # beyond the model's weights
    parts: int = 0  # things that it changes
    why: str = ""  # of one that failed or was dropped


@dataclass(frozen=True, repr=False)
class Choice(Shown):
    """What `unseen choose` found: the file choice.json."""

    method: str  # recommended
    fields: dict[str, Any]
    why: str
    saved: str  # by dropping candidates early, in words
    cautions: list[str]
    candidates: list[Candidate]
    sites: list[str]
    seeds: list[int]
    data: str
    protocol: str
    rounds: int  # of each run
    rule: Rule = "simplest"
    version: int = VERSION

    def lines(self) -> list[str]:
        rest = [one.label for one in self.candidates if one.standing == "as good"]
        number = f"{len(self.sites)} sites, {len(self.candidates)} methods"
        return [
            f"Choice of {self.data}, {number}: {self.recommended.label}",
            f"as good: {', '.join(rest) or 'none'}",
            self.why,
        ]

    def rows(self) -> list[Row]:
        names = ("label", "standing", "mean", "worst", "behind", "error", "seconds", "bytes_up", "sends")
        return [{name: vars(one)[name] for name in names} for one in self.candidates]

    def draw(self, axes: Any) -> None:
        shown = sorted((one for one in self.candidates if one.mean is not None), key=lambda one: one.mean or 0)
        for place, one in enumerate(shown):
            behind, error = 100 * (one.behind or 0), 100 * (one.error or 0)
            axes.errorbar(
                [-behind], [place], xerr=[error], fmt="o", color="#b3541e" if one is self.recommended else "#4c6a8a"
            )
        axes.set_yticks(range(len(shown)), [one.label for one in shown])
        axes.set_xlabel("points behind the best at sites left out (one standard error)")

    @property
    def recommended(self) -> Candidate:
        return next(one for one in self.candidates if one.standing == "recommended")

    def write(self, path: Path) -> None:
        write_json(path, asdict(self))

    @classmethod
    def read(cls, path: Path) -> Choice:
        value = read_json(path)
        try:
            if value["version"] > VERSION:
                raise UserError(f"{path} is of a newer unseen; install that one to read it.")
            return cls(**{**value, "candidates": [Candidate(**one) for one in value["candidates"]]})
        except (KeyError, TypeError) as error:
            raise UserError(f"{path} is not a file of `unseen choose` ({error}).") from None


@dataclass
class Runner:
    """A method under way."""

    method: Method
    label: str
    jobs: list[Job] = field(default_factory=list)
    dropped: str = ""

    @property
    def failed(self) -> str:
        return next((job.reason for job in self.jobs if job.status == "failed"), "")

    def scores(self) -> dict[Cell, float]:
        found = {(job.settings.target, job.settings.seed): job.result for job in self.jobs}
        return {c: result.accuracy for c, result in found.items() if result is not None and result.accuracy is not None}

    def number(self, what: str) -> float:
        return summarise(float(vars(r)[what]) for job in self.jobs if (r := job.result) is not None).mean


def choose(
    given: Mapping[str, Any],
    out: Path,
    *,
    workers: int = 1,
    watching: Watching,
    said: Callable[[str], None] = lambda sentence: None,
    command: str = "",
    rule: Rule = "simplest",
) -> Choice:
    """`methods`, `seeds` and the settings of a run, by their names on the command line. Goes on where it was stopped."""
    if rule not in get_args(Rule):
        raise UserError(f'"{rule}" is no rule to choose by: {" or ".join(get_args(Rule))}.')
    asked = {"methods": list(METHODS), "seeds": SEEDS, "test_every": 0}
    asked |= {name: value for name, value in given.items() if value is not None}
    if asked.get("server_selection") == "oracle":
        raise UserError("`unseen choose` keeps rounds by source validation: leave out --server-selection oracle.")
    plan = grid.plan_bench({**asked, "targets": "all"})
    sites = plan.domains
    if len(sites) < 2:
        raise UserError(
            f"Leaving a site out needs at least two sites, and there is one: {sites[0]}. With one site, "
            "`unseen fit --method fedavg` trains on it."
        )
    runners: dict[str, Runner] = {}
    for run in plan.runs:
        usual = label_of(run.settings, run.method.about.remark)
        given_label = plan.labels[usual]
        runners.setdefault(usual, Runner(run.method, label_of(run.settings) if given_label == usual else given_label))
    seeds = list(dict.fromkeys(run.settings.seed for run in plan.runs))
    for rung, seed in enumerate(seeds):
        if rung == 1:
            _drop(list(runners.values()), sites)
            for one in runners.values():
                if one.dropped:
                    said(f"dropped after seed {seeds[0]}: {one.label}: {one.dropped}")
        wanted = [
            run
            for run in plan.runs
            if run.settings.seed == seed and not _out(runners[label_of(run.settings, run.method.about.remark)])
        ]
        jobs = grid.begin(replace(plan, runs=wanted), out, command)
        for run, job in zip(wanted, jobs, strict=True):
            runners[label_of(run.settings, run.method.about.remark)].jobs.append(job)
        said(f"seed {seed}, {rung + 1} of {len(seeds)}: {len(jobs)} runs; the time left is that of this seed")
        grid.run_jobs(jobs, workers, watching)
    choice = decide(list(runners.values()), sites, seeds, plan.runs[0].settings, rule)
    choice.write(out / "choice.json")
    return choice


def _out(one: Runner) -> bool:
    return bool(one.dropped or one.failed)


def _drop(runners: Sequence[Runner], sites: Sequence[str]) -> None:
    """The weaker half, but for FedAvg and those within one standard error of the best."""
    alive = [one for one in runners if not one.failed]
    if not alive:
        return
    means = {one.label: by_site(one.scores(), sites) for one in alive}
    ranked = sorted(alive, key=lambda one: -_mean(means[one.label]))
    best = ranked[0]
    for one in ranked[(len(ranked) + 1) // 2 :]:
        behind, error = behind_of(means[best.label], means[one.label])
        if behind > error and spell_method(one.method)[0] != BASELINE:
            one.dropped = f"{100 * behind:.1f} points behind {best.label} (standard error {100 * error:.1f}) and in the weaker half"


def by_site(scores: Mapping[Cell, float], sites: Sequence[str]) -> dict[str, float]:
    """The mean over seeds at each site."""
    return {site: summarise(v for (s, _), v in sorted(scores.items()) if s == site).mean for site in sites}


def behind_of(best: Mapping[str, float], other: Mapping[str, float]) -> tuple[float, float]:
    """How far a method is behind the best one, and the standard error of that: paired, over sites."""
    found = summarise(best[site] - other[site] for site in best)
    return found.mean, found.std / math.sqrt(found.count)


def _mean(values: Mapping[str, float]) -> float:
    return math.fsum(values.values()) / len(values)


def parts_changed(method: Method) -> int:
    """How many things a method changes: FedAvg none, others as many as they have parts."""
    return sum(any(overrides(part, verb) for verb in VERBS) for part in parts_of(method))


def decide(
    runners: Sequence[Runner],
    sites: Sequence[str],
    seeds: Sequence[int],
    settings: Settings,
    rule: Rule = "simplest",
) -> Choice:
    """The recommendation, from finished runs alone."""
    whole = [one for one in runners if not _out(one)]
    if not whole:
        raise UserError(f"No method could be run at all sites. {runners[0].label}: {runners[0].failed}")
    means = {one.label: by_site(one.scores(), sites) for one in runners if not one.failed}
    best = max(whole, key=lambda one: _mean(means[one.label]))
    fastest = min(one.number("seconds") for one in whole)
    good = []
    for one in whole:
        behind, error = behind_of(means[best.label], means[one.label])
        if one is best or behind <= error:
            good.append(one)

    def simplicity(one: Runner) -> tuple[bool, int, float, float]:
        cost = round(one.number("seconds") / fastest / STEP) if fastest else 0
        return bool(_sends(one)), parts_changed(one.method), cost, -_mean(means[one.label])

    taken = best if rule == "best" else min(good, key=simplicity)
    pairs = compare({one.label: one.scores() for one in whole}, _baseline(whole))
    candidates = []
    for one in runners:
        name, fields = spell_method(one.method)
        about = Candidate(name, fields, one.label, "failed", {}, parts=parts_changed(one.method), why=one.failed)
        if one.failed:
            candidates.append(about)
            continue
        standing: Standing = "recommended" if one is taken else "as good" if one in good else "behind"
        behind, error = behind_of(means[best.label], means[one.label])
        against = pairs.get(one.label)
        own = one.scores()
        candidates.append(
            replace(
                about,
                standing="dropped" if one.dropped else standing,
                accuracy={site: [v for (s, _), v in sorted(own.items()) if s == site] for site in sites},
                mean=_mean(means[one.label]),
                worst=min(means[one.label].values()),
                behind=behind,
                error=error,
                to_baseline=None
                if against is None
                else [n for n in (against.difference, against.low, against.high) if not math.isnan(n)],
                seconds=one.number("seconds"),
                bytes_up=one.number("bytes_up"),
                bytes_down=one.number("bytes_down"),
                sends=_sends(one),
                why=one.dropped,
            )
        )
    name, fields = spell_method(taken.method)
    return Choice(
        method=name,
        fields=fields,
        why=_reason(taken, best, good, means, rule),
        saved=_saved(runners, sites, seeds),
        cautions=_cautions(runners, sites, seeds),
        candidates=candidates,
        sites=list(sites),
        seeds=list(seeds),
        data=settings.data.name,
        protocol=settings.protocol,
        rounds=settings.plan.rounds,
        rule=rule,
    )


def _sends(one: Runner) -> str:
    return next((r.beyond_weights for job in one.jobs if (r := job.result) is not None and r.beyond_weights), "")


def _baseline(whole: Sequence[Runner]) -> str:
    """FedAvg's label; nothing is compared with it where it is no candidate."""
    return next((one.label for one in whole if spell_method(one.method)[0] == BASELINE), "")


def _reason(
    taken: Runner, best: Runner, good: Sequence[Runner], means: Mapping[str, Mapping[str, float]], rule: Rule
) -> str:
    best_mean, own = 100 * _mean(means[best.label]), 100 * _mean(means[taken.label])
    if taken is best and len(good) == 1:
        return (
            f"{taken.label} is best on sites that were left out ({own:.1f} %), and every other method is more than one "
            "standard error behind."
        )
    sends = f"sends {_sends(taken)}" if _sends(taken) else "sends nothing beyond the model's weights"
    cost = f"{sends}, {megabytes(taken.number('bytes_up'))} up per client and round"
    if taken is best:
        others = ", ".join(one.label for one in good if one is not best)
        if rule == "best":
            return (
                f"{taken.label} is best on sites that were left out ({own:.1f} %). It {cost}. Within one standard error, "
                f"and perhaps simpler: {others}."
            )
        return (
            f"{taken.label} is best on sites that were left out ({own:.1f} %), and the simplest of those within one "
            f"standard error ({others} are): it {cost}."
        )
    behind, error = behind_of(means[best.label], means[taken.label])
    return (
        f"{taken.label} ({own:.1f} % on sites that were left out) is the simplest method within one standard error of the "
        f"best, {best.label} ({best_mean:.1f} %): {100 * behind:.1f} points behind with a standard error of "
        f"{100 * error:.1f}. It {cost}."
    )


def _saved(runners: Sequence[Runner], sites: Sequence[str], seeds: Sequence[int]) -> str:
    dropped = [one for one in runners if one.dropped]
    spared = len(sites) * (len(seeds) - 1)
    if not dropped:
        return (
            "Nothing was saved: with one seed there is no second round of runs to drop a method from."
            if len(seeds) == 1
            else "Nothing was saved: no method was far enough behind to be dropped."
        )
    seconds = sum(spared * one.number("seconds") for one in dropped)
    return (
        f"Dropping {', '.join(one.label for one in dropped)} after the first seed saved {spared * len(dropped)} of "
        f"{len(runners) * len(sites) * len(seeds)} runs, about {seconds / 60:.1f} minutes of computing."
    )


def _cautions(runners: Sequence[Runner], sites: Sequence[str], seeds: Sequence[int]) -> list[str]:
    found = []
    if len(sites) == 2:
        found.append(
            "There are two sites, so each run trained on one alone: methods that work between sites could not show what "
            "they do, and the standard error is of two numbers."
        )
    elif len(sites) == 3:
        found.append("There are three sites: the standard error is of three numbers, and rough.")
    if len(seeds) == 1:
        found.append("One seed: differences of a point or two may be luck; --seeds 0-2 tells more.")
    found += [f"{one.label} could not be run: {one.failed}" for one in runners if one.failed]
    return found
