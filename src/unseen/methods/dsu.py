"""DSU: the style of every image is uncertain, and drawn anew from a Gaussian as wide as the batch's styles are spread.

Li, Dai, Ge, Liu, Shan, Duan: Uncertainty Modeling for Out-of-Distribution Generalization. ICLR 2022.

The method: after each stage, with probability p per batch, an image's channel means and standard deviations are replaced
by draws from N(own mean, spread of the means) and N(own std, spread of the stds), the spreads taken over the batch per
channel. Nothing happens at test. In a federation each client knows the spread of its own batches only; the rest is
FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from unseen.method import Method, Range
from unseen.nets.net import Net
from unseen.nets.parts import styles
from unseen.nets.surgery import insert_after


@dataclass(frozen=True)
class DSU(Method):
    name: ClassVar[str] = "dsu"
    year: ClassVar[int] = 2022
    family: ClassVar[str] = "styles"
    ranges: ClassVar[Mapping[str, Range]] = {"p": Range(0.2, 1.0, log=False)}

    p: float = 0.5  # probability of drawing new styles, per batch and stage
    stages: tuple[int, ...] = (0, 1, 2, 3)  # stages after which styles are drawn, from 0 (ResNet's layer1)

    def build(self, net: Net) -> Net:
        return insert_after(net, self.stages, lambda: styles.DSU(self.p))
