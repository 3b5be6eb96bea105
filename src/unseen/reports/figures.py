"""Figures as inline SVG, drawn by hand: text stays text, colours follow the page's theme, nothing is loaded.

Every drawing is 420 wide, so that its letters can be read on a phone; a page puts several side by side where there is
room.
"""

from __future__ import annotations

import base64
import html
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from unseen.core.words import plain
from unseen.reports.names import FIXED_COLOURS, short, titled

WIDTH, HEIGHT = 420, 280
LEFT, RIGHT, TOP, BOTTOM = 46, 20, 12, 40  # right: half of the last number below the axis
COLOURS = FIXED_COLOURS
OTHERS = -1  # in grey and without a name: more lines than the eye can tell apart

Floats = NDArray[np.float64]


@dataclass
class Series:
    """One method's line."""

    name: str
    colour: int
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = field(default_factory=list)  # the band, where there is one
    high: Sequence[float] = field(default_factory=list)


@dataclass(frozen=True)
class Point:
    """One method's cost and accuracy."""

    name: str
    colour: int
    x: float
    y: float


def text(value: object) -> str:
    return html.escape(plain(str(value)))


def shade(index: int) -> str:
    """The class of a colour: a fixed one, a hue, or the grey of the many."""
    if index == OTHERS:
        return "others"
    return f"c{index}" if index < COLOURS else f"h{index - COLOURS}"


def ticks(low: float, high: float, count: int = 5, whole: bool = False) -> list[float]:
    """Round numbers that cover an interval; `whole` ones for what is counted."""
    if not math.isfinite(low) or not math.isfinite(high):
        return [0.0, 1.0]
    if high <= low:
        high = low + (abs(low) or 1.0) * 0.1
    raw = (high - low) / count
    power = max(10.0 ** math.floor(math.log10(raw)), 1.0 if whole else 0.0)
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999 and not (whole and m * power % 1))
    first = math.floor(low / step + 1e-9) * step
    found = [first]
    while found[-1] < high - 1e-9 * step:
        found.append(found[-1] + step)
    return found


def spelled(value: float) -> str:
    if value == 0:
        return "0"
    if abs(value) >= 1e4 or abs(value) < 1e-3:
        return f"{value:.1e}"
    return f"{value:.4g}"


@dataclass
class Frame:
    """Axes with round numbers, and the way from values to places."""

    x_ticks: list[float]
    y_ticks: list[float]
    x_name: str
    y_name: str
    height: int = HEIGHT
    x_words: Sequence[str] = ()  # below the axis, where they are not the numbers themselves

    def x(self, value: float) -> float:
        low, high = self.x_ticks[0], self.x_ticks[-1]
        return LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        low, high = self.y_ticks[0], self.y_ticks[-1]
        return self.height - BOTTOM - (value - low) / (high - low) * (self.height - TOP - BOTTOM)

    def draw(self) -> list[str]:
        bottom = self.height - BOTTOM
        parts = []
        for value in self.y_ticks:
            y = self.y(value)
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(f'<text class="tick" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{spelled(value)}</text>')
        for value, word in zip(self.x_ticks, self.x_words or map(spelled, self.x_ticks), strict=True):
            parts.append(
                f'<text class="tick" x="{self.x(value):.1f}" y="{bottom + 16}" text-anchor="middle">{word}</text>'
            )
        parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{bottom}" y2="{bottom}"/>')
        parts.append(
            f'<text class="name" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{self.height - 6}" text-anchor="middle">'
            f"{text(self.x_name)}</text>"
        )
        return parts


def svg(parts: Iterable[str], title: str, height: float = HEIGHT, width: float = WIDTH) -> str:
    inside = "".join(parts)
    size = "" if width == WIDTH else f' style="max-width:{1.4 * width:.0f}px"'
    return (
        f'<svg{size} viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{text(title)}"><title>'
        f"{text(title)}</title>{inside}</svg>"
    )


