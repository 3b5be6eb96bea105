"""The report: one page that opens from disk, with every number as text. Reads records and nothing else."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from unseen.core.files import atomic
from unseen.core.words import megabytes
from unseen.experiments.collect import Collection, Group, Row
from unseen.experiments.insight import insight_of
from unseen.experiments.statistics import summarise
from unseen.reports import figures
from unseen.reports.audit import audit_section
from unseen.reports.classes import by_class, flips
from unseen.reports.figures import Point, Series, text
from unseen.reports.findings import findings
from unseen.reports.names import colour_of, short, titled
from unseen.reports.style import SCRIPT, STYLE, library
from unseen.reports.tables import (
    Grid,
    GridCell,
    accuracy_grid,
    cost_grid,
    folders_grid,
    inference_grid,
    is_measured,
    measures_grid,
    paper_grids,
    statistics_grid,
    telling,
)
from unseen.runs.directory import RunDirectory
from unseen.runs.results import RunResult

KINDS = {
    "model": "model weights",
    "masked": "masked weights and keys",
    "statistics": "statistics",
    "metrics": "numbers for the log",
    "evaluation": "the model, to measure it",
    "calibration": "what calibrates the model",
    "refused": "replies that were refused",
}
UNFOLDED = 4  # methods whose pictures are open when the page is
Insight = tuple[Mapping[str, Any], dict[str, Any]]
Insights = list[tuple[Row, Insight]]


def write_page(collection: Collection, path: Path, baseline: str | None = None, target: str | None = None) -> Path:
    """The whole report as one file, written whole or not at all. Pictures are of `target`, or of the hardest one."""
    with atomic(path) as temporary:
        temporary.write_text("".join(_page(collection, baseline, target)), encoding="utf-8")
    return path


def _page(collection: Collection, baseline: str | None, target: str | None) -> Iterator[str]:
    title = f"unseen: {' and '.join(collection.beside) or collection.folder.resolve().name}"
    yield "<!doctype html>\n"
    yield f'<html lang="en"><head><meta charset="utf-8"><title>{text(title)}</title>'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield '<link rel="icon" href="data:,">'  # else a browser asks for favicon.ico
    drawing_style, drawing = library()
    yield f"<style>{drawing_style}{STYLE}</style></head><body>"
    count = sum(len(row.results) for group in collection.groups for row in group.rows)
    yield f'<header><h1>{text(title)}</h1><button id="theme" type="button">light / dark</button></header><main>'
    yield f"<p>{count} finished runs"
    if collection.unfinished:
        yield f", {len(collection.unfinished)} not finished"
    yield ". Accuracy is on a domain that no client had; numbers of different protocols are never in one table.</p>"
    for number, group in enumerate(collection.groups):
        yield from _group(group, number, baseline, target, collection.beside)
    yield audit_section(collection.folder)
    yield from _again(collection)
    yield f"<footer>Written {datetime.now(UTC):%Y-%m-%d %H:%M} UTC by unseen.</footer>"
    yield f"</main><script>{drawing}</script><script>{SCRIPT}</script></body></html>\n"


def _group(
    group: Group, number: int, baseline: str | None, target: str | None, folders: Sequence[str]
) -> Iterator[str]:
    group = replace(group, rows=group.best())  # best first; the tables on disk keep the order that was asked for
    shades = _shades(group, baseline)
    mark = f"g{number}-"
    insights = _insights(group, target or group.hardest())
    sections: list[tuple[str, str, str]] = [
        ("summary", "In short", _summary(group, baseline)),
        ("folders", "Between the folders", _folders(group, folders)),
        ("leaderboard", "Leaderboard", "".join(_leaderboard(group, baseline))),
        ("heat", "Methods by unseen domain", _heat(group)),
        ("curves", "Over the rounds", _curves(group, shades)),
        ("measures", "More measures", table(more) if (more := measures_grid(group)) and is_measured(group) else ""),
        ("classes", "By class", by_class(group, target or group.hardest())),
        ("rules", "Other statistics at test time", table(ruled) if (ruled := inference_grid(group)) else ""),
        ("cost", "Accuracy against cost", _cost(group, shades)),
        ("ledger", "What leaves a client", _ledger(group)),
        ("partition", "Who has what", _partition(insights)),
        ("samples", "Predictions on the unseen domain", _samples(insights)),
        ("flips", "Images that two methods answer differently", flips(insights, group.baseline(baseline))),
        ("features", "Features", _features(insights)),
        ("alphas", "Alpha by layer", _alphas(insights)),
        ("attention", "Attention", _attention(insights)),
        ("papers", "The papers' own tables", _papers(group)),
        ("settings", "Settings", _settings(group)),
    ]
    shown = [section for section in sections if section[2]]
    yield f'<section class="group"><h2>{text(group.title)}</h2><nav>'
    yield "".join(f'<a href="#{mark}{name}">{text(title)}</a>' for name, title, _ in shown)
    yield "</nav>"
    for name, title, body in shown:
        yield f'<section id="{mark}{name}"><h3>{text(title)}</h3>{body}</section>'
    yield "</section>"


def _summary(group: Group, baseline: str | None) -> str:
    said = findings(group, baseline)
    return f'<ul class="summary">{"".join(f"<li>{text(one)}</li>" for one in said)}</ul>' if said else ""


# --- numbers ---------------------------------------------------------------------------------------------------------
def table(grid: Grid) -> str:
    """A grid as a table that sorts by a click on a heading."""
    heads = "".join(f'<th scope="col"><button type="button">{text(name)}</button></th>' for name in grid.columns)
    body = "".join(f"<tr>{''.join(_cell(cell, c) for c, cell in enumerate(row))}</tr>" for row in grid.rows)
    notes = "".join(f"<li>{text(note)}</li>" for note in grid.notes)
    caption = f"<caption>{text(grid.title)}</caption>" if grid.title else ""
    return (
        f'<div class="wide"><table class="sortable">{caption}<thead><tr>{heads}</tr>'
        "</thead>"
        f"<tbody>{body}</tbody></table></div>{f'<ul class=notes>{notes}</ul>' if notes else ''}"
    )


def _cell(cell: GridCell, column: int) -> str:
    tag, kind = ("th", ' scope="row"') if column == 0 else ("td", "")
    value = f' data-v="{cell.number:.8g}"' if not math.isnan(cell.number) else ""
    inside = text(cell.words)
    inside = {1: f"<b>{inside}</b>", 2: f"<u>{inside}</u>"}.get(cell.place, inside)
    return f"<{tag}{kind}{value}>{inside}</{tag}>"


def _folders(group: Group, names: Sequence[str]) -> str:
    grid = folders_grid(group, names) if len(names) > 1 else None
    return table(telling(grid)) if grid is not None else ""


def _leaderboard(group: Group, baseline: str | None) -> Iterator[str]:
    yield table(accuracy_grid(group))
    if len(group.rows) > 1:
        yield table(telling(statistics_grid(group, baseline)))


def _papers(group: Group) -> str:
    grids = paper_grids(group.settings.data.name)
    # The summary is the table's title, which need not stand twice.
    tables = [(text(grid.title), table(replace(grid, title=""))) for grid in grids]
    folded = "".join(f"<details><summary>{title}</summary>{body}</details>" for title, body in tables)
    words = "As printed, each under its own paper's protocol: not to be compared with the numbers above or each other."
    return f"<p>{words}</p>{folded}" if grids else ""


def _shades(group: Group, baseline: str | None) -> list[int]:
    """A colour per row: where there are more rows than colours, the best and the baseline have them."""
    labels = [row.label for row in group.rows]
    bright = labels[: figures.COLOURS]
    against = group.baseline(baseline)
    if against is not None and against not in bright:
        bright[-1] = against
    keys = [row.method if row.is_default else row.label for row in group.rows]  # a remark changes no colour
    return [colour_of(key) if label in bright else figures.OTHERS for key, label in zip(keys, labels, strict=True)]


def _heat(group: Group) -> str:
    """A shade is a number of points above the lowest of the column, the same number in every column."""
    means = [[group.target(row, target).mean for target in group.targets] for row in group.rows]
    if len(group.rows) < 2:
        return ""
    lows = [min((v for v in column if not math.isnan(v)), default=math.nan) for column in zip(*means, strict=True)]
    span = max((v - low for own in means for v, low in zip(own, lows, strict=True) if not math.isnan(v)), default=0.0)
    lines = []
    for row, own in zip(group.rows, means, strict=True):
        cells = []
        for mean, low in zip(own, lows, strict=True):
            part = 0.0 if math.isnan(mean) or not span else (mean - low) / span
            word = "-" if math.isnan(mean) else f"{mean:.2f}"
            cells.append(f'<td class="heat" style="--part:{round(70 * part)}%">{word}</td>')
        lines.append(f'<tr><th scope="row">{text(titled(row.label))}</th>{"".join(cells)}</tr>')
    heads = "".join(f'<th scope="col">{text(target)}</th>' for target in group.targets)
    return (
        f"<p>Mean unseen accuracy (%). The darker a cell, the further it is above the lowest of its column; the darkest "
        f"is {span:.1f} points above.</p>"
        f'<div class="wide"><table><thead><tr><th scope="col">Method</th>{heads}</tr></thead><tbody>'
        f"{''.join(lines)}</tbody></table></div>"
    )


# --- curves ----------------------------------------------------------------------------------------------------------
def _readings(run: RunDirectory, result: RunResult) -> dict[str, dict[int, float]]:
    """Loss, validation and unseen accuracy by round. Validation of a round stands in the next one's line."""
    found: dict[str, dict[int, float]] = {"loss": {}, "validation": {}, "unseen": {}}
    for line in run.rounds():
        if line.loss is not None:
            found["loss"][line.round] = line.loss
        if line.validation is not None and line.validation.accuracy is not None:
            found["validation"][line.validation.round] = 100 * line.validation.accuracy
        if line.unseen is not None and line.unseen.accuracy is not None:
            found["unseen"][line.unseen.round] = 100 * line.unseen.accuracy
    if (last := result.validation_last) and last.accuracy is not None:
        found["validation"][last.round] = 100 * last.accuracy
    if result.last_accuracy is not None:  # the curve has its end, however seldom the unseen domain was looked at
        found["unseen"][result.rounds] = 100 * result.last_accuracy
    return found


