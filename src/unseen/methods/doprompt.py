"""DoPrompt in a federation: a vision transformer with a prompt per domain; with FedFD on prompts as a switch.

Zheng, Yue, Wang, You: Prompt Vision Transformer for Domain Generalization. 2022. In a federation: Yang, Choi, Park,
Choi, Chang, Yun: Feature Diversification and Adaptation for Federated Domain Generalization. ECCV 2024, Section 5.

The method: a few learned tokens join an image's tokens in front of the first block and train with the network. Each
client keeps its own prompt, as SiloBN's clients keep their statistics; the server averages them for the model that is
evaluated. With `diversify`, a second pass uses u * own + (1 - u) * global prompt, u ~ U(0, 1) per channel, and FedFD's
loss joins the two: (1 - lambda1) CE + lambda1 CE of the second + lambda2 * squared distance of their features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.core.types import Batch, Share, Work
from unseen.method import ALL_LOADED, ALONE, BATCH_NORM, ONE_PROMPT, Method, Traits
from unseen.nets.net import Net
from unseen.nets.parts.prompts import Prompt, add_prompt, instead, prompt_of


@dataclass(frozen=True)
class DoPrompt(Method):
    name: ClassVar[str] = "doprompt"
    year: ClassVar[int] = 2022
    family: ClassVar[str] = "adapters"
    traits: ClassVar[Traits] = Traits(
        needs_full_state=True,  # the global prompt, which clients do not load
        needs=frozenset({ONE_PROMPT}),
        without=frozenset({ONE_PROMPT, ALONE, BATCH_NORM, ALL_LOADED}),
    )

    length: int = 4  # tokens of the prompt
    diversify: bool = False  # FedFD on prompts (FedFD-A's row in Table 6)
    lambda1: float = 0.1  # weight of the classification loss under the mixed prompt
    lambda2: float = 4.0  # weight of the distance between the features of both passes
    reduce: Literal["mean", "sum"] = "mean"  # over the dimensions of that squared distance; the paper's Eq. 3: sum
    u: tuple[float, float] = (0.0, 1.0)  # range of the own prompt's weight

    def build(self, net: Net) -> Net:
        return add_prompt(net, self.length)

    def share(self, net: Net) -> Share:
        return net.share_all().keeping(net.state_of(Prompt))

    def loss(self, work: Work, batch: Batch) -> Tensor:
        net = work.net
        own = net.features(batch.x)
        loss: Tensor = F.cross_entropy(net.head(own), batch.y)
        if self.diversify:
            with instead(prompt_of(net)[1], self.mixed(work)):
                diversified = net.features(batch.x)
            squares = (diversified - own).square()
            distance = squares.mean() if self.reduce == "mean" else squares.sum(dim=1).mean()
            second = F.cross_entropy(net.head(diversified), batch.y)
            loss = (1 - self.lambda1) * loss + self.lambda1 * second + self.lambda2 * distance
        return loss + work.method.penalty(work, batch, own)

    def mixed(self, work: Work) -> Tensor:
        """u * own + (1 - u) * global prompt."""
        name, prompt = prompt_of(work.net)
        own, received = prompt.tokens, work.received[name].to(prompt.tokens)
        low, high = self.u
        u = low + (high - low) * torch.rand(1, own.shape[1], generator=work.rng)
        return received + u.to(own) * (own - received)
