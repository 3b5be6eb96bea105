"""FedSAM and FedASAM: clients seek flat minima: they descend by the gradient at the worst point near by.

Caldarola, Caputo, Ciccone: Improving Generalization in Federated Learning by Seeking Flat Minima. ECCV 2022. SAM: Foret
et al., ICLR 2021. ASAM: Kwon et al., ICML 2021.

The method: with g the gradient of the batch's loss at w, go up to w + rho * g / ||g||; take the gradient there; go back to
w and step with it. ASAM measures the neighbourhood in units of the weights: with T = |w| + eta, go up by
rho * T^2 g / ||T g||. The server is FedAvg's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from unseen.core.types import Batch, Work
from unseen.method import Method, Range
from unseen.nets.parts.shifted import Gradients, along, gradients, shifted, stepped


def ascent(parameters: Sequence[nn.Parameter], slopes: Gradients, rho: float, eta: float | None) -> list[Tensor | None]:
    """The way up: of length rho in SAM, and in ASAM (with `eta`) where lengths are measured in units of T."""
    scales = [1.0 if eta is None else p.detach().abs() + eta for p in parameters]
    scaled = [None if slope is None else scale * slope for slope, scale in zip(slopes, scales, strict=True)]
    length = torch.stack([s.float().square().sum() for s in scaled if s is not None]).sum().sqrt().clamp_min(1e-12)
    return [None if s is None else rho / length * scale * s for s, scale in zip(scaled, scales, strict=True)]


@dataclass(frozen=True)
class FedSAM(Method):
    name: ClassVar[str] = "fedsam"
    year: ClassVar[int] = 2022
    family: ClassVar[str] = "flat minima"
    passes: ClassVar[float] = 2.0
    ranges: ClassVar[Mapping[str, Range]] = {"rho": Range(0.005, 0.5)}

    adaptive: bool = False  # ASAM instead of SAM
    rho: float | None = None  # radius of the neighbourhood; none: 0.05 for SAM, 0.5 for ASAM
    eta: float = 0.01  # ASAM: added to |w|, so that weights near zero can move

    def step(self, work: Work, batch: Batch) -> None:
        parameters = stepped(work.optimizers["main"])
        rho = self.rho if self.rho is not None else (0.5 if self.adaptive else 0.05)
        dice = torch.get_rng_state(), work.rng.get_state()
        loss = work.method.loss(work, batch)
        work.note("loss", loss)
        up = ascent(parameters, gradients(loss, parameters), rho, self.eta if self.adaptive else None)
        # Running statistics are those of the model that is kept, so the pass at w moves them and this one does not.
        statistics = [(buffer, buffer.clone()) for buffer in work.net.buffers()]
        torch.set_rng_state(dice[0])  # both passes are of the same function: the same dropout, the same mixed styles
        work.rng.set_state(dice[1])
        with shifted(parameters, up):
            slopes = gradients(work.method.loss(work, batch), parameters)
        for buffer, before in statistics:
            buffer.copy_(before)
        self.descend(work, along(parameters, slopes))
