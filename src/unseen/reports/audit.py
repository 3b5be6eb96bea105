"""What leaks, as a table and as a section of the page. Reads audit.json files and nothing else."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median

from unseen.audits.findings import AUDIT_FILE, AuditResult, Finding, Score, read_audit
from unseen.core.files import atomic
from unseen.reports.figures import text
from unseen.reports.tables import Grid, GridCell, comma_separated, markdown

Pick = Callable[[AuditResult], Score | None]


def _named(start: str, score: str | None = None, part: str = "", real: bool | None = None) -> Pick:
    """The score of the findings whose attack begins with a word; the highest where there are several."""

    def pick(audit: AuditResult) -> Score | None:
        found = [
            finding.scores.get(score) if score else finding.identified_of_100
            for finding in audit.findings
            if finding.attack.startswith(start)
            and re.search(rf"{part}(?!\d)", finding.saw)  # "step of 1" is not "step of 16"
            and real in (None, finding.real)
        ]
        return max((one for one in found if one is not None), key=lambda one: one.value, default=None)

    return pick


FROM_UPDATES: dict[str, Pick] = {
    "features, 1 step of 1": _named("features", part="step of 1"),
    "features, 1 step of 4": _named("features", part="step of 4"),
    "features, 1 step of 16": _named("features", part="step of 16"),
    "matching, 1 image": _named("gradient matching", part="1 image, 1 step of 1, norms in train"),
    "matching, 1 image, norms in eval mode": _named("gradient matching", part="1 image, 1 step of 1, norms in eval"),
    "matching, 4": _named("gradient matching", part="4 images, 1 step of 4"),
    "matching, 16": _named("gradient matching", part="16 images, 1 step of 16"),
    "matching, an epoch": _named("gradient matching", part="16 images, 4 steps of 4"),
}
BEYOND_WEIGHTS: dict[str, Pick] = {
    "style of 1 image": _named("style matching: 1 image "),
    "style of 4": _named("style matching: 4 images "),
    "style of 16": _named("style matching: 16 images "),
    "style of 64": _named("style matching: 64 images "),
    "style decoded, 1 image": _named("style decoder: 1 image "),
    "style decoded, 4": _named("style decoder: 4 images "),
    "style decoded, 16": _named("style decoder: 16 images "),
    "style decoded, 64": _named("style decoder: 64 images "),
    "spectra of the run": _named("spectra: matching"),
    "spectra, phase retrieved": _named("spectra: phase"),
}
OTHERS: dict[str, Pick] = {
    "membership, AUC (loss)": _named("membership, from the final model: loss", "AUC"),
    "membership, AUC (RMIA)": _named("membership, from the final model: RMIA", "AUC"),
    "found at 1 % false (RMIA)": _named("membership, from the final model: RMIA", "found at 1 % false"),
    "membership, AUC (updates)": _named("membership, from updates", "AUC"),
    "membership, AUC (generator)": _named("distance to generated", "AUC"),
    "class counts, 1 step": _named("class counts from the head", "images counted right", real=False),
    "class counts, a round": _named("class counts from the head", "images counted right", real=True),
    "class counts, by norms": _named("class counts from norm", "images counted right"),
    "class counts, told": _named("classes that are told", "images counted right"),
    "site, by updates": _named("kind of images", "sites told right"),
    "site, by styles": _named("style matching: which site", "sites told right"),
}


NOTE = (
    "Bold: above chance by more than the interval. Chance is 1 of 100; where the attacker knows the labels, the guess by "
    "the label alone. * sends more than weights. accuracy: of the audited run on its unseen domain. - : did not cross, or "
    "was not tried."
)


def _cell(score: Score | None, digits: int) -> GridCell:
    if score is None or math.isnan(score.value):
        return GridCell("-")
    words = f"{score.value:.{digits}f} ({score.low:.{digits}f}..{score.high:.{digits}f})"
    return GridCell(words, place=1 if score.leaks else 0, number=score.value)


def _chance(pick: Pick, audits: Sequence[AuditResult], digits: int) -> GridCell:
    """What the score would be if nothing had leaked: the same images were asked for in nearly all audits."""
    known = [score.chance for score in map(pick, audits) if score is not None and score.chance is not None]
    return GridCell(f"{median(known):.{digits}f}") if known else GridCell("-")


def audit_grids(audits: Sequence[AuditResult]) -> list[Grid]:
    """Images identified of 100, and the other scores; a row per audited run that has any, after one of chance."""
    found = []
    for name, title, picks, digits in (
        ("audit-identified", "Images identified of 100 from updates, with 95 % intervals", FROM_UPDATES, 0),
        ("audit-beyond", "Images identified of 100 from what is sent beyond weights", BEYOND_WEIGHTS, 0),
        ("audit-scores", "What else was found out, with 95 % intervals", OTHERS, 2),
    ):
        columns = {heading: pick for heading, pick in picks.items() if any(pick(audit) for audit in audits)}
        grid = Grid(name, title, ["method", "accuracy", "epsilon", *columns])
        chances = [_chance(pick, audits, digits) for pick in columns.values()]
        grid.rows.append([GridCell("chance"), GridCell("-"), GridCell("-"), *chances])
        for audit in audits:
            accuracy = "-" if audit.accuracy is None else f"{100 * audit.accuracy:.1f}"
            epsilon = "-" if audit.epsilon is None else f"{audit.epsilon:.3g}"
            head = [
                GridCell(audit.label + (" *" if audit.beyond_weights else "")),
                GridCell(accuracy),
                GridCell(epsilon),
            ]
            if any(pick(audit) for pick in columns.values()):
                grid.rows.append([*head, *(_cell(pick(audit), digits) for pick in columns.values())])
        grid.notes.append(NOTE)
        if columns:
            found.append(grid)
    return found


def write_audit_tables(audits: Sequence[AuditResult], folder: Path) -> list[Path]:
    paths = []
    for grid in audit_grids(audits):
        for ending, content in (("md", markdown(grid)), ("csv", comma_separated(grid))):
            path = folder / f"{grid.name}.{ending}"
            with atomic(path) as temporary:
                temporary.write_text(content)
            paths.append(path)
    return paths


# --- a section of the page -------------------------------------------------------------------------------------------
def audit_section(folder: Path) -> str:
    """HTML about all audits below a folder; empty where there are none. Pictures are inside of the page."""
    places = sorted(path.parent for path in folder.rglob(AUDIT_FILE))
    return "".join(_section([(place, read_audit(place)) for place in places]))


def _section(audits: Sequence[tuple[Path, AuditResult]]) -> Iterator[str]:
    if not audits:
        return
    yield '<section id="privacy"><h2>What leaks</h2>'
    yield (
        "<p>Attacks on what left the clients. <i>Images identified of 100</i>: how often the attacker's guess is the right "
        "one of 100 images of the same site.</p>"
    )
    for grid in audit_grids([audit for _, audit in audits]):
        yield f'<h3>{text(grid.title)}</h3><div style="overflow-x:auto"><table><thead><tr>'
        yield "".join(f"<th>{text(column)}</th>" for column in grid.columns)
        yield "</tr></thead><tbody>"
        for row in grid.rows:
            cells = (f"<b>{text(cell.text)}</b>" if cell.place else text(cell.text) for cell in row)
            yield "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
        yield "</tbody></table></div>"
    yield f"<p>{text(NOTE)}</p>"
    for folder, audit in audits:
        pictures = [(finding, name) for finding in audit.findings for name in finding.files]
        if pictures:
            yield f"<details><summary>{text(audit.label)}: originals above, reconstructions below</summary>"
            yield "".join(_picture(folder, finding, name) for finding, name in pictures)
            yield "</details>"
    yield "</section>"


def _picture(folder: Path, finding: Finding, name: str) -> str:
    path = folder / name
    if not path.exists():
        return ""
    data = base64.b64encode(path.read_bytes()).decode()
    words = f"{finding.attack}: {finding.saw}"
    return (
        f'<figure><img src="data:image/png;base64,{data}" alt="{text(words)}" style="image-rendering:pixelated;'
        f'max-width:100%;min-height:132px"><figcaption>{text(words)}</figcaption></figure>'
    )
