"""What commands print. Progress is on stderr (`unseen.runs.screen`); stdout is for results.

A table fits the terminal: words are folded, and a table with too many columns becomes several, one below the other. When
stdout is no terminal, cells have tabs between them.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from unseen.core.terminal import CleanConsole, Pace, duration, errors, percent
from unseen.core.words import plain
from unseen.runs.screen import Live, Plain, budget, chosen_by, more_measures, screen, tell

if TYPE_CHECKING:
    from unseen.reports.tables import Grid

__all__ = [
    "Live", "Pace", "Plain", "budget", "chosen_by", "constant_apart", "duration", "errors", "in_terminal", "more_measures",
    "percent", "print_grid", "print_json", "print_table", "results", "say", "screen", "tell", "tell_unreadable",
]  # fmt: skip

Cell = str | Text
GAP = 2  # between two columns: one of padding, and rich's divider, which is a space here
LEAST, FIRST_LEAST = 16, 24  # a folded column has at least this many letters, the first one these
PIPE = 200  # letters in a line where there is no terminal


def results() -> Console:
    """A console on stdout. A pipe has no width: lines are then not broken. `NO_COLOR` takes the bold, too."""
    console = CleanConsole()
    if not console.is_terminal:
        return CleanConsole(width=PIPE)
    # rich keeps bold under NO_COLOR; with no colour system at all there is no markup of any kind.
    return CleanConsole(color_system=None, width=console.width) if os.environ.get("NO_COLOR") else console


def in_terminal() -> bool:
    """Does a person read stdout?"""
    return Console().is_terminal


def say(*lines: str) -> None:
    """Sentences on stdout. In a terminal they break between words; paths and commands stay whole, to be copied."""
    console = results()
    for line in "\n".join(lines).split("\n"):
        whole = not console.is_terminal or line.startswith("next: ") or " --" in line or len(line) <= console.width
        broken = line if whole else fill(line, console.width, break_long_words=False, break_on_hyphens=False)
        console.print(broken, markup=False, highlight=False, soft_wrap=True)


UNREADABLE = 3  # exit code: all was done, but for files that could not be read


def tell_unreadable(broken: Sequence[str]) -> None:
    """Files that could not be read, at the end, on stderr."""
    listed = "\n".join(f"  {file}" for file in broken)
    errors().print(f"{len(broken)} files could not be read:\n{listed}", markup=False, highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """One JSON value on stdout, for another program."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    *,
    title: str = "",
    notes: Sequence[str] = (),
    right: Sequence[str] = (),
    folded: Sequence[str] = (),
) -> None:
    """A table for a person, or the same cells with tabs between them. Columns named in `folded` may take several lines."""
    if not in_terminal():
        for line in (columns, *rows):
            sys.stdout.write("\t".join(plain(" ".join(str(cell).split())) for cell in line) + "\n")
        return
    console = results()
    if title:
        console.print(title, style="italic", markup=False, highlight=False)
    for part in _parts(columns, rows, folded, console.width):
        view = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, GAP - 1, 0, 0), show_edge=False)
        for c in part:
            name = columns[c]
            view.add_column(
                name, justify="right" if name in right else "left", overflow="fold", no_wrap=name not in folded
            )
        for row in rows:
            view.add_row(*(row[c] for c in part))
        console.print(view)
        console.print()
    for note in notes:
        console.print(note, markup=False, highlight=False, style="dim")


def _parts(
    columns: Sequence[str], rows: Sequence[Sequence[Cell]], folded: Sequence[str], width: int
) -> list[list[int]]:
    """Columns of each table: as many as fit beside the first, which says of what the row is."""

    def natural(c: int) -> int:
        longest = max([cell_len(columns[c]), *(cell_len(str(row[c])) for row in rows)])
        least = LEAST if c else FIRST_LEAST
        return min(longest, least) if columns[c] in folded else longest

    widths = [natural(c) + GAP for c in range(len(columns))]
    parts: list[list[int]] = [[0]]
    room = width - widths[0]
    for c in range(1, len(columns)):
        if widths[c] > room + GAP and len(parts[-1]) > 1:  # nothing need stand behind the last column
            parts.append([0])
            room = width - widths[0]
        parts[-1].append(c)
        room -= widths[c]
    return parts


STYLES = {1: "bold", 2: "underline"}


def print_grid(grid: Grid) -> None:
    rows = [[Text(cell.text, style=STYLES.get(cell.place, "")) for cell in row] for row in grid.rows]
    print_table(grid.columns, rows, title=grid.title, notes=grid.notes, right=grid.columns[1:], folded=grid.columns[:1])


def constant_apart(
    columns: Sequence[str], rows: Sequence[Sequence[str]]
) -> tuple[list[str], list[list[str]], Mapping[str, str]]:
    """The columns that differ between rows, their cells, and by name what is the same in all rows."""
    same = {name: rows[0][c] for c, name in enumerate(columns) if len(rows) > 1 and len({row[c] for row in rows}) == 1}
    left = [c for c, name in enumerate(columns) if name not in same]
    return [columns[c] for c in left], [[row[c] for c in left] for row in rows], same
