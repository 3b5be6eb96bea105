"""Draws docs/img/families.png: every method by the year of its publication, in rows of its idea.

    python docs/figures/families.py

What it draws is read from the methods' files; nothing is run.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from textwrap import fill

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

from unseen.methods import FAMILIES, Card, by_family

OUT = Path(__file__).parent.parent / "img" / "families.png"
FIRST = 2016  # what is older stands in its column
SYSTEMS = ("fedfd", "fedfd-a", "gperxan", "stablefdg", "fedadg")  # of the four papers: in bold
INK, GREY = "#1f2933", "#8894a0"
COLOURS = ("#2563a8", "#c2410c", "#2e7d4f", "#7a3e9d", "#b08900", "#0f766e", "#be185d", "#4b5563")
LINE = 0.27  # of a year's column, per method


def columns(cards: list[Card]) -> dict[int, list[Card]]:
    """A row's methods by year, the old ones in the first column."""
    found: dict[int, list[Card]] = defaultdict(list)
    for card in cards:
        found[max(card.year, FIRST)].append(card)
    return found


def main() -> None:
    groups = {family: columns(cards) for family, cards in by_family().items() if family}
    years = range(FIRST, max(year for group in groups.values() for year in group) + 1)
    heights = {family: max(2, *map(len, group.values())) * LINE + 0.22 for family, group in groups.items()}
    total = sum(heights.values())
    figure, axes = plt.subplots(figsize=(12.4, total * 1.02 + 0.7))
    top = 0.0
    for number, (family, group) in enumerate(groups.items()):
        colour, height = COLOURS[number % len(COLOURS)], heights[family]
        axes.axhspan(-top - height, -top, color=colour, alpha=0.07 if number % 2 else 0.12, lw=0)
        words = fill(FAMILIES[family], 22)
        axes.text(FIRST - 3.12, -top - height / 2, words, va="center", color=colour, weight="bold", size=10)
        above = (height - LINE * max(map(len, group.values()))) / 2
        for year, cards in group.items():
            for place, card in enumerate(cards):
                y = -top - above - LINE * (place + 0.5)
                face = "white" if card.sends else colour
                axes.plot(year, y, "o", ms=6, mfc=face, mec=colour, mew=1.4)
                weight = "bold" if card.name in SYSTEMS else "normal"
                axes.text(year + 0.11, y, card.name, va="center", color=INK, size=9, weight=weight)
        top += height
    for y, face, words in ((0.3, GREY, "sends weights alone"), (0.1, "white", "sends more")):
        axes.plot(FIRST - 3.05, y, "o", ms=6, mfc=face, mec=GREY, mew=1.4, clip_on=False)
        axes.text(FIRST - 2.94, y, words, va="center", color=INK, size=9)
    axes.set_xlim(FIRST - 3.2, max(years) + 1.15)
    axes.set_ylim(-top, 0)
    axes.set_xticks(list(years), [f"to {FIRST}" if year == FIRST else str(year) for year in years])
    axes.xaxis.tick_top()
    axes.set_yticks([])
    axes.tick_params(length=0, colors=GREY, labelsize=10)
    for year in years:
        axes.axvline(year, color="white", lw=1.2, zorder=0.5)
    for side in axes.spines.values():
        side.set_visible(False)
    figure.tight_layout()
    figure.savefig(OUT, dpi=140)


if __name__ == "__main__":
    main()
