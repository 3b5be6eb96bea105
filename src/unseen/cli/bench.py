"""`unseen bench`."""

from __future__ import annotations

import shlex
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live as LiveView
from rich.table import Table
from rich.text import Text

from unseen.cli import run as run_command
from unseen.cli.run import pool_if_centralized, read_fields, read_named, read_seeds
from unseen.cli.screen import budget, duration, errors, percent, results
from unseen.core.errors import UserError, nearest

if TYPE_CHECKING:
    from unseen.bench.sweep import Job
    from unseen.runs.protocols import Settings

EXAMPLE = (
    "Every option of `unseen run` may follow, for all runs: --protocol, --root, --weights, --rounds, --set, ...   ·   "
    "Example: unseen bench --data digits --methods fedavg,silobn,fedfd,fedfd-a --targets all --seeds 0-2 --workers 2 "
    "--out bench"
)
Variant = tuple[str, dict[str, Any], str]  # a method, its fields, its label
# Options of `unseen run` that a bench decides itself.
OWN = ("target", "method", "seed", "out", "workers", "resume", "data", "engine")


def bench(
    context: typer.Context,
    data: Annotated[str | None, typer.Option(help="Dataset: digits, or a name of `unseen data list`.")] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Methods with commas: fedavg,silobn,fedbn+fedprox,fedfd:lambda2=0.02; all: every one that fits."
        ),
    ] = None,
    targets: Annotated[str | None, typer.Option(help="Unseen domains with commas, or all. (default: all)")] = None,
    seeds: Annotated[
        str | None, typer.Option(help="0, or 0,3,7, or 0-2, or all of the protocol's. (default: its first)")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Runs at once. (default: one per core)")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run directories. (default: bench)")] = None,
    file: Annotated[Path | None, typer.Option(help="A TOML file with these names.")] = None,
    baseline: Annotated[str | None, typer.Option(help="The method to compare with. (default: fedavg)")] = None,
) -> None:
    """Run methods x targets x seeds, several at once, and print the table.

    The same command again goes on where it was stopped. More methods or seeds later run only what is new.
    """
    given = {name: value for name, value in locals().items() if value is not None and name not in ("context", "file")}
    from unseen.runs.recorders import check_recorders

    plan = {**(read_file(file) if file is not None else {}), **given, **passed_through(context.args)}
    folder = Path(plan.pop("out", "bench"))
    count, against = plan.pop("workers", None), plan.pop("baseline", None)
    if count is not None and count < 1:
        raise UserError(f"--workers must be at least 1, not {count}.")
    logs = [plan["log"]] if isinstance(plan.get("log"), str) else plan.get("log", [])
    plan.pop("log", None)
    check_recorders(logs)
    todo, labels, domains = planned(plan)
    carry_out(todo, folder, count, labels, domains, against, [word for name in logs for word in ("--log", name)])


def passed_through(words: Sequence[str]) -> dict[str, Any]:
    """Options of `unseen run`, read by its own rules."""
    if not words:
        return {}
    from typer.main import get_command

    app = typer.Typer(add_completion=False)
    app.command()(run_command.run)
    command = get_command(app)
    found = command.make_context("unseen bench", list(words)).params
    given = {name: list(v) if isinstance(v, tuple) else v for name, v in found.items() if v is not None and v != ()}
    given = {name: value for name, value in given.items() if value != []}
    for name in OWN:
        if name in given:
            raise UserError(f"A bench has no option --{name}; `unseen bench --help` lists its own.")
    return {("set" if name == "field" else name): value for name, value in given.items()}


def read_file(path: Path) -> dict[str, Any]:
    """A bench as TOML: the names of the command line, with lists where that has commas."""
    try:
        found = tomllib.loads(path.read_text())
    except OSError as error:
        raise UserError(f"{path} could not be read ({error.strerror}).") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid TOML: {error}.") from None
    return {name.replace("-", "_"): value for name, value in found.items() if name != "about"}


