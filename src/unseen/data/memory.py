"""Images that are tensors already, as an ImageSet."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unseen.core.types import Batch


@dataclass(frozen=True)
class TensorImages:
    """Images in [0, 1], N x 3 x H x W, their labels, and the domain each is from (none: all from one)."""

    x: Tensor
    y: Tensor
    domain: Tensor | None = None

    def __len__(self) -> int:
        return len(self.y)

    @property
    def labels(self) -> Tensor:
        return self.y

    @property
    def domains(self) -> Tensor:
        return torch.zeros_like(self.y) if self.domain is None else self.domain

    def batch(self, indices: Tensor) -> Batch:
        return Batch(self.x[indices], self.y[indices], self.domains[indices])
