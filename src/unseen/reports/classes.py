"""Parts of the report by class and by image: accuracies by class, confusions, and images that two methods answer differently."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unseen.experiments.collect import Group, Row
from unseen.reports import figures
from unseen.reports.figures import text
from unseen.reports.names import titled

MOST = 30  # classes that a page shows
Counts = NDArray[np.int64]
Insights = Sequence[tuple[Row, tuple[Mapping[str, Any], dict[str, Any]]]]


def confusion_of(row: Row, target: str) -> Counts | None:
    """The confusion of a method on a target, all seeds together; None where it was not recorded."""
    found = [
        result.measured.confusion
        for (name, _), result in sorted(row.results.items())
        if name == target and result.measured
    ]
    return np.sum([np.asarray(one, dtype=np.int64) for one in found], axis=0) if found else None


def _names(group: Group, count: int) -> list[str]:
    for row in group.rows:
        for run in row.runs.values():
            if (names := run.classes()) is not None and len(names) == count:
                return list(names)
    return [str(k + 1) for k in range(count)]


def _heat(value: float, low: float, high: float, word: str, small: bool = False) -> str:
    part = 0 if math.isnan(value) or high <= low else round(70 * (value - low) / (high - low))
    return f'<td class="heat{" small" if small else ""}" style="--part:{part}%">{word}</td>'


def by_class(group: Group, target: str) -> str:
    """Methods by classes, and what each method takes a class for."""
    tables = {row.label: table for row in group.rows if (table := confusion_of(row, target)) is not None}
    if not tables:
        return ""
    count = len(next(iter(tables.values())))
    if count > MOST:
        return f"<p>{count} classes are too many to show; result.json has the confusion of each run.</p>"
    names = _names(group, count)
    heads = "".join(f'<th scope="col">{text(name)}</th>' for name in names)
    lines = []
    for label, table in tables.items():
        totals = table.sum(1)
        shares = [100 * table[k, k] / totals[k] if totals[k] else math.nan for k in range(count)]
        cells = "".join(_heat(share, 0, 100, "-" if math.isnan(share) else f"{share:.0f}") for share in shares)
        lines.append(f'<tr><th scope="row">{text(titled(label))}</th>{cells}</tr>')
    first = (
        f"<p>Unseen domain {text(target)}, all seeds together: the share of each class that is recognised (%).</p>"
        f'<div class="wide"><table><thead><tr><th scope="col">Method</th>{heads}</tr></thead><tbody>{"".join(lines)}'
        "</tbody></table></div>"
    )
    return first + "".join(
        _confusion(label, table, names, place == 0) for place, (label, table) in enumerate(tables.items())
    )


def _confusion(label: str, table: Counts, names: Sequence[str], opened: bool) -> str:
    totals = np.maximum(1, table.sum(1))
    heads = "".join(f'<th scope="col">{text(name)}</th>' for name in names)
    lines = "".join(
        f'<tr><th scope="row">{text(name)}</th>'
        + "".join(_heat(table[k, j] / totals[k], 0, 1, str(int(table[k, j])), small=True) for j in range(len(names)))
        + "</tr>"
        for k, name in enumerate(names)
    )
    return (
        f"<details{' open' if opened else ''}><summary>{text(titled(label))}: confusion matrix</summary>"
        f'<div class="wide"><table><thead><tr><th scope="col">true class (row), answer (column)</th>{heads}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div></details>"
    )


def flips(insights: Insights, baseline: str | None) -> str:
    """The same images under two methods that the reader chooses: what one gets right and the other wrong."""
    known = [(row, *own) for row, own in insights if "same.image" in own[0]]
    if len(known) < 2 or len({about["target"] for _, _, about in known}) > 1:
        return ""
    _, tensors, about = known[0]
    images = np.asarray(tensors["same.image"]).transpose(0, 2, 3, 1)
    said = {row.label: np.asarray(own["same.prediction"]).tolist() for row, own, _ in known}
    labels = list(said)
    best = next(label for label in labels if label != baseline)
    other = baseline if baseline in said else next(label for label in labels if label != best)
    data = {"said": said, "label": np.asarray(tensors["same.label"]).tolist(), "classes": about["classes"]}

    def choice(chosen: str, name: str) -> str:
        options = "".join(
            f'<option value="{text(label)}"{" selected" if label == chosen else ""}>{text(titled(label))}</option>'
            for label in labels
        )
        return f"<label>{name} <select>{options}</select></label> "

    tiles = "".join(
        f"<figure class=tile hidden>{figures.picture(pixels, about['classes'][label])}<figcaption></figcaption></figure>"
        for pixels, label in zip(images, data["label"], strict=True)
    )
    return (
        f"<p>{len(images)} images of {text(about['target'])}, drawn at random, the same for all methods.</p>"
        f'<div class="flips" data-flips="{text(json.dumps(data))}"><p>{choice(best, "Compare")}{choice(other, "with")}</p>'
        f"<h5></h5><div class=tiles>{tiles}</div><h5></h5><div class=tiles></div></div>"
    )
