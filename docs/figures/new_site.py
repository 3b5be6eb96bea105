"""Draws the pictures of the tutorial for a new site, from a folder that examples/new_site/story.py has filled.

    python docs/figures/new_site.py WORK

docs/img/new-site-sets.png      images of the new site, each with the answer and its prediction set
docs/img/new-site-unlike.png    which images are unlike training, at the known sites and at the new one
docs/img/new-site-check.png     calibration curve and confusion matrix of `unseen check`

Images are drawn at random, so that a picture is as good as the numbers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from PIL import Image

import unseen
from unseen.core.metrics import BINS
from unseen.data.pictures import decode
from unseen.runs.model import Prediction, Trained, predict_files

IMG = Path(__file__).parents[1] / "img"
RIGHT, WRONG, SOFT, BLUE = "#2e7d4f", "#c2410c", "#5c6773", "#4c6a8a"
SIDE = 112
COVERAGE = 0.9


def tile(axes: Axes, file: Path) -> None:
    axes.imshow(decode(file, SIDE))
    axes.set_xticks([])
    axes.set_yticks([])
    for side in axes.spines.values():
        side.set_visible(False)


def spread(rng: np.random.Generator, rows: list[Prediction], count: int) -> list[Prediction]:
    return [rows[place] for place in rng.permutation(len(rows))[:count]]


def labelled(rows: list[Prediction]) -> list[Prediction]:
    return [one for one in rows if not one.image.startswith("unlabelled/")]


def sets(new: list[Prediction], folder: Path) -> Path:
    """Sixteen images: the answer, right or wrong, and the set."""
    shown, axes = plt.subplots(2, 8, figsize=(11, 4.4), dpi=140)
    for place, one in zip(axes.flat, spread(np.random.default_rng(0), labelled(new), 16), strict=True):
        tile(place, folder / one.image)
        true = one.image.split("/")[0]
        assert one.set is not None
        place.set_title(f"{one.label} {100 * one.probability:.0f} %", fontsize=9, pad=3,
                        color=RIGHT if one.label == true else WRONG)  # fmt: skip
        rest = [name for name in one.set if name != one.label]
        words = ["the set: it alone"] if not rest else ["or " + ", ".join(rest[:2]), ", ".join(rest[2:4])]
        words += [f"and {len(rest) - 4} more"] if len(rest) > 4 else []
        place.set_xlabel(
            "\n".join(word for word in words if word), fontsize=7, color=SOFT if true in one.set else WRONG
        )
    shown.suptitle(
        f"At the new site: the answer (red: wrong) and its prediction set at {100 * COVERAGE:.0f} % (red: without the true class)",
        fontsize=10, x=0.01, ha="left",
    )  # fmt: skip
    return save(shown, "new-site-sets.png")


def unlike(trained: Trained, known: dict[str, list[Path]], new: list[Path]) -> Path:
    """How strange images are, in look and in content; and which of the new site are least and most so."""
    shown = plt.figure(figsize=(11, 4.6), dpi=140)
    chart = shown.add_axes((0.06, 0.12, 0.52, 0.74))
    calibration = trained.calibrated()
    files = {**known, "new site": new}
    colours = [BLUE, "#7a9e7e", "#b58db6", WRONG]
    for (name, some), colour in zip(files.items(), colours, strict=True):
        strange = strangeness(trained, some)
        chart.scatter(
            strange["look"],
            strange["content"],
            s=9,
            alpha=0.65,
            color=colour,
            label=f"{name}: {share(strange):.0f} % unlike",
        )
    assert calibration.looks
    chart.axvline(1, color=SOFT, linewidth=1)
    chart.axhline(1, color=SOFT, linewidth=1)
    chart.set_xlim(0, 1.6)
    chart.set_ylim(-2.2, 2.2)
    chart.set_xlabel("look: distance to the nearest site, over the limit", fontsize=9)
    chart.set_ylabel("content: how far the largest logit is below the usual", fontsize=9)
    chart.set_title("Right of or above the lines: unlike training", fontsize=10, loc="left")
    chart.legend(fontsize=8, loc="lower right")
    chart.spines[["top", "right"]].set_visible(False)
    for row, name in enumerate(("look", "content")):
        for column, (end, words) in enumerate((("least", "least"), ("most", "most"))):
            strange = strangeness(trained, new)[name]
            order = np.argsort(strange if end == "least" else -strange, kind="stable")[:3]
            for number, place in enumerate(order):
                tile(shown.add_axes((0.62 + 0.19 * column + 0.06 * number, 0.5 - 0.42 * row, 0.056, 0.3)), new[place])
            shown.text(0.62 + 0.19 * column, 0.82 - 0.42 * row, f"{words} strange in {name}", fontsize=9, color=SOFT)
    shown.text(0.62, 0.92, "Of the new site", fontsize=10)
    return save(shown, "new-site-unlike.png", tight=False)


def strangeness(trained: Trained, files: list[Path]) -> dict[str, np.ndarray]:
    from unseen.runs.model import read_files

    parts = list(read_files(trained, files))
    logits, looks = (np.concatenate([getattr(part, what) for part in parts]) for what in ("logits", "looks"))
    return trained.calibrated().strangeness(logits, looks)


def share(strange: dict[str, np.ndarray]) -> float:
    return 100 * float(np.mean((strange["look"] > 1) | (strange["content"] > 1)))


def checked(work: Path, classes: tuple[str, ...]) -> Path:
    found = json.loads((work / "check" / "metrics.json").read_text())
    shown, (left, right) = plt.subplots(1, 2, figsize=(11, 4.3), dpi=140)
    curve = found["curve"]
    filled = [b for b in range(BINS) if curve["images"][b]]
    x = [curve["confidence"][b] / curve["images"][b] for b in filled]
    y = [curve["right"][b] / curve["images"][b] for b in filled]
    left.plot([0, 1], [0, 1], color=SOFT, linewidth=1)
    left.scatter(x, y, s=[12 + 2 * curve["images"][b] for b in filled], color=BLUE)
    left.set(xlim=(0, 1), ylim=(0, 1), xlabel="probability of the answer", ylabel="share right")
    error = 100 * found["measured"]["calibration_error"]
    left.set_title(f"Below the line the model is too sure (error {error:.1f} %)", fontsize=10, loc="left")
    left.spines[["top", "right"]].set_visible(False)
    confusion = np.array(found["measured"]["confusion"])
    right.imshow(confusion / confusion.sum(axis=1, keepdims=True).clip(1), cmap="Blues", vmin=0, vmax=1)
    for (row, column), count in np.ndenumerate(confusion):
        if count:
            dark = count > 0.6 * confusion[row].sum()
            right.text(
                column, row, str(count), ha="center", va="center", fontsize=8, color="white" if dark else "black"
            )
    right.set_xticks(range(len(classes)), classes, fontsize=8, rotation=35)
    right.set_yticks(range(len(classes)), classes, fontsize=8)
    right.set_title("Rows: the true class; columns: the answer", fontsize=10, loc="left")
    return save(shown, "new-site-check.png")


def save(shown: plt.Figure, name: str, tight: bool = True) -> Path:
    if tight:
        shown.tight_layout()
    path = IMG / name
    shown.savefig(path, metadata={"Software": None})
    plt.close(shown)
    with Image.open(path) as picture:  # few colours: a third of the bytes
        picture.convert("RGB").quantize(192).save(path, optimize=True)
    return path


def main() -> None:
    work = Path(sys.argv[1])
    model = json.loads((work / "story.json").read_text())["model"]
    trained = unseen.load(work / "models" / model, device="cpu")
    new = list(predict_files(trained, work / "new", coverage=COVERAGE))
    print(sets(new, work / "new"))
    rng = np.random.default_rng(1)
    known = {}
    for site in sorted((work / "sites").iterdir()):
        files = sorted(path for path in site.rglob("*") if path.is_file())
        known[site.name] = [files[place] for place in rng.permutation(len(files))[:100]]
    here = [work / "new" / one.image for one in spread(rng, new, 100)]
    print(unlike(trained, known, here))
    print(checked(work, trained.classes))


if __name__ == "__main__":
    main()
