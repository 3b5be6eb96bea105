"""What `unseen choose` found, as a short page: choice.md and choice.html."""

from __future__ import annotations

import math
from pathlib import Path

from unseen.core.files import atomic
from unseen.core.words import megabytes
from unseen.experiments.choose import Candidate, Choice
from unseen.reports.figures import text
from unseen.reports.page import table
from unseen.reports.style import SCRIPT, STYLE
from unseen.reports.tables import Grid, GridCell, markdown

RULE = (
    "The recommended method is the simplest within one standard error of the best. Simpler: sends nothing beyond the "
    "model's weights; then changes fewer things; then takes less time."
)


def choice_grid(choice: Choice) -> Grid:
    columns = ["Method", "", *choice.sites, "Mean", "Worst site", "Behind the best", "Δ to fedavg"]
    columns += ["Sends beyond weights", "Up per client and round", "Seconds per run"]
    grid = Grid("choice", f"Accuracy (%) on the site that was left out: {choice.data}", columns)
    order = {"recommended": 0, "as good": 1, "behind": 2, "dropped": 3, "failed": 4}
    for one in sorted(choice.candidates, key=lambda c: (order[c.standing], -(c.mean or 0))):
        grid.rows.append(_row(one, choice.sites))
    grid.notes += [
        f"Each site was left out in turn; the mean over seeds {', '.join(map(str, choice.seeds))}.",
        "Behind the best: paired by site, with its standard error. Δ to fedavg: paired by site and seed, with a 95 % "
        "interval over seeds.",
        RULE,
        choice.saved,
        *choice.cautions,
    ]
    return grid


def _row(one: Candidate, sites: list[str]) -> list[GridCell]:
    if one.mean is None:
        return [GridCell(one.label), GridCell(one.standing), *(GridCell("-") for _ in range(len(sites) + 7))]
    by_site = [100 * sum(one.accuracy[site]) / len(one.accuracy[site]) for site in sites]
    cells = [GridCell(one.label, 1 if one.standing == "recommended" else 0), GridCell(one.standing)]
    cells += [_number(value) for value in [*by_site, 100 * one.mean, 100 * (one.worst or 0)]]
    behind, error = 100 * (one.behind or 0), 100 * (one.error if one.error is not None else math.nan)
    cells.append(GridCell(f"{behind:.1f} ± {error:.1f}", number=behind))
    cells.append(_difference(one.to_baseline))
    cells.append(GridCell(one.sends or "nothing"))
    cells.append(GridCell(megabytes(one.bytes_up or 0), number=one.bytes_up or 0))
    cells.append(GridCell(f"{one.seconds or 0:.0f}", number=one.seconds or 0))
    return cells


def _number(value: float) -> GridCell:
    return GridCell(f"{value:.1f}", number=value)


def _difference(found: list[float] | None) -> GridCell:
    if not found:
        return GridCell("")
    interval = f" ({100 * found[1]:+.1f} to {100 * found[2]:+.1f})" if len(found) == 3 else ""
    return GridCell(f"{100 * found[0]:+.1f}{interval}", number=100 * found[0])


def write_choice(choice: Choice, out: Path) -> list[Path]:
    grid, title = choice_grid(choice), f"Recommended: {choice.recommended.label}"
    page = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{text(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<style>{STYLE}</style></head><body><header><h1>{text(title)}</h1>"
        '<button id="theme" type="button">light / dark</button></header><main>'
        f'<p>{text(choice.why)}</p>{table(grid)}<p><a href="report.html">All runs of this choice</a></p>'
        f"</main><script>{SCRIPT}</script></body></html>\n"
    )
    words = f"# {title}\n\n{choice.why}\n\n{markdown(grid)}"
    files = {out / "choice.md": words, out / "choice.html": page}
    for path, content in files.items():
        with atomic(path) as temporary:
            temporary.write_text(content, encoding="utf-8")
    return list(files)
