"""Tables shaped like the papers': methods by rows, unseen domains by columns. As Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from unseen.core.files import atomic
from unseen.core.words import cell as worded
from unseen.core.words import megabytes, plain
from unseen.experiments.collect import Collection, Group, Row
from unseen.experiments.published import TABLES, PaperTable, Published, beside
from unseen.experiments.statistics import LEAST_PAIRS, LEAST_SEEDS, Summary, average_over_targets, compare, summarise
from unseen.reports.names import titled


@dataclass(frozen=True)
class GridCell:
    """One cell: its text, and its place in the column (1 best, 2 second) where that means something."""

    text: str
    place: int = 0
    number: float = math.nan  # for sorting and for CSV
    spread: float = math.nan
    title: str = ""  # what people read where that is not `text`: a method as its paper writes it

    @property
    def words(self) -> str:
        return self.title or self.text


@dataclass
class Grid:
    """A table before it is text, markup or a page."""

    name: str
    title: str
    columns: list[str]
    rows: list[list[GridCell]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    worded: frozenset[str] = frozenset()  # columns that no single number says; CSV has their text


def telling(grid: Grid) -> Grid:
    """For people: without the columns in which no row has anything to say. Files keep them, so that scripts find them."""
    silent = [
        c > 0 and all(cell.text in ("-", FEW) for cell in column)
        for c, column in enumerate(zip(*grid.rows, strict=True))
    ]
    few = any(s and FEW in {row[c].text for row in grid.rows} for c, s in enumerate(silent))
    gone = tuple(f"{name}: " for name, s in zip(grid.columns, silent, strict=True) if s)
    return replace(
        grid,
        columns=[name for name, s in zip(grid.columns, silent, strict=True) if not s],
        rows=[[cell for cell, s in zip(row, silent, strict=True) if not s] for row in grid.rows],
        notes=[f"There are too few seeds for intervals: they need {LEAST_SEEDS}."] * few
        + [note for note in grid.notes if not note.startswith(gone)],
    )


FEW = "too few seeds"  # instead of an interval that would say nothing


def spelled(summary: Summary) -> str:
    """`84.07 ± 0.61`, the spread being the standard deviation over seeds."""
    if summary.count == 0:
        return "-"
    return f"{summary.mean:.2f}" + ("" if math.isnan(summary.std) else f" ± {summary.std:.2f}")


def p_value(p: float) -> str:
    if math.isnan(p):
        return "-"
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def accuracy_grid(group: Group) -> Grid:
    """Methods x targets, their average and the worst, in-domain beside out-of-domain, and the published number if any."""
    # A protocol with other numbers than its paper's is not the paper's.
    protocol = group.settings.protocol if not group.changes else ""
    published = beside(
        group.settings.data.name,
        protocol,
        [row.method for row in group.rows if row.as_published],
        group.settings.net.backbone,
    )
    columns = ["Method", *group.targets, "Avg", "Worst", "In-domain", *(["Published"] if published else [])]
    grid = Grid(f"accuracy-{group.name}", f"Unseen accuracy (%): {group.title}", columns)
    summaries = [
        [*(group.target(row, target) for target in group.targets), group.average(row), group.worst(row)]
        for row in group.rows
    ]
    inside = [group.average(row, "in_domain_accuracy") for row in group.rows]
    table = [[*own, own_inside] for own, own_inside in zip(summaries, inside, strict=True)]
    whole = not lacking(group)
    places = [_places([own[c].mean for own in table], whole) for c in range(len(group.targets) + 3)]
    for r, (row, own) in enumerate(zip(group.rows, table, strict=True)):
        cells = [_marked(row)]
        cells += [GridCell(spelled(s), places[c][r], s.mean, s.std) for c, s in enumerate(own)]
        if published:
            cells.append(_published(published.get(row.method) if row.as_published else None))
        grid.rows.append(cells)
    grid.notes += _notes(group)
    grid.notes += sorted({number.note for number in published.values()})
    return grid


def _published(number: Published | None) -> GridCell:
    return (
        GridCell("-") if number is None else GridCell(f"{number.average:.2f} [{number.source}]", number=number.average)
    )


def _marked(row: Row) -> GridCell:
    """Methods that send more than weights have a star."""
    star = " *" if row.sends else ""
    return GridCell(row.label + star, title=titled(row.label) + star)


def _notes(group: Group) -> list[str]:
    seeds = group.seeds
    notes = [
        f"Mean ± standard deviation over {len(seeds)} seeds ({', '.join(map(str, seeds))})."
        if len(seeds) > 1
        else f"One seed ({seeds[0] if seeds else '-'}): no spread is known.",
        f"Round kept by: {_chosen_by(group)}. In-domain: the same model on the source clients' {_inside(group)} images.",
    ]
    if missing := lacking(group):
        said = ", ".join(f"{titled(label)} has {count} of {wanted}" for label, (count, wanted) in missing.items())
        notes.append(f"Not all runs are there yet: {said}. No winner is marked, and means may be over fewer seeds.")
    if any(row.sends for row in group.rows):
        notes.append("* sends more than the model's weights.")
    return notes


def lacking(group: Group) -> dict[str, tuple[int, int]]:
    """Methods without a run for every target and seed: how many they have, and how many there should be."""
    wanted = [(target, seed) for target in group.targets for seed in group.seeds]
    there = {row.label: sum(cell in row.results for cell in wanted) for row in group.rows}
    return {label: (count, len(wanted)) for label, count in there.items() if count < len(wanted)}


def _inside(group: Group) -> str:
    """Which held-back images the in-domain accuracy is of."""
    return next((r.in_domain_images for row in group.rows for r in row.results.values()), "validation")


def _chosen_by(group: Group) -> str:
    return next((r.selection_words for row in group.rows for r in row.results.values()), "-")


def statistics_grid(group: Group, baseline: str | None = None) -> Grid:
    """Average with its 95 % interval, average rank, and the paired comparison with the baseline."""
    against = group.baseline(baseline)
    columns = ["Method", "Runs", "Avg", "Std", "95 % interval", "Avg rank"]
    if against is not None:
        columns += [f"Δ to {titled(against)}", "95 % of Δ", "Wins/losses/pairs", "p", "p (Holm)"]
    worded = frozenset({"95 % interval", "95 % of Δ", "Wins/losses/pairs"})
    grid = Grid(f"statistics-{group.name}", f"Statistics: {group.title}", columns, worded=worded)
    ranks, comparisons = group.ranks(), group.comparisons(baseline)
    averages = [group.average(row) for row in group.rows]
    whole = not lacking(group)
    average_places = _places([a.mean for a in averages], whole)
    rank_places = _places([-ranks[row.label] for row in group.rows], whole)
    for r, (row, average) in enumerate(zip(group.rows, averages, strict=True)):
        low, high = average.mean - average.half_width, average.mean + average.half_width
        rank = ranks[row.label]
        cells = [
            _marked(row),
            GridCell(str(len(row.results)), number=len(row.results)),
            GridCell("-" if not average.count else f"{average.mean:.2f}", average_places[r], average.mean),
            GridCell("-" if math.isnan(average.std) else f"{average.std:.2f}", number=average.std),
            GridCell(FEW if math.isnan(low) else f"{low:.2f} to {high:.2f}", number=average.half_width),
            GridCell("-" if math.isnan(rank) else f"{rank:.2f}", rank_places[r], rank),
        ]
        if against is not None:
            one = comparisons.get(row.label)
            cells += (
                [GridCell("-")] * 5
                if one is None
                else [
                    GridCell(f"{one.difference:+.2f}", number=one.difference),
                    GridCell(FEW if math.isnan(one.low) else f"{one.low:+.2f} to {one.high:+.2f}", number=one.high),
                    GridCell(f"{one.wins}/{one.losses}/{one.pairs}", number=one.wins),
                    GridCell(p_value(one.p), number=one.p),
                    GridCell(p_value(one.corrected), number=one.corrected),
                ]
            )
        grid.rows.append(cells)
    common = len(set.intersection(*(set(row.results) for row in group.rows)))
    grid.notes += [
        f"95 % interval: of the mean over seeds, by Student's t, from {LEAST_SEEDS} seeds on.",
        f"Avg rank: 1 is best; over the {common} pairs of target and seed that all methods have.",
    ]
    if against is not None and comparisons:
        tests = sum(not math.isnan(one.p) for one in comparisons.values())
        corrected = (
            f"corrected for {tests} comparison{'s' if tests > 1 else ''}" if tests else "no method has as many yet"
        )
        grid.notes += [
            "95 % of Δ: a bootstrap over seeds within targets.",
            f"p: Wilcoxon's signed-rank test, two-sided, against {titled(str(against))} over pairs of target and seed; "
            f"from {LEAST_PAIRS} pairs on; Holm: {corrected}. Pairs of one target are not independent.",
        ]
    return grid


def folders_grid(group: Group, names: Sequence[str]) -> Grid | None:
    """The same methods in several folders: how far each is from the first one, paired by target and seed."""
    first, *others = names
    rows = {row.label: row for row in group.rows}
    shown = [row.label.removesuffix(f" [{first}]") for row in group.rows if row.label.endswith(f" [{first}]")]
    columns = ["Method", *names, *(f"Δ of {name}" for name in others), "95 % of Δ", "Wins/losses/pairs"]
    if len(others) > 1:  # then a difference for each, and no room for how sure it is
        columns = columns[:-2]
    grid = Grid(
        f"folders-{group.name}", f"The folders side by side, average unseen accuracy (%): {group.title}", columns
    )
    for label in shown:
        own = [rows.get(f"{label} [{name}]") for name in names]
        if sum(row is not None for row in own) < 2 or own[0] is None:
            continue
        averages = [group.average(row) if row is not None else summarise([]) for row in own]
        compared = [
            compare({"first": own[0].scores(), "other": row.scores()}, "first").get("other")
            if row is not None
            else None
            for row in own[1:]
        ]
        cells = [
            GridCell(label, title=titled(label)),
            *(GridCell(spelled(s), number=s.mean, spread=s.std) for s in averages),
        ]
        cells += [
            GridCell("-") if one is None else GridCell(f"{one.difference:+.2f}", number=one.difference)
            for one in compared
        ]
        if len(others) == 1:
            (one,) = compared
            cells += (
                [GridCell("-")] * 2
                if one is None
                else [
                    GridCell(FEW if math.isnan(one.low) else f"{one.low:+.2f} to {one.high:+.2f}", number=one.high),
                    GridCell(f"{one.wins}/{one.losses}/{one.pairs}", number=one.wins),
                ]
            )
        grid.rows.append(cells)
    grid.notes.append(
        f"Δ: to {first}, the mean over pairs of target and seed that both have. 95 % of Δ: a bootstrap over seeds within "
        "targets. Methods that only one folder has are in the tables below."
    )
    return grid if grid.rows else None


MEASURES = {
    "Macro F1": "macro_f1",
    "Balanced acc.": "balanced_accuracy",
    "AUROC": "auroc",
    "ECE": "calibration_error",
}


def is_measured(group: Group) -> bool:
    """Do the records have more than accuracies? Those of earlier versions do not."""
    return any(result.measured is not None for row in group.rows for result in row.results.values())


def measures_grid(group: Group) -> Grid:
    """What a domain needs beside accuracy: means over the unseen domains, and the worst target and client."""
    columns = ["Method", *MEASURES, "Worst target", "Worst client"]
    grid = Grid(f"measures-{group.name}", f"More measures (%): {group.title}", columns)
    table = [
        [
            *(group.average(row, what) for what in MEASURES.values()),
            group.worst(row),
            group.average(row, "worst_client"),
        ]
        for row in group.rows
    ]
    best_low = columns.index("ECE") - 1
    whole = not lacking(group)
    places = [
        _places([-s[c].mean if c == best_low else s[c].mean for s in table], whole) for c in range(len(columns) - 1)
    ]
    for r, (row, own) in enumerate(zip(group.rows, table, strict=True)):
        cells = [GridCell(spelled(s), places[c][r], s.mean, s.std) for c, s in enumerate(own)]
        grid.rows.append([_marked(row), *cells])
    grid.notes.append(
        "Means over the unseen domains. AUROC: each class against the rest. ECE: expected calibration error over 15 "
        "bins, lower is better. Worst target: accuracy on the unseen domain where it is lowest. Worst client: lowest "
        f"accuracy on one source client's {_inside(group)} images. -: not in the records of earlier versions."
    )
    return grid


def cost_grid(group: Group) -> Grid:
    """Bytes, time and parameters of the runs themselves."""
    private = any(result.epsilon is not None for row in group.rows for result in row.results.values())
    shown: dict[str, tuple[str, Callable[[float], str]]] = {
        "Up per client and round": ("bytes_up", megabytes),
        "of it beyond weights": ("bytes_up_statistics", megabytes),
        "Down": ("bytes_down", megabytes),
        "Parameters": ("parameters", lambda value: f"{value / 1e6:.3f} M"),
        "Seconds per run": ("seconds", lambda value: f"{value:.0f}"),
    }
    if private:
        shown["Epsilon"] = ("epsilon", lambda value: f"{value:.3g}")
    grid = Grid(f"cost-{group.name}", f"Cost: {group.title}", ["Method", *shown])
    for row in group.rows:
        cells = [_marked(row)]
        for name, show in shown.values():
            number = row.numbers(name).mean
            cells.append(GridCell("-" if math.isnan(number) else show(number), number=number))
        grid.rows.append(cells)
    grid.notes.append(
        "Seconds are of this machine, with whatever else ran on it; `unseen cost` measures ratios side by side."
    )
    if private:
        grid.notes.append(
            "Epsilon: differential privacy of a site's images as a whole, over the run. -: no noise is added."
        )
    return grid


def inference_grid(group: Group) -> Grid | None:
    """The same models by other rules for BatchNorm's statistics, where `unseen evaluate` tried some."""
    columns = ["Method", "Rule", *group.targets, "Avg", "Runs", "Δ to own"]
    grid = Grid(f"inference-{group.name}", f"Inference rules, unseen accuracy (%): {group.title}", columns)
    tried = [(row, rule, scores) for row in group.rows for rule, scores in row.by_rule().items()]
    if not tried:
        return None
    table = [
        [
            *(summarise(v for (name, _), v in sorted(scores.items()) if name == target) for target in group.targets),
            average_over_targets(scores, group.targets),
        ]
        for _, _, scores in tried
    ]
    places = [_places([own[c].mean for own in table]) for c in range(len(group.targets) + 1)]
    for r, ((row, rule, scores), own) in enumerate(zip(tried, table, strict=True)):
        before = row.scores()
        gain = summarise(value - before[cell] for cell, value in scores.items() if cell in before).mean
        grid.rows.append(
            [
                _marked(row),
                GridCell(rule + ("†" if row.depends(rule) else "")),
                *(GridCell(spelled(s), places[c][r], s.mean, s.std) for c, s in enumerate(own)),
                GridCell(str(len(scores)), number=len(scores)),
                GridCell("-") if rule == "own" or math.isnan(gain) else GridCell(f"{gain:+.2f}", number=gain),
            ]
        )
    grid.notes.append(
        "The selected models of the runs, not trained again. own: the method's own prediction. †: an answer depends "
        "on other unseen images (its batch, or all that came before). Δ: mean over the runs that were tested by both."
    )
    return grid


