"""Pictures of a dataset: samples per domain, and who has how many of what (clients x classes, FedFD-A's Fig. 7)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

from unseen.core.errors import UserError
from unseen.core.seeding import numpy_generator
from unseen.core.types import ClientId
from unseen.data.domains import DomainIndex, IntArray
from unseen.data.store import Store

_INK = "#1f2933"
_FAINT = "#7b8794"
_TONES = ("#2f6f9f", "#c26a2d", "#4d8b57", "#8a5a9e", "#b0475a", "#7a7a35", "#3f8f93", "#8c6d4f")  # one per domain
_MOST_CLASSES = 10  # columns of samples: more would be too small to see


def draw_samples(store: Store, out: Path | str, per_domain: int = 20, seed: int = 0) -> Path:
    """A row (or more) of images per domain, its columns in the order of the classes."""
    index = store.index
    columns = min(len(index.classes), _MOST_CLASSES)
    # Spread over the classes when there are more than fit.
    labels = np.linspace(0, len(index.classes) - 1, columns).round().astype(int)
    lines = max(1, round(per_domain / columns))
    gap = max(1, store.images.size // 16)
    cell = store.images.size + gap
    figure = _figure(1.3 + 0.62 * columns, 0.55 + (0.62 * lines + 0.12) * len(index.domains))
    axes = figure.subplots(len(index.domains), 1, squeeze=False)[:, 0]
    for d, (domain, axis) in enumerate(zip(index.domains, axes, strict=True)):
        sheet = np.full((lines * cell - gap, columns * cell - gap, 3), 255, dtype=np.uint8)
        for column, label in enumerate(labels):
            rows = np.flatnonzero((index.domain == d) & (index.label == label))
            order = numpy_generator(seed, client=domain, purpose=f"samples {label}").random(len(rows)).argsort()
            for line, row in enumerate(rows[order[:lines]]):
                top, left = line * cell, column * cell
                tile = store.images.pixels(_one(row))[0]
                sheet[top : top + len(tile), left : left + len(tile)] = tile
        axis.imshow(sheet, interpolation="nearest" if store.images.size < 64 else "antialiased")
        axis.set_xticks([], [])
        axis.set_yticks([], [])
        axis.spines[:].set_visible(False)
        axis.set_ylabel(domain, rotation=0, ha="right", va="center", color=_INK, fontsize=11, labelpad=8)
        if d == 0:
            axis.set_xticks([column * cell + cell / 2 - gap for column in range(columns)])
            axis.set_xticklabels([_short(index.classes[label]) for label in labels], color=_FAINT, fontsize=9)
            axis.tick_params(axis="x", length=0, labeltop=True, labelbottom=False, pad=3)
    return _save(figure, out)


def draw_partition(index: DomainIndex, clients: Mapping[ClientId, IntArray], out: Path | str) -> Path:
    """Clients x classes: a disc's area is a number of images, its rings' colours are the domains they are from."""
    if not clients:
        raise UserError("There are no clients to draw.")
    names = sorted(clients)
    table = np.zeros((len(names), len(index.classes), len(index.domains)), dtype=np.int64)
    for c, name in enumerate(names):
        np.add.at(table[c], (index.label[clients[name]], index.domain[clients[name]]), 1)
    shown = [d for d in range(len(index.domains)) if table[:, :, d].any()]
    many = len(index.classes) > 40
    step = 0.14 if many else 0.3
    width = max(4.5, 1.0 + 0.32 * len(names))
    figure = _figure(width, max(2.6, 1.6 + step * len(index.classes)))
    bars, axis = figure.subplots(2, 1, sharex=True, height_ratios=[0.8, max(2.0, step * len(index.classes))])
    _draw_totals(bars, table, shown)
    largest = max(1, table.sum(axis=2).max())
    points = 72 * min(0.3, step) * 0.92  # the largest disc's diameter
    for d in reversed(shown):
        # Larger discs first: what the domains up to d have together. Each ring is then domain d's own part.
        heap = table[:, :, [e for e in shown if e <= d]].sum(axis=2)
        at, label = np.nonzero(heap)
        axis.scatter(at, label, s=heap[at, label] / largest * points**2, color=_tone(d), linewidths=0)
    axis.set_yticks(range(len(index.classes)))
    axis.set_yticklabels([_short(c) for c in index.classes], fontsize=5 if many else 9, color=_INK)
    axis.set_ylim(len(index.classes) - 0.4, -0.6)
    axis.set_xlim(-0.7, len(names) - 0.3)
    axis.set_xticks(range(len(names)))
    axis.set_xticklabels(names, rotation=90 if len(names) > 4 else 0, fontsize=8, color=_INK)
    axis.set_axisbelow(True)
    axis.grid(color="#eef1f4", linewidth=0.8)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    handles = [_dot(axis, d, index.domains[d]) for d in shown]
    bars.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0, 1.02), ncols=len(shown), frameon=False, fontsize=9
    )
    return _save(figure, out)


def _draw_totals(axis: Axes, table: IntArray, shown: list[int]) -> None:
    """Images per client, above the discs."""
    below = np.zeros(len(table))
    for d in shown:
        heights = table[:, :, d].sum(axis=1)
        axis.bar(np.arange(len(table)), heights, bottom=below, width=0.62, color=_tone(d), linewidth=0)
        below = below + heights
    axis.set_ylabel("images", fontsize=9, color=_FAINT)
    axis.tick_params(length=0, labelsize=8, labelcolor=_FAINT)
    axis.tick_params(axis="x", labelbottom=False)
    axis.spines[:].set_visible(False)
    axis.grid(axis="y", color="#eef1f4", linewidth=0.8)
    axis.set_axisbelow(True)


def _dot(axis: Axes, domain: int, name: str) -> Line2D:
    return axis.plot([], [], "o", color=_tone(domain), label=name, markersize=6)[0]


def _tone(domain: int) -> str:
    return _TONES[domain % len(_TONES)]


def _one(row: np.int64) -> torch.Tensor:
    return torch.tensor([int(row)])


def _short(name: str) -> str:
    plain = name.replace("_", " ")
    return plain if len(plain) <= 12 else plain[:11] + "…"


def _figure(width: float, height: float) -> Figure:
    # A Figure of its own: no pyplot, no global state, no window.
    layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.05)
    return Figure(figsize=(width, height), dpi=160, layout=layout, facecolor="white")


def _save(figure: Figure, out: Path | str) -> Path:
    path = Path(out)
    kind = path.suffix[1:].lower() or "png"
    if kind not in {"png", "svg", "pdf"}:
        raise UserError(f"{path} cannot be drawn; give a file that ends in .png, .svg or .pdf.")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        figure.savefig(part, format=kind)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return path
