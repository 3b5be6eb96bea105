"""`digits`: real handwriting in four looks, built in, no download.

5,000 digits of MNIST (28 x 28 pixels, 500 of each class; LeCun, Cortes and Burges) lie beside this file, in
`mnist_5k.npz`; `mnist_5k.md` says where they are from and under which terms. They are dealt out to four domains, class
by class, so that no two domains share a single piece of handwriting. Each is rendered twice at 32 px with different
draws:

    ink       plain: dark on light or light on dark
    colour    blended into coloured textures, as MNIST-M does with photos
    outline   the contour of the stroke, thin, in pen on ruled paper
    street    blurred, in perspective, under uneven light, with parts of other digits at the sides

The two renderings of one digit are a `group`: they are never parted between training, validation and test.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy import ndimage  # type: ignore[import-untyped, unused-ignore]

from unseen.core.seeding import numpy_generator
from unseen.data.domains import DomainIndex, IntArray, Pixels

Floats = npt.NDArray[np.float64]

DOMAINS = ("ink", "colour", "outline", "street")
CLASSES = tuple(str(digit) for digit in range(10))
SIZE = 32
DRAWS = 2  # renderings of each original
VERSION = "4"  # part of the cache's key: raise it when the pictures change
_SEED = 2024  # of the dataset, not of a run: everyone's `digits` are the same pictures
_FILE = Path(__file__).with_name("mnist_5k.npz")
_BOX = 20  # MNIST's digits fill a box of 20 pixels ...
_BORDER = 5  # ... in the middle of 28; one more empty pixel on each side, so that nothing is cut at the edge
_FINER = 2
_FINE = 2 * SIZE  # drawn at twice the size, then averaged: smooth edges


@lru_cache(maxsize=1)
def _originals() -> tuple[Pixels, IntArray]:
    """The 28 x 28 pictures, bytes, and what they show."""
    with np.load(_FILE, allow_pickle=False) as data:
        return data["images"], data["labels"].astype(np.int64)


@lru_cache(maxsize=1)
def _deal() -> tuple[IntArray, ...]:
    """The originals of each domain: disjoint, all of them, every class spread evenly."""
    _, labels = _originals()
    order = np.argsort(numpy_generator(_SEED, purpose="digits: deal").random(len(labels)), kind="stable")
    by_class = order[np.argsort(labels[order], kind="stable")]
    return tuple(np.sort(by_class[d :: len(DOMAINS)]) for d in range(len(DOMAINS)))


def index_digits() -> DomainIndex:
    """The index of the built-in digits. Cheap: nothing is drawn before the store asks."""
    images, labels = _originals()
    rows = []
    for d, originals in enumerate(_deal()):
        for original in originals[np.argsort(labels[originals], kind="stable")]:
            rows += [(d, int(labels[original]), int(original), draw) for draw in range(DRAWS)]
    source = hashlib.blake2b(np.ascontiguousarray(images).tobytes(), digest_size=8).hexdigest()
    return DomainIndex(
        name="digits",
        domains=DOMAINS,
        classes=CLASSES,
        paths=tuple(f"{DOMAINS[d]}/{label}/{original:04d}-{draw}.png" for d, label, original, draw in rows),
        domain=np.array([row[0] for row in rows], dtype=np.int64),
        label=np.array([row[1] for row in rows], dtype=np.int64),
        group=np.array([row[2] for row in rows], dtype=np.int64),
        letters=("I", "C", "O", "S"),
        draw=draw_digits,
        version=f"digits {VERSION} {source}",
    )


def draw_digits(rows: Sequence[int] | None = None) -> Pixels:
    """The pictures of `index_digits` (or some of its rows): N x 32 x 32 x 3, uint8. The same bits every time."""
    index = index_digits()
    renderers = {"ink": _ink, "colour": _colour, "outline": _outline, "street": _street}
    pictures = []
    for row in range(len(index)) if rows is None else rows:
        domain, original = index.domains[index.domain[row]], int(index.group[row])
        rng = numpy_generator(_SEED, client=domain, purpose=f"digits: {index.paths[row]}")
        picture = renderers[domain](original, _deal()[index.domain[row]], rng)
        pictures.append(np.clip(np.rint(picture * 255), 0, 255).astype(np.uint8))
    return np.stack(pictures)


@lru_cache(maxsize=1250)  # a domain's originals: `street` draws many of them again at the sides
def _smooth(original: int) -> Floats:
    """An original in [0, 1], twice as fine, with an empty border: a cubic spline through its 28 x 28 values.

    Made once and then read off linearly many times, which takes a third of the time of reading the spline itself.
    """
    padded = np.pad(_originals()[0][original] / 255.0, _BORDER - (28 - _BOX) // 2)
    finer: Floats = ndimage.zoom(padded, _FINER, order=3, mode="grid-constant", grid_mode=True)
    return finer


# --- drawing one picture: floats in [0, 1], 32 x 32 x 3 -------------------------------------------------------------

_AXIS = (np.arange(_FINE) + 0.5) / _FINE * 2 - 1  # pixel centres in [-1, 1]
_Y, _X = (grid.astype(np.float64) for grid in np.meshgrid(_AXIS, _AXIS, indexing="ij"))


def _between(rng: np.random.Generator, low: float, high: float) -> float:
    return low + (high - low) * float(rng.random())


def _field(
    smooth: Floats,
    rng: np.random.Generator,
    turn: float = 0.25,
    zoom: tuple[float, float] = (1.0, 1.3),
    shift: float = 0.12,
    shear: float = 0.25,
    tilt: float = 0.0,
    at: float = 0.0,
) -> Floats:
    """A digit's darkness on the fine grid, turned, sheared, zoomed, shifted and (with `tilt`) seen from the side."""
    angle, slant = _between(rng, -turn, turn), _between(rng, -shear, shear)
    size, stretch = _between(rng, *zoom), _between(rng, 0.9, 1.1)
    x, y = _X - at - _between(rng, -shift, shift), _Y - _between(rng, -shift, shift)
    depth = 1 + _between(rng, -tilt, tilt) * _X + _between(rng, -tilt, tilt) * _Y
    x, y = x / depth, y / depth
    u = (np.cos(angle) * x + np.sin(angle) * y) * size * stretch
    v = (-np.sin(angle) * x + np.cos(angle) * y) * size / stretch
    u = u + slant * v
    # The digit's box covers [-1, 1]; `smooth` is finer, with a border on every side.
    at_v, at_u = (((w + 1) * (_BOX / 2) + _BORDER) * _FINER - 0.5 for w in (v, u))
    seen: Floats = ndimage.map_coordinates(smooth, [at_v, at_u], order=1, mode="nearest")
    return seen


