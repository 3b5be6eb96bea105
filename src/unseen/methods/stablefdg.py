"""StableFDG: styles shared, shifted and explored; an attention that highlights what images of a class have in common.

Park, Han, Kim, Wang, Brinton, Moon: StableFDG: Style and Attention Based Learning for Federated Domain Generalization.
NeurIPS 2023. https://arxiv.org/abs/2311.00227

The method: a client receives the model and tells mean and variance of its images' styles after the first stage; the server
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
from unseen.core.forms import Asked, Form, Forms
from unseen.core.seeding import numpy_generator
from unseen.core.types import Batch, ClientId, Server, Tensors, Work
from unseen.method import BY_VARIANT, PLAIN_FEATURES, Method, Traits
from unseen.nets.net import Net
from unseen.nets.parts.attention import Attention, Highlighter, Similarity, attention_maps, highlighter_of
from unseen.nets.parts.style_space import (
    Rows,
    as_in_training,
    balanced_rows,
    explore,
    kept_rows,
    mix,
    near,
    partners_of,
    shift,
    summary,
)
from unseen.nets.parts.styles import style_of


@dataclass(frozen=True)
class StableFDG(Method):
    name: ClassVar[str] = "stablefdg"
    year: ClassVar[int] = 2023
    family: ClassVar[str] = "styles"
    passes: ClassVar[float] = 1.5  # about: the batch grows by chance
    traits: ClassVar[Traits] = Traits(
        remark="readings of the authors' code",
        sends="style statistics: mean and variance over the client's images of the channel means and standard deviations "
        "after the first stage (4 x C numbers per round), passed on to other clients",
        head="attention",
        without=frozenset({PLAIN_FEATURES}),
    )
    variants: ClassVar[Mapping[str, Mapping[str, object]]] = {
        "official": {"noise": "standard", "exploring": "first", "similarity": "cosine"},
        "paper": {"noise": "double", "exploring": "every", "similarity": "dot"},
    }

    variant: Literal["official", "paper"] = "official"  # where the authors' code and the paper's text differ
    style_only: bool = False  # without the highlighter (Tables 3 and 8)
    attention_only: bool = False  # without style sharing, shifting, exploration and mixing (Tables 3 and 8)
    probability: float = 0.5  # of shifting, and of exploring after each stage (Table 13)
    sharing: Literal["permutation", "distance", "none"] = "permutation"  # who receives whose style (Tables 9 and 10)
    styles: int = 1  # styles that a client receives (Table 10)
    exchanges: int | None = None  # first rounds in which styles are told; later ones use the last received. None: all
    shift_stage: int = 0  # the stage after which styles are measured and shifted
    keeping: Literal["kmeans", "random"] = "kmeans"  # how the half that keeps its style is chosen (Table 11)
    stages: tuple[int, ...] = (0, 1, 2)  # stages after which styles are explored and mixed (Table 14)
    oversampling: Literal["balanced", "random"] = "balanced"  # which features are drawn again (Table 12)
    oversample: int | None = None  # how many features are drawn again; None for as many as the batch has (Fig. 4)
    alpha: float = 3.0  # exploration level: 0 leaves styles where they are (Fig. 4)
    mixing: float = 0.1  # MixStyle's Beta(a, a) over the enlarged batch; 0 for no mixing
    attention: Attention = "both"  # cross- and self-attention, one of them (Table 15), or convolutions alone (Table 16)
    embedding: int = 30  # d, the size of queries and keys
    noise: Literal["standard", "double"] = BY_VARIANT  # N(0, received variance), or N(0, own variance) times it
    exploring: Literal["first", "every"] = BY_VARIANT  # stages that enlarge the batch: the first that explores, or all
    similarity: Similarity = BY_VARIANT  # of queries and keys: normalised, or the plain product of Eq. 6

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.style_only and self.attention_only:
            raise UserError("stablefdg: style_only and attention_only leave nothing; set one of them.")
        if not 0 <= self.probability <= 1:
            raise UserError(f"stablefdg: probability is {self.probability}; give a number from 0 to 1.")
        if self.styles < 1:
            raise UserError(f'stablefdg: styles is {self.styles}; give 1 or more, or sharing="none".')
        if self.exchanges is not None and self.exchanges < 1:
            raise UserError(f'stablefdg: exchanges is {self.exchanges}; give 1 or more, or sharing="none".')
        if self.oversample is not None and self.oversample < 0:
            raise UserError(f"stablefdg: oversample is {self.oversample}; give 0 or more.")
        if self.mixing < 0:
            raise UserError(f"stablefdg: mixing is {self.mixing}; give 0 or more.")

    @property
    def about(self) -> Traits:
        remark = self.traits.remark if self.variant == "official" else ""
        changed = replace(self.traits, remark=remark, sends=self.traits.sends if self.shares_styles else "")
        return replace(changed, head="", without=frozenset()) if self.style_only else changed

    # --- the model -----------------------------------------------------------------------------------------------
    def build(self, net: Net) -> Net:
        for stage in (*self.stages, self.shift_stage):
            if not 0 <= stage < net.stages:
                raise UserError(
                    f"stablefdg: there is no stage {stage} in {net.backbone_name}; it has 0 to {net.stages - 1}."
                )
        if not self.style_only:
            net.extras["highlighter"] = Highlighter(net.map_channels, self.embedding, self.attention, self.similarity)
            net.feature_size += net.map_channels
            net.head = nn.Linear(net.feature_size, net.classes)
        return net

    # --- step 1: sharing -----------------------------------------------------------------------------------------
    @property
    def shares_styles(self) -> bool:
        return self.sharing != "none" and not self.attention_only and self.probability > 0

    def surveys(self, round: int) -> bool:
        return self.shares_styles and (self.exchanges is None or round <= self.exchanges)

    def survey(self, work: Work) -> Tensors:
        """Phi, the centre and the spread of this client's styles (Eq. 2 and 3), measured as training will see them."""
        order = torch.randperm(len(work.site.train), generator=work.rng)
        batches = max(1, round(len(order) / work.plan.batch_size))  # of about the plan's size: no image is left out
        means, stds = [], []
        with as_in_training(work.net):
            for rows in torch.tensor_split(order, batches):
                x = work.fetch(rows).x
                for stage in range(self.shift_stage + 1):
                    x = work.net.run_stage(stage, x)
                mean, std = style_of(x)
                means.append(mean)
                stds.append(std)
        return {"style": summary(torch.cat(means), torch.cat(stds)).cpu()}

    def forms(self, asked: Asked) -> Forms:
        least = torch.tensor([[-torch.inf], [0.0], [0.0], [0.0]])  # only means may be negative
        return Forms(survey={"style": Form((4, asked.net.stage_channels[self.shift_stage]), least=least)})

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

    def prepare(self, work: Work) -> None:
        if self.exchanges is not None:
            work.memory.update(work.brief)

    # --- a client's step -----------------------------------------------------------------------------------------
    def loss(self, work: Work, batch: Batch) -> Tensor:
        net, size = work.net, len(batch) if self.oversample is None else self.oversample
        received = work.brief if self.exchanges is None else work.memory
        dice = np.random.default_rng(int(torch.randint(2**62, (), generator=work.rng)))
        batch = self._with_partners(work, batch, dice)
        x, labels, images = batch.x, batch.y.cpu().numpy(), np.arange(len(batch))  # images: which one a row shows
        for stage in range(net.stages):
            x = net.run_stage(stage, x)
            if stage == self.shift_stage and self.shares_styles and "styles" in received and self._coin(dice):
                x = self._shift(x, received, dice)  # step 2
            if stage in self.stages and not self.attention_only and self._coin(dice):
                if self.exploring == "every" or len(images) == len(batch):
                    rows = self._oversample(labels[images], size, dice)  # step 3
                    x = explore(x, torch.from_numpy(rows).to(x.device), self.alpha)  # step 4
                    images = np.concatenate([images, images[rows]])
                if self.mixing > 0:
                    x = mix(x, self.mixing, dice)  # step 5
        work.note("batch", len(images))
        partners = torch.from_numpy(partners_of(labels[images], images, dice)).to(x.device)
        features = self._features(net, x, partners)
        shown = torch.from_numpy(images).to(batch.y.device)
        whole = Batch(batch.x[shown], batch.y[shown], batch.domain[shown]) if len(images) > len(batch) else batch
        return F.cross_entropy(net.head(features), whole.y) + work.method.penalty(work, whole, features)

    def _coin(self, dice: np.random.Generator) -> bool:
        return bool(dice.random() < self.probability)

    def _with_partners(self, work: Work, batch: Batch, dice: np.random.Generator) -> Batch:
        """Appendix G: for each class with a single image in the batch, another training image of it joins the batch."""
        if self.style_only or self.attention not in ("both", "cross"):
            return batch
        known = work.site.train.labels.cpu().numpy().copy()
        known[work.rows.numpy()] = -1  # those are in the batch
        classes, counts = np.unique(batch.y.cpu().numpy(), return_counts=True)
        found = [np.flatnonzero(known == label) for label in classes[counts == 1]]
        rows = [int(dice.choice(others)) for others in found if len(others)]
        if not rows:
            return batch
        more = work.fetch(torch.tensor(rows))
        return Batch(*(torch.cat(pair) for pair in ((batch.x, more.x), (batch.y, more.y), (batch.domain, more.domain))))

    def _shift(self, x: Tensor, brief: Mapping[str, Tensor], dice: np.random.Generator) -> Tensor:
        """Step 2: half of the batch keeps its style, each of the others takes one near a received one."""
        size, count, own = len(x), len(x) // 2, style_of(x.detach())
        if self.keeping == "random" or count == 0:
            kept = dice.permutation(size)[: size - count]
        else:
            kept = kept_rows(torch.cat(own, dim=1).cpu().numpy(), size - count, dice)
        moved = torch.from_numpy(np.setdiff1d(np.arange(size), kept)).to(x.device)
        phi = {name: value.to(x.device) for name, value in brief.items()}
        received = phi["styles"][torch.from_numpy(dice.integers(len(phi["styles"]), size=count)).to(x.device)]
        drawn = torch.from_numpy(dice.standard_normal((2, count, own.mean.shape[1])).astype(np.float32)).to(x.device)
        return shift(x, own, moved, near(received, drawn, phi["own"] if self.noise == "double" else None))

    def _oversample(self, labels: Rows, size: int, dice: np.random.Generator) -> Rows:
        """Step 3: which rows are drawn again."""
        if self.oversampling == "balanced":
            return balanced_rows(labels, size, dice)
        return dice.integers(len(labels), size=size)

    # --- the features, and at test time --------------------------------------------------------------------------
    def _features(self, net: Net, maps: Tensor, partners: Tensor | None = None) -> Tensor:
        """[pooled maps; weighted maps]: attention to the partner and to itself, without partners to itself alone."""
        pooled = net.pool(maps)
        return pooled if self.style_only else torch.cat([pooled, highlighter_of(net)(maps, partners)], dim=1)

    def predict(self, net: Net, x: Tensor) -> Tensor:
        logits: Tensor = net.head(self._features(net, net.maps(x)))
        return logits

    def inspect(self, net: Net, x: Tensor) -> Tensors:
        return {} if self.style_only else {"attention": attention_maps(net, x)}


# --- who receives whose style ----------------------------------------------------------------------------------------
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