def _curves(group: Group, shades: Sequence[int]) -> str:
    series: dict[str, list[Series]] = {"unseen": [], "validation": [], "loss": []}
    rows = list(zip(shades, group.rows, strict=True))
    # A mean over the easy targets only would lie far from the others' means.
    shown = [(shade, row) for shade, row in rows if not math.isnan(group.average(row).mean)] or rows
    for shade, row in shown:
        readings = {cell: _readings(run, row.results[cell]) for cell, run in row.runs.items()}
        for what, lines in series.items():
            rounds = sorted({r for own in readings.values() for r in own[what]})
            middle, low, high = [], [], []
            for r in rounds:
                seeds: dict[int, list[float]] = {}
                for (_, seed), own in readings.items():
                    if r in own[what]:
                        seeds.setdefault(seed, []).append(own[what][r])
                over = summarise(sum(values) / len(values) for values in seeds.values())
                spread = 0.0 if math.isnan(over.std) else over.std
                middle.append(over.mean)
                low.append(over.mean - spread)
                high.append(over.mean + spread)
            if rounds:
                lines.append(Series(row.label, shade, rounds, middle, low, high))
    names = {
        "unseen": "accuracy on the unseen domain (%)",
        "validation": "accuracy on the sources' validation images (%)",
        "loss": "training loss",
    }
    drawn = [chart(lines, names[what], 3 if what == "loss" else 2) for what, lines in series.items() if lines]
    if not drawn:
        return ""
    words = "Mean over unseen domains and seeds; the band is one standard deviation over seeds."
    peeking = "" if group.peeks else " The unseen curve is only looked at: no selection reads it."
    absent = [titled(row.label) for _, row in rows if row not in [own for _, own in shown]]
    missing = f" Not drawn, because targets are missing: {', '.join(absent)}." if absent else ""
    return f"<p>{words}{peeking}{text(missing)}</p>{_picks(shown)}<div class=figures>{''.join(drawn)}</div>"


