"""Everything the command line does, from Python, in the words of the command line.

unseen.choose(data="folder", root="SITES")          # which method for these sites
unseen.fit(data="folder", root="SITES", method="auto")  # the model for the next one
unseen.run(data="digits", target="street", method="fedavg", rounds=3)
unseen.bench(data="digits", methods="fedavg,fedfd-a", targets="all", seeds="0-2", out="bench")
unseen.evaluate("bench", inference="iabn,tbn:batch=1")
unseen.audit("bench/digits-street-fedavg-s0-1a2b3c4d")
unseen.report("bench")
unseen.predict("bench/digits-street-fedavg-s0-1a2b3c4d", "photos")
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unseen.audits.findings import AuditResult
from unseen.core.calibration import Calibration
from unseen.core.errors import UserError, unknown
from unseen.core.files import write_json
from unseen.core.platform import cores
from unseen.core.shown import Row, Shown
from unseen.core.terminal import Steps, percent, steps
from unseen.engines.local import open_local
from unseen.experiments import grid
from unseen.experiments.board import board_for, following
from unseen.experiments.check import Checked
from unseen.experiments.check import check as check_folder
from unseen.experiments.choose import Choice, Rule
from unseen.experiments.choose import choose as choose_method
from unseen.experiments.collect import Collection, collect, collect_beside
from unseen.experiments.inference import evaluate_run, read_rules
from unseen.experiments.inference_rules import Inference
from unseen.experiments.sweep import Watching
from unseen.experiments.tune import Choices
from unseen.experiments.tune import tune as search
from unseen.federation.audit import NAME as AUDIT
from unseen.federation.audit import Chain
from unseen.method import Method
from unseen.runs.calibrate import calibration_of
from unseen.runs.directory import RunDirectory, find_runs
from unseen.runs.model import Prediction, Trained, load_trained, predict_files
from unseen.runs.planning import Experiment, find_device, listed, read_method
from unseen.runs.progress import Watcher
from unseen.runs.results import EvaluationLine
from unseen.runs.run import OpenEngine, PlannedRun, Result
from unseen.runs.run import run as run_planned
from unseen.runs.screen import screen_for
from unseen.runs.settings import NO_TARGET


# --- runs ------------------------------------------------------------------------------------------------------------
def run(
    *,
    target: str,
    method: str | Method = "fedavg",
    fields: Mapping[str, Any] | None = None,
    seed: int | None = None,
    workers: int | None = None,
    out: str | Path | None = None,
    progress: bool | None = None,
    watcher: Watcher | None = None,
    **settings: Any,
) -> Result:
    """Train on all domains but `target`, test on `target`.

    Other arguments are the settings of the command line: `data="pacs"`, `protocol="pacs-quick"`, `root=...`,
    `rounds=3`, `backbone=...`, `lr=...`; `fields={"mu": 0.2}` sets fields of the method. Without `out` nothing is left
    on the disk. `workers=None` takes a process per core. Progress is shown in a terminal and in a notebook;
    `progress=False` hides it, `progress=True` prints lines elsewhere too.
    """
    (planned,) = plan(
        method=method, fields=fields, target=target, seed=None if seed is None else str(seed), settings=settings
    )
    directory = RunDirectory.of(planned.settings, Path(out)) if out is not None else None
    if watcher is not None:
        return carry_out(planned, directory, workers=workers, watcher=watcher)
    shown = screen_for(progress)
    try:
        return carry_out(planned, directory, workers=workers, watcher=shown)
    finally:
        shown.close()


def fit(
    *,
    method: str | Method = "fedavg",
    fields: Mapping[str, Any] | None = None,
    seed: int | None = None,
    workers: int | None = None,
    out: str | Path | None = None,
    progress: bool | None = None,
    watcher: Watcher | None = None,
    choice: str | Path | None = None,
    **settings: Any,
) -> Result:
    """Train on *all* domains, nothing left out: the model for the next site. The round is kept by source validation.

    `method="auto"` is what `choose` recommended: in `choice`, or in choice.json of `out`, or in choice/choice.json.
    """
    if method == AUTO:
        found = read_choice(choice, out)
        method, fields = found.method, {**found.fields, **(fields or {})}
    shown: dict[str, Any] = {"progress": progress, "watcher": watcher}
    return run(target=NO_TARGET, method=method, fields=fields, seed=seed, workers=workers, out=out, **shown, **settings)


AUTO = "auto"  # the method that `choose` recommended
CHOICE = Path("choice")  # where `choose` writes if no other folder is named


def read_choice(file: str | Path | None, out: str | Path | None) -> Choice:
    """The given file; else choice.json of `out`; else that of choose's own folder."""
    if file is not None:
        return Choice.read(Path(file))
    places = [Path(folder) / "choice.json" for folder in (out, CHOICE) if folder is not None]
    for place in places:
        if place.exists():
            return Choice.read(place)
    raise UserError(
        f"--method auto takes what `unseen choose` found, and there is no {' or '.join(map(str, places))}: run "
        "`unseen choose` first, or give its file with --choice."
    )


