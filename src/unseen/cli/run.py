"""`unseen run`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from unseen.cli.screen import budget, chosen_by, duration, errors, percent, results, screen
from unseen.core.errors import UserError

if TYPE_CHECKING:
    from unseen.runs.protocols import Settings
    from unseen.runs.run import Result

EXAMPLE = (
    "Example: unseen run --data digits --target street --method fedavg   ·   "
    "unseen run --protocol pacs-quick --root PACS --target all --seed 0-2 --method fedbn+fedprox --set mu=0.01"
)
WHAT, BUDGET, NET, HOW = "What", "Budget (default: the protocol's)", "Net", "How"


def run(
    data: Annotated[
        str | None, typer.Option(help="Dataset: digits, or a name of `unseen data list`.", rich_help_panel=WHAT)
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="The unseen domain: one, several with commas, or `all`.", rich_help_panel=WHAT)
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="A method, or several as fedbn+fedprox. (default: fedavg)", rich_help_panel=WHAT)
    ] = None,
    field: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="A field of the method; repeatable.", rich_help_panel=WHAT),
    ] = None,
    seed: Annotated[
        str | None,
        typer.Option(help="One seed, several as 0,1,2 or 0-2, or `all` of the protocol's.", rich_help_panel=WHAT),
    ] = None,
    root: Annotated[Path | None, typer.Option(help="The folder of the dataset's images.", rich_help_panel=WHAT)] = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            help="A budget by name; `unseen protocols` lists them. (default: digits, pacs-quick)",
            rich_help_panel=BUDGET,
        ),
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds.", rich_help_panel=BUDGET)] = None,
    local_epochs: Annotated[int | None, typer.Option(help="Local epochs per round.", rich_help_panel=BUDGET)] = None,
    local_steps: Annotated[
        int | None, typer.Option(help="Local steps per round, instead of epochs.", rich_help_panel=BUDGET)
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images per step.", rich_help_panel=BUDGET)] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.", rich_help_panel=BUDGET)] = None,
    partition: Annotated[
        str | None,
        typer.Option(
            help="Domains to clients: domain, iid:K, dirichlet:K:ALPHA, mixed:N:ALPHA, pairs, pooled.",
            rich_help_panel=BUDGET,
        ),
    ] = None,
    centralized: Annotated[
        bool | None,
        typer.Option(
            "--centralized",
            help="All source domains in one place: the same as --partition pooled.",
            rich_help_panel=BUDGET,
        ),
    ] = None,
    participation: Annotated[
        float | None, typer.Option(help="Clients in a round: a fraction up to 1, or a number.", rich_help_panel=BUDGET)
    ] = None,
    validation: Annotated[
        float | None,
        typer.Option(help="Part of each client's images held back for validation.", rich_help_panel=BUDGET),
    ] = None,
    client_selection: Annotated[
        str | None, typer.Option(help="Local model to upload: last or best.", rich_help_panel=BUDGET)
    ] = None,
    server_selection: Annotated[
        str | None,
        typer.Option(
            help="Round to keep: validation, last, or oracle (PEEKS at the unseen domain).", rich_help_panel=BUDGET
        ),
    ] = None,
    validation_mean: Annotated[
        str | None,
        typer.Option(help="Validation over clients (plain mean) or examples (by images).", rich_help_panel=BUDGET),
    ] = None,
    augmentation: Annotated[
        str | None,
        typer.Option(help="none, domainbed, jigen, fedadg, gperxan, dassl or digits.", rich_help_panel=BUDGET),
    ] = None,
    test_every: Annotated[
        int | None,
        typer.Option(
            help="Rounds between two tests on the unseen domain, for the curve only; 0: none.", rich_help_panel=BUDGET
        ),
    ] = None,
    backbone: Annotated[
        str | None, typer.Option(help="convnet, alexnet, alexnet_bn or a name of timm's.", rich_help_panel=NET)
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="none, imagenet, or a .safetensors file.", rich_help_panel=NET)
    ] = None,
    image_size: Annotated[int | None, typer.Option(help="Side of the images in px.", rich_help_panel=NET)] = None,
    bottleneck: Annotated[
        int | None, typer.Option(help="Width of a layer before the head.", rich_help_panel=NET)
    ] = None,
    engine: Annotated[str | None, typer.Option(help="local or flower. (default: local)", rich_help_panel=HOW)] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            help="Processes; the same bits for any number. (default: a process per core)", rich_help_panel=HOW
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="auto, cpu, cuda, cuda:NUMBER or mps. (default: auto)", rich_help_panel=HOW)
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="float32 or bfloat16. (default: float32)", rich_help_panel=HOW)
    ] = None,
    skip_broken: Annotated[
        bool | None, typer.Option("--skip-broken", help="Leave broken images out, and list them.", rich_help_panel=HOW)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run directories. (default: runs)", rich_help_panel=HOW)
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Go on with the run in this directory.", rich_help_panel=HOW)
    ] = None,
    log: Annotated[
        list[str] | None,
        typer.Option(help="Also tell tensorboard, mlflow or wandb, if installed; repeatable.", rich_help_panel=HOW),
    ] = None,
) -> None:
    """Train on all domains but one, and test on that one.

    The same command again goes on where it was stopped; a finished run is not run again.
    """
    given = {
        name: value
        for name, value in locals().items()
        if value is not None and name not in ("workers", "resume", "log")
    }
    if resume is not None:
        if given:
            option = "--set" if "field" in given else f"--{next(iter(given)).replace('_', '-')}"
            raise UserError(f"--resume goes on with the run's own settings: leave out {option}, or leave out --resume.")
        todo, folder = [_resumed(resume)], resume.resolve().parent
    else:
        todo, folder = _planned(given), given.get("out", Path("runs"))
    finished: list[Result] = []
    for number, chosen in enumerate(todo, 1):
        which = f"run {number} of {len(todo)}: " if len(todo) > 1 else ""
        about = f"{chosen.method} on {chosen.data}, unseen {chosen.target}, seed {chosen.seed}, {budget(chosen.plan)}"
        errors().print(which + about, markup=False, highlight=False, soft_wrap=True)
        finished.append(_carry_out(chosen, folder, workers, log or []))
        report(finished[-1])
    if len(finished) > 1:
        results().print(table(finished))


def pool_if_centralized(given: dict[str, Any]) -> None:
    """`--centralized` is a partition."""
    if given.pop("centralized", False) and given.setdefault("partition", "pooled") != "pooled":
        raise UserError("--centralized pools all source domains: leave out --partition, or leave out --centralized.")


def _planned(given: dict[str, Any]) -> list[Settings]:
    """One run per target and seed."""
    from unseen.api import absolute, dataset, plan_run, protocol_named, spell_method

    given = {name: value for name, value in given.items() if name != "out"}
    pool_if_centralized(given)
    fields, targets, seeds = read_fields(given.pop("field", [])), given.pop("target", ""), given.pop("seed", None)
    method = given.pop("method", "fedavg")
    spell_method(method, fields)  # a wrong name is said before a large folder is read
    protocol = protocol_named(given.get("data"), given.get("protocol"))
    index = dataset(given.get("data"), given.get("protocol"), absolute(given.get("root")))
    if not targets:
        raise UserError(f"Give the unseen domain with --target: {', '.join(index.domains)}, or all.")
    names = list(index.domains) if targets == "all" else [index.find(name.strip()) for name in targets.split(",")]
    return [
        plan_run(target=name, method=method, fields=fields, seed=seed, **given)
        for name in dict.fromkeys(names)
        for seed in read_seeds(seeds, protocol.seeds)
    ]


def read_fields(words: list[str]) -> dict[str, str]:
    """`["mu=0.1"]` -> `{"mu": "0.1"}`."""
    fields = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise UserError(f'"{word}" is not understood; write --set FIELD=VALUE.')
        fields[name.strip()] = value.strip()
    return fields


def read_named(word: str) -> tuple[str, dict[str, str]]:
    """`"fedfd:lambda2=0.02:reduce=sum"` -> its name and its fields."""
    name, *settings = word.split(":")
    return name.strip(), read_fields(settings)


def read_seeds(text: str | None, protocols: tuple[int, ...]) -> list[int]:
    """`"0"`, `"0,1,2"`, `"0-2"`, `"all"` of the protocol's; the protocol's first without a word."""
    if text is None:
        return [protocols[0]]
    if text == "all":
        return list(protocols)
    seeds: list[int] = []
    for word in text.split(","):
        ends = word.strip().split("-")
        if len(ends) > 2 or not all(end.isdecimal() for end in ends) or int(ends[-1]) < int(ends[0]):
            raise UserError(f'"{text}" is not understood as seeds; write 0, or 0,1,2, or 0-2, or all.')
        seeds += range(int(ends[0]), int(ends[-1]) + 1)
    return list(dict.fromkeys(seeds))


def _resumed(path: Path) -> Settings:
    """The settings in a run directory, which must still be those that name it."""
    from unseen.runs.directory import RunDirectory, directory_for

    settings = RunDirectory.open(path).settings()
    name = directory_for(settings, path.resolve().parent).name
    if name != path.resolve().name:
        raise UserError(
            f"{path} holds a run of other arguments: its config.json belongs to a directory named {name}; "
            f"give it back its name or its config.json."
        )
    return settings


def _carry_out(chosen: Settings, out: Path, workers: int | None, log: list[str]) -> Result:
    from unseen.api import carry_out
    from unseen.runs.directory import directory_for
    from unseen.runs.recorders import Watchers, record

    shown = screen()
    recorders = record(log, directory_for(chosen, out), chosen)
    try:
        result = carry_out(chosen, out=out, workers=workers, watcher=Watchers(shown, *recorders))
        for recorder in recorders:
            recorder.finished(result.summary)
    except KeyboardInterrupt:
        shown.close()
        path = directory_for(chosen, out)
        shown.said(
            f"Stopped; the same command, or `unseen run --resume {path}`, goes on after the last finished round."
        )
        raise typer.Exit(130) from None
    finally:
        shown.close()
        for recorder in recorders:
            recorder.close()
    if not shown.started:
        shown.said("This run was finished before; here is its result.")
    return result


def report(result: Result) -> None:
    """What a run ends with."""
    about, console = result.summary, results()
    kept = f"round {result.selected_round} of {about['rounds']}, selection: {chosen_by(about['selection'])}"
    mark = " (oracle: PEEKS)" if about["peeks"] else ""
    for line in (
        f"unseen accuracy {percent(result.accuracy)} on {about['target']}{mark}; {kept}",
        f"in-domain accuracy {percent(result.in_domain_accuracy)} on the sources' validation images",
        str(about["ledger"]),
        f"{duration(about['seconds'])}; written to {result.directory}",
        f"next: unseen show {result.directory}   or   unseen predict {result.directory} IMAGES --out predictions.csv",
    ):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def table(finished: list[Result]) -> Table:
    """Targets by rows, and the mean over targets and seeds."""
    first = finished[0].summary
    mark = " (oracle: PEEKS at the unseen domain)" if any(r.summary["peeks"] for r in finished) else ""
    view = Table(title=f"{first['method']} on {first['data']}, protocol {first['protocol']}{mark}")
    for heading in ("unseen domain", "seeds", "unseen accuracy", "in-domain accuracy"):
        view.add_column(heading, justify="left" if heading == "unseen domain" else "right")
    for target in dict.fromkeys(r.summary["target"] for r in finished):
        rows = [r for r in finished if r.summary["target"] == target]
        view.add_row(target, str(len(rows)), _mean(r.accuracy for r in rows), _mean(r.in_domain_accuracy for r in rows))
    view.add_section()
    everything = (_mean(r.accuracy for r in finished), _mean(r.in_domain_accuracy for r in finished))
    view.add_row("mean", str(len(finished)), *everything)
    return view


def _mean(values: Any) -> str:
    numbers = [value for value in values if value is not None]
    return percent(sum(numbers) / len(numbers)) if numbers else "-"