def chart(lines: Sequence[Series], name: str, digits: int) -> str:
    """A drawing with its numbers: the page's script makes it one that can be pointed at, zoomed and picked from."""
    rounds = sorted({x for line in lines for x in line.x})

    def at(line: Series, values: Sequence[float]) -> list[float | None]:
        known = dict(zip(line.x, values, strict=True))
        return [round(v, 4) if (v := known.get(x, math.nan)) == v else None for x in rounds]

    series = [
        _entry(line.name, line.colour, at(line, line.y))
        | ({"low": at(line, line.low), "high": at(line, line.high)} if list(line.low) != list(line.high) else {})
        for line in lines
    ]
    data = {"kind": "lines", "x": rounds, "x_name": "round", "y_name": name, "digits": digits, "series": series}
    return _figure(data, figures.curves(lines, "round", name), name)


def dots(points: Sequence[Point], x_name: str, level: Point | None = None, log: bool = False) -> str:
    """Accuracy against what it costs, a dot per method. `level` is a method without a cost: a line across."""
    known = [p for p in points if math.isfinite(p.x) and math.isfinite(p.y)]
    if not known:
        return ""
    places = sorted({p.x for p in known})
    # A place at 0 where no dot is: the axis begins there, also after zooming out.
    x = places if log else [0.0, *(place for place in places if place > 0)]
    series = [_entry(p.name, p.colour, [round(p.y, 4) if p.x == place else None for place in x]) for p in known]
    if level is not None:
        series.append(_entry(level.name, level.colour, [round(level.y, 4)] * len(x)) | {"level": True})
    y_name = "average unseen accuracy (%)"
    data = {"kind": "dots", "log": log, "x": x, "x_name": x_name, "y_name": y_name, "digits": 2, "series": series}
    return _figure(data, figures.scatter(known, x_name, y_name, level, log), y_name)