def paper_grids(data: str) -> list[Grid]:
    """The papers' main tables of a dataset, as printed: also the systems that have no counterpart here."""
    return [_paper_grid(table) for table in TABLES if table.data == data and table.is_main]


def _paper_grid(table: PaperTable) -> Grid:
    grid = Grid("", f"{table.source}: {table.backbone}, {table.about}", ["System", *table.columns, "Avg"])
    columns = list(zip(*([*row.values, row.average] for row in table.rows), strict=True))
    places = [_places(column) for column in columns]
    for r, row in enumerate(table.rows):
        how = " (quoted)" if row.quoted else " (centralised)" if row.centralised else ""
        cells = [GridCell(row.system + how)]
        for c, column in enumerate(columns):
            cells.append(GridCell("-" if math.isnan(column[r]) else f"{column[r]:.2f}", places[c][r], column[r]))
        grid.rows.append(cells)
    if any(row.quoted for row in table.rows):
        grid.notes.append("quoted: a centralised system whose numbers the paper took from others; it is not in unseen.")
    grid.notes += [table.remark] if table.remark else []
    return grid


def grids(group: Group, baseline: str | None = None) -> list[Grid]:
    ruled = inference_grid(group)
    first = [accuracy_grid(group), measures_grid(group), statistics_grid(group, baseline)]
    return [*first, *([ruled] if ruled else []), cost_grid(group)]