def plan(
    *,
    target: str,
    method: str | Method = "fedavg",
    fields: Mapping[str, Any] | None = None,
    seed: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> list[PlannedRun]:
    """One run per target and seed, in the words of the command line."""
    made = read_method(method, fields)  # a wrong name is said before a large folder is read
    experiment = Experiment.of(settings or {})
    if not target:
        raise UserError(f"Give the unseen domain with --target: {', '.join(experiment.index.domains)}, or all.")
    seeds = experiment.seeds(seed)
    return [experiment.run(made, name, number) for name in experiment.targets(target) for number in seeds]


def carry_out(
    planned: PlannedRun,
    directory: RunDirectory | None,
    *,
    workers: int | None = None,
    watcher: Watcher | None = None,
) -> Result:
    """Run, or go on with, or read a run, on the engine that its settings name."""
    count = check_workers(workers) or spare_workers(planned.settings.plan.device)
    open_engine = engine_of(planned.settings.engine)(count)
    return run_planned(planned, open_engine, directory=directory, watcher=watcher)


def check_workers(workers: int | None) -> int | None:
    if workers is not None and workers < 1:
        raise UserError(f"--workers must be at least 1, not {workers}.")
    return workers


def spare_workers(device: str) -> int:
    """A process per core; one for an accelerator, whose memory a second process would only share."""
    return cores() if device == "cpu" else 1


def _open_flower(workers: int) -> OpenEngine:
    if any(importlib.util.find_spec(module) is None for module in ("flwr", "ray")):
        raise UserError("The engine flower needs Flower and Ray: `pip install unseen[flower]`.")
    from unseen.engines.flower.simulation import open_simulation

    return open_simulation


ENGINES: dict[str, Callable[[int], OpenEngine]] = {"local": open_local, "flower": _open_flower}


def engine_of(name: str) -> Callable[[int], OpenEngine]:
    if name not in ENGINES:
        raise unknown("engine", name, ENGINES, f"The engines are {', '.join(ENGINES)}.")
    return ENGINES[name]


# --- many runs -------------------------------------------------------------------------------------------------------
def bench(
    *,
    methods: str | Sequence[Any],
    targets: str | Sequence[str] = "all",
    seeds: str | Sequence[int] | None = None,
    out: str | Path = "bench",
    workers: int | None = None,
    progress: bool | None = None,
    watching: Watching | None = None,
    known: str | Path | None = None,
    **settings: Any,
) -> Collection:
    """Methods x targets x seeds, several runs at once; goes on where it was stopped. Returns all runs of `out`.

    Runs that have a result in the folder `known` are left out; where no other is left, they are what is returned.
    """
    planned = grid.plan_bench({**settings, "methods": methods, "targets": targets, "seeds": seeds})
    folder = Path(out)
    if known is not None and (found := grid.leave_out_known(planned, Path(known))) and not planned.runs:
        return collect(Path(known), found)
    jobs = grid.begin(planned, folder)
    count = check_workers(workers) or spare_workers(jobs[0].settings.plan.device)
    if watching is not None:
        failed = grid.run_jobs(jobs, count, watching)
    else:
        shown = board_for(jobs, count, progress)
        try:
            failed = grid.run_jobs(jobs, count, shown)
        finally:
            shown.close()
    if failed:
        raise UserError(f"{len(failed)} of {len(jobs)} runs failed. The first: {failed[0].reason}")
    return collect(folder)


def choose(
    *,
    methods: str | Sequence[Any] | None = None,
    seeds: str | Sequence[int] | None = None,
    out: str | Path = CHOICE,
    workers: int | None = None,
    progress: bool | None = None,
    command: str = "",
    rule: Rule = "simplest",
    **settings: Any,
) -> Choice:
    """Which method for these sites: each is left out in turn. `out` has the runs, choice.json and pages at the end.

    `rule="simplest"` takes the simplest method within one standard error of the best, `rule="best"` the best one.
    """
    from unseen.reports.choice import write_choice

    given = {**settings, "methods": methods, "seeds": seeds}
    device = find_device(str(settings.get("device") or "auto"))
    count, folder, shown = check_workers(workers) or spare_workers(device), Path(out), following(progress)
    try:
        found = choose_method(given, folder, workers=count, watching=shown, said=shown.said, command=command, rule=rule)
    finally:
        shown.close()
    write_choice(found, folder)
    report(folder, insight=False, progress=False)
    return found


def audit(
    directory: str | Path | None = None,
    *,
    methods: str | Sequence[Any] | None = None,
    target: str | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    effort: float = 1.0,
    attacks: str | Sequence[str] | None = None,
    workers: int | None = None,
    watcher: Watcher | None = None,
    **settings: Any,
) -> list[AuditResult]:
    """What leaks: attacks on the real replies of finished runs, or of runs that are made for it.

    `directory` is a finished run, or a folder of them. With `methods` (as in `bench`) their runs are made below `out`
    first. The audit of a run is in `audit/` beside it, or below `out` where that is given for a directory. What was done
    before is not done again. `effort=0.2` tries a fifth as long.
    """
    from unseen.audits.audit import attacks_named, audit_run, check_auditable
    from unseen.reports.audit import write_audit_tables

    chosen = listed(attacks) if attacks is not None else None
    attacks_named(chosen)  # a wrong word is said before anything is trained
    said = watcher.said if watcher is not None else lambda sentence: None
    if (directory is None) == (methods is None):
        raise UserError("Give the directory of a finished run, or --methods and --data, which makes the runs.")
    made: dict[RunDirectory, PlannedRun] = {}
    if directory is not None:
        if settings or target is not None:
            raise UserError("A finished run has its own settings: leave out the others, or give --methods.")
        runs = runs_to_evaluate(Path(directory))
        places = {run: Path(out) / run.path.name if out is not None else run.path / "audit" for run in runs}
        top = Path(out) if out is not None else Path(directory)
    else:
        top = Path(out) if out is not None else Path("audits")
        planned = grid.plan_bench(
            {**settings, "methods": methods, "targets": target or _last_domain(settings), "seeds": [seed]}
        )
        for name, why in planned.left_out.items():
            said(f"left out: {name}. {why}")
        for one in planned.runs:
            check_auditable(one.settings)
            made[RunDirectory.of(one.settings, top)] = one
        places = {run: run.path / "audit" for run in made}
    found, failed = [], []
    for number, (run, place) in enumerate(places.items(), start=1):
        if len(places) > 1:
            said(f"audit {number} of {len(places)}: {run.path.name}")
        try:
            if run in made:
                carry_out(made[run], run, workers=workers, watcher=watcher)
            found.append(audit_run(run, place, effort=effort, attacks=chosen, watcher=watcher))
        except UserError as error:  # of one run: the others are audited all the same
            if len(places) == 1:
                raise
            failed.append(f"left out: {run.path.name}. {error}")
            said(failed[-1])
            continue
        if methods is not None or len(places) > 1:
            write_audit_tables(found, top)  # after each: a table of a long audit is there from the start
    if not found:
        raise UserError(f"None of the {len(places)} runs could be audited. The first: {failed[0]}")
    for sentence in failed:
        said(sentence)  # once more at the end, where it is read
    return found


def _last_domain(settings: Mapping[str, Any]) -> str:
    """Some domain must be left out; which one matters little to what leaks."""
    return str(Experiment.of(settings).index.domains[-1])


@dataclass(frozen=True)
class Evaluated:
    """A finished run by an inference rule."""

    run: RunDirectory
    rule: Inference
    found: EvaluationLine


class Evaluations(Shown, list[Evaluated]):
    """What `evaluate` found, one by one."""

    def lines(self) -> list[str]:
        rules = list(dict.fromkeys(one.rule.label for one in self))
        said = [f"{len(self)} tests of trained models on their unseen domains, by {', '.join(rules)}"]
        for rule in rules:
            found = [one.found.accuracy for one in self if one.rule.label == rule and one.found.accuracy is not None]
            if found:
                said.append(f"{rule}: {percent(sum(found) / len(found))}, mean over {len(found)} runs")
        return said

    def rows(self) -> list[Row]:
        """A row per run and rule. Accuracies are fractions."""
        found = []
        for one in self:
            settings, result = one.run.settings(), one.run.result()
            found.append(
                {
                    "method": settings.method,
                    "target": settings.target,
                    "seed": settings.seed,
                    "rule": one.rule.label,
                    "accuracy": one.found.accuracy,
                    "own_accuracy": result.accuracy if result is not None else None,
                    "remark": result.remark if result is not None else "",
                    "examples": one.found.examples,
                    "directory": str(one.run.path),
                }
            )
        return found

    def draw(self, axes: Any) -> None:
        """Each run's accuracy by each rule."""
        rules = list(dict.fromkeys(one.rule.label for one in self))
        for one in self:
            if one.found.accuracy is not None:
                axes.plot([100 * one.found.accuracy], [rules.index(one.rule.label)], "o", color="#2563a8")
        axes.set_yticks(range(len(rules)), rules)
        axes.set(xlabel="accuracy on the unseen domain (%)")


def evaluate(
    folder: str | Path,
    inference: str = "own",
    *,
    fields: Mapping[str, str] | None = None,
    methods: Sequence[str] | None = None,
    again: bool = False,
    device: str = "auto",
    progress: bool | None = None,
) -> Evaluations:
    """Finished runs on their unseen domains by other rules for the statistics of their BatchNorms."""
    rules, where = read_rules(inference, fields), find_device(device)
    runs = runs_to_evaluate(Path(folder), methods)
    todo = to_evaluate(runs, rules, again)
    with steps(len(todo), progress) as shown:
        for run, rule in todo:
            shown.said(f"{run.settings().method}, {run.settings().left_out}, by {rule.label}")
            evaluate_run(run, rule, where)
            shown.advance()
    return Evaluations(Evaluated(run, rule, run.evaluations()[rule.label]) for run in runs for rule in rules)


def to_evaluate(
    runs: Sequence[RunDirectory], rules: Sequence[Inference], again: bool = False
) -> list[tuple[RunDirectory, Inference]]:
    """Pairs that were not evaluated before."""
    return [(run, rule) for run in runs for rule in rules if again or rule.label not in run.evaluations()]


def runs_to_evaluate(folder: Path, methods: Sequence[str] | None = None) -> list[RunDirectory]:
    """The run of a directory, or the finished ones of a folder."""
    if (folder / "config.json").exists():
        return [RunDirectory.open(folder)]
    found = [run for run in find_runs(folder) if run.result() is not None]
    if not found:
        raise UserError(f"There are no finished runs in {folder}; `unseen bench --out {folder}` makes them.")
    if methods is None:
        return found
    there = {run.settings().method for run in found}
    for name in methods:
        if name not in there:
            raise UserError(f'There is no finished run of "{name}" in {folder}; there are {", ".join(sorted(there))}.')
    return [run for run in found if run.settings().method in methods]


def tune(
    *,
    methods: str | Sequence[str],
    targets: str | Sequence[str] = "all",
    trials: int = 5,
    out: str | Path = "tuned",
    workers: int | None = None,
    progress: bool | None = None,
    **settings: Any,
) -> Choices:
    """The same small search for every method, judged by source images only. `bench(tuned=...)` runs what it chose."""
    experiment = Experiment.of(settings)
    count = check_workers(workers) or spare_workers(experiment.settings.plan.device)
    names = listed(methods)
    shown = following(progress)
    try:
        return search(
            experiment, names, experiment.targets(targets), Path(out), trials=trials, workers=count, watching=shown
        )
    finally:
        shown.close()


def report(
    *folders: str | Path,
    out: str | Path | None = None,
    baseline: str | None = None,
    target: str | None = None,
    insight: bool = True,
    progress: bool | None = None,
    said: Callable[[str], None] | None = None,
) -> Path:
    """One self-contained page about all runs of a folder, and its tables beside it; or about several folders at once."""
    from unseen.experiments.insight import look_into_all
    from unseen.reports.page import write_page
    from unseen.reports.tables import write_tables

    places = [Path(folder) for folder in folders]
    if not places:
        raise UserError("Give the folder of the runs: unseen report bench.")
    collection = collect_beside(places)
    if not collection.groups:
        raise UserError(f"There are no finished runs in {places[0]}; `unseen bench --out {places[0]}` makes them.")
    if len(places) == 1:
        write_tables(collection, places[0] / "tables", baseline)
    if insight:
        with steps(sum(len(group.rows) for group in collection.groups), False if said else progress) as shown:
            look_into_all(collection, target, said or _stepping(shown))
    others = "-and-".join(place.resolve().name for place in places[1:])
    usual = places[0] / (f"report-beside-{others}.html" if others else "report.html")
    return write_page(collection, Path(out) if out is not None else usual, baseline, target)


def _stepping(shown: Steps) -> Callable[[str], None]:
    """Every sentence is a step."""

    def said(sentence: str) -> None:
        shown.said(sentence)
        shown.advance()

    return said


def new_method(name: str, out: str | Path = ".") -> list[Path]:
    """A file with a method of your own to begin from, and a test of it that passes."""
    from unseen.runs.new_method import write_new_method

    return write_new_method(name, Path(out))


# --- keeping ---------------------------------------------------------------------------------------------------------
def rollback(directory: str | Path, round: int) -> RunDirectory:
    """Go back to the checkpoint of a round; what came later is deleted. Resume the run to go on from there."""
    run = RunDirectory.open(Path(directory))
    run.rollback(round)
    return run


def verify_ledger(directory: str | Path) -> Chain:
    """Follow the audit log of a run, or of a site's folder for a run. `fault` says where it is broken; "" if it is whole."""
    place = Path(directory)
    if not (place / AUDIT).is_file():
        raise UserError(f"There is no audit log {place / AUDIT}; runs of earlier versions have none.")
    return RunDirectory(place).verify_audit()


# --- models ----------------------------------------------------------------------------------------------------------
def load(directory: str | Path, *, device: str = "auto") -> Trained:
    """The model of a finished run: `predict`, `predict_proba`, `predict_set` and `familiar`, as in scikit-learn."""
    return load_trained(directory, find_device(device))


def predict(
    directory: str | Path,
    images: str | Path,
    *,
    coverage: float = 0.9,
    device: str = "auto",
    broken: list[str] | None = None,
) -> Iterator[Prediction]:
    """Class, probabilities and prediction set of an image, or of all images below a folder, by the method's own rule.

    With a list for `broken`, files that cannot be read are put into it; without one they are an error.
    """
    return predict_files(load(directory, device=device), Path(images), broken, coverage)


def check(
    directory: str | Path,
    folder: str | Path,
    *,
    coverage: float = 0.9,
    unlabelled: str | Path | None = None,
    device: str = "auto",
    out: str | Path | None = None,
) -> Checked:
    """The model of a run on FOLDER/CLASS/*, with intervals. With `out`, a page and `metrics.json` in that folder."""
    trained = load(directory, device=device)
    apart = Path(unlabelled) if unlabelled is not None else None
    found = check_folder(trained, Path(folder), coverage=coverage, unlabelled=apart)
    if out is not None:
        write_check(found, trained, Path(out))
    return found


def write_check(found: Checked, trained: Trained, out: Path) -> list[Path]:
    """`check.html`, and `metrics.json` with nothing but numbers."""
    from unseen.reports.check_page import write_check_page

    settings = trained.settings
    about = f"{settings.method} on {settings.data.name}, {settings.left_out}, seed {settings.seed}"
    write_json(out / "metrics.json", found.to_json())
    return [write_check_page(found, trained.classes, out / "check.html", about), out / "metrics.json"]


def calibrate(directory: str | Path, *, workers: int | None = None, watcher: Watcher | None = None) -> Calibration:
    """Calibrate the model of a finished run again from its own data, as runs of earlier versions need it."""
    run = RunDirectory.open(Path(directory))
    count = check_workers(workers) or spare_workers(run.settings().plan.device)
    found = calibration_of(run, open_local(count), watcher)
    with run.locked():
        run.save_calibration(found)
    return found


def export(directory: str | Path, out: str | Path, *, coverage: float = 0.9) -> Path:
    """Pack the model of a finished run as ONNX with a script that needs no torch, its classes and a model card."""
    from unseen.delivery.pack import export as pack

    return pack(Path(directory), Path(out), coverage)
