"""How far the models of finished runs can be trusted: prediction sets, probabilities and familiarity, in-domain and unseen.

    python benchmarks/trust.py OUT NAME    # a record per run of the folder OUT in benchmarks/results/trust/NAME

In-domain images are the sources' held-back test images, which selected and calibrated nothing. The unseen domain is the
run's own target. Familiarity is asked to tell the in-domain images from three others: the unseen domain's, pixels of plain
noise, and letters (those that no digit looks like): images of no known class. Runs whose calibration is of an earlier
version are calibrated here from their own data; nothing is written into their directories.

Which scores to call familiarity was chosen without an unseen domain: that of the content by noise and letters, which are
drawn here, and that of the look by sources alone (benchmarks/look.py).
"""

from __future__ import annotations

import string
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import track
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))
import letters

from unseen.core.calibration import CONTENT, LOOK, Calibration, softmax
from unseen.core.files import write_json
from unseen.core.look import look_of
from unseen.core.metrics import calibration_curve
from unseen.core.seeding import torch_generator
from unseen.core.types import ImageSet
from unseen.engines.local import open_local
from unseen.federation.measure import logits
from unseen.runs.calibrate import calibration_of
from unseen.runs.directory import RunDirectory, find_runs
from unseen.runs.model import Trained, load_trained
from unseen.runs.progress import Silent
from unseen.runs.results import label_of
from unseen.runs.run import PlannedRun, load_data, one_thread
from unseen.runs.settings import NO_TARGET

RECORDS = Path(__file__).parent / "results" / "trust"
COVERAGES = (0.8, 0.9, 0.95)
BATCH = 64
STRANGERS = 640  # images of noise, and of letters
LIKE_DIGITS = "biloqgszt"  # letters that a digit looks like, in one case or the other


Seen = tuple[np.ndarray, np.ndarray]  # logits and looks


def scores_of(own: Calibration, seen: Seen) -> dict[str, np.ndarray]:
    """Candidates for familiarity."""
    logits_NK, looks_ND = seen
    largest = logits_NK.max(axis=1)
    strange = own.strangeness(logits_NK, looks_ND)
    return {
        "largest logit": largest,
        "largest probability": softmax(logits_NK).max(axis=1),
        "energy": largest + np.log(np.exp(logits_NK - largest[:, None]).sum(axis=1)),
        "look": -strange[LOOK],
        "look or largest logit": -np.maximum(strange[LOOK], strange[CONTENT]),
    }


def auroc(familiar: np.ndarray, other: np.ndarray) -> float:
    from sklearn.metrics import roc_auc_score

    labels = np.concatenate([np.ones(len(familiar)), np.zeros(len(other))])
    return float(roc_auc_score(labels, np.concatenate([familiar, other])))


def strangers(size: int) -> dict[str, Tensor]:
    """Noise, and letters in any two colours, the same for every run."""
    rng = torch_generator(0, purpose="trust")
    noise = torch.rand(STRANGERS, 3, size, size, generator=rng)
    pictures, labels = letters.drawn()
    kept = torch.tensor([string.ascii_lowercase[k] not in LIKE_DIGITS for k in labels.tolist()])
    parts = STRANGERS // letters.BATCH
    drawn = [letters.batch(pictures[kept], labels[kept], size, 1.0, rng)[0] for _ in range(parts)]
    return {"noise": noise, "letters": torch.cat(drawn)}


def outputs(trained: Trained, images: ImageSet) -> tuple[Seen, np.ndarray]:
    found = list(logits(trained.method.predict, trained.net, images, trained.settings.plan))
    rows = torch.arange(len(images)).split(BATCH)
    looks = np.concatenate([look_of(images.batch(part).x.numpy()) for part in rows])
    logits_NK = torch.cat([x for x, _ in found]).double().numpy()
    return (logits_NK, looks), torch.cat([y for _, y in found]).numpy()


def together(parts: list[tuple[Seen, np.ndarray]]) -> tuple[Seen, np.ndarray]:
    logits_NK, looks_ND = (np.concatenate([seen[place] for seen, _ in parts]) for place in (0, 1))
    return (logits_NK, looks_ND), np.concatenate([labels for _, labels in parts])


def trust(trained: Trained, seen: Seen, labels_N: np.ndarray) -> dict[str, Any]:
    """Sets, probabilities and warnings on labelled images."""
    own, rows, logits_NK = trained.calibrated(), np.arange(len(labels_N)), seen[0]
    sets = {str(coverage): own.sets(logits_NK, coverage) for coverage in COVERAGES}
    strange = own.strangeness(*seen)
    unlike = own.unlike(strange)
    return {
        "images": len(labels_N),
        "accuracy": float((logits_NK.argmax(axis=1) == labels_N).mean()),
        "coverage": {name: float(inside[rows, labels_N].mean()) for name, inside in sets.items()},
        "set_size": {name: float(inside.sum(axis=1).mean()) for name, inside in sets.items()},
        "error_before": calibration_curve(softmax(logits_NK), labels_N).error,
        "error_after": calibration_curve(own.probabilities(logits_NK), labels_N).error,
        "unlike_training": float(np.mean([bool(why) for why in unlike])),
        "unlike": {name: float(np.mean([name in why for why in unlike])) for name in (LOOK, CONTENT)},
        "typical_look": own.typical_look(strange[LOOK]),
    }


def record(run: RunDirectory) -> dict[str, Any]:
    trained = load_trained(run.path, "cpu")
    if trained.calibration is None or not trained.calibration.looks:
        trained = replace(trained, calibration=calibration_of(run, open_local(1)))
    settings, result, own = trained.settings, run.result(), trained.calibrated()
    data = load_data(PlannedRun.of(settings), Silent())
    held = [site.test if site.test is not None and len(site.test) else site.validation for site in data.sites.values()]
    with one_thread():
        inside, inside_N = together([outputs(trained, images) for images in held])
        unseen = outputs(trained, data.target) if data.target is not None else None
        drawn = strangers(settings.data.image_size)
        others: dict[str, Seen] = {name: (trained.logits(x), look_of(x.numpy())) for name, x in drawn.items()}
    if unseen is not None:
        others = {"unseen": unseen[0], **others}
    familiar = scores_of(own, inside)
    wrong = inside[0].argmax(axis=1) != inside_N
    return {
        "method": settings.method,
        "label": label_of(settings, result.remark if result is not None else ""),
        "target": settings.target,
        "seed": settings.seed,
        "in_domain_images": "test" if settings.data.in_domain_test > 0 else "validation",
        "temperature": own.temperature,
        "in_domain": trust(trained, inside, inside_N),
        "unseen": trust(trained, *unseen) if unseen is not None else None,
        "auroc": {
            name: {kind: auroc(familiar[kind], score) for kind, score in scores_of(own, seen).items()}
            for name, seen in others.items()
        },
        "unlike": {
            name: float(np.mean([bool(why) for why in own.unlike(own.strangeness(*seen))]))
            for name, seen in others.items()
        },
        # Of the in-domain images, those that are classified right against the others.
        "mistakes": {kind: auroc(score[~wrong], score[wrong]) for kind, score in familiar.items()}
        if wrong.any()
        else {},
    }


def main(words: list[str]) -> int:
    if len(words) != 2:
        print(__doc__)
        return 2
    out, name = Path(words[0]), words[1]
    runs = [run for run in find_runs(out) if run.finished and run.settings().target != NO_TARGET]
    for run in track(runs, description="trust"):
        place = RECORDS / name / f"{run.path.name}.json"
        if not place.exists():
            write_json(place, record(run))
            print(f"wrote {place}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
