"""StableFDG: styles shared, shifted and explored; an attention that highlights what images of a class have in common.

Park, Han, Kim, Wang, Brinton, Moon: StableFDG: Style and Attention Based Learning for Federated Domain Generalization.
NeurIPS 2023.

The box: before it trains, a client tells mean and variance of its images' styles after the first stage; the server
passes them on, each to one other client. In a step, with probability 1/2 after the first stage, half of the batch takes
the received style; the half that keeps its own is chosen by k-means++. After each of the first three stages, with
probability 1/2, the batch grows by as many features again, drawn so that classes are balanced; their styles are pushed
`alpha` times farther from the batch's centre, and all styles are mixed. On the last maps each image is paired with
another of its class: attention between the two weighs the positions, and the head sees [pooled maps; weighted maps].
At test time an image attends to itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unseen.core.errors import UserError
from unseen.core.seeding import numpy_generator
from unseen.core.types import Batch, ClientId, Server, Tensors, Work
from unseen.method import BY_VARIANT, Method, Traits
from unseen.nets.net import Net
from unseen.nets.parts.attention import Attention, Highlighter, Similarity, attention_maps, first, highlighter_of
from unseen.nets.parts.style_space import (
    Rows,
    balanced_rows,
    centres_of,
    extrapolate,
    join,
    mix,
    nearest_rows,
    partners_of,
    rows_of,
    summary,
)
from unseen.nets.parts.styles import Style, restyle, style_of

Noise = Literal["standard", "double"]
Exploring = Literal["first", "every"]


@dataclass(frozen=True)
class Trip:
    """What happens to one batch on its way through the stages. Drawn before it sets out: it depends on labels alone."""

    added: Mapping[int, Rows]  # after a stage, the rows that are oversampled there; empty where styles are only mixed
    origin: Rows  # of each row of the enlarged batch, the row of the batch that it comes from
    guests: Tensor  # training images fetched as partners of classes that have one row only


@dataclass(frozen=True)
class StableFDG(Method):
    name: ClassVar[str] = "stablefdg"
    traits: ClassVar[Traits] = Traits(
        sends="style statistics: mean and variance over the client's images of the channel means and standard deviations "
        "after the first stage (4 x C numbers per round), passed on to other clients"
    )
    variants: ClassVar[Mapping[str, Mapping[str, object]]] = {
        "recommended": {
            "noise": "standard", "exploring": "first", "similarity": "cosine", "centroids": False,
            "shifted": "half", "spare_layers": False, "through_statistics": False, "first_round": True,
        },
        "paper": {
            "noise": "double", "exploring": "every", "similarity": "dot", "centroids": False,
            "shifted": "half", "spare_layers": False, "through_statistics": False, "first_round": True,
        },
        "official": {
            "noise": "standard", "exploring": "first", "similarity": "cosine", "centroids": True,
            "shifted": 16, "spare_layers": True, "through_statistics": True, "first_round": False,
        },
    }  # fmt: skip

    variant: Literal["recommended", "paper", "official"] = (
        "recommended"  # sets what the paper leaves open: from noise on
    )
    style_only: bool = False  # without the highlighter (Tables 3 and 8)
    attention_only: bool = False  # without style sharing, shifting, exploration and mixing (Tables 3 and 8)
    probability: float = 0.5  # of shifting, and of exploring after each stage (Table 13)
    sharing: Literal["permutation", "distance", "none"] = "permutation"  # who receives whose style (Tables 9 and 10)
    styles: int = 1  # styles that a client receives (Table 10)
    shift_stage: int = 0  # the stage after which styles are measured and shifted
    keeping: Literal["kmeans", "random"] = "kmeans"  # how the half that keeps its style is chosen (Table 11)
    stages: tuple[int, ...] = (0, 1, 2)  # stages after which styles are explored and mixed (Table 14)
    oversampling: Literal["balanced", "random"] = "balanced"  # which features are drawn again (Table 12)
    oversample: int | None = None  # how many features are drawn again; None for as many as the batch has (Fig. 4)
    alpha: float = 3.0  # exploration level: 0 leaves styles where they are (Fig. 4)
    mixing: float = 0.1  # MixStyle's Beta(a, a) over the enlarged batch; 0 for no mixing
    attention: Attention = "both"  # cross- and self-attention, one of them (Table 15), or convolutions alone (Table 16)
    embedding: int = 30  # d, the size of queries and keys
    noise: Noise = BY_VARIANT  # around a received style: N(0, its variance), or N(0, own variance) * its variance
    exploring: Exploring = BY_VARIANT  # only the first stage whose coin falls right enlarges the batch, or every one
    similarity: Similarity = BY_VARIANT  # of queries and keys: normalised, or the plain product of Eq. 6
    centroids: bool = BY_VARIANT  # the kept half takes the cluster centres as styles, instead of keeping its own
    shifted: int | Literal["half"] = BY_VARIANT  # images that are shifted at most; half: half of the batch
    spare_layers: bool = BY_VARIANT  # carry the highlighter's unused convolutions
    through_statistics: bool = BY_VARIANT  # gradients flow through the statistics that exploration normalises by
    first_round: bool = BY_VARIANT  # share styles in the first round already

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.style_only and self.attention_only:
            raise UserError("stablefdg: style_only and attention_only leave nothing; set one of them.")
        if not 0 <= self.probability <= 1:
            raise UserError(f"stablefdg: probability is {self.probability}; give a number from 0 to 1.")
        if self.styles < 1:
            raise UserError(f'stablefdg: styles is {self.styles}; give 1 or more, or sharing="none".')
        if self.oversample is not None and self.oversample < 0:
            raise UserError(f"stablefdg: oversample is {self.oversample}; give 0 or more.")
        if self.mixing < 0:
            raise UserError(f"stablefdg: mixing is {self.mixing}; give 0 or more.")

    # --- the model -----------------------------------------------------------------------------------------------
    def build(self, net: Net) -> Net:
        for stage in (*self.stages, self.shift_stage):
            if not 0 <= stage < net.stages:
                raise UserError(
                    f"stablefdg: there is no stage {stage} in {net.backbone_name}; it has 0 to {net.stages - 1}."
                )
        if not self.style_only:
            net.extras["highlighter"] = Highlighter(
                net.map_channels, self.embedding, self.attention, self.similarity, self.spare_layers
            )
            net.feature_size += net.map_channels
            net.head = nn.Linear(net.feature_size, net.classes)
        return net

    # --- before the round: step 1, sharing -----------------------------------------------------------------------
    @property
    def shares_styles(self) -> bool:
        return self.sharing != "none" and not self.attention_only and self.probability > 0

    @property
    def about(self) -> Traits:
        return self.traits if self.shares_styles else replace(self.traits, sends="")

    def surveys(self, round: int) -> bool:
        return self.shares_styles and (round > 1 or self.first_round)

    def survey(self, work: Work) -> Tensors:
        """The centre and the spread of this client's styles (Eq. 2 and 3)."""
        images = work.site.train
        seen: list[Style] = []
        for rows in torch.split(torch.arange(len(images)), max(work.plan.batch_size, 64)):
            x = images.batch(rows).x.to(work.device)
            for stage in range(self.shift_stage + 1):
                x = work.net.run_stage(stage, x)
            seen.append(style_of(x))
        return {"style": summary(join(*seen)).cpu()}

    def brief(
        self, server: Server, surveys: Mapping[ClientId, Tensors], chosen: Sequence[ClientId]
    ) -> Mapping[ClientId, Tensors]:
        own = {client: surveys[client]["style"] for client in sorted(chosen) if client in surveys}
        if len(own) < 2:
            return {}  # there is no one to exchange with
        if self.sharing == "distance":
            givers = farthest(own, self.styles)
        else:
            dice = numpy_generator(server.seed, round=server.round + 1, purpose="stablefdg sharing")
            givers = ring(list(own), self.styles, dice)
        notes = {client: {"styles": torch.stack([own[giver] for giver in givers[client]])} for client in own}
        if self.noise == "double":
            for client, note in notes.items():
                note["own"] = own[client]
        return notes

    # --- on the client -------------------------------------------------------------------------------------------
    def loss(self, work: Work, batch: Batch) -> Tensor:
        net = work.net
        dice = np.random.default_rng(int(torch.randint(2**62, (), generator=work.rng)))
        trip = self._plan(work, batch, dice)
        maps, guests = self._travel(work, batch, trip, dice)

        origin = torch.from_numpy(trip.origin).to(batch.y.device)
        whole = Batch(batch.x[origin], batch.y[origin], batch.domain[origin]) if len(origin) > len(batch) else batch
        work.note("batch", len(whole))
        features = net.pool(first(maps, len(whole)))
        if not self.style_only:
            labels = torch.cat([whole.y, guests]).cpu().numpy()
            partners = torch.from_numpy(partners_of(labels, len(whole))).to(maps.device)
            features = torch.cat([features, highlighter_of(net)(maps, partners)], dim=1)
        loss = F.cross_entropy(net.head(features), whole.y)
        return loss + work.method.penalty(work, whole, features)

    def _plan(self, work: Work, batch: Batch, dice: np.random.Generator) -> Trip:
        """Coins, oversampled rows (step 3) and the images that must be fetched, before the first stage runs."""
        labels = batch.y.cpu().numpy()
        origin = np.arange(len(batch))
        added: dict[int, Rows] = {}
        for stage in sorted(set(self.stages)) if not self.attention_only else ():
            if dice.random() >= self.probability:
                continue
            size = len(batch) if self.oversample is None else self.oversample
            if added and self.exploring == "first":
                size = 0
            if self.oversampling == "balanced":
                added[stage] = balanced_rows(labels[origin], size, dice)
            else:
                added[stage] = dice.integers(len(origin), size=size)
            origin = np.concatenate([origin, origin[added[stage]]])
        return Trip(added, origin, self._alone(work, labels[origin], dice))

    def _alone(self, work: Work, labels: Rows, dice: np.random.Generator) -> Tensor:
        """For each class with a single row, one training image of that class to pair it with (Appendix G)."""
        if self.style_only or self.attention not in ("both", "cross"):
            return torch.empty(0, dtype=torch.int64)
        classes, counts = np.unique(labels, return_counts=True)
        known = work.site.train.labels.cpu().numpy()
        found = [np.flatnonzero(known == label) for label in classes[counts == 1]]
        return torch.tensor([int(dice.choice(rows)) for rows in found if len(rows)], dtype=torch.int64)

    def _travel(self, work: Work, batch: Batch, trip: Trip, dice: np.random.Generator) -> tuple[Tensor, Tensor]:
        """The last maps of the enlarged batch, followed by those of the guests; and the guests' labels."""
        x, guests, size = batch.x, batch.y[:0], len(batch)
        if len(trip.guests):
            fetched = work.fetch(trip.guests)
            x, guests = torch.cat([x, fetched.x]), fetched.y
        received = None if self.attention_only else work.brief.get("styles")
        shifts = received is not None and dice.random() < self.probability
        for stage in range(work.net.stages):
            x = work.net.run_stage(stage, x)
            shifting, exploring = shifts and stage == self.shift_stage, stage in trip.added
            if not (shifting or exploring):
                continue
            with torch.set_grad_enabled(self.through_statistics and exploring):
                old = style_of(x)
            own = Style(old.mean[:size].detach(), old.std[:size].detach())
            if shifting:
                own = self._shift(own, work.brief, dice)
            if exploring:
                extra = torch.from_numpy(trip.added[stage]).to(x.device)
                own = self._explore(own, extra, dice)
                if len(extra):
                    rows = torch.arange(len(x), device=x.device)
                    rows = torch.cat([rows[:size], extra, rows[size:]])
                    x, old, size = x[rows], rows_of(old, rows), size + len(extra)
            # Guests keep their style: they are there to be looked at, not to be learnt from.
            new = join(own, Style(old.mean[size:], old.std[size:]))
            x = restyle(x, new.mean, new.std, old)
        return x, guests

    def _shift(self, style: Style, brief: Mapping[str, Tensor], dice: np.random.Generator) -> Style:
        """Step 2: one half keeps its style, the other takes a received one."""
        size, device = len(style.mean), style.mean.device
        count = min(self.shifted, size // 2) if isinstance(self.shifted, int) else size // 2
        if count == 0:
            return style
        points = torch.cat(style, dim=1).cpu().numpy()
        mean, std = style.mean.clone(), style.std.clone()
        if self.keeping == "random":
            kept = dice.permutation(size)[: size - count]
        elif self.centroids:
            # The published code: the first rows take the cluster centres in the order in which k-means returns them.
            centres = torch.from_numpy(centres_of(points, size - count, dice)).to(device)
            kept = np.arange(size - count)
            mean[: size - count], std[: size - count] = centres.chunk(2, dim=1)
        else:
            kept = nearest_rows(points, centres_of(points, size - count, dice))
        moved = torch.from_numpy(np.setdiff1d(np.arange(size), kept)).to(device)
        styles = brief["styles"].float()
        which = torch.from_numpy(dice.integers(len(styles), size=count))
        own = brief["own"].float() if self.noise == "double" else None
        drawn = torch.from_numpy(dice.standard_normal((2, count, styles.shape[2])).astype(np.float32))
        mean[moved], std[moved] = (part.to(device) for part in around(styles[which], drawn, own))
        return Style(mean, std)

    def _explore(self, style: Style, extra: Tensor, dice: np.random.Generator) -> Style:
        """Steps 4 and 5: the oversampled styles are pushed away from the batch's centre, then all are mixed."""
        centre = Style(style.mean.mean(0), style.std.mean(0))
        style = join(style, extrapolate(rows_of(style, extra), centre, self.alpha))
        return mix(style, self.mixing, dice) if self.mixing > 0 else style

    # --- at test time --------------------------------------------------------------------------------------------
    def predict(self, net: Net, x: Tensor) -> Tensor:
        maps = net.maps(x)
        features = net.pool(maps)
        if not self.style_only:
            features = torch.cat([features, highlighter_of(net)(maps)], dim=1)
        logits: Tensor = net.head(features)
        return logits

    def inspect(self, net: Net, x: Tensor) -> Tensors:
        return {} if self.style_only else {"attention": attention_maps(net, x)}


def around(styles: Tensor, drawn: Tensor, own: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """New means and standard deviations near received styles (N x 4 x C), for standard normal draws (2 x N x C).

    The spread is that of the received style; with `own` (4 x C) it is the paper's: the draw scaled by the own standard
    deviation and by the received variance. A negative standard deviation is no style: it becomes zero.
    """
    spread = styles[:, 2:].sqrt() if own is None else own[2:].sqrt() * styles[:, 2:]
    moved = styles[:, :2] + drawn.transpose(0, 1) * spread
    return moved[:, 0], moved[:, 1].clamp_min(0)


def ring(clients: Sequence[ClientId], styles: int, dice: np.random.Generator) -> dict[ClientId, list[ClientId]]:
    """Clients in a random ring, each given the next `styles` ones: one-to-one for each, and nobody gets its own."""
    order = [clients[i] for i in dice.permutation(len(clients))]
    reach = min(styles, len(order) - 1)
    return {client: [order[(i + k) % len(order)] for k in range(1, reach + 1)] for i, client in enumerate(order)}


def farthest(own: Mapping[ClientId, Tensor], styles: int) -> dict[ClientId, list[ClientId]]:
    """For each client the others whose centres of style are farthest from its own (Table 9)."""
    names = list(own)
    centres = torch.stack([own[name][:2].flatten() for name in names]).double()
    distances = (centres[:, None] - centres[None]).square().sum(2)
    distances.fill_diagonal_(-1.0)  # never its own
    ranked = distances.argsort(dim=1, descending=True, stable=True)[:, : min(styles, len(names) - 1)]
    return {name: [names[int(j)] for j in row] for name, row in zip(names, ranked, strict=True)}
