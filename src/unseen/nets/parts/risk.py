"""A client's risk: the loss of the model it received, before it trains."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.core.types import Work

BATCH = 64


def received_risk(work: Work) -> Tensor:
    """Mean cross-entropy over all training images, not augmented, in eval mode. Call it in `prepare`."""
    images, total = work.site.train, 0.0
    work.net.eval()
    with torch.inference_mode():
        for start in range(0, len(images), BATCH):
            batch = images.batch(torch.arange(start, min(start + BATCH, len(images))))
            logits = work.method.predict(work.net, batch.x.to(work.device)).float()
            total += float(F.cross_entropy(logits, batch.y.to(work.device), reduction="sum"))
    work.net.train()
    return torch.tensor(total / len(images), dtype=torch.float64)