def _stroke(field: Floats, level: float = 0.45, crisp: float = 14.0) -> Floats:
    """Ink, 0 to 1: where the darkness passes `level`."""
    return 1 / (1 + np.exp(-crisp * (field - level)))


def _small(fine: Floats) -> Floats:
    """From the fine grid to 32 px, by averaging 2 x 2."""
    return (fine[::2, ::2] + fine[::2, 1::2] + fine[1::2, ::2] + fine[1::2, 1::2]) / 4


def _blend(back: Floats, front: Floats, amount: Floats) -> Floats:
    return back + (front - back) * amount[..., None]


def _grain(rng: np.random.Generator, scale: float, channels: int = 1) -> Floats:
    """Smooth noise with unit standard deviation on the fine grid; `scale` in fine pixels."""
    noise: Floats = ndimage.gaussian_filter(rng.random((_FINE, _FINE, channels)) - 0.5, (scale, scale, 0), mode="wrap")
    even: Floats = noise / (noise.std() + 1e-12)
    return even


def _ink(original: int, peers: IntArray, rng: np.random.Generator) -> Floats:
    ink = _stroke(_field(_smooth(original), rng), level=_between(rng, 0.35, 0.55))
    paper, pen = _between(rng, 0.85, 1.0), _between(rng, 0.0, 0.2)
    if rng.random() < 0.5:
        paper, pen = pen, paper
    picture = _small((paper + (pen - paper) * ink)[..., None].repeat(3, axis=-1))
    return picture + 0.02 * (rng.random((SIZE, SIZE, 1)) - 0.5)


