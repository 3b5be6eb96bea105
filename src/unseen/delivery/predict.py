"""Classify images with the model beside this file. Needs onnxruntime, numpy and Pillow, and nothing else.

    python predict.py IMAGE_OR_FOLDER --out predictions.csv

The columns are those of `unseen predict`, and so is the exit code: 3 if a file could not be read. From Python:
`Model(FOLDER).predict(paths)`. `unseen export` put this file here as it is.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from look import Look, look_of, nearest  # type: ignore[import-not-found]  # lies beside this file once it is exported
from pictures import SUFFIXES, decode  # type: ignore[import-not-found]

BATCH = 32
UNREADABLE = 3  # the exit code
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Answer:
    """What the model says of one image."""

    image: str
    label: str
    probabilities: dict[str, float]
    set: list[str] | None  # the classes that cannot be ruled out; None where the model has no calibration
    unlike: list[str] | None  # in what it is unlike the images of training: look, content; None likewise

    @property
    def probability(self) -> float:
        return self.probabilities[self.label]


class Model:
    """model.onnx and model.json of a folder."""

    def __init__(self, folder: Path | str = Path(__file__).parent, threads: int = 0) -> None:
        place = Path(folder)
        self.about: dict[str, Any] = json.loads((place / "model.json").read_text())
        self.classes: list[str] = self.about["classes"]
        self.size: int = self.about["image_size"]
        self.sites = [Look(**one) for one in (self.about["thresholds"] or {}).get("looks", ())]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(
            str(place / "model.onnx"), options, providers=["CPUExecutionProvider"]
        )

    def logits(self, images_BCHW: Array) -> Array:
        """Of images in [0, 1], B x 3 x S x S, float32."""
        return np.asarray(self.session.run(None, {"images": images_BCHW})[0], dtype=np.float64)

    def predict(self, files: Sequence[Path], broken: list[str] | None = None) -> Iterator[Answer]:
        """Images in order. Those that cannot be read go into `broken`; without such a list they are an error."""
        for start in range(0, len(files), BATCH):
            good, pixels = [], []
            for file in files[start : start + BATCH]:
                try:
                    pixels.append(decode(file, self.size))
                    good.append(str(file))
                except Exception as error:  # decoders raise all kinds for a broken file
                    if broken is None:
                        raise ValueError(f"The image {file} cannot be read ({error}).") from error
                    broken.append(str(file))
            if good:
                x = np.ascontiguousarray(np.stack(pixels).transpose(0, 3, 1, 2), dtype=np.float32) / np.float32(255)
                yield from self.answers(good, self.logits(x), look_of(x))

    def answers(self, names: Sequence[str], logits_BK: Array, looks_BD: Array) -> Iterator[Answer]:
        limits = self.about["thresholds"]
        chances = softmax(logits_BK / (limits["temperature"] if limits else 1.0))
        odds = log_odds(logits_BK)
        distance_B = nearest(self.sites, looks_BD) if self.sites else np.zeros(len(names))
        for row, name in enumerate(names):
            best = int(logits_BK[row].argmax())
            chosen = unlike = None
            if limits:
                floor = -math.inf if limits["log_odds"] is None else limits["log_odds"]
                chosen = [c for k, c in enumerate(self.classes) if k == best or odds[row, k] >= floor]
                unlike = ["look"] * bool(self.sites and distance_B[row] > limits["furthest_look"])
                unlike += ["content"] * bool(logits_BK[row].max() < limits["largest_logit"])
            named = dict(zip(self.classes, chances[row].tolist(), strict=True))
            yield Answer(name, self.classes[best], named, chosen, unlike)


def softmax(logits_BK: Array) -> Array:
    raised = np.exp(logits_BK - logits_BK.max(axis=1, keepdims=True))
    result: Array = raised / raised.sum(axis=1, keepdims=True)
    return result


def log_odds(logits_BK: Array) -> Array:
    """log p/(1 - p) of each class: its logit less the log-sum-exp of the others'."""
    odds = np.empty(logits_BK.shape)
    for k in range(logits_BK.shape[1]):
        others = np.delete(logits_BK, k, axis=1)
        top = others.max(axis=1, initial=-np.inf, keepdims=True)
        odds[:, k] = logits_BK[:, k] - (top[:, 0] + np.log(np.exp(others - top).sum(axis=1)))
    return odds


def find_images(place: Path) -> list[Path]:
    """One image, or all below a folder, in order."""
    if place.is_dir():
        return sorted(path for path in place.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    return [place] if place.exists() else []


def row_of(answer: Answer, place: Path) -> list[str]:
    name = Path(answer.image).relative_to(place) if place.is_dir() else Path(answer.image)
    chosen = "" if answer.set is None else "|".join(answer.set)
    unlike = "" if answer.unlike is None else "yes" if answer.unlike else "no"
    why = "|".join(answer.unlike or ())
    numbers = [f"{p:.6f}" for p in answer.probabilities.values()]
    return [name.as_posix(), answer.label, f"{answer.probability:.6f}", chosen, unlike, why, *numbers]


def main() -> int:
    asked = argparse.ArgumentParser(description="Classify images with the model beside this file.")
    asked.add_argument("images", type=Path, help="an image, or a folder of images; folders below it are read too")
    asked.add_argument("--out", type=Path, default=Path("predictions.csv"), help="the CSV file to write")
    given = asked.parse_args()
    files = find_images(given.images)
    if not files:
        print(f"Error: There are no images in {given.images}.", file=sys.stderr)
        return 2
    model, broken, count = Model(), list[str](), 0
    with given.out.open("w", newline="") as file:
        writer = csv.writer(file)
        columns = ["image", "class", "probability", "set", "unlike training", "unlike in"]
        writer.writerow([*columns, *(f"p({c})" for c in model.classes)])
        for answer in model.predict(files, broken):
            writer.writerow(row_of(answer, given.images))
            count += 1
            if count % 1000 == 0:
                print(f"{count:,} of {len(files):,}", file=sys.stderr)
    for name in broken:
        print(f"cannot be read: {name}", file=sys.stderr)
    print(f"{count:,} images classified, {len(broken):,} could not be read; written to {given.out}")
    return UNREADABLE if broken else 0


if __name__ == "__main__":
    sys.exit(main())
