"""PromptFL on images: a frozen transformer, and a prompt that all clients train together; only it and the head travel.

Guo, Guo, Wang, Tang, Xu: PromptFL: Let Federated Participants Cooperatively Learn Prompts Instead of Models. IEEE
Transactions on Mobile Computing, 2023. There the prompt is in front of the class names, in CLIP's text tower; here it is
among the image's tokens, as in Jia et al.: Visual Prompt Tuning. ECCV 2022.

The method: the transformer is frozen. Some learned tokens join an image's tokens in front of the first block. Clients train
them and the head; the server averages both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from unseen.core.types import Share
from unseen.method import ALONE, BATCH_NORM, ONE_PROMPT, Method, Traits
from unseen.nets.net import Net
from unseen.nets.parts.prompts import add_prompt, prompt_of
from unseen.nets.parts.towers import freeze, share_trained


@dataclass(frozen=True)
class PromptFL(Method):
    name: ClassVar[str] = "promptfl"
    year: ClassVar[int] = 2023
    family: ClassVar[str] = "adapters"
    passes: ClassVar[float] = 0.67  # without gradients of weights
    traits: ClassVar[Traits] = Traits(
        remark="prompts on images, not on words",
        needs=frozenset({ONE_PROMPT}),
        without=frozenset({ONE_PROMPT, ALONE, BATCH_NORM}),
    )

    length: int = 16  # tokens of the prompt; 16 is the usual context of prompts for CLIP

    def build(self, net: Net) -> Net:
        freeze(add_prompt(net, self.length), self.name)
        prompt_of(net)[1].tokens.requires_grad_(True)
        return net

    def share(self, net: Net) -> Share:
        return share_trained(net)
