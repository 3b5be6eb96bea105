"""The server's side: it carries keys and shares, adds up what is masked, and learns the masks of the sum alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from unseen.core.errors import UserError
from unseen.core.forms import Form
from unseen.core.types import ClientId, Kind, Order, Reply, Tensors
from unseen.federation.secure import crypto, fixed
from unseen.federation.secure.client import pair_mask
from unseen.federation.secure.crypto import SEALED, SECRET, Ring, as_bytes
from unseen.federation.server import Exchange


class SecureSum:
    """Gets the replies of a round as the round loop wants them, each with the mean of all in place of its own model."""

    def __init__(self, like: Mapping[str, Tensor]) -> None:
        self._like, self._length = like, fixed.length_of(like)

    def replies(self, exchange: Exchange, orders: Mapping[ClientId, Order]) -> Iterator[Reply]:
        training = [client for client, order in orders.items() if order.kind == "train"]
        number = orders[training[0]].round
        # All that crosses is counted, checked and noted like any other message.
        checks = replace(exchange.checks, sealing=self._forms)
        inner = replace(exchange, expected={}, checks=checks, missing=[])
        told = self._step(inner, "keys", number, {client: {} for client in training})
        public = {client: told[client]["keys"] for client in told}
        needed = crypto.threshold(len(public))
        _check_enough(number, len(public), 2, len(training), "told their keys")
        others = {c: {peer: keys for peer, keys in public.items() if peer != c} for c in public}
        dealt = self._step(inner, "shares", number, others)
        _check_enough(number, len(dealt), needed, len(public), "dealt out their shares")
        total, trained = np.zeros(self._length, dtype=np.uint64), list[Reply]()
        for reply in inner.replies(_with_shares(orders, dealt)):
            if reply.kind == "train":
                total += reply.sealing["masked"].numpy().view(np.uint64)
                trained.append(replace(reply, sealing={}))
        exchange.missing += inner.missing  # who falls silent after this is in the sum
        alive = {reply.client for reply in trained}
        _check_enough(number, len(alive), needed, len(public), "sent their update")
        flags = {peer: torch.tensor(peer in alive, dtype=torch.uint8) for peer in dealt}
        shares = self._step(inner, "unmask", number, dict.fromkeys(sorted(alive), flags))
        _check_enough(number, len(shares), needed, len(public), "helped to unmask the sum")
        mean, _ = fixed.decode(total - self._masks(number, public, flags, shares), self._like)
        exchange.norms.clear()  # no single update was seen
        for reply in trained:
            yield replace(reply, state=mean)

    def _forms(self, order: Order) -> Mapping[str, Form]:
        """What a reply to an order of a secure round carries."""
        if order.kind == "keys":
            return {"keys": Form((2, SECRET), torch.uint8)}
        if order.kind == "shares":
            return {peer: Form((SEALED,), torch.uint8) for peer in order.sealing}
        if order.kind == "unmask":
            return {peer: Form((SECRET,), torch.uint8) for peer in order.sealing}
        return {"masked": Form((self._length,), torch.int64)} if order.kind == "train" else {}

    def _step(
        self, exchange: Exchange, kind: Kind, round: int, told: Mapping[ClientId, Tensors]
    ) -> dict[ClientId, Tensors]:
        orders = {client: Order(kind, round, {}, sealing=sealing) for client, sealing in told.items()}
        return {reply.client: reply.sealing for reply in exchange.replies(orders)}

    def _masks(
        self,
        round: int,
        public: Mapping[ClientId, Tensor],
        flags: Mapping[ClientId, Tensor],
        shares: Mapping[ClientId, Tensors],
    ) -> Ring:
        """All masks that are left in the sum: the seeds' of who answered, and the pairs' of who did not."""
        places, total = (
            {client: place for place, client in enumerate(sorted(public))},
            np.zeros(self._length, np.uint64),
        )
        alive = [client for client, flag in flags.items() if flag]
        for client in flags:
            secret = crypto.joined({places[peer]: as_bytes(told[client]) for peer, told in shares.items()})
            if client in alive:
                total += crypto.mask(secret, self._length)
                continue
            if crypto.public_of(secret) != as_bytes(public[client][1]):
                raise UserError(
                    f'Round {round} was not merged: the shares of the key of "{client}", which dropped out, do not fit '
                    f"its public key. Run the same command again to go on after the last finished round."
                )
            for peer in alive:  # what it added for the one that dropped out
                total -= pair_mask(secret, as_bytes(public[peer][1]), round, client, peer, self._length)
        return total


def _with_shares(orders: Mapping[ClientId, Order], dealt: Mapping[ClientId, Tensors]) -> dict[ClientId, Order]:
    """The orders of the round, with the shares that each client was dealt. Who dealt none does not train."""
    found = {}
    for client, order in orders.items():
        if order.kind != "train":
            found[client] = order
        elif client in dealt:
            found[client] = replace(order, sealing={peer: dealt[peer][client] for peer in dealt if peer != client})
    return found


def _check_enough(round: int, count: int, needed: int, of: int, did: str) -> None:
    if count < needed:
        raise UserError(
            f"Round {round} was not merged: {count} of {of} clients {did}, and secure aggregation needs {needed} here "
            f"(more than half, and two at least). Run the same command again to go on after the last finished round."
        )
