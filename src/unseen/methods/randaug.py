"""RandAugment: every image goes through a few operations drawn from fourteen, all at one magnitude.

Cubuk, Zoph, Shlens, Le: RandAugment: Practical Automated Data Augmentation with a Reduced Search Space. NeurIPS 2020.

The method: for each image draw N of {identity, shear x/y, shift x/y, rotate, brightness, colour, contrast, sharpness,
posterize, solarize, auto contrast, equalize} with equal chance, and apply them one after another at magnitude M. The
direction of those that have one is a coin. The rest is FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from unseen.core.errors import UserError
from unseen.core.types import Batch, Work
from unseen.method import Method, Range
from unseen.nets.parts.images import rand_augment

MOST = 30  # the magnitude at which an operation is at its strongest


@dataclass(frozen=True)
class RandAug(Method):
    name: ClassVar[str] = "randaug"
    year: ClassVar[int] = 2020
    family: ClassVar[str] = "augmentation"
    ranges: ClassVar[Mapping[str, Range]] = {"magnitude": Range(3.0, 20.0, log=False)}

    operations: int = 2  # N, operations on each image
    magnitude: float = 10.0  # M of 30: at 30 a turn is 30 degrees, a shear 0.3, a colour factor 0.1 or 1.9

    def __post_init__(self) -> None:
        if not 0 <= self.magnitude <= MOST:
            raise UserError(f"randaug: magnitude is {self.magnitude}; give a number from 0 to {MOST}.")

    def augment(self, work: Work, batch: Batch) -> Batch:
        return replace(batch, x=rand_augment(batch.x, self.operations, self.magnitude / MOST, work.rng))
