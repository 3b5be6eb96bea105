"""Prompts: learned tokens that join those of the image in front of a vision transformer's first block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from unseen.core.errors import UserError
from unseen.nets.net import Net


class Prompt(nn.Module):
    """Appends its tokens. It stands where a transformer normalises its tokens before the blocks (mostly not at all)."""

    def __init__(self, before: nn.Module, length: int, size: int) -> None:
        super().__init__()
        self.before = before
        self.tokens = nn.Parameter(0.02 * torch.randn(length, size))
        self.instead: Tensor | None = None

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = self.before(tokens)
        prompt = self.tokens if self.instead is None else self.instead
        return torch.cat([tokens, prompt.to(tokens.dtype).expand(tokens.shape[0], -1, -1)], dim=1)


def add_prompt(net: Net, length: int) -> Net:
    """A prompt in front of the first block. A net without tokens is an error."""
    from unseen.nets.timm_backbones import VisionTransformer  # timm takes seconds, and only DoPrompt needs it here

    backbone = net.backbone
    if not isinstance(backbone, VisionTransformer):
        raise UserError(
            f"A prompt needs the tokens of a vision transformer and {net.backbone_name} has none: "
            "choose one (--backbone vit_base_patch16_224), or the protocol fedfd-vit or digits-vit."
        )
    backbone.norm_pre = Prompt(backbone.norm_pre, length, backbone.embed_dim)
    return net


def prompt_of(net: Net) -> tuple[str, Prompt]:
    """The net's prompt and the name of its tokens in the state."""
    (found,) = [(f"{name}.tokens", module) for name, module in net.named_modules() if isinstance(module, Prompt)]
    return found


@contextmanager
def instead(prompt: Prompt, tokens: Tensor) -> Iterator[None]:
    """Inside, these tokens are the prompt."""
    prompt.instead = tokens
    try:
        yield
    finally:
        prompt.instead = None
