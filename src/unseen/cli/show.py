"""`unseen show`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from unseen.cli.screen import budget, chosen_by, duration, more_measures, percent, results
from unseen.core.words import megabytes
from unseen.runs.results import mark_of
from unseen.runs.settings import NO_TARGET

if TYPE_CHECKING:
    from unseen.federation.ledger import Ledger
    from unseen.runs.directory import RunDirectory
    from unseen.runs.results import RoundLine, RunResult
    from unseen.runs.settings import Settings

EXAMPLE = "Example: unseen show runs   ·   unseen show runs/digits-street-fedavg-s0-1a2b3c4d"
BLOCKS = "▁▂▃▄▅▆▇█"
LARGEST = 8  # tensors of a kind that are shown one by one


def show(folder: Annotated[Path, typer.Argument(help="A run directory, or a folder of them.")]) -> None:
    """Show a run: settings, curves, accuracies and what was sent. Or a table of all runs in a folder."""
    from unseen.core.errors import UserError
    from unseen.runs.directory import find_runs

    runs = find_runs(folder)
    if not runs:
        raise UserError(f"There are no runs in {folder}; `unseen run --out {folder}` makes one.")
    if len(runs) > 1:
        results().print(_summary(folder, runs))
    else:
        _one(runs[0])


def _summary(folder: Path, runs: Sequence[RunDirectory]) -> Table:
    view = Table(title=f"{len(runs)} runs in {folder}")
    for heading in (
        "data",
        "unseen",
        "method",
        "seed",
        "protocol",
        "round",
        "unseen acc.",
        "in-domain acc.",
        "up per round",
    ):
        view.add_column(heading)
    view.add_column("directory", overflow="fold")
    marked = False
    for run in runs:
        settings, about = run.settings(), run.result()
        if about is None:
            numbers = [f"{len(run.rounds())}/{settings.plan.rounds} (not finished)", "-", "-", "-"]
        else:
            marked |= (beyond := bool(about.beyond_weights))
            numbers = [
                f"{about.selected_round}/{about.rounds}",
                percent(about.accuracy) + about.mark,
                percent(about.in_domain_accuracy),
                megabytes(about.bytes_up) + (" *" if beyond else ""),
            ]
        view.add_row(
            settings.data.name,
            settings.target,
            _method(settings),
            str(settings.seed),
            settings.protocol,
            *numbers,
            run.path.name,
        )
    if marked:
        view.caption = "* more than the model's weights was sent; `unseen show` of that run says what"
    return view


def _one(run: RunDirectory) -> None:
    console, settings, about = results(), run.settings(), run.result()
    for line in _config(settings):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    lines = run.rounds()
    if lines:
        console.print(_curves(lines, about, mark_of(settings)))
    if about is None:
        done = f"{len(lines)} of {settings.plan.rounds} rounds done"
        console.print(
            f"not finished: {done}; go on with: unseen run --resume {run.path}", markup=False, highlight=False
        )
        return
    clients = [f"{client} {percent(value)}" for client, value in about.in_domain.items()]
    for line in (
        (
            "trained on all domains"
            if about.target == NO_TARGET
            else f"unseen accuracy {percent(about.accuracy)} on {about.target}{about.mark}"
        )
        + f"; round {about.selected_round} of {about.rounds}, chosen by: {about.selection_words}",
        *filter(None, [more_measures(about)]),
        f"in-domain accuracy {percent(about.in_domain_accuracy)} on the sources' {about.in_domain_images} images: "
        + ", ".join(clients[:12])
        + (" ..." if len(clients) > 12 else "")
        + f"; worst {percent(about.worst_client)}",
        f"the last round: unseen accuracy {percent(about.last_accuracy)}, in-domain "
        f"{percent(about.last_in_domain_accuracy)}",
        about.ledger,
        f"{duration(about.seconds)}, {about.clients} clients, {about.parameters:,} parameters, kernels {about.kernels}",
        *filter(None, [about.kernels_remark, about.remark and f"the method as it was run: {about.remark}"]),
        *(
            f"unseen accuracy {percent(line.accuracy)} by the inference rule {rule}"
            for rule, line in run.evaluations().items()
        ),
    ):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if (ledger := run.ledger()) is not None:
        console.print(_ledger(ledger))
    console.print(
        f"next: unseen predict {run.path} IMAGES --out predictions.csv", markup=False, highlight=False, soft_wrap=True
    )


def _method(settings: Settings) -> str:
    changed = ", ".join(f"{name}={value}" for name, value in settings.fields.items())
    return settings.method + (f" ({changed})" if changed else "")


def _config(settings: Settings) -> list[str]:
    data, net, plan = settings.data, settings.net, settings.plan
    weights = Path(net.weights).name if net.weights_are_a_file else net.weights
    optimizer = plan.optimizer
    return [
        f"{_method(settings)} on {data.name}, {settings.left_out}, seed {settings.seed}, protocol {settings.protocol}",
        f"{net.backbone} at {data.image_size} px, weights {weights}; partition {data.partition}; "
        f"{budget(plan)}; {optimizer.name} lr {optimizer.lr:g} {optimizer.schedule}; "
        f"selection {plan.client_selection} on clients, {chosen_by(plan.server_selection)} on the server",
    ]


def sparkline(values: Sequence[float | None]) -> str:
    """One block per value, from the smallest to the largest; a gap where nothing was measured."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return ""
    low, span = min(known), max(known) - min(known)

    def block(value: float | None) -> str:
        if value is None or not math.isfinite(value):
            return " "
        return BLOCKS[round((value - low) / span * (len(BLOCKS) - 1)) if span else 0]

    return "".join(block(value) for value in values)


