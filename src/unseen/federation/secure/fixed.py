"""A weighted model as integers modulo 2^64, whose sum over clients is exact, and the mean back from the sum.

A number v of a client with weight w becomes the integer nearest to w * v * 2^24: v must lie within +-2^16, and the
weights of all clients together below 2^23 (8.4 million images), so that the sum stays below 2^63. A mean is therefore
off by at most n / 2 / (sum of weights) * 2^-24, which is never more than 2^-25 = 3.0e-8; a float32 of 1 is coarser. The
result is rounded to the dtype of the model, as every mean is. Counters (BatchNorm's number of batches) are carried
exactly; of them, too, the sum gives the mean, where a run without secure aggregation takes the largest. Nothing here
computes with them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from unseen.core.errors import UserError
from unseen.core.types import Tensors
from unseen.federation.secure.crypto import Ring

FRACTION = 24  # bits behind the point
LARGEST = 2.0**16  # of a number of the model
LARGEST_COUNTER = 2.0**40
MOST_WEIGHT = 2**23 - 1  # of all clients together: 2^(24 + 16 + 23) = 2^63


def length_of(like: Mapping[str, Tensor]) -> int:
    """Integers of a message: the model's, and the weight."""
    return sum(value.numel() for value in like.values()) + 1


def encode(state: Mapping[str, Tensor], weight: int, clients: int) -> Ring:
    """A client's model and its weight."""
    if weight * clients > MOST_WEIGHT:
        raise UserError(
            f"This client counts {weight} training images; secure aggregation over {clients} clients carries "
            f"{MOST_WEIGHT // clients} each."
        )
    parts = [_encoded(name, state[name], weight) for name in sorted(state)]
    return np.concatenate([*parts, np.array([weight], dtype=np.int64)]).view(np.uint64)


def _encoded(name: str, value: Tensor, weight: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    numbers = value.detach().cpu().reshape(-1).to(torch.float64)
    bits, most = (FRACTION, LARGEST) if value.is_floating_point() else (0, LARGEST_COUNTER)
    if not bool((numbers.abs() <= most).all()):  # NaN is not, either
        raise UserError(f'"{name}" holds a number beyond {most:g}, which secure aggregation cannot carry.')
    return (numbers * weight * 2.0**bits).round().to(torch.int64).numpy()


def decode(total: Ring, like: Mapping[str, Tensor]) -> tuple[Tensors, int]:
    """The mean over the clients whose integers were added up, in the dtypes of `like`, and their weight."""
    signed = torch.from_numpy(total.view(np.int64))
    weight, start, mean = int(signed[-1]), 0, Tensors()
    wrong = UserError(
        "The sum of the masked models makes no sense: a client sent a wrong model or a wrong share. Nothing was merged."
    )
    if not 0 < weight <= MOST_WEIGHT:
        raise wrong
    for name in sorted(like):
        form = like[name]
        bits, most = (FRACTION, LARGEST) if form.is_floating_point() else (0, LARGEST_COUNTER)
        numbers = signed[start : start + form.numel()].to(torch.float64) / weight / 2.0**bits
        if numbers.numel() and float(numbers.abs().max()) > most:
            raise wrong
        start += form.numel()
        rounded = numbers if form.is_floating_point() else numbers.round()
        mean[name] = rounded.to(form.dtype).reshape(form.shape)
    return mean, weight
