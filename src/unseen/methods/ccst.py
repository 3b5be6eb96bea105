"""CCST: images take other clients' styles. Without a style network's files: on first-stage maps, a variant of ours.

Chen, Jiang, Dou, Chen: Federated Domain Generalization for Image Recognition via Cross-Client Style Transfer. WACV
2023.

The method: every client sends its style to a bank: channel means and standard deviations of VGG maps, over all its images
(overall) or of single images (single). For every image K clients are drawn, none twice. Where its own client is drawn,
it is trained on as it is; where another is, as a copy, whose VGG maps take a style of that client (AdaIN) and are decoded
to an image, before it is augmented. The rest is FedAvg. Our weight-free variant: the maps are those of the client's own
first stage, K of K + 1 of which take the style of another client there, inside the net; the bank is renewed each round,
as the net moves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor

from unseen.core.errors import UserError
from unseen.core.forms import Asked, Form, Forms, UpTo
from unseen.core.seeding import torch_generator
from unseen.core.types import ClientId, Server, Tensors, Work
from unseen.method import Method, Traits
from unseen.nets.net import Net
from unseen.nets.parts.style_transfer import (
    ENCODER,
    EPSILON,
    Restyle,
    RestyledImages,
    kept_copies,
    looks_of,
    overall,
    resized,
    style_network,
)
from unseen.nets.parts.styles import Style, style_of


@dataclass(frozen=True)
class CCST(Method):
    name: ClassVar[str] = "ccst"
    year: ClassVar[int] = 2023
    family: ClassVar[str] = "styles"
    traits: ClassVar[Traits] = Traits(
        sends="styles of its images (channel means and standard deviations), handed on to the other clients",
        remark="weight-free, ours",
    )

    bank: Literal["overall", "single"] = "overall"  # one style per client, or styles of single images
    copies: int = 3  # K: clients in whose styles an image is seen, its own counted; weight-free: K of K + 1 restyled
    singles: int = 64  # images whose styles a client sends with bank=single
    encoder: str = ""  # file with VGG-19's weights (vgg_normalised of AdaIN); none: our weight-free variant
    decoder: str = ""  # file with the decoder's weights (decoder of AdaIN)
    exchanges: int = 1  # with a style network: first rounds that begin with an exchange of styles
    side: int = 512  # pixels at which the style network restyles, 512 in the authors' scripts; 0: the run's image size

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.copies < 1:
            raise UserError(f"ccst: copies is {self.copies}; give 1 or more.")

    @property
    def about(self) -> Traits:
        if not self.encoder:
            return self.traits
        size = f"{self.side} px" if self.side else "the image size"
        return replace(self.traits, remark="" if self.side == 512 else f"restyled at {size}")

    def build(self, net: Net) -> Net:
        if bool(self.encoder) != bool(self.decoder):
            raise UserError("CCST's style network is two files: give both encoder and decoder, or none of them.")
        if self.side and self.side < 32:
            raise UserError(f"ccst: side is {self.side}; the style network needs images of at least 32 px.")
        if self.encoder:
            style_network(self.encoder, self.decoder)  # bad files stop the run here, not in its first round
        else:
            net.insert(0, Restyle(self.copies / (self.copies + 1)))
        return net

    def surveys(self, round: int) -> bool:
        return not self.encoder or round <= self.exchanges

    def survey(self, work: Work) -> Tensors:
        images, rows = work.site.train, torch.arange(len(work.site.train))
        if self.bank == "single":
            rows = torch.randperm(len(images), generator=work.rng)[: self.singles]
        maps = (self._maps(work, images.batch(part).x.to(work.device)) for part in torch.split(rows, 16))
        styles = [style_of(part, EPSILON) for part in maps]
        every = Style(*(torch.cat(parts).cpu() for parts in zip(*styles, strict=True)))
        return {"styles": overall(every) if self.bank == "overall" else torch.stack(every, dim=1)}

    def forms(self, asked: Asked) -> Forms:
        rows = UpTo(self.singles) if self.bank == "single" else 1
        channels = ENCODER[-1] if self.encoder else asked.net.stage_channels[0]
        least = torch.tensor([[-torch.inf], [0.0]])  # means may be negative, standard deviations not
        return Forms(survey={"styles": Form((rows, 2, channels), least=least)})

    def brief(
        self, server: Server, surveys: Mapping[ClientId, Tensors], chosen: Sequence[ClientId]
    ) -> Mapping[ClientId, Tensors]:
        for client, statistics in surveys.items():
            server.memory[client] = statistics["styles"]
        others = {c: [server.memory[other] for other in sorted(server.memory) if other != c] for c in chosen}
        notes = {client: {"styles": torch.cat(banks)} for client, banks in others.items() if banks}
        if self.encoder:  # how many of the styles are of each of the others
            for client, note in notes.items():
                note["counts"] = torch.tensor([len(bank) for bank in others[client]])
        return notes

    def prepare(self, work: Work) -> None:
        for module in work.net.norms(Restyle):
            module.bank = work.brief.get("styles")
        if self.encoder and "styles" in work.brief:
            # The client's own images are others now, for all parts; how many there are stays.
            whole = work.whole or work
            whole.site = replace(work.site, train=self._restyled(work))

    def _restyled(self, work: Work) -> RestyledImages:
        images, chance = work.site.train, torch_generator(work.plan.seed, client=work.client, purpose="ccst copies")
        looks = looks_of(work.brief["counts"].cpu(), len(images), self.copies, chance)
        copies = kept_copies(self.encoder, self.decoder, self.side or work.net.image_size)
        return RestyledImages(images, work.brief["styles"].cpu(), looks, copies, work.rng, work.device)

    def _maps(self, work: Work, x: Tensor) -> Tensor:
        """What styles are of: VGG's maps, or in our variant the net's own first ones (a survey is in eval mode)."""
        if not self.encoder:
            return work.net.run_stage(0, x)
        network = style_network(self.encoder, self.decoder).to(work.device)
        return cast(Tensor, network.encoder(resized(x, self.side or work.net.image_size)))
