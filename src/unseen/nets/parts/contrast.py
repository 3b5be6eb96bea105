"""Contrast: rows of features near those of their class, away from the others."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def supervised_contrast(rows: Tensor, labels: Tensor, temperature: float, itself: bool = False) -> Tensor:
    """-log of a row's share in the similarities of the others, mean over rows of its class, mean over rows.

    Khosla et al.: Supervised Contrastive Learning. NeurIPS 2020. With `itself` a row is one of its class's rows, though it
    is no part of the shares' sum; without it a row that is alone in its class does not count.
    """
    unit = F.normalize(rows.float(), dim=1)
    likeness = unit @ unit.T / temperature
    own = torch.eye(len(rows), dtype=torch.bool, device=rows.device)
    total = likeness.masked_fill(own, float("-inf")).logsumexp(1, keepdim=True)
    friends = labels[:, None] == labels[None]
    if not itself:
        friends = friends & ~own
    count = friends.sum(1)
    found = ((likeness - total) * friends).sum(1) / count.clamp_min(1)
    counted = count > 0
    return -(found * counted).sum() / counted.sum().clamp_min(1)