def _entry(name: str, colour: int, y: list[float | None]) -> dict[str, Any]:
    return {"name": name, "title": short(name), "colour": figures.shade(colour), "y": y}


def _figure(data: dict[str, Any], drawing: str, caption: str) -> str:
    return (
        f'<figure class="chart" data-chart="{text(json.dumps(data))}"><figcaption>{text(caption)}</figcaption>'
        f'<div class="plot">{drawing}</div><p class="read"></p></figure>'
    )


def _picks(shown: Sequence[tuple[int, Row]]) -> str:
    """Boxes to choose methods by, for all charts of the group. They are the legend, too."""
    boxes = "".join(
        f'<label><input type="checkbox" checked value="{text(row.label)}"><i class="{figures.shade(shade)}"></i>'
        f"{text(titled(row.label))}</label>"
        for shade, row in shown
    )
    buttons = '<button type="button" data-all="1">all</button><button type="button" data-all="0">none</button>'
    return f'<fieldset class="pick"><legend>Show</legend>{boxes}{buttons}</fieldset>'


# --- cost ------------------------------------------------------------------------------------------------------------
def _cost(group: Group, shades: Sequence[int]) -> str:
    drawn = []
    rows = list(zip(shades, group.rows, strict=True))
    for name, unit, scale in (
        ("bytes_up", "MB sent by a client per round", 1e6),
        ("seconds", "seconds per run", 1.0),
        ("parameters", "parameters (M)", 1e6),
    ):
        points = [
            Point(row.label, shade, row.numbers(name).mean / scale, group.average(row).mean) for shade, row in rows
        ]
        drawn.append(dots(points, unit))
    drawn.append(_private(group, rows))
    return f"{table(cost_grid(group))}<div class=figures>{''.join(drawn)}</div>"


def _private(group: Group, rows: Sequence[tuple[int, Row]]) -> str:
    """Accuracy against epsilon, where a part of a method adds noise; the baseline without noise is a line across."""
    noisy = [
        Point(row.label, shade, epsilon, group.average(row).mean)
        for shade, row in rows
        if (epsilon := row.numbers("epsilon").mean) > 0  # not a number where there is no noise
    ]
    against = group.baseline()
    level = next(
        (Point(row.label, shade, math.nan, group.average(row).mean) for shade, row in rows if row.label == against),
        None,
    )
    return dots(noisy, "epsilon of the run (smaller is more private)", level, log=True)


def _ledger(group: Group) -> str:
    """Per method: every kind of thing that crossed, the method's own statistics by name."""
    blocks = []
    for row in group.rows:
        run = next(iter(row.runs.values()), None)
        ledger = run.ledger() if run is not None else None
        if ledger is None:
            continue
        trips = max(1, ledger.trips)
        lines = []
        for kind, word in KINDS.items():
            own = [r for r in ledger.crossings() if r.kind == kind]
            if kind == "statistics":
                for r in own:
                    shape = " x ".join(map(str, r.shape)) or "number"
                    lines.append((f"{word}: {r.name} ({shape})", r.direction, r.total / trips))
                continue
            for direction in ("up", "down"):
                here = [r for r in own if r.direction == direction]
                if here:
                    lines.append((f"{word} ({len(here)} by name)", direction, sum(r.total for r in here) / trips))
        body = "".join(
            f'<tr><th scope="row">{text(what)}</th><td>{"to the server" if way == "up" else "from the server"}</td>'
            f"<td>{megabytes(size)}</td></tr>"
            for what, way, size in lines
        )
        flag = (
            f'<strong class="more">sends more than weights: {text(row.sends)}</strong>'
            if row.sends
            else "sends weights only"
        )
        blocks.append(
            f"<details{' open' if row.sends else ''}><summary>{text(titled(row.label))}: {flag}</summary><div class=wide>"
            "<table>"
            "<thead><tr><th>what</th><th>direction</th><th>per client and round</th></tr></thead><tbody>"
            f"{body}</tbody></table></div></details>"
        )
    return f"<p>Counted where it crosses, every tensor by its name.</p>{''.join(blocks)}" if blocks else ""