def planned(plan: Mapping[str, Any]) -> tuple[list[Settings], dict[str, str], list[str]]:
    """The runs, seed by seed so that whole tables come first; labels of methods; the dataset's domains in order."""
    from unseen.api import absolute, dataset, plan_run, protocol_named
    from unseen.bench.collect import label_of

    rest = dict(plan)
    pool_if_centralized(rest)
    variants = [_variant(word) for word in _listed(rest.pop("methods", None), "methods")]
    variants, optional = _with_all(variants)
    fields = rest.pop("set", {})
    fields = read_fields(list(fields)) if not isinstance(fields, dict) else fields
    targets, seeds = rest.pop("targets", "all"), rest.pop("seeds", None)
    variants = _with_fields(variants, fields)
    protocol = protocol_named(rest.get("data"), rest.get("protocol"))
    index = dataset(rest.get("data"), rest.get("protocol"), absolute(rest.get("root")))
    names = list(index.domains) if targets == "all" else [index.find(name) for name in _listed(targets, "targets")]
    wanted = (
        [int(s) for s in seeds]
        if isinstance(seeds, list)
        else read_seeds(None if seeds is None else str(seeds), protocol.seeds)
    )
    todo: list[Settings] = []
    labels: dict[str, str] = {}
    bases: list[Settings] = []
    for (method, own, label), may_go in zip(variants, optional, strict=True):
        base = plan_run(target=names[0], method=method, fields=own, **rest)
        if may_go and (why := _misfit(base, len(index.classes))):
            errors().print(f"left out: {method}: {why}", markup=False, highlight=False, soft_wrap=True)
            continue
        bases.append(base)
        labels[label_of(base)] = label or label_of(base)
    if len(set(labels.values())) < len(bases):
        raise UserError("Two of the methods are the same, or have the same label; name each once.")
    for seed in dict.fromkeys(wanted):
        for target in dict.fromkeys(names):
            todo += [replace(b, target=target, seed=seed, plan=replace(b.plan, seed=seed)) for b in bases]
    return todo, labels, list(index.domains)


def _listed(value: object, name: str) -> list[Any]:
    if value is None or value == "" or value == []:
        raise UserError(f"Give the {name} with --{name}, separated by commas.")
    return [word.strip() for word in value.split(",")] if isinstance(value, str) else list(value)  # type: ignore[call-overload]


def _variant(word: Any) -> Variant:
    """`"fedfd:lambda2=0.02:reduce=sum"`, or a table of a TOML file: name, fields and label."""
    if isinstance(word, dict):
        if "name" not in word or set(word) - {"name", "set", "label"}:
            raise UserError("A method in a file is a name, or a table with name and, if you like, set and label.")
        own = {key: _plain(value) for key, value in word.get("set", {}).items()}
        return word["name"], own, word.get("label", "")
    return *read_named(str(word)), ""


def _with_all(variants: Sequence[Variant]) -> tuple[list[Variant], list[bool]]:
    """`all` as every method that is not named beside it; and whether one came in so, to be left out if it does not fit."""
    from unseen.registry import registered

    named = {method for method, own, _ in variants if not own}
    rest: list[Variant] = [(method, {}, "") for method in registered() if method not in named]
    pairs = [(one, v[0] == "all") for v in variants for one in (rest if v[0] == "all" else [v])]
    return [one for one, _ in pairs], [optional for _, optional in pairs]


def _misfit(settings: Settings, classes: int) -> str:
    """Why a method cannot be built on the net; empty if it can."""
    from unseen.registry import parse
    from unseen.runs.model import build_net

    try:
        build_net(replace(settings, weights="none"), parse(settings.method, settings.fields), classes)
    except UserError as error:
        return str(error)
    return ""


def _plain(value: Any) -> Any:
    """Lists as tuples' fields are written."""
    return ",".join(map(str, value)) if isinstance(value, list) else value


