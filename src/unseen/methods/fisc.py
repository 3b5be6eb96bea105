"""FISC (PARDON): each image has a copy in a style between all clients', and is nearer to it than to copies of other classes.

Nguyen, Johnson, Leach: FISC: Federated Domain Generalization via Interpolative Style Transfer and Contrastive Learning.
2024 (later as PARDON).

The method: a client clusters its images' styles and tells the mean over clusters. The server clusters the clients' styles and
takes the median of the clusters' means, number by number: one style for all. A client's images get copies half-way to it
(AdaIN). With features f of images and f' of copies, both of length 1 in the second term, the loss is
CE(f) + triplet * mean of max(0, |f_i - f'_i| - |f_i - f'_j| + margin), j a random copy of another class,
+ small * mean of (f^2 + f'^2).
Without a style network's files: on the maps of the net's own first stage, a variant of ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.core.errors import UserError
from unseen.core.forms import Asked, Form, Forms
from unseen.core.types import Batch, ClientId, Server, Tensors, Work
from unseen.method import Method, Range, Traits
from unseen.nets.net import Net
from unseen.nets.parts.prototypes import first_neighbours, last_partition
from unseen.nets.parts.style_transfer import ENCODER, EPSILON, resized, style_network, towards
from unseen.nets.parts.styles import Style, restyle, style_of


def common_style(styles: Style) -> Tensor:
    """A client's style, 2 x C: mean and mean square over each cluster's pixels, then the mean over clusters."""
    rows = torch.cat(styles, dim=1).double()
    mean, square = styles.mean.double(), styles.mean.double().square() + styles.std.double().square() - EPSILON
    clusters = last_partition(rows)
    middle, power = (torch.stack([part[c].mean(0) for c in clusters]).mean(0) for part in (mean, square))
    return torch.stack([middle, (power - middle.square() + EPSILON).clamp_min(EPSILON).sqrt()]).float()


def between(styles: Tensor) -> Tensor:
    """The style between all clients', 2 x C: the median over clusters of clients, number by number."""
    clusters = first_neighbours(styles.flatten(1).double())
    return torch.stack([styles[cluster].mean(0) for cluster in clusters]).median(dim=0).values


def negatives(labels: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """For each image with another class in the batch: its row, and a random row of another class."""
    others = labels[:, None].cpu() != labels[None].cpu()
    rows = torch.nonzero(others.any(1)).flatten()
    if not len(rows):
        return rows, rows
    return rows, torch.multinomial(others[rows].float(), 1, generator=rng).flatten()


@dataclass(frozen=True)
class FISC(Method):
    name: ClassVar[str] = "fisc"
    year: ClassVar[int] = 2024
    family: ClassVar[str] = "styles"
    passes: ClassVar[float] = 2.0  # a batch and its copies
    traits: ClassVar[Traits] = Traits(
        sends="each client's style (channel means and standard deviations), of which all get the middle",
        remark="weight-free, ours",
    )
    ranges: ClassVar[Mapping[str, Range]] = {"triplet": Range(0.05, 5.0), "small": Range(0.01, 1.0)}

    blend: float = 0.5  # how far copies go to the common style
    triplet: float = 0.75  # weight of the triplet loss
    margin: float = 0.3  # of the triplet loss
    small: float = 0.2  # weight of the features' mean square: 0.2 on PACS, 0.1 on Office-Home
    encoder: str = ""  # file with VGG-19's weights (vgg_normalised of AdaIN); none: our weight-free variant
    decoder: str = ""  # file with the decoder's weights (decoder of AdaIN)
    exchanges: int = 1  # with a style network: first rounds that begin with an exchange of styles

    @property
    def about(self) -> Traits:
        return replace(self.traits, remark="") if self.encoder else self.traits

    def build(self, net: Net) -> Net:
        if bool(self.encoder) != bool(self.decoder):
            raise UserError("FISC's style network is two files: give both encoder and decoder, or none of them.")
        if self.encoder:
            style_network(self.encoder, self.decoder)  # bad files stop the run here, not in its first round
        return net

    def surveys(self, round: int) -> bool:
        return not self.encoder or round <= self.exchanges

    def survey(self, work: Work) -> Tensors:
        images = work.site.train
        parts = [images.batch(rows).x.to(work.device) for rows in torch.split(torch.arange(len(images)), 16)]
        styles = [style_of(self._maps(work, x), EPSILON) for x in parts]
        return {"style": common_style(Style(*(torch.cat(part).cpu() for part in zip(*styles, strict=True))))}

    def forms(self, asked: Asked) -> Forms:
        channels = ENCODER[-1] if self.encoder else asked.net.stage_channels[0]
        least = torch.tensor([[-torch.inf], [0.0]])  # standard deviations are not negative
        return Forms(survey={"style": Form((2, channels), least=least)})

    def brief(
        self, server: Server, surveys: Mapping[ClientId, Tensors], chosen: Sequence[ClientId]
    ) -> Mapping[ClientId, Tensors]:
        for client, told in surveys.items():
            server.memory[client] = told["style"]
        if not server.memory:
            return {}
        style = between(torch.stack([server.memory[client] for client in sorted(server.memory)]))
        return {client: {"style": style} for client in chosen}

    def copies(self, work: Work, x: Tensor, maps: Tensor) -> Tensor:
        """The features of copies on the way to the common style; `maps` are those of the images' first stage."""
        net, (mean, std) = work.net, work.brief["style"].to(x)[:, None]
        if self.encoder:
            with torch.no_grad():
                network = style_network(self.encoder, self.decoder).to(work.device)
                styled = network(resized(x, net.image_size), mean, std, self.blend).clamp(0, 1)
            return net.features(styled)
        own = Style(*(part.detach() for part in style_of(maps, EPSILON)))
        maps = restyle(maps, *towards(own, mean, std, self.blend), own)
        for stage in range(1, net.stages):
            maps = net.run_stage(stage, maps)
        return net.pool(maps)

    def loss(self, work: Work, batch: Batch) -> Tensor:
        net, labels = work.net, batch.y
        first = maps = net.run_stage(0, batch.x)
        for stage in range(1, net.stages):
            maps = net.run_stage(stage, maps)
        features = net.pool(maps)
        total = F.cross_entropy(net.head(features), labels) + work.method.penalty(work, batch, features)
        if "style" not in work.brief:  # who did not answer the survey
            return total
        copied = self.copies(work, batch.x, first)
        rows, other = (found.to(features.device) for found in negatives(labels, work.rng))
        triplet = features.new_zeros(())
        if len(rows):
            own, styled = F.normalize(features, dim=1), F.normalize(copied, dim=1)
            triplet = F.triplet_margin_loss(own[rows], styled[rows], styled[other], self.margin, eps=1e-7)
        small = (features.square() + copied.square()).mean()
        work.note("loss.triplet", triplet)
        work.note("loss.small", small)
        return total + self.triplet * triplet + self.small * small

    def _maps(self, work: Work, x: Tensor) -> Tensor:
        """What styles are of: VGG's maps, or in our variant the net's own first ones (a survey is in eval mode)."""
        if not self.encoder:
            return work.net.run_stage(0, x)
        network = style_network(self.encoder, self.decoder).to(work.device)
        return cast(Tensor, network.encoder(resized(x, work.net.image_size)))