# --- insight ---------------------------------------------------------------------------------------------------------
def _insights(group: Group, target: str) -> Insights:
    """One of each method: of this target, or else of the first that was ever looked into."""
    found = []
    for row in group.rows:
        for _, run in sorted(row.runs.items(), key=lambda item: (item[0][0] != target, item[0])):
            if (own := insight_of(run)) is not None:
                found.append((row, own))
                break
    return found


def _partition(insights: Insights) -> str:
    for _, (_, about) in insights:
        sources = [domain for domain in about["domains"] if domain != about["target"]]
        drawn = figures.partition(about["clients"], sources, about["classes"])
        return (
            f"<p>Unseen: {text(about['target'])}. A disc's area is the number of images of a class that a client "
            "has, its colour "
            f"the domain that most of them are from.</p><figure class=large>{drawn}</figure>"
        )
    return ""


def _folded(blocks: Sequence[tuple[str, str]]) -> str:
    """One block per method, best first; all but the first few are folded away."""
    return "".join(
        f"<details{' open' if place < UNFOLDED else ''}><summary class=part>{text(title)}</summary>{body}</details>"
        for place, (title, body) in enumerate(blocks)
    )


def _samples(insights: Insights) -> str:
    blocks = []
    for row, (tensors, about) in insights:
        images, classes = np.asarray(tensors["image"]).transpose(0, 2, 3, 1), about["classes"]
        rows: dict[bool, list[str]] = {True: [], False: []}
        for i, pixels in enumerate(images):
            label, guess = int(tensors["image.label"][i]), int(tensors["image.prediction"][i])
            said = f"{classes[guess]} ({100 * float(tensors['image.probability'][i]):.0f} %)"
            true = "" if label == guess else f"<br>is {text(classes[label])}"
            inside = figures.picture(pixels, f"{classes[label]}, predicted {said}")
            rows[label == guess].append(
                f"<figure class=tile>{inside}<figcaption>{text(said)}{true}</figcaption></figure>"
            )
        parts = "".join(
            f"<h5>{word}</h5><div class=tiles>{''.join(rows[right])}</div>"
            for right, word in ((True, "right"), (False, "wrong"))
            if rows[right]
        )
        blocks.append((f"{titled(row.label)}, unseen {about['target']}", parts))
    return (
        "<p>Drawn at random from the same images for every method; the share in brackets is the probability that "
        f"the model gives.</p>{_folded(blocks)}"
        if blocks
        else ""
    )


def _features(insights: Insights) -> str:
    blocks = []
    for row, (tensors, about) in insights:
        places = np.asarray(tensors["place"], dtype=np.float64)
        labels = [int(v) for v in tensors["label"]]
        domains = [int(v) for v in tensors["domain"]]
        last = len(about["domains"]) - 1
        pair = (
            (figures.cloud(places, labels, about["classes"], f"features of {row.label} by class"), "by class"),
            (
                figures.cloud(places, domains, about["domains"], f"features of {row.label} by domain", last),
                "by domain (rings: unseen)",
            ),
        )
        drawn = "".join(
            f"<figure>{one}<figcaption>{text(titled(row.label))}, {word}</figcaption></figure>"
            for one, word in (*pair, *_beside_reference(row, tensors, about))
        )
        blocks.append((f"{titled(row.label)}, unseen {about['target']}", f"<div class=figures>{drawn}</div>"))
    return (
        f"<p>t-SNE of what the head sees. Distances between far groups mean nothing.</p>{_folded(blocks)}"
        if blocks
        else ""
    )


