"""Draws docs/img/architecture.png: one round, and where a method's verbs come in.

python docs/figures/architecture.py
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

INK, SOFT, BLUE, WARM, PANEL = "#1f2933", "#5c6773", "#2563a8", "#c2410c", "#f6f8fa"


def box(axes: Axes, x: float, y: float, width: float, height: float, title: str, lines: list[str], edge: str) -> None:
    axes.add_patch(
        FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0.3,rounding_size=1.2", fc=PANEL, ec=edge, lw=1.4)
    )
    axes.text(x + 1, y + height - 1.2, title, fontsize=10.5, weight="bold", color=INK, va="top")
    for number, line in enumerate(lines):
        verb, _, rest = line.partition(": ")
        down = y + height - 5.6 - 3.1 * number
        if rest:
            axes.text(x + 1, down, verb, fontsize=8.8, family="monospace", color=WARM, va="top")
        axes.text(x + (9.5 if rest else 1), down, rest or verb, fontsize=8.8, color=SOFT, va="top")


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], word: str, at: tuple[float, float]) -> None:
    axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": BLUE, "lw": 1.6})
    axes.text(*at, word, fontsize=8.8, color=BLUE, ha="center", va="center")


def main() -> None:
    figure, axes = plt.subplots(figsize=(10, 4.1), dpi=150)
    axes.set_xlim(0, 120)
    axes.set_ylim(0, 48)
    axes.axis("off")
    box(
        axes, 2, 15, 36, 30, "Server: the only round loop",
        ["brief: a note for each client", "hear: reads what a reply reports", "weigh: how much a client counts",
         "merge: many models become one", "", "selection by the sources' validation,", "checkpoint, records, ledger"],
        BLUE,
    )  # fmt: skip
    box(axes, 53, 15, 14, 30, "Engine", ["in process", "processes", "Flower", "", "knows no", "method"], SOFT)
    box(
        axes, 82, 15, 36, 30, "Client: the only local loop",
        ["survey: before a round", "prepare: before the first step", "augment: changes a batch",
         "loss: and penalty, each step", "gradient: before the optimizer", "report: after the last step",
         "its images never leave"],
        BLUE,
    )  # fmt: skip
    arrow(axes, (38.6, 37), (52.4, 37), "order", (45.5, 39))
    arrow(axes, (52.4, 22), (38.6, 22), "reply", (45.5, 24))
    arrow(axes, (67.6, 37), (81.4, 37), "model, note", (74.5, 39))
    arrow(axes, (81.4, 22), (67.6, 22), "model, report", (74.5, 24))
    box(
        axes,
        2,
        1.5,
        116,
        9.5,
        "A method is one file: the verbs above that differ from FedAvg, and nothing else",
        [],
        WARM,
    )
    axes.text(
        3, 3.4, "also: build (the net), share (what is sent, what stays), predict (test time)   ·   "
        "several methods compose: fedbn+fedfd+ga", fontsize=8.8, color=SOFT, va="center",
    )  # fmt: skip
    path = Path(__file__).parents[1] / "img" / "architecture.png"
    figure.subplots_adjust(0, 0, 1, 1)
    figure.savefig(path, metadata={"Software": None})
    print(path)


if __name__ == "__main__":
    main()
