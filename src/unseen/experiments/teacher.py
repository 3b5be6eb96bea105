"""FedSPL at test time: a student learns from the unlabelled images it is shown by what a slow copy of it is sure of.

Liang, Zhang, Cao, Li, Zheng: TTA-FedDG: Leveraging Test-Time Adaptation to Address Federated Domain Generalization. AAAI
2025. Its choice of sure answers and its losses follow C-SFDA (Karim et al., CVPR 2023).
"""

from __future__ import annotations

import copy
import math

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


class Pupil:
    """A student and its teacher, for images that come in batches. Each batch is learnt from before it is answered."""

    def __init__(self, method: Method, net: Net, rate: float, slowness: float, steps: int, seed: int) -> None:
        self.method, self.slowness, self.steps = method, slowness, steps
        self.student, self.teacher = copy.deepcopy(net), copy.deepcopy(net)
        head = {id(parameter) for parameter in net.head.parameters()}
        pairs = [
            (id(before) in head, now) for before, now in zip(net.parameters(), self.student.parameters(), strict=True)
        ]
        groups = [
            {"params": [p for last, p in pairs if not last], "lr": rate, "momentum": 0.9, "nesterov": True},
            {"params": [p for last, p in pairs if last], "lr": HEAD * rate},
        ]
        self.optimizer = torch.optim.SGD(groups, lr=rate, weight_decay=1e-4)
        self.rng = torch_generator(seed, purpose="inference fedspl")
        self.trust, self.contrast = 1.0, CONTRAST

    def __call__(self, net: Net, x: Tensor) -> Tensor:
        for _ in range(self.steps if len(x) > 1 else 0):  # norms cannot go by a batch of one
            with torch.enable_grad():
                self.learn(x)
        with torch.no_grad():
            return self.method.predict(self.student.eval(), x)

    def learn(self, x: Tensor) -> None:
        """One step of the student, after one of the teacher towards it."""
        for net in (self.student, self.teacher):
            by_the_batch(net)
        with torch.no_grad():
            views = torch.stack([self.answers(self.teacher, apply(x, recipe, self.rng))[0] for recipe in VIEWS])
            for slow, fast in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                slow.lerp_(fast, 1 - self.slowness)
        one, two = (apply(x, STRONG, self.rng) for _ in range(2))
        logits, features = self.answers(self.student, one)
        loss = self.lesson(views, logits, features, self.answers(self.student, two)[1])
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

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