def _beside_reference(row: Row, tensors: Mapping[str, Any], about: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Drawings of a method that aligns features to a reference distribution, with their words."""
    last = len(about["domains"]) - 1
    labels, domains = (
        [int(v) for v, d in zip(tensors[name], tensors["domain"], strict=True) if int(d) != last]
        for name in ("label", "domain")
    )
    for when in ("before", "after"):
        if f"{when}/reference" not in tensors:
            continue
        places, reference = (np.asarray(tensors[f"{when}/{name}"], dtype=np.float64) for name in ("place", "reference"))
        classes = [int(k) for k in tensors.get(f"{when}/reference.class", ())]
        names = about["domains"][:last], about["classes"]
        title = f"features of {row.label} and its reference {when} training"
        yield (
            figures.beside_reference(places, labels, domains, reference, classes, names, title),
            f"{when} training, sources beside the reference{'' if classes else ', which knows no classes'}",
        )


def _alphas(insights: Insights) -> str:
    drawn = []
    for row, (tensors, about) in insights:
        if (alpha := tensors.get("inspected/alpha")) is not None:
            picture = figures.strips(np.asarray(alpha, dtype=np.float64), f"alpha by layer of {row.label}")
            drawn.append(
                f"<figure>{picture}<figcaption>{text(titled(row.label))}, images of {text(about['target'])}</figcaption>"
                "</figure>"
            )
    words = (
        "The weight of an image's own statistics at each norm: 0 takes the averaged statistics, 1 the image's. Line: "
        "mean."
    )
    return f"<p>{words}</p><div class=figures>{''.join(drawn)}</div>" if drawn else ""


def _attention(insights: Insights) -> str:
    blocks = []
    for row, (tensors, about) in insights:
        if (heat := tensors.get("shown/attention")) is None:
            continue
        images = np.asarray(tensors["image"]).transpose(0, 2, 3, 1)
        tiles = []
        for i, (pixels, own) in enumerate(zip(images, np.asarray(heat, dtype=np.float64), strict=True)):
            name = about["classes"][int(tensors["image.label"][i])]
            warm = figures.heated(pixels, own) if own.shape == pixels.shape[:2] else pixels
            pair = figures.picture(pixels, name) + figures.picture(warm, f"attention on {name}")
            tiles.append(f"<figure class=tile>{pair}<figcaption>{text(name)}</figcaption></figure>")
        blocks.append(
            f"<h4>{text(titled(row.label))}, unseen {text(about['target'])}</h4><div class=tiles>{''.join(tiles)}</div>"
        )
    return f"<p>Red is where the model looks.</p>{''.join(blocks)}" if blocks else ""


# --- settings --------------------------------------------------------------------------------------------------------
def _settings(group: Group) -> str:
    flat: list[tuple[str, object]] = []
    for name, value in group.condition.items():
        if isinstance(value, dict):
            for inner, own in value.items():
                flat += [(f"{inner}: {k}", v) for k, v in own.items()] if isinstance(own, dict) else [(inner, own)]
        else:
            flat.append((name, value))
    body = "".join(f'<tr><th scope="row">{text(name)}</th><td>{text(_word(value))}</td></tr>' for name, value in flat)
    changed = [(row.label, row.fields) for row in group.rows if row.fields]
    fields = "".join(f"<li>{text(label)}: <code>{text(json.dumps(own))}</code></li>" for label, own in changed)
    seeds = ", ".join(map(str, group.seeds))
    return (
        f"<p>Seeds {seeds}; unseen domains {text(', '.join(group.targets))}.</p>"
        f"{f'<p>Changed fields of methods:</p><ul>{fields}</ul>' if fields else ''}"
        f"<details><summary>All settings</summary><div class=wide><table><tbody>{body}</tbody></table></div></details>"
    )


def _word(value: object) -> str:
    return "-" if value is None else str(value)


def _again(collection: Collection) -> Iterator[str]:
    commands: Sequence[str] = collection.about.get("commands", [])
    if not commands:
        commands = [
            f"unseen run --resume {run.path}"
            for group in collection.groups
            for row in group.rows
            for run in row.runs.values()
        ][:8]
    yield '<section id="again"><h2>How to run it again</h2><pre>'
    yield "\n".join(map(text, [*commands, f"unseen report {collection.folder}"]))
    yield (
        "</pre><p>The same command goes on where it was stopped, and gives the same bits on the same machine.</p>"
        "</section>"
    )