def curves(series: Sequence[Series], x_name: str, y_name: str) -> str:
    """Lines with bands. Names are in the page's legend, and in each line's title."""
    known = [v for s in series for v in [*s.y, *s.low, *s.high] if math.isfinite(v)]
    xs = [v for s in series for v in s.x]
    if not known or not xs:
        return ""
    frame = Frame(ticks(min(xs), max(xs), 6, whole=True), ticks(min(known), max(known)), x_name, y_name)
    parts = frame.draw()
    series = sorted(series, key=lambda s: s.colour != OTHERS)  # under the others' lines, without a band
    for s in series:
        if s.low and s.colour != OTHERS:
            edge = [(x, y) for x, y in zip(s.x, s.high, strict=True)] + [
                (x, y) for x, y in zip(s.x, s.low, strict=True)
            ][::-1]
            points = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in edge if math.isfinite(y))
            parts.append(f'<polygon class="band {shade(s.colour)}" points="{points}"/>')
    for s in series:
        points = " ".join(
            f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in zip(s.x, s.y, strict=True) if math.isfinite(y)
        )
        parts.append(
            f'<polyline class="line {shade(s.colour)}" points="{points}"><title>{text(titled(s.name))}</title></polyline>'
        )
        if len(s.x) == 1:
            parts.append(
                f'<circle class="dot {shade(s.colour)}" cx="{frame.x(s.x[0]):.1f}" cy="{frame.y(s.y[0]):.1f}" r="4"/>'
            )
    return svg(parts, y_name)


def scatter(points: Sequence[Point], x_name: str, y_name: str, level: Point | None = None, log: bool = False) -> str:
    """A dot per method, with its name but for the grey ones. The axis of costs begins at 0: twice as far is twice as much.

    With `log` it has powers of ten instead. `level` is drawn as a line across.
    """
    place = math.log10 if log else float
    xs, ys = [place(p.x) for p in points], [p.y for p in [*points, *([level] if level else [])]]
    margin = (max(ys) - min(ys)) * 0.08 or 1.0
    across = ticks(min(xs), max(xs) + 0.1, 4, whole=True) if log else ticks(0, max(xs) * 1.02, 4)
    names = [spelled(10**value) for value in across] if log else []
    frame = Frame(across, ticks(min(ys) - margin, max(ys) + margin), x_name, y_name, x_words=names)
    parts = frame.draw()
    if level is not None:
        y = frame.y(level.y)
        parts.append(
            f'<line class="line {shade(level.colour)}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}">'
            f"<title>{text(f'{titled(level.name)}: {level.y:.2f} %')}</title></line>"
            f'<text class="label" x="{LEFT + 4}" y="{y - 4:.1f}">{text(short(level.name))}</text>'
        )
    taken: list[tuple[float, float, float]] = []  # left, right and height of the names so far
    for p in sorted(points, key=lambda p: (p.colour != OTHERS, -p.y)):
        at_x, at_y = frame.x(place(p.x)), frame.y(p.y)
        said = f"{titled(p.name)}: {spelled(p.x)} {x_name}, {p.y:.2f} %"
        parts.append(
            f'<circle class="dot {shade(p.colour)}" cx="{at_x:.1f}" cy="{at_y:.1f}" r="5">'
            f"<title>{text(said)}</title></circle>"
        )
        if p.colour == OTHERS:
            continue
        anchor, offset = ("end", -9) if at_x > WIDTH * 0.62 else ("start", 9)
        length = 7 * len(short(p.name))  # px, a little more than the letters take
        left = at_x + offset - (length if anchor == "end" else 0)
        label_y = at_y + 4
        while any(abs(label_y - y) < 13 and left < end and start < left + length for start, end, y in taken):
            label_y += 13  # methods of one cost lie above each other: their names go down in a list
        taken.append((left, left + length, label_y))
        parts.append(
            f'<text class="label" x="{at_x + offset:.1f}" y="{label_y:.1f}" '
            f'text-anchor="{anchor}">{text(short(p.name))}</text>'
        )
    return svg(parts, f"{y_name} against {x_name}")


