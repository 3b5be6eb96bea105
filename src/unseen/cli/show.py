"""`unseen show`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unseen.cli.screen import (
    budget,
    chosen_by,
    constant_apart,
    duration,
    in_terminal,
    more_measures,
    percent,
    print_json,
    print_table,
    say,
)
from unseen.core.words import PEEKS, megabytes
from unseen.runs.results import label_of, mark_of
from unseen.runs.settings import NO_TARGET

if TYPE_CHECKING:
    from unseen.federation.ledger import Ledger
    from unseen.runs.directory import RunDirectory
    from unseen.runs.results import RoundLine, RunResult
    from unseen.runs.settings import Settings

EXAMPLE = "Example: unseen show runs   ·   unseen show runs/digits-street-fedavg-s0-1a2b3c4d"
BLOCKS = "▁▂▃▄▅▆▇█"
LARGEST = 8  # tensors of a kind that are shown one by one


def show(
    folder: Annotated[Path, typer.Argument(help="A run directory, or a folder of them.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for another program.")] = False,
) -> None:
    """Show a run: settings, curves, accuracies and what was sent. Or a table of all runs in a folder."""
    from unseen.core.errors import UserError
    from unseen.runs.directory import find_runs

    runs = find_runs(folder)
    if not runs:
        raise UserError(f"There are no runs in {folder}; `unseen run --out {folder}` makes one.")
    if as_json:
        print_json([_as_json(run) for run in runs] if len(runs) > 1 else _as_json(runs[0], rounds=True))
    elif len(runs) > 1:
        _summary(folder, runs)
    else:
        _one(runs[0])


def _as_json(run: RunDirectory, rounds: bool = False) -> dict[str, Any]:
    about, lines = run.result(), run.rounds()
    found = {
        "directory": str(run.path),
        "finished": about is not None,
        "rounds_done": len(lines),
        "settings": run.settings().to_json(),
        "result": about.to_json() if about is not None else None,
        "evaluations": [asdict(line) for line in run.evaluations().values()],
    }
    return found | ({"rounds": [line.to_json() for line in lines]} if rounds else {})


COLUMNS = ("data", "protocol", "method", "unseen", "seed", "round", "accuracy", "in-domain", "sent up")


def _summary(folder: Path, runs: Sequence[RunDirectory]) -> None:
    """A row per run; what is the same for all is said once, and the directories stand below."""
    rows, marked = [], False
    for run in runs:
        settings, about = run.settings(), run.result()
        if about is None:
            numbers = [f"{len(run.rounds())}/{settings.plan.rounds} so far", "-", "-", "-"]
        else:
            marked |= (beyond := bool(about.beyond_weights))
            numbers = [
                f"{about.selected_round}/{about.rounds}",
                percent(about.accuracy) + (f" {PEEKS}" if about.peeks else ""),
                percent(about.in_domain_accuracy),
                megabytes(about.bytes_up) + (" *" if beyond else ""),
            ]
        rows.append(
            [
                settings.data.name,
                settings.protocol,
                label_of(settings, about.remark if about is not None else ""),
                settings.target,
                str(settings.seed),
                *numbers,
            ]
        )
    if not in_terminal():
        print_table([*COLUMNS, "directory"], [[*row, str(run.path)] for row, run in zip(rows, runs, strict=True)])
        return
    numbered = [[str(number), *row] for number, row in enumerate(rows, 1)]
    columns, cells, same = constant_apart(["#", *COLUMNS], numbered)
    common = "; ".join(f"{name} {value}" for name, value in same.items() if value != "-")
    notes = ["* more than the model's weights was sent; `unseen show` of that run says what"] if marked else []
    print_table(
        columns, cells, title=f"{len(runs)} runs in {folder}" + (f": {common}" if common else ""), notes=notes,
        right=("accuracy", "in-domain", "sent up"), folded=("method",),
    )  # fmt: skip
    for number, run in enumerate(runs, 1):
        say(f"{number:<{len(str(len(runs)))}}  {run.path}")


def _one(run: RunDirectory) -> None:
    settings, about = run.settings(), run.result()
    say(*_config(settings))
    lines = run.rounds()
    if lines:
        _curves(lines, about, mark_of(settings))
    if about is None:
        done = f"{len(lines)} of {settings.plan.rounds} rounds done"
        say(f"not finished: {done}; go on with: unseen run --resume {run.path}")
        return
    clients = [f"{client} {percent(value)}" for client, value in about.in_domain.items()]
    say(
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
        *filter(None, [_calibrated(run)]),
        f"the last round: unseen accuracy {percent(about.last_accuracy)}, in-domain "
        f"{percent(about.last_in_domain_accuracy)}",
        about.ledger,
        f"{duration(about.seconds)}, {about.clients} clients, {about.parameters:,} parameters, kernels {about.kernels}"
        + (f" on {about.cpu}" if about.cpu else ""),
        *filter(None, [about.kernels_remark, about.as_run]),
        *(
            f"unseen accuracy {percent(line.accuracy)} by the inference rule {rule}"
            for rule, line in run.evaluations().items()
        ),
    )
    if (ledger := run.ledger()) is not None:
        _ledger(ledger)
    say(f"next: unseen predict {run.path} IMAGES --out predictions.csv")


def _calibrated(run: RunDirectory) -> str:
    """How the model was calibrated; "" for runs of earlier versions."""
    if (found := run.calibration()) is None:
        return ""
    return (
        f"calibrated by {found.images:,} validation images: temperature {found.temperature:.2f}, calibration error "
        f"{percent(found.error_before)} before, {percent(found.error_after)} after"
    )


def _config(settings: Settings) -> list[str]:
    data, net, plan = settings.data, settings.net, settings.plan
    weights = Path(net.weights).name if net.weights_are_a_file else net.weights
    optimizer = plan.optimizer
    return [
        f"{label_of(settings)} on {data.name}, {settings.left_out}, seed {settings.seed}, protocol {settings.protocol}",
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


MOST = 32  # blocks of a curve


def thinned(values: Sequence[float | None]) -> list[float | None]:
    """At most MOST of them, evenly, the last one always."""
    if len(values) <= MOST:
        return list(values)
    return [values[round(k * (len(values) - 1) / (MOST - 1))] for k in range(MOST)]


def _curves(lines: Sequence[RoundLine], about: RunResult | None, mark: str) -> None:
    """A row per curve. Validation of a round is in the line of the next one, and of the last round in the result."""
    measured = [line.validation for line in lines] + [about.validation_last if about is not None else None]
    validated = {v.round: v.accuracy for v in measured if v is not None}
    numbers = [line.round for line in lines]
    curves: list[tuple[str, list[float | None], bool]] = [
        ("loss", [line.loss for line in lines], False),
        ("validation", [validated.get(number) for number in numbers], True),
        (f"unseen{mark}", [line.unseen.accuracy if line.unseen is not None else None for line in lines], True),
    ]
    rows = []
    for name, values, is_accuracy in curves:
        known = [value for value in values if value is not None and math.isfinite(value)]
        if known:
            best = max(known) if is_accuracy else min(known)
            spelled = [percent(value) if is_accuracy else f"{value:.4f}" for value in (known[0], best, known[-1])]
            rows.append([name, sparkline(thinned(values)), *spelled])
    columns = ["curve", f"rounds {numbers[0]} to {numbers[-1]}", "first", "best", "last"]
    print_table(columns, rows, right=columns[2:])


def _ledger(ledger: Ledger) -> None:
    """A method's statistics by name, because they are what one wants to know; the rest in a row per kind."""
    table = []
    rows = sorted(ledger.crossings(), key=lambda row: -row.total)
    for direction in ("up", "down"):
        for kind in ("statistics", "model", "masked", "metrics", "calibration", "refused"):
            here = [row for row in rows if row.direction == direction and row.kind == kind]
            shown = LARGEST if kind == "statistics" else 1 if len(here) == 1 else 0
            for row in here[:shown]:
                shape = "x".join(map(str, row.shape)) or "number"
                numbers = [megabytes(row.bytes), str(row.crossings), megabytes(row.total)]
                table.append([direction, kind, row.name, shape, *numbers])
            if rest := here[shown:]:
                size, total = sum(row.bytes for row in rest), sum(row.total for row in rest)
                most = max(row.crossings for row in rest)
                table.append(
                    [direction, kind, f"{len(rest)} tensors", "", megabytes(size), str(most), megabytes(total)]
                )
    columns = ["way", "kind", "tensor", "shape", "each", "times", "in all"]
    print_table(columns, table, title="what crossed", right=("each", "times", "in all"), folded=("tensor",))
