"""A bench: methods x targets x seeds, from a user's words to finished runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from unseen.core.errors import UserError, nearest
from unseen.core.files import read_json, read_toml, write_json
from unseen.experiments.sweep import Job, Watching, make_jobs, sweep
from unseen.experiments.tune import Choices, Trial, as_chosen
from unseen.method import Method
from unseen.methods import check_names
from unseen.registry import registered
from unseen.runs.directory import RunDirectory, find_runs
from unseen.runs.images import store_of
from unseen.runs.model import build_net
from unseen.runs.planning import Experiment, listed, read_fields, read_method, read_named
from unseen.runs.results import label_of
from unseen.runs.run import PlannedRun


@dataclass(frozen=True)
class Choice:
    """A method of a bench."""

    name: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""  # what tables call it; "": its name and fields
    optional: bool = False  # came in by `all`: left out if it does not fit the net


@dataclass
class BenchPlan:
    """The runs of a bench, seed by seed so that whole tables come first."""

    runs: list[PlannedRun]
    labels: dict[str, str]  # a method's usual label -> the one it was given
    domains: list[str]  # of the dataset, in its order
    left_out: dict[str, str]  # methods that do not fit the net, and why
    chosen_defaults: list[list[str]] = field(default_factory=list)  # [method, target] for which the default was chosen


def plan_bench(given: Mapping[str, Any]) -> BenchPlan:
    """`methods`, `targets`, `seeds`, `set` and the settings of a run, by their names on the command line."""
    rest = dict(given)
    methods, targets, seeds = rest.pop("methods", None), rest.pop("targets", None) or "all", rest.pop("seeds", None)
    common, tuned = rest.pop("set", None) or {}, rest.pop("tuned", None)
    choices = Choices.read(Path(tuned)) if tuned is not None else None
    common = common if isinstance(common, Mapping) else read_fields(listed(common))
    chosen = _with_fields(_with_all([_choice(word) for word in _needed(methods, "methods")]), common)
    made = [
        (choice, read_method(choice.name, choice.fields)) for choice in chosen
    ]  # wrong words, before a folder is read
    experiment = Experiment.of(rest)
    plan = BenchPlan([], {}, list(experiment.index.domains), {})
    kept: list[Method] = []
    names, numbers = experiment.targets(_needed(targets, "targets")), experiment.seeds(seeds)
    for choice, method in made:
        if choice.optional and (why := _misfit(experiment, method, names[0], numbers[0])):
            plan.left_out[choice.name] = why
            continue
        first = experiment.run(method, names[0], numbers[0])
        usual = label_of(first.settings, method.about.remark)
        plan.labels[usual] = choice.label or usual
        kept.append(method)
    if not kept:
        raise UserError(f"No method fits these settings. {next(iter(plan.left_out.values()))}")
    if len(set(plan.labels.values())) < len(kept):
        raise UserError("Two of the methods are the same, or have the same label; name each once.")
    for seed in numbers:
        for name in names:
            for method in kept:
                run = experiment.run(method, name, seed)
                plan.runs += [run, *_chosen(run, choices, plan)]
    return plan


def _chosen(run: PlannedRun, choices: Choices | None, plan: BenchPlan) -> list[PlannedRun]:
    """The same run as `unseen tune` chose it, beside the default; none where it chose the default."""
    settings = run.settings
    trial = choices.of(settings.method, settings.target) if choices is not None and not settings.fields else None
    if trial is None:
        return []
    if trial == Trial():
        pair = [settings.method, settings.target]
        plan.chosen_defaults += [] if pair in plan.chosen_defaults else [pair]
        return []
    return [as_chosen(run, trial)]


def read_file(path: Path) -> dict[str, Any]:
    """A bench as TOML: the names of the command line, with lists where that has commas."""
    return {name.replace("-", "_"): value for name, value in read_toml(path).items() if name != "about"}


def _needed(value: Any, name: str) -> list[Any]:
    if value is None or value in ("", []):
        raise UserError(f"Give the {name} with --{name}, separated by commas.")
    if not isinstance(value, (str, list, tuple)):
        raise UserError(f"The {name} are a list of names, not {value!r}.")
    return listed(value)


def _choice(word: Any) -> Choice:
    """`"fedfd:lambda2=0.02:reduce=sum"`, or a table of a TOML file: name, fields and label."""
    if isinstance(word, Mapping):
        if "name" not in word or set(word) - {"name", "set", "label"}:
            raise UserError("A method in a file is a name, or a table with name and, if you like, set and label.")
        return Choice(str(word["name"]), dict(word.get("set", {})), str(word.get("label", "")))
    return Choice(*read_named(str(word)))


def _with_all(choices: Sequence[Choice]) -> list[Choice]:
    """`all` as every method that is not named beside it."""
    named = {choice.name for choice in choices if not choice.fields}
    rest = [Choice(name, optional=True) for name in registered() if name not in named]
    return [one for choice in choices for one in (rest if choice.name == "all" else [choice])]


def _with_fields(choices: Sequence[Choice], common: Mapping[str, Any]) -> list[Choice]:
    """`--set` for every method that has the field; an error if none has."""
    known = {choice.name: _fields(choice.name) for choice in choices}
    for name in common:
        if not any(name in own for own in known.values()):
            every = sorted({field for own in known.values() for field in own})
            raise UserError(f'None of the methods has a field "{name}".{nearest(name, every)}')
    return [
        Choice(
            choice.name,
            {**{k: v for k, v in common.items() if k in known[choice.name]}, **choice.fields},
            choice.label,
            choice.optional,
        )
        for choice in choices
    ]


def _fields(method: str) -> set[str]:
    """The fields of a method's parts, with and without their part's name."""
    known = registered()
    if not known.keys() >= (names := {name.strip() for name in method.split("+")}):
        check_names(method)  # says which
    kinds = [known[name] for name in names]
    return {word for kind in kinds for f in fields(kind) for word in (f.name, f"{kind.name}.{f.name}")}


def _misfit(experiment: Experiment, method: Method, target: str, seed: int) -> str:
    """Why a method does not fit the plan or the net; empty if it does."""
    try:
        run = experiment.run(method, target, seed)
        assert run.index is not None
        build_net(run.settings.with_changes({"weights": "none"}), run.method, len(run.index.classes))
    except UserError as error:
        return str(error)
    return ""


# --- carrying out ----------------------------------------------------------------------------------------------------
def begin(plan: BenchPlan, out: Path, command: str = "") -> list[Job]:
    """A directory and a job per run. The images are decoded once, here, and not by all the first runs at once."""
    _remember(plan, out, command)
    store_of(plan.runs[0].settings, plan.runs[0].index)
    return make_jobs([run.settings for run in plan.runs], out)


def leave_out_known(plan: BenchPlan, folder: Path) -> set[str]:
    """Take from a plan what has a result in a folder, of another machine perhaps; a model need not be there.

    Returns the names of the runs that are known.
    """
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder} with results of earlier runs; --known names one.")
    known = {run.path.name for run in find_runs(folder) if run.result() is not None}
    asked = {RunDirectory.of(run.settings, folder).path.name: run for run in plan.runs}
    plan.runs = [run for name, run in asked.items() if name not in known]
    return known & asked.keys()


def run_jobs(jobs: Sequence[Job], workers: int, watching: Watching, options: Sequence[str] = ()) -> list[Job]:
    """All runs that are not finished, `workers` at once. Returns those that failed."""
    sweep(jobs, workers, watching, options=options)
    return [job for job in jobs if job.status == "failed"]


def _remember(plan: BenchPlan, out: Path, command: str) -> None:
    """bench.json: what was asked for, in what order, so that tables and the report can say so."""
    path = out / "bench.json"
    about = read_json(path) if path.exists() else {}
    write_json(
        path,
        {
            "commands": list(dict.fromkeys([*about.get("commands", []), *filter(None, [command])])),
            "labels": {**about.get("labels", {}), **plan.labels},
            "methods": list(dict.fromkeys([*about.get("methods", []), *plan.labels.values()])),
            "targets": list(dict.fromkeys([*about.get("targets", []), *plan.domains])),
            "chosen_defaults": [
                *(known := about.get("chosen_defaults", [])),
                *(pair for pair in plan.chosen_defaults if pair not in known),
            ],
        },
    )
