"""The head of another state on this net's features: the guiding regulariser's received one, COPA's of other clients."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.func import functional_call

from unseen.core.errors import UserError
from unseen.core.tensors import unprefixed
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