def cloud(places: Floats, groups: Sequence[int], names: Sequence[str], title: str, ringed: int | None = None) -> str:
    """t-SNE: a dot per image, coloured by group; of the group `ringed`, rings."""
    parts = []
    for (x, y), group in zip(_fitted(places), groups, strict=True):
        kind = "ring" if group == ringed else "dot"
        parts.append(f'<circle class="{kind} {shade(group % COLOURS)}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>')
    if len(names) > 2 * COLOURS:  # the colours repeat: names would say nothing
        return svg(parts, title)
    return svg(parts, title) + legend([(name, i % COLOURS) for i, name in enumerate(names)], ringed)


def _fitted(places: Floats) -> Floats:
    """Places that fill a drawing."""
    low, high = places.min(0), places.max(0)
    at: Floats = 8 + (places - low) / np.where(high > low, high - low, 1.0) * np.array([WIDTH - 16, HEIGHT - 16])
    return at


# A domain each: a circle, a square, a triangle, a diamond; and a star. With the letter for the legend.
MARKS = (
    ("●", "M-3 0a3 3 0 1 0 6 0a3 3 0 1 0 -6 0z"),
    ("■", "M-2.7 -2.7h5.4v5.4h-5.4z"),
    ("▲", "M0 -3.6L3.3 2.5H-3.3z"),
    ("◆", "M0 -3.8L3.8 0L0 3.8L-3.8 0z"),
)
STAR = ("★", "M0 -7L1.7 -2.3L6.7 -2.2L2.7 .9L4.1 5.7L0 2.8L-4.1 5.7L-2.7 .9L-6.7 -2.2L-1.7 -2.3z")


def beside_reference(
    places: Floats,
    labels: Sequence[int],
    domains: Sequence[int],
    reference: Floats,
    classes: Sequence[int],
    names: tuple[Sequence[str], Sequence[str]],
    title: str,
) -> str:
    """t-SNE: a mark per image, coloured by class and shaped by domain; stars are points of the reference distribution.

    `classes` are those of the stars, empty where they have none; `names` are those of the domains and of the classes.
    """
    marks = [MARKS[d % len(MARKS)][1] for d in domains] + [STAR[1]] * len(reference)
    kinds = [f"dot {shade(k % COLOURS)}" for k in labels]
    kinds += [f"star {shade(k % COLOURS)}" for k in classes] or ["star"] * len(reference)
    parts = [
        f'<path class="{kind}" transform="translate({x:.1f} {y:.1f})" d="{mark}"/>'
        for (x, y), kind, mark in zip(_fitted(np.concatenate([places, reference])), kinds, marks, strict=True)
    ]
    shapes = [(MARKS[d % len(MARKS)][0], name) for d, name in enumerate(names[0])] + [(STAR[0], "reference")]
    said = "".join(f"<span>{letter} {text(name)}</span>" for letter, name in shapes)
    colours = legend([(name, k % COLOURS) for k, name in enumerate(names[1])]) if len(names[1]) <= 2 * COLOURS else ""
    return svg(parts, title) + f'<p class="legend">{said}</p>' + colours


def legend(entries: Iterable[tuple[str, int]], ringed: int | None = None) -> str:
    """Names with their colours, as text below a drawing."""
    items = (
        f'<span><i class="{"hollow" if colour == ringed else "solid"} {shade(colour)}"></i>{text(name)}</span>'
        for name, colour in entries
    )
    return f'<p class="legend">{"".join(items)}</p>'


