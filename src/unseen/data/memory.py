"""Images that are tensors already, as an ImageSet: of one domain, held in memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unseen.types import Batch


@dataclass(frozen=True)
class TensorImages:
    """Images in [0, 1], N x 3 x H x W, and their labels."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    @property
    def labels(self) -> Tensor:
        return self.y

    @property
    def domains(self) -> Tensor:
        return torch.zeros_like(self.y)

    def batch(self, indices: Tensor) -> Batch:
        return Batch(self.x[indices], self.y[indices], torch.zeros_like(self.y[indices]))
