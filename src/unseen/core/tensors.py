"""Flat dictionaries of tensors: snapshot, load, mean. The only place that copies or averages model state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from unseen.core.errors import UserError
from unseen.core.types import Tensors


def snapshot(module: nn.Module, keys: Iterable[str] | None = None) -> Tensors:
    """A copy of (some of) a module's state on the CPU: later steps do not change it."""
    state = module.state_dict()
    wanted = state if keys is None else {key: state[key] for key in keys}
    # clone() after cpu(): cpu() is a no-op on the CPU, and a live reference stored as "best" would follow later steps.
    return {key: value.detach().cpu().clone() for key, value in wanted.items()}


def load(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors into a module's state in place. Unknown names are an error, absent ones stay as they are."""
    state = module.state_dict()
    with torch.no_grad():
        for key, value in tensors.items():
            if key not in state or state[key].shape != value.shape:
                raise UserError(f'The tensor "{key}" does not fit this net: it comes from a file of another run.')
            state[key].copy_(value)


def pick(tensors: Mapping[str, Tensor], keys: Iterable[str]) -> Tensors:
    return {key: tensors[key] for key in keys if key in tensors}


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> Tensors:
    return {f"{prefix}{key}": value for key, value in tensors.items()}


def unprefixed(prefix: str, tensors: Mapping[str, Tensor]) -> Tensors:
    """The entries below a prefix, without it."""
    return {key[len(prefix) :]: value for key, value in tensors.items() if key.startswith(prefix)}


PIECE = 2**16  # numbers whose float64 copies stay in a core's cache


def in_pieces(*tensors: Tensor) -> Iterable[tuple[Tensor, ...]]:
    """Tensors of one shape, large ones piece by piece: what is made of a piece is used while it is in the cache.

    For arithmetic number by number, which has the same bits for any piece.
    """
    if tensors[0].numel() <= PIECE or not all(tensor.is_contiguous() and tensor.is_cpu for tensor in tensors):
        return [tensors]
    return zip(*(torch.split(tensor.view(-1), PIECE) for tensor in tensors), strict=True)


class RunningMean:
    """A weighted mean of states that arrive one by one: one sum in memory, whatever the number of clients.

    Sums are float64, so that the order of magnitude of the weights does not matter. Integer entries (BatchNorm's
    `num_batches_tracked`) are never averaged: the largest is kept.
    """

    def __init__(self) -> None:
        self._sums: Tensors = {}
        self._dtypes: dict[str, torch.dtype] = {}
        self._total = 0.0

    def add(self, tensors: Mapping[str, Tensor], weight: float) -> None:
        for key, value in tensors.items():
            if not value.is_floating_point():
                self._sums[key] = torch.maximum(self._sums[key], value) if key in self._sums else value.clone()
            elif key in self._sums:
                for total, part in in_pieces(self._sums[key], value):
                    total.add_(part.to(torch.float64), alpha=weight)
            else:
                self._sums[key], self._dtypes[key] = torch.empty_like(value, dtype=torch.float64), value.dtype
                for total, part in in_pieces(self._sums[key], value):
                    torch.mul(part.to(torch.float64), weight, out=total)
        self._total += weight

    def result(self) -> Tensors:
        """The mean, in the dtypes that came in. Weights that sum to zero are an error of the method."""
        if self._total <= 0:
            raise ValueError("the weights of a mean must have a positive sum")
        found = {}
        for key, value in self._sums.items():
            found[key] = torch.empty_like(value, dtype=self._dtypes[key]) if key in self._dtypes else value
            for part, total in in_pieces(found[key], value) if key in self._dtypes else ():
                part.copy_(total / self._total)
        return found


def squared_distance(module: nn.Module, reference: Mapping[str, Tensor]) -> Tensor:
    """Sum over parameters of ||w - w_ref||^2, differentiable in the module's parameters."""
    terms = [
        (parameter - reference[name].to(parameter.device)).pow(2).sum()
        for name, parameter in module.named_parameters()
        if name in reference
    ]
    return torch.stack(terms).sum()