def partition(clients: Mapping[str, Sequence[Sequence[int]]], sources: Sequence[str], classes: Sequence[str]) -> str:
    """Clients x classes: a disc's area is a number of images, its colour the domain that most of them are from."""
    names = list(clients)
    table = np.array([clients[name] for name in names], dtype=np.float64)  # client, domain, class
    largest = max(1.0, table.sum(1).max())
    wide, tall = max(14.0, min(34.0, 330 / max(1, len(classes)))), 24.0 if len(names) <= 12 else 15.0
    width = 92 + wide * len(classes) + 8
    height = 30 + tall * len(names) + 6
    parts = []
    every = max(1, math.ceil(len(classes) / (width / 46)))
    for k, name in enumerate(classes):
        if k % every == 0:
            parts.append(
                f'<text class="tick" x="{92 + wide * (k + 0.5):.1f}" y="18" text-anchor="middle">'
                f"{text(str(name)[:7])}</text>"
            )
    for c, name in enumerate(names):
        y = 30 + tall * (c + 0.5)
        parts.append(f'<text class="tick" x="86" y="{y + 4:.1f}" text-anchor="end">{text(name[:14])}</text>')
        for k in range(len(classes)):
            total = table[c, :, k].sum()
            if total:
                radius = math.sqrt(total / largest) * min(wide, tall) * 0.48
                main = int(table[c, :, k].argmax())
                said = f"{name}, {classes[k]}: {int(total)} images"
                parts.append(
                    f'<circle class="dot {shade(main % COLOURS)}" cx="{92 + wide * (k + 0.5):.1f}" cy="{y:.1f}" '
                    f'r="{max(1.0, radius):.1f}">'
                    f"<title>{text(said)}</title></circle>"
                )
    picture = svg(parts, "images of each client by class", height, width)
    return picture + legend([(name, d % COLOURS) for d, name in enumerate(sources)])


def strips(alphas: Floats, title: str) -> str:
    """Alpha of every image at every norm (images x norms): dots, and the mean as a line."""
    count, norms = alphas.shape
    frame = Frame([0.0, float(norms)], [0.0, 0.25, 0.5, 0.75, 1.0], "norm, from the first to the last", "alpha")
    parts = [part for part in frame.draw() if 'text-anchor="middle">0<' not in part]
    parts = [p for p in parts if f'text-anchor="middle">{spelled(float(norms))}<' not in p]
    every = max(1, math.ceil(norms / 12))
    bottom = HEIGHT - BOTTOM
    spread = (np.arange(count) / max(1, count - 1) - 0.5) * 0.6
    for layer in range(norms):
        if layer % every == 0:
            parts.append(
                f'<text class="tick" x="{frame.x(layer + 0.5):.1f}" y="{bottom + 16}" text-anchor="middle">'
                f"{layer + 1}</text>"
            )
        for offset, alpha in zip(spread, alphas[:, layer], strict=True):
            parts.append(
                f'<circle class="faint c0" cx="{frame.x(layer + 0.5 + offset):.1f}" cy="{frame.y(float(alpha)):.1f}" '
                'r="1.6"/>'
            )
    means = " ".join(
        f"{frame.x(layer + 0.5):.1f},{frame.y(float(alphas[:, layer].mean())):.1f}" for layer in range(norms)
    )
    parts.append(f'<polyline class="line c1" points="{means}"/>')
    return svg(parts, title)


def picture(pixels: NDArray[np.uint8], alt: str, side: int = 72) -> str:
    """An image of the data (H x W x 3) inside the page."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG", optimize=True)
    data = base64.b64encode(buffer.getvalue()).decode()
    return f'<img src="data:image/png;base64,{data}" width="{side}" height="{side}" alt="{text(alt)}">'


def heated(pixels: NDArray[np.uint8], heat: Floats) -> NDArray[np.uint8]:
    """An image under its attention: grey where it is low, red where it is high."""
    grey = pixels.mean(axis=2, keepdims=True).repeat(3, axis=2)
    warm = np.stack([np.ones_like(heat), 1 - heat, np.zeros_like(heat)], axis=2) * 255
    weight = (0.65 * heat)[:, :, None]
    mixed: NDArray[np.uint8] = np.clip(grey * (1 - weight) + warm * weight, 0, 255).astype(np.uint8)
    return mixed
