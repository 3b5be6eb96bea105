"""Draws docs/img/verbs/NAME.svg: where in a round a method differs from FedAvg, and what it sends.

    python docs/figures/verbs.py

What it draws is read from the methods' classes; nothing is run. A test compares the files with it.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from textwrap import wrap

from unseen.method import Method, overrides
from unseen.registry import registered
from unseen.reports.names import titled

DOCS = Path(__file__).parent.parent
OUT, PAGES = DOCS / "img" / "verbs", DOCS / "methods"
LANES = {
    "once": ("build", "share"),
    "client": ("survey", "prepare", "augment", "loss", "penalty", "gradient", "step", "report"),
    "server": ("brief", "admit", "hear", "weigh", "merge", "evaluated"),
    "an answer": ("predict",),
}
EACH_STEP = ("augment", "step")  # from this verb to that one: for every batch
LEFT, WIDE, TALL, GAP = 82, 70, 26, 6
WIDTH = LEFT + 8 * (WIDE + GAP) + 8
INK, SOFT, RULE, OWN, PAPER = "#1f2933", "#5c6773", "#c9d1d9", "#c2410c", "#ffffff"


def changed(method: Method) -> set[str]:
    """The verbs that a method has of its own. Equal weights are a trait, and stand at `weigh`."""
    own = {verb for lane in LANES.values() for verb in lane if overrides(method, verb)}
    return own if method.about.counts_images else own | {"weigh"}


def drawing(method: Method) -> str:
    own, name = changed(method), titled(method.name)
    title = f"Filled: where {name} differs from FedAvg" if own else f"{name}: every verb is the default"
    parts, y = [], 24.0
    for lane, verbs in LANES.items():
        parts.append(f'<text x="8" y="{y + TALL * 0.65:.0f}" fill="{SOFT}">{lane}</text>')
        for place, verb in enumerate(verbs):
            x = LEFT + place * (WIDE + GAP)
            fill, edge, ink = (OWN, OWN, PAPER) if verb in own else (PAPER, RULE, SOFT)
            parts.append(
                f'<rect x="{x}" y="{y:.0f}" width="{WIDE}" height="{TALL}" rx="5" fill="{fill}" stroke="{edge}"/>'
                f'<text x="{x + WIDE / 2:.0f}" y="{y + TALL * 0.65:.0f}" fill="{ink}" text-anchor="middle">{verb}</text>'
            )
        if lane == "client":
            first, last = (LEFT + verbs.index(verb) * (WIDE + GAP) for verb in EACH_STEP)
            parts.append(
                f'<path d="M{first} {y - 4:.0f}v-4H{last + WIDE}v4" fill="none" stroke="{SOFT}"/>'
                f'<text x="{(first + last + WIDE) / 2:.0f}" y="{y - 12:.0f}" fill="{SOFT}" text-anchor="middle">'
                "for every batch</text>"
            )
        y += TALL + (30 if lane == "once" else 14)
    sent = method.about.sends
    for line in wrap(f"sends beyond weights: {sent or 'nothing'}", 96):
        y += 16
        parts.append(f'<text x="8" y="{y - 6:.0f}" fill="{OWN if sent else SOFT}">{escape(line)}</text>')
    height = y + 6
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" height="{height:.0f}" '
        f'font-family="system-ui, sans-serif" font-size="12.5"><rect width="{WIDTH}" height="{height:.0f}" rx="8" '
        f'fill="{PAPER}"/><text x="8" y="15" fill="{INK}" font-weight="600">{title}'
        f"</text>{''.join(parts)}</svg>\n"
    )


def drawings() -> dict[str, str]:
    """By the name of the method: those that the methods' pages show."""
    pages = (page.read_text() for page in sorted(PAGES.glob("*.md")))
    names = (name for page in pages for name in re.findall(r"\.\./img/verbs/([a-z0-9-]+)\.svg", page))
    return {name: drawing(registered()[name]()) for name in names}


def main() -> None:
    OUT.mkdir(exist_ok=True)
    for name, picture in drawings().items():
        (OUT / f"{name}.svg").write_text(picture)


if __name__ == "__main__":
    main()