def _curves(lines: Sequence[RoundLine], about: RunResult | None, mark: str) -> Table:
    """A row per curve. Validation of a round is in the line of the next one, and of the last round in the result."""
    measured = [line.validation for line in lines] + [about.validation_last if about is not None else None]
    validated = {v.round: v.accuracy for v in measured if v is not None}
    numbers = [line.round for line in lines]
    curves: list[tuple[str, list[float | None], bool]] = [
        ("loss", [line.loss for line in lines], False),
        ("validation", [validated.get(number) for number in numbers], True),
        (f"unseen{mark}", [line.unseen.accuracy if line.unseen is not None else None for line in lines], True),
    ]
    view = Table("curve", f"rounds {numbers[0]} to {numbers[-1]}", "first", "best", "last")
    for name, values, is_accuracy in curves:
        known = [value for value in values if value is not None and math.isfinite(value)]
        if known:
            best = max(known) if is_accuracy else min(known)
            spelled = [percent(value) if is_accuracy else f"{value:.4f}" for value in (known[0], best, known[-1])]
            view.add_row(name, sparkline(values), *spelled)
    return view


def _ledger(ledger: Ledger) -> Table:
    """A method's statistics by name, because they are what one wants to know; the rest in a row per kind."""
    view = Table("direction", "kind", "tensor", "shape", "per crossing", "crossings", "in all", title="what crossed")
    rows = sorted(ledger.crossings(), key=lambda row: -row.total)
    for direction in ("up", "down"):
        for kind in ("statistics", "model", "metrics"):
            here = [row for row in rows if row.direction == direction and row.kind == kind]
            shown = LARGEST if kind == "statistics" else 1 if len(here) == 1 else 0
            for row in here[:shown]:
                shape = "x".join(map(str, row.shape)) or "number"
                view.add_row(
                    direction, kind, row.name, shape, megabytes(row.bytes), str(row.crossings), megabytes(row.total)
                )
            if rest := here[shown:]:
                size, total = sum(row.bytes for row in rest), sum(row.total for row in rest)
                most = max(row.crossings for row in rest)
                view.add_row(direction, kind, f"{len(rest)} tensors", "", megabytes(size), str(most), megabytes(total))
    return view