def _places(values: Sequence[float], whole: bool = True) -> list[int]:
    """1 for the best values, 2 for the second best, 0 for the rest; none where there is nothing to compare.

    A table that is not whole has no winner: what is missing could be better.
    """
    if not whole:
        return [0] * len(values)
    known = sorted({round(value, 2) for value in values if not math.isnan(value)}, reverse=True)
    if len([value for value in values if not math.isnan(value)]) < 2:
        return [0] * len(values)
    return [0 if math.isnan(v) or round(v, 2) not in known[:2] else known.index(round(v, 2)) + 1 for v in values]


# --- as text ---------------------------------------------------------------------------------------------------------
def markdown(grid: Grid) -> str:
    marks: dict[int, Callable[[str], str]] = {1: lambda t: f"**{t}**", 2: lambda t: f"<u>{t}</u>"}
    lines = [f"**{_escaped(grid.title)}**", ""]
    lines += ["| " + " | ".join(map(_escaped, grid.columns)) + " |", "|---" + "|---:" * (len(grid.columns) - 1) + "|"]
    for row in grid.rows:
        cells = [marks.get(cell.place, str)(_escaped(cell.words)) for cell in row]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *(f"{_escaped(note)}  " for note in grid.notes)]).rstrip() + "\n"


def _escaped(text: str) -> str:
    return plain(text).replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")