def _with_fields(variants: list[Variant], fields: Mapping[str, Any]) -> list[Variant]:
    """`--set` for every method that has the field; an error if none has."""
    from unseen.api import spell_method

    for name in fields:
        if not any(_has(method, name) for method, _, _ in variants):
            known = sorted({field for method, _, _ in variants for field in _fields(method)})
            raise UserError(f'None of the methods has a field "{name}".{nearest(name, known)}')
    found = [
        (method, {**{k: v for k, v in fields.items() if _has(method, k)}, **own}, label)
        for method, own, label in variants
    ]
    for method, own, _ in found:
        spell_method(method, own)  # a wrong name or value is said before a large folder is read
    return found


def _fields(method: str) -> list[str]:
    from dataclasses import fields

    from unseen.method import parts_of
    from unseen.registry import parse

    parts = parts_of(parse(method))
    return [f.name for part in parts for f in fields(part)] + [
        f"{part.name}.{f.name}" for part in parts for f in fields(part)
    ]


def _has(method: str, field: str) -> bool:
    return field in _fields(method)


# --- carrying out ----------------------------------------------------------------------------------------------------
def carry_out(
    todo: Sequence[Settings],
    out: Path,
    workers: int | None,
    labels: Mapping[str, str],
    domains: Sequence[str],
    baseline: str | None,
    options: Sequence[str] = (),
) -> None:
    from unseen.api import spare_workers
    from unseen.bench.collect import collect, condition_of
    from unseen.bench.sweep import make_jobs, sweep
    from unseen.report.tables import accuracy_grid, statistics_grid, terminal, write_tables

    _remember(out, labels, domains)
    _decode(todo)
    jobs = make_jobs(todo, out)
    new = sum(job.status != "finished" for job in jobs)
    at_once = min(workers or spare_workers(todo[0].plan.device), max(1, new))
    shown = board(jobs, at_once)
    shown.said(
        f"{len(jobs)} runs, {len(jobs) - new} of them finished before; {budget(todo[0].plan)}; {at_once} at once; in "
        f"{out}"
    )
    try:
        sweep(jobs, at_once, shown, options=options)
    except KeyboardInterrupt:
        shown.close()
        shown.said("Stopped; the same command goes on, each run after its last finished round.")
        raise typer.Exit(130) from None
    finally:
        shown.close()
    collection = collect(out)
    condition = condition_of(todo[0])
    console = results()
    for group in collection.groups:
        if group.condition == condition:
            console.print(terminal(accuracy_grid(group)))
            if len(group.rows) > 1:
                console.print(terminal(statistics_grid(group, baseline)))
    write_tables(collection, out / "tables", baseline)
    console.print(
        f"tables: {out / 'tables'}   next: unseen report {out}", markup=False, highlight=False, soft_wrap=True
    )
    if failed := [job for job in jobs if job.status == "failed"]:
        errors().print(
            f"{len(failed)} of {len(jobs)} runs failed; their logs are in log.txt of their directories, and the same "
            "command "
            f"tries them again.",
            style="red",
            highlight=False,
            soft_wrap=True,
        )
        raise typer.Exit(1)


def _remember(out: Path, labels: Mapping[str, str], domains: Sequence[str]) -> None:
    """bench.json: what was asked for, in what order, so that tables and the report can say so."""
    from unseen.core.files import read_json, write_json

    path = out / "bench.json"
    about = read_json(path) if path.exists() else {}
    command = shlex.join(["unseen", *sys.argv[1:]])
    write_json(
        path,
        {
            "commands": list(dict.fromkeys([*about.get("commands", []), command])),
            "labels": {**about.get("labels", {}), **labels},
            "methods": list(dict.fromkeys([*about.get("methods", []), *labels.values()])),
            "targets": list(dict.fromkeys([*about.get("targets", []), *domains])),
        },
    )


