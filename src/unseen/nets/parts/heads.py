"""The head of another state on this net's features (the received one, other clients'), and the gradient at a head."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from unseen.core.errors import UserError
from unseen.core.tensors import prefixed, unprefixed
from unseen.core.types import Memory, Reply, Tensors
from unseen.nets.net import Net


def logits_under(net: Net, state: Mapping[str, Tensor], features: Tensor) -> Tensor:
    """`net.head(features)` with the head's tensors from `state`: no module is copied, nothing in `state` is trained.

    Gradients reach the features and, through them, the net; the tensors of `state` are constants.
    """
    given = unprefixed("head.", state)
    wanted = net.head.state_dict()
    # functional_call would quietly use the live head for whatever is missing, and guide a net by itself.
    if missing := sorted(wanted.keys() - given.keys()):
        raise UserError(
            f"The guiding regulariser needs the server's head, and {missing[0]} does not come with the orders: "
            "leave out the part that keeps the head on the clients."
        )
    frozen = {key: given[key].detach().to(features.device) for key in wanted}
    logits: Tensor = functional_call(net.head, frozen, (features,))
    return logits


def head_slopes(net: Net, features: Tensor, labels: Tensor, weights: Mapping[str, Tensor] | None = None) -> Tensors:
    """The gradient of the cross-entropy by the head's tensors, or by those given in their place. It can be part of a loss."""
    tensors: Tensors = dict(net.head.named_parameters())
    if weights is not None:
        tensors = {key: weights[key].detach().to(features.device).requires_grad_() for key in tensors}
    risk = cross_entropy(functional_call(net.head, tensors, (features,)), labels)
    slopes = torch.autograd.grad(risk, list(tensors.values()), create_graph=features.requires_grad)
    return dict(zip(tensors, slopes, strict=True))


def remember_head(memory: Memory, reply: Reply) -> None:
    """The server keeps the head that a client sent last. Call it in `hear`; a head that stays on its client is not there."""
    memory.update(prefixed(f"{reply.client}/", unprefixed("head.", reply.state)))


def remembered_heads(memory: Mapping[str, Tensor]) -> list[Tensors]:
    """The heads in a memory, or in a brief that was made of it, in the clients' order."""
    clients = sorted({key.rpartition("/")[0] for key in memory})
    return [unprefixed(f"{client}/", memory) for client in clients]