def comma_separated(grid: Grid) -> str:
    """Plain numbers with all their digits; a column with a spread has another one behind it."""
    spreads = [any(not math.isnan(row[c].spread) for row in grid.rows) for c in range(len(grid.columns))]
    numeric = [any(not math.isnan(row[c].number) for row in grid.rows) for c in range(len(grid.columns))]
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    heading: list[str] = []
    for c, name in enumerate(grid.columns):
        heading += [worded(name), *([worded(f"{name} std")] if spreads[c] else [])]
    out.writerow(heading)
    for row in grid.rows:
        line: list[str] = []
        for c, cell in enumerate(row):
            line.append(
                _number(cell.number) if numeric[c] and grid.columns[c] not in grid.worded else worded(cell.text)
            )
            if spreads[c]:
                line.append(_number(cell.spread))
        out.writerow(line)
    return text.getvalue()


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.6g}"


LATEX = {
    "&": r"\&",
    "%": r"\%",
    "_": r"\_",
    "#": r"\#",
    "$": r"\$",
    "{": r"\{",
    "}": r"\}",
    "±": r"$\pm$",
    "Δ": r"$\Delta$",
    "<": r"$<$",
    "*": r"$^\ast$",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
}


def latex(grid: Grid) -> str:
    r"""A booktabs table: `\usepackage{booktabs}` is all it needs."""
    marks: dict[int, Callable[[str], str]] = {1: lambda t: rf"\textbf{{{t}}}", 2: lambda t: rf"\underline{{{t}}}"}
    lines = [
        *(f"% {plain(note)}" for note in grid.notes),  # a caption has one line; what must be known stands here
        r"\begin{table}[t]",
        r"\centering",
        rf"\caption{{{_tex(grid.title)}.}}",
        rf"\begin{{tabular}}{{l{'r' * (len(grid.columns) - 1)}}}",
        r"\toprule",
        " & ".join(map(_tex, grid.columns)) + r" \\",
        r"\midrule",
    ]
    for row in grid.rows:
        lines.append(" & ".join(marks.get(cell.place, str)(_tex(cell.words)) for cell in row) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"


def _tex(text: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in plain(text))


FORMS: dict[str, Callable[[Grid], str]] = {"md": markdown, "csv": comma_separated, "tex": latex}


def write_tables(collection: Collection, folder: Path, baseline: str | None = None) -> list[Path]:
    """Every table of every group, in every form, each written whole or not at all."""
    written: list[Path] = []
    names: dict[str, int] = {}
    for group in collection.groups:
        for grid in grids(group, baseline):
            names[grid.name] = names.get(grid.name, 0) + 1
            # A second group of the same protocol (with changed numbers) has files of its own.
            stem = grid.name + (f"-{names[grid.name]}" if names[grid.name] > 1 else "")
            for ending, form in FORMS.items():
                path = folder / f"{stem}.{ending}"
                with atomic(path) as temporary:
                    temporary.write_text(form(grid))
                written.append(path)
    return written
