"""ELCFS (FedDG): clients exchange amplitude spectra, and train by an inner and an outer step across them.

Liu, Chen, Qin, Dou, Heng: FedDG: Federated Domain Generalization on Medical Image Segmentation via Episodic Learning in
Continuous Frequency Space. CVPR 2021.

The method: once, every client sends the low-frequency amplitudes of some of its images; the server hands them to the
others. In a step, each image also appears with its low amplitudes mixed with those of another client, by a share from
U(0, 1), phases kept. Inner: w' = w - rate * gradient of the loss on the images. Outer: the loss at w' on the mixed
images. The step is along the sum of both gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor

from unseen.core.forms import Asked, Form, Forms, UpTo
from unseen.core.tensors import prefixed, unprefixed
from unseen.core.types import Batch, ClientId, Server, Tensors, Work
from unseen.method import Method, Range, Traits
from unseen.nets.parts.shifted import along, gradients, shifted, stepped
from unseen.nets.parts.spectra import low_amplitudes, with_amplitudes


@dataclass(frozen=True)
class ELCFS(Method):
    name: ClassVar[str] = "elcfs"
    year: ClassVar[int] = 2021
    family: ClassVar[str] = "styles"
    passes: ClassVar[float] = 2.0
    traits: ClassVar[Traits] = Traits(
        sends="low-frequency amplitude spectra of some training images, handed on to the other clients"
    )
    ranges: ClassVar[Mapping[str, Range]] = {"inner_rate": Range(1e-4, 0.1)}

    episodic: bool = True  # inner and outer step; otherwise the mixed images join the batch
    inner_rate: float = 1e-3  # learning rate of the inner step
    size: float = 0.1  # half-width of the exchanged window, as a share of the image's side; 0: the mean colour alone
    fraction: float = 0.125  # of a client's training images whose amplitudes it sends
    exchanges: int = 1  # first rounds that begin with an exchange; more if few clients take part in the first round

    def surveys(self, round: int) -> bool:
        return round <= self.exchanges

    def survey(self, work: Work) -> Tensors:
        images = work.site.train
        rows = torch.randperm(len(images), generator=work.rng)[: max(1, int(len(images) * self.fraction))]
        parts = [
            low_amplitudes(images.batch(part).x.to(work.device), self.size).cpu() for part in torch.split(rows, 64)
        ]
        return {"amplitudes": torch.cat(parts)}

    def forms(self, asked: Asked) -> Forms:
        side = asked.net.image_size
        window = low_amplitudes(torch.zeros(1, 3, side, side), self.size).shape[1:]
        images = UpTo(max(1, int(asked.images * self.fraction)))
        return Forms(survey={"amplitudes": Form((images, *window), least=0.0)})

    def brief(
        self, server: Server, surveys: Mapping[ClientId, Tensors], chosen: Sequence[ClientId]
    ) -> Mapping[ClientId, Tensors]:
        for client, statistics in surveys.items():
            server.memory[client] = statistics["amplitudes"]
        # Clients keep what they were sent, so it travels when it is new to them.
        new = [client for client in chosen if surveys or client not in server.met]
        return {client: {other: bank for other, bank in server.memory.items() if other != client} for client in new}

    def prepare(self, work: Work) -> None:
        work.memory.update(prefixed("bank/", dict(work.brief)))
        banks = unprefixed("bank/", work.memory)  # sorted: a file gives them back in another order than a message
        work.scratch["banks"] = [banks[client].to(work.device) for client in sorted(banks)]

    def augment(self, work: Work, batch: Batch) -> Batch:
        mixed = None if self.episodic else self._mixed(work, batch)
        if mixed is None:
            return batch
        return Batch(*(torch.cat([getattr(b, name) for b in (batch, mixed)]) for name in ("x", "y", "domain")))

    def step(self, work: Work, batch: Batch) -> None:
        mixed = self._mixed(work, batch) if self.episodic else None
        if mixed is None:
            super().step(work, batch)
            return
        parameters = stepped(work.optimizers["main"])
        inner_loss = work.method.loss(work, batch)
        inner = gradients(inner_loss, parameters)
        with shifted(parameters, [None if slope is None else -self.inner_rate * slope for slope in inner]):
            outer_loss = work.method.loss(work, mixed)
            outer = gradients(outer_loss, parameters)
        work.note("loss", inner_loss)
        work.note("loss.outer", outer_loss)
        self.descend(work, along(parameters, [_plus(a, b) for a, b in zip(inner, outer, strict=True)]))

    def _mixed(self, work: Work, batch: Batch) -> Batch | None:
        """The batch with other clients' low amplitudes; None if there is no other client."""
        banks = cast(list[Tensor], work.scratch["banks"])
        if not banks:
            return None
        givers = torch.randint(len(banks), (len(batch),), generator=work.rng).tolist()
        given = [banks[g][int(torch.randint(len(banks[g]), (), generator=work.rng))] for g in givers]
        share = torch.rand(len(batch), generator=work.rng).to(batch.x.device)
        return Batch(with_amplitudes(batch.x, torch.stack(given), share, self.size), batch.y, batch.domain)


def _plus(one: Tensor | None, two: Tensor | None) -> Tensor | None:
    if one is None or two is None:
        return two if one is None else one
    return one + two
