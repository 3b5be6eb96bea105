"""FedSPL at test time: a student learns from the unlabelled images it is shown by what a slow copy of it is sure of.

Liang, Zhang, Cao, Li, Zheng: TTA-FedDG: Leveraging Test-Time Adaptation to Address Federated Domain Generalization. AAAI
2025. Its choice of sure answers and its losses follow C-SFDA (Karim et al., CVPR 2023).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unseen.core.errors import UserError
from unseen.core.seeding import torch_generator
from unseen.data.augment import Recipe, apply
from unseen.experiments.adaptation import overheard
from unseen.method import Method, name_of
from unseen.nets.net import Net
from unseen.nets.parts.contrast import supervised_contrast

WEAK = Recipe(
    zoom_crop=256 / 224, zoom_crop_chance=1.0, flip=0.5,
    brightness=0.1, contrast=0.1, saturation=0.1, hue=0.05, grey=0.05,
)  # fmt: skip
STRONG = Recipe(crop=(0.2, 1.0), flip=0.5, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.4, grey=0.2)
VIEWS = (Recipe(), WEAK, STRONG, WEAK, STRONG)  # of an image, that the teacher answers
HEAD = 30  # times the rate: the head's
FADING = 1e-3  # how fast sure answers lose weight
CONTRAST, COOLING = 0.5, 1e-4  # weight of the contrast at first, and how fast it falls


def margin(scores: Tensor) -> Tensor:
    """The largest less the second, over the last axis."""
    two = scores.topk(2, dim=-1).values
    return two[..., 0] - two[..., 1]


def trusted(views: Tensor) -> tuple[Tensor, Tensor]:
    """Which images' answers a teacher is sure of, and the weights of classes among them. `views`: logits, views x B x K.

    Sure are those whose probabilities lead by more than the mean over all images; of the others those whose mean logits
    lead by more than theirs do on average; and of a class that has none, its most probable ones, as many as the class with
    fewest has. A class weighs as much as one image.
    """
    leads, mean = margin(views.softmax(2)), views.mean(0)
    chances, labels = mean.softmax(1).max(1)
    kept = leads.mean(0) > leads.mean()
    if bool((~kept).any()):
        leads = margin(mean)
        kept = kept | ((leads > leads[~kept].mean()) & ~kept)
    counts = torch.bincount(labels[kept], minlength=mean.shape[1])
    weights = 1 / counts.clamp_min(1).to(mean)
    if bool(kept.any()):
        fewest = int(counts[counts > 0].min())
        for label in torch.nonzero(counts == 0).flatten().tolist():
            rows = torch.nonzero(labels == label).flatten()
            kept[rows[chances[rows].argsort(descending=True, stable=True)[:fewest]]] = True
    return kept, weights


class Worn:
    """State that a net wears for a while. Between, the net has its trained one; no second net is made."""

    def __init__(self, net: Net) -> None:
        self.values = [tensor.detach().clone() for tensor in state_of(net)]

    @contextmanager
    def on(self, net: Net) -> Iterator[None]:
        """Inside, the net has this state; what it is at the end is kept."""
        trained = [tensor.detach().clone() for tensor in state_of(net)]
        write(net, self.values)
        try:
            yield
        finally:
            self.values = [tensor.detach().clone() for tensor in state_of(net)]
            write(net, trained)
            net.eval()


def state_of(net: Net) -> list[Tensor]:
    """Parameters first."""
    return [*net.parameters(), *net.buffers()]


def write(net: Net, values: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for tensor, value in zip(state_of(net), values, strict=True):
            tensor.copy_(value)


class Pupil:
    """A student and its teacher, for images that come in batches. Each batch is learnt from before it is answered."""

    def __init__(self, method: Method, net: Net, rate: float, slowness: float, steps: int, seed: int) -> None:
        self.method, self.slowness, self.steps = method, slowness, steps
        self.student, self.teacher = Worn(net), Worn(net)
        last = {id(parameter) for parameter in net.head.parameters()}
        groups = [
            {
                "params": [p for p in net.trainable() if id(p) not in last],
                "lr": rate,
                "momentum": 0.9,
                "nesterov": True,
            },
            {"params": [p for p in net.trainable() if id(p) in last], "lr": HEAD * rate},
        ]
        self.optimizer = torch.optim.SGD([group for group in groups if group["params"]], lr=rate, weight_decay=1e-4)
        self.rng = torch_generator(seed, purpose="inference fedspl")
        self.trust, self.contrast = 1.0, CONTRAST

    def __call__(self, net: Net, x: Tensor) -> Tensor:
        for _ in range(self.steps if len(x) > 1 else 0):  # norms cannot go by a batch of one
            self.learn(net, x)
        with self.student.on(net), torch.no_grad():
            return self.method.predict(net.eval(), x)

    def learn(self, net: Net, x: Tensor) -> None:
        """One step of the student, after one of the teacher towards it."""
        with self.teacher.on(net), torch.no_grad():
            by_the_batch(net)
            views = torch.stack([self.answers(net, apply(x, recipe, self.rng))[0] for recipe in VIEWS])
        count = len(list(net.parameters()))  # buffers are each one's own
        for slow, fast in zip(self.teacher.values[:count], self.student.values[:count], strict=True):
            slow.lerp_(fast, 1 - self.slowness)
        with self.student.on(net), torch.enable_grad():
            by_the_batch(net)
            one, two = (apply(x, STRONG, self.rng) for _ in range(2))
            logits, features = self.answers(net, one)
            loss = self.lesson(views, logits, features, self.answers(net, two)[1])
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)

    def lesson(self, views: Tensor, logits: Tensor, features: Tensor, others: Tensor) -> Tensor:
        """What the student descends on: sure answers as labels; of the rest, the teacher's logits, and features of two
        views of an image that are near each other."""
        kept, weights = trusted(views)
        mean, rest = views.mean(0), ~kept
        lead = float(margin(views.softmax(2)).mean())
        self.trust *= 1 - FADING * math.exp(-lead)
        self.contrast *= math.exp(-COOLING)
        labels = mean.argmax(1)
        if not bool(rest.any()):
            return self.trust * F.cross_entropy(logits, labels, weight=weights)
        unsure = (mean[rest] - logits[rest]).square().mean()
        sure = F.cross_entropy(logits[kept], labels[kept], weight=weights) if bool(kept.any()) else unsure
        number = torch.arange(int(rest.sum()), device=features.device)
        apart = supervised_contrast(torch.cat([features[rest], others[rest]]), number.repeat(2), 0.07)
        return self.trust * sure + (1 - self.trust) * unsure + self.contrast * apart

    def answers(self, net: Net, x: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and the features that the head made them of."""
        with overheard(net) as heard:
            logits = self.method.predict(net, x)
        if len(heard) != 1:
            raise UserError(
                f'"{name_of(self.method)}" does not predict by one head on one pass of an image, which fedspl needs: '
                "evaluate a run of another method."
            )
        return logits.float(), heard[0].float()


def by_the_batch(net: Net) -> None:
    """Norms as in training, and nothing else: what a method does in training alone stays off."""
    net.eval()
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.train()
