"""What `unseen check` found, as one page that opens from disk and asks for nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from unseen.core.files import atomic
from unseen.core.metrics import BINS, CalibrationCurve
from unseen.experiments.check import Checked, Share, wilson
from unseen.reports.figures import Frame, svg, text
from unseen.reports.style import SCRIPT, STYLE

LEFT = 'style="text-align:left;white-space:normal"'  # words, in tables of numbers
NEW = 0.9  # of the known sites' images look less strange than the typical one here: then the whole site is new
DEEPEST = 60  # percent of the colour: numbers stay readable on it
MEANING = {
    "accuracy": "right answers; the interval is Wilson's, 95 %",
    "accuracy, also by images without labels": "prediction-powered inference, 95 %",
    "macro F1": "mean over classes of precision and recall together",
    "balanced accuracy": "mean over classes of the share found",
    "AUROC": "each class against the rest: 50 % is chance",
    "calibration error": "how far probabilities are from shares right",
    "sets hold the class": "prediction sets that hold the true class",
    "classes in a set": "on average; 1 is a plain answer",
    "unlike training": "images; 5 % of those of training",
    "unlike in look": "colours and textures of no known site; 2.5 %",
    "unlike in content": "no class fits well; 2.5 %",
    "the typical look": "stranger than so many images of the known sites",
}


def rows(found: Checked) -> list[tuple[str, str, str]]:
    """Name, value and meaning of each number: the terminal and the page say the same."""
    values = {
        "accuracy": interval(found.accuracy),
        "macro F1": percent(found.measured.macro_f1),
        "balanced accuracy": percent(found.measured.balanced_accuracy),
        "AUROC": percent(found.measured.auroc),
        "calibration error": percent(found.measured.calibration_error),
        "classes in a set": "-" if found.set_size is None else f"{found.set_size:.2f}",
        "unlike training": percent(found.unlike_training),
    }
    if found.unlike_look is not None:
        values["unlike in look"] = percent(found.unlike_look)
        values["unlike in content"] = percent(found.unlike_content)
        values["the typical look"] = percent(found.typical_look)
    if found.coverage is not None and found.covers is not None:
        values["sets hold the class"] = f"{interval(found.coverage)}, should be {100 * found.covers:g} %"
    if found.prediction_powered is not None:
        values["accuracy, also by images without labels"] = interval(found.prediction_powered.accuracy)
    return [(name, values[name], meaning) for name, meaning in MEANING.items() if name in values]


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def interval(share: Share) -> str:
    return f"{100 * share.value:.1f} % ({100 * share.low:.1f} to {100 * share.high:.1f})"


def write_check_page(found: Checked, classes: Sequence[str], path: Path, about: str) -> Path:
    with atomic(path) as temporary:
        temporary.write_text("".join(_page(found, classes, about)), encoding="utf-8")
    return path


def _page(found: Checked, classes: Sequence[str], about: str) -> Iterator[str]:
    yield "<!doctype html>\n"
    yield '<html lang="en"><head><meta charset="utf-8"><title>unseen: check</title>'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f'<link rel="icon" href="data:,"><style>{STYLE}</style></head><body>'
    yield "<header><h1>The model at this site</h1>"
    yield '<button id="theme" type="button">light / dark</button></header><main>'
    yield f"<p>{text(about)}; {found.images:,} labelled images"
    if found.prediction_powered is not None:
        yield f", {found.prediction_powered.unlabelled:,} without a label"
    yield f"; files that could not be read: {found.unreadable:,}.</p>" if found.unreadable else ".</p>"
    yield '<div class="wide"><table><thead><tr><th scope="col">measure</th><th scope="col">value</th>'
    yield f'<th scope="col" {LEFT}>what it says</th></tr></thead><tbody>'
    for name, value, meaning in rows(found):
        yield f'<tr><th scope="row">{text(name)}</th><td>{text(value)}</td><td {LEFT}>{text(meaning)}</td></tr>'
    yield "</tbody></table></div>"
    if found.coverage is not None and found.covers is not None and found.coverage.high < found.covers:
        yield "<p>The sets hold the class less often than they should: this site differs from those of training. "
        yield "That is to be expected; the sets' promise holds for images like those of training only.</p>"
    if found.typical_look is not None and found.typical_look >= NEW:
        yield "<p>This site as a whole looks unlike those that trained: what the model says of sets and probabilities was "
        yield "found elsewhere. Go by the numbers of this page.</p>"
    yield "<h2>Are the probabilities right?</h2><div class=figures><figure>"
    yield reliability(found.curve)
    yield "<figcaption>Share right by the model's probability of its answer. On the diagonal they agree; below it the "
    yield "model is too sure. A larger dot stands for more images; the line through it is its 95 % interval."
    yield "</figcaption></figure></div>"
    yield "<h2>What is taken for what?</h2>"
    yield _confusion(found.measured.confusion, classes)
    yield f"<footer>Written {datetime.now(UTC):%Y-%m-%d %H:%M} UTC by unseen. metrics.json beside this page has the "
    yield "numbers and nothing else.</footer>"
    yield f"</main><script>{SCRIPT}</script></body></html>\n"


def reliability(curve: CalibrationCurve) -> str:
    """The calibration curve, with a dot per bin that has images."""
    frame = Frame([0.0, 0.25, 0.5, 0.75, 1.0], [0.0, 0.25, 0.5, 0.75, 1.0], "probability of the answer", "share right")
    parts = [*frame.draw()]
    parts.append(
        f'<line class="axis" x1="{frame.x(0):.1f}" y1="{frame.y(0):.1f}" x2="{frame.x(1):.1f}" y2="{frame.y(1):.1f}"/>'
    )
    filled = [b for b in range(BINS) if curve.images[b]]
    points = [(curve.confidence[b] / curve.images[b], curve.right[b] / curve.images[b]) for b in filled]
    most = max(curve.images)
    for b, (x, y) in zip(filled, points, strict=True):
        radius = 2 + 5 * (curve.images[b] / most) ** 0.5
        likely = wilson(curve.right[b], curve.images[b])
        ends = f'y1="{frame.y(likely.low):.1f}" y2="{frame.y(likely.high):.1f}"'
        parts.append(f'<line class="line c0" x1="{frame.x(x):.1f}" x2="{frame.x(x):.1f}" {ends}/>')
        parts.append(f'<circle class="dot c0" cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="{radius:.1f}"/>')
    return svg(parts, "calibration curve")


def _confusion(confusion: Sequence[Sequence[int]], classes: Sequence[str]) -> str:
    heads = "".join(f'<th scope="col">{text(name)}</th>' for name in classes)
    body = []
    for name, row in zip(classes, confusion, strict=True):
        total = max(1, sum(row))
        cells = "".join(f'<td class="heat" style="--part:{DEEPEST * count / total:.0f}%">{count}</td>' for count in row)
        body.append(f'<tr><th scope="row">{text(name)}</th>{cells}</tr>')
    return (
        '<div class="wide"><table><caption>Rows: the true class. Columns: the answer. Counts of images; the colour is '
        f'the share of the row.</caption><thead><tr><th scope="col"></th>{heads}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )
