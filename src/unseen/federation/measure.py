"""A method's prediction over a set of images: accuracy, loss and what else is asked. The only place that evaluates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.core.metrics import Measured, measured
from unseen.core.plan import Plan
from unseen.core.types import ImageSet
from unseen.nets.net import Net

EVALUATION_BATCH = 64
Predict = Callable[[Net, Tensor], Tensor]
Also = Callable[[Tensor, Tensor], None]  # is handed every batch's logits and labels


@dataclass(frozen=True)
class Score:
    """How well images were classified. Of no images: accuracy and loss are nan."""

    correct: int
    examples: int
    total_loss: float

    @property
    def accuracy(self) -> float:
        return self.correct / self.examples if self.examples else float("nan")

    @property
    def loss(self) -> float:
        return self.total_loss / self.examples if self.examples else float("nan")


def logits(predict: Predict, net: Net, images: ImageSet, plan: Plan) -> Iterator[tuple[Tensor, Tensor]]:
    """(logits, labels) on the CPU, batch by batch. Leaves the net in eval mode."""
    net.eval()
    device = torch.device(plan.device)
    for start in range(0, len(images), EVALUATION_BATCH):
        batch = images.batch(torch.arange(start, min(start + EVALUATION_BATCH, len(images))))
        with torch.inference_mode(), precision(plan):
            scores = predict(net, batch.x.to(device))
        yield scores.float().cpu(), batch.y


def measure(
    predict: Predict,
    net: Net,
    images: ImageSet,
    plan: Plan,
    progress: Callable[[int], None] | None = None,
    also: Also | None = None,
) -> Score:
    """Accuracy and loss."""
    correct, seen, total = 0, 0, 0.0
    for scores, labels in logits(predict, net, images, plan):
        correct += int((scores.argmax(1) == labels).sum())
        total += float(F.cross_entropy(scores, labels, reduction="sum"))
        seen += len(labels)
        if also is not None:
            also(scores, labels)
        if progress is not None:
            progress(seen)
    return Score(correct, seen, total)


def examine(
    predict: Predict, net: Net, images: ImageSet, plan: Plan, progress: Callable[[int], None] | None = None
) -> tuple[Score, Measured | None]:
    """Accuracy and loss, and all that is told of an unseen domain."""
    kept: list[tuple[Tensor, Tensor]] = []
    score = measure(predict, net, images, plan, progress, lambda scores, labels: kept.append((scores, labels)))
    if not kept:
        return score, None
    probabilities = torch.cat([scores for scores, _ in kept]).double().softmax(1)
    return score, measured(probabilities.numpy(), torch.cat([labels for _, labels in kept]).numpy())


def precision(plan: Plan) -> torch.autocast:
    """bfloat16 where the plan asks for it."""
    return torch.autocast(torch.device(plan.device).type, dtype=torch.bfloat16, enabled=plan.precision == "bfloat16")