def _decode(todo: Sequence[Settings]) -> None:
    """The images are decoded once, here, and not by all the first runs at the same time."""
    from unseen.data.catalog import load_index
    from unseen.data.store import open_store

    first = todo[0]
    index = load_index(first.data, Path(first.root) if first.root else None)
    open_store(index, first.image_size, skip_broken=first.skip_broken)


# --- the screen ------------------------------------------------------------------------------------------------------
class PlainBoard:
    """A line when a run ends, and one now and then."""

    EVERY = 30.0

    def __init__(self, jobs: Sequence[Job], workers: int) -> None:
        self.jobs, self.workers = jobs, workers
        self.spoke = time.monotonic()

    def looked(self, jobs: Sequence[Job]) -> None:
        if time.monotonic() - self.spoke > self.EVERY:
            running = "; ".join(
                f"{_name(job)} {job.round}/{job.settings.plan.rounds}" for job in jobs if job.status == "running"
            )
            self.said(f"{self.total()}: {running}")

    def ended(self, job: Job) -> None:
        done = sum(j.status in ("finished", "failed") for j in self.jobs)
        self.said(f"[{done}/{len(self.jobs)}] {_name(job)}: {_outcome(job)}  {self.left()}")

    def total(self) -> str:
        done = sum(job.status in ("finished", "failed") for job in self.jobs)
        return f"{done} of {len(self.jobs)} runs done, {self.left()}"

    def left(self) -> str:
        from unseen.bench.sweep import time_left

        seconds = time_left(self.jobs, self.workers)
        return "time left not known yet" if seconds is None else f"{duration(seconds)} left"

    def said(self, sentence: str) -> None:
        self.spoke = time.monotonic()
        print(sentence, file=sys.stderr, flush=True)

    def close(self) -> None:
        pass


class LiveBoard(PlainBoard):
    """A table of all runs that is redrawn; of many runs, those that are not waiting or long finished."""

    def __init__(self, jobs: Sequence[Job], workers: int, console: Console) -> None:
        super().__init__(jobs, workers)
        self.live = LiveView(console=console, transient=True, refresh_per_second=4)
        self.live.start()

    def looked(self, jobs: Sequence[Job]) -> None:
        self.live.update(Group(self._table(), Text(self.total(), style="cyan")))

    def _table(self) -> Table:
        room = max(4, self.live.console.height - 6)
        order = {"running": 0, "elsewhere": 1, "failed": 2, "waiting": 3, "finished": 4}
        shown = list(self.jobs)
        if len(shown) > room:
            shown = sorted(shown, key=lambda job: (order[job.status], -(job.ended or 0)))[:room]
        view = Table("run", "", "round", "left", box=None, padding=(0, 2, 0, 0))
        colours = {"running": "cyan", "failed": "red", "finished": "green"}
        for job in shown:
            rounds = job.settings.plan.rounds
            bar = "█" * round(20 * job.round / rounds)
            left = duration(job.left) if job.status == "running" and job.left is not None else ""
            word = _outcome(job) if job.status in ("finished", "failed") else bar.ljust(20, "·")
            view.add_row(_name(job), Text(word, style=colours.get(job.status, "dim")), f"{job.round}/{rounds}", left)
        return view

    def ended(self, job: Job) -> None:
        if job.status == "failed":
            self.said(f"{_name(job)}: {_outcome(job)}")

    def said(self, sentence: str) -> None:
        self.live.console.print(sentence, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self.live.stop()


def board(jobs: Sequence[Job], workers: int) -> PlainBoard:
    console = errors()
    return LiveBoard(jobs, workers, console) if console.is_terminal else PlainBoard(jobs, workers)


def _name(job: Job) -> str:
    from unseen.bench.collect import label_of

    return f"{label_of(job.settings)}, unseen {job.settings.target}, seed {job.settings.seed}"


def _outcome(job: Job) -> str:
    if job.status == "failed":
        return f"FAILED: {job.reason}"
    result = job.result
    return percent(result["accuracy"]) if result is not None else job.status