def _texture(rng: np.random.Generator) -> Floats:
    """A coloured texture: blotches, stripes or checks between two colours, with coloured grain."""
    # Both colours dark or both light: the stroke, their difference from a pale colour, then stands out of either.
    tone = _between(rng, 0.05, 0.28) if rng.random() < 0.5 else _between(rng, 0.72, 0.95)
    one, two = np.clip(tone + 0.7 * (rng.random((2, 3)) - 0.5), 0, 1)
    kind = int(rng.random() * 3)
    angle, period = _between(rng, 0, np.pi), _between(rng, 3, 9)
    along, across = np.cos(angle) * _X + np.sin(angle) * _Y, np.cos(angle) * _Y - np.sin(angle) * _X
    if kind == 0:
        weight = _stroke(_grain(rng, _between(rng, 3, 8))[..., 0], level=0.0, crisp=2.0)
    elif kind == 1:
        weight = 0.5 + 0.5 * np.sin(along * period * np.pi)
    else:
        weight = _stroke(np.sin(along * period * 2) * np.sin(across * period * 2), level=0.0, crisp=8.0)
    base = _blend(np.broadcast_to(one, (_FINE, _FINE, 3)), np.broadcast_to(two, (_FINE, _FINE, 3)), weight)
    return np.clip(base + 0.06 * _grain(rng, 1.5, channels=3), 0, 1)


def _colour(original: int, peers: IntArray, rng: np.random.Generator) -> Floats:
    ink = _stroke(_field(_smooth(original), rng), level=_between(rng, 0.35, 0.5))
    texture = _texture(rng)
    pale = np.broadcast_to(0.85 + 0.15 * rng.random(3), texture.shape)
    return _small(_blend(texture, np.abs(pale - texture), ink))


def _outline(original: int, peers: IntArray, rng: np.random.Generator) -> Floats:
    field = ndimage.gaussian_filter(_field(_smooth(original), rng, zoom=(1.1, 1.35)), 1.0)
    slope = np.hypot(ndimage.sobel(field, axis=0), ndimage.sobel(field, axis=1)) / 8 + 0.012
    # Distance from the level line, in fine pixels, to first order.
    distance = np.abs(field - _between(rng, 0.35, 0.45)) / slope
    line = np.exp(-((distance / _between(rng, 1.0, 1.7)) ** 2)) * _between(rng, 0.75, 1.0)
    paper = np.array([0.93, 0.9, 0.82]) + 0.07 * (rng.random(3) - 0.5)
    pen = np.array([[0.1, 0.15, 0.45], [0.2, 0.2, 0.22], [0.4, 0.12, 0.12]])[int(rng.random() * 3)]
    sheet = np.broadcast_to(paper, (_FINE, _FINE, 3)) + 0.02 * _grain(rng, 1.0)
    step, start = _between(rng, 14, 22), _between(rng, 0, 14)
    rules = (np.abs((np.arange(_FINE) - start + step / 2) % step - step / 2) < 1.0).astype(np.float64) * 0.35
    ruled = _blend(
        sheet,
        np.broadcast_to(np.array([0.55, 0.7, 0.85]), sheet.shape),
        np.broadcast_to(rules[:, None], (_FINE, _FINE)),
    )
    return _small(_blend(ruled, np.broadcast_to(pen, sheet.shape), line))


def _street(original: int, peers: IntArray, rng: np.random.Generator) -> Floats:
    sides = [int(peers[int(rng.random() * len(peers))]) for _ in range(2)]
    gap = _between(rng, 1.45, 1.75)
    places = [(original, 0.0), (sides[0], -gap), (sides[1], gap)]
    ink = np.zeros((_FINE, _FINE))
    for which, at in places:
        field = _field(_smooth(which), rng, turn=0.12, zoom=(1.0, 1.25), shift=0.06, shear=0.15, tilt=0.22, at=at)
        ink = np.maximum(ink, _stroke(field, level=0.35))
    wall, paint = rng.random(3) * 0.8 + 0.1, rng.random(3) * 0.8 + 0.1
    # Enough contrast to be read, not more: SVHN's numbers differ from their wall in brightness.
    gain = _between(rng, 0.25, 0.55) * (1 if wall.mean() < 0.5 else -1)
    paint = np.clip(wall.mean() + gain + 0.25 * (paint - paint.mean()), 0, 1)
    light = 1 + _between(rng, -0.3, 0.3) * _X + _between(rng, -0.3, 0.3) * _Y
    back = np.broadcast_to(wall, (_FINE, _FINE, 3)) + 0.04 * _grain(rng, 4.0)
    scene = _blend(back, np.broadcast_to(paint, back.shape), ink) * light[..., None]
    blurred = ndimage.gaussian_filter(scene, (*(2 * [_between(rng, 1.0, 2.6)]), 0), mode="nearest")
    return _small(blurred) + 0.05 * (rng.random((SIZE, SIZE, 3)) - 0.5)
