"""BIN: a trained gate per channel between batch and instance normalisation.

Nam, Kim: Batch-Instance Normalization for Adaptively Style-Invariant Neural Networks. NeurIPS 2018.

The method: each BatchNorm becomes gamma * (rho * BN(x) + (1 - rho) * IN(x)) + beta, one rho per channel. rho starts at 1,
is trained like any weight and put back into [0, 1] after every step. In the federation rho is shared like any weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from unseen.core.forms import Asked, Forms
from unseen.core.types import Tensors, Work
from unseen.method import Method, Traits
from unseen.nets.net import Net
from unseen.nets.norms import layers as norms
from unseen.nets.surgery import swap_norms


@dataclass(frozen=True)
class BIN(Method):
    name: ClassVar[str] = "bin"
    year: ClassVar[int] = 2018
    family: ClassVar[str] = "normalisation"
    traits: ClassVar[Traits] = Traits(norms="BIN")

    stages: int | None = None  # stages whose norms are replaced, from the first; none for all
    gate_rate: float = 10.0  # learning rate of rho, in learning rates of the weights

    def build(self, net: Net) -> Net:
        return swap_norms(net, norms.BIN.of, self.stages)

    def prepare(self, work: Work) -> None:
        gates = [layer.gate for layer in work.net.norms(norms.BIN)]
        work.withdraw(gates)
        # No weight decay: it would pull gates to 0, which is instance normalisation and not "small".
        group = {"params": gates, "lr": work.lr * self.gate_rate, "weight_decay": 0.0}
        work.optimizers["main"].add_param_group(group)

    def report(self, work: Work) -> Tensors:
        for layer in work.net.norms(norms.BIN):
            layer.bound_gate()  # the layer does it before each training pass; this is after the last
        return {}

    def forms(self, asked: Asked) -> Forms:
        return Forms()  # `report` only keeps something
