"""A client's side: it tells keys, deals out shares, masks its model, and unmasks the sum together with the others.

What a round needs is kept on the client's disk, readable by its user alone, until the round is over: orders of one round
may come to different processes, or to one that was started again.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from unseen.core.errors import UserError
from unseen.core.files import tensors_digest
from unseen.core.tensors import unprefixed
from unseen.core.types import ClientId, Order, Reply, Server, Tensors
from unseen.federation.audit import digest
from unseen.federation.client import ClientRunner
from unseen.federation.secure import crypto, fixed
from unseen.federation.secure.crypto import SECRET, Ring, as_bytes, as_tensor


class MaskingRunner(ClientRunner):
    """Carries out orders like any other, but no model leaves it without a mask."""

    def reply(self, client: ClientId, order: Order) -> Reply:
        steps = {"keys": self._keys, "shares": self._shares, "train": self._masked, "unmask": self._unmask}
        if order.kind in steps:
            return steps[order.kind](client, order)
        reply = super().reply(client, order)
        if order.kind == "survey" and reply.report:
            raise UserError(
                f'The method tells "{sorted(reply.report)[0]}" before a round, which secure aggregation does not hide.'
            )
        return reply

    def _answer(self, client: ClientId, order: Order, sealing: Tensors) -> Reply:
        # How many images it has is part of what is hidden: every client counts as one.
        return Reply(client, order.kind, order.round, 1, sealing=sealing)

    # --- the four steps ------------------------------------------------------------------------------------------
    def _keys(self, client: ClientId, order: Order) -> Reply:
        """New keys and a new seed: those of an earlier try are gone."""
        secret = {name: crypto.new_secret() for name in ("channel", "mask", "seed")}
        self.client_states.keep_session(client, order.round, {name: as_tensor(value) for name, value in secret.items()})
        keys = [as_tensor(crypto.public_of(secret[name])) for name in ("channel", "mask")]
        return self._answer(client, order, {"keys": torch.stack(keys)})

    def _shares(self, client: ClientId, order: Order) -> Reply:
        session = self.client_states.session(client, order.round)
        if unprefixed("public/", session):
            raise UserError("This client has dealt out its shares of this round already, and does so once.")
        public = {peer: (as_bytes(keys[0]), as_bytes(keys[1])) for peer, keys in order.sealing.items()}
        all_keys = [key for pair in public.values() for key in pair]
        if not public or client in public or len(set(all_keys)) != len(all_keys):
            raise UserError("The keys of the other clients are none, or not all different; the round cannot be masked.")
        everyone = sorted([client, *public])
        needed = crypto.threshold(len(everyone))
        shares = {
            peer: pair
            for peer, *pair in zip(
                everyone,
                crypto.split(as_bytes(session["mask"]), needed, len(everyone)),
                crypto.split(as_bytes(session["seed"]), needed, len(everyone)),
                strict=True,
            )
        }
        told = {}
        for peer, (channel, _) in public.items():
            key = crypto.agreed(as_bytes(session["channel"]), channel, "channel", order.round, *sorted((client, peer)))
            told[peer] = as_tensor(crypto.sealed(key, shares[peer], order.round, client, peer))
        session |= {f"public/{peer}": keys for peer, keys in order.sealing.items()}
        session[f"share/{client}"] = torch.stack([as_tensor(share) for share in shares[client]])
        self.client_states.keep_session(client, order.round, session)
        return self._answer(client, order, told)

    def _masked(self, client: ClientId, order: Order) -> Reply:
        session = self.client_states.session(client, order.round)
        public = unprefixed("public/", session)
        peers = sorted(order.sealing)
        everyone = len(public) + 1
        if not set(peers) <= set(public) or len(peers) + 1 < crypto.threshold(everyone):
            raise UserError(f"Only {len(peers)} other clients dealt out shares; this round cannot be masked.")
        # One mask hides one model: a second one under it would show the difference.
        once = as_tensor(digest(f"{tensors_digest(order.state)}|{tensors_digest(order.sealing)}".encode()).encode())
        if "once" in session and not torch.equal(session["once"], once):
            raise UserError("The masks of this round are used already, for another model.")
        for peer in peers:
            theirs = as_bytes(public[peer][0])
            key = crypto.agreed(as_bytes(session["channel"]), theirs, "channel", order.round, *sorted((client, peer)))
            plain = crypto.opened(key, as_bytes(order.sealing[peer]), order.round, peer, client)
            session[f"share/{peer}"] = as_tensor(plain).reshape(2, SECRET)
        self.client_states.keep_session(client, order.round, {**session, "once": once})
        reply = super().reply(client, order)
        if reply.report:
            raise UserError(
                f'The method sends "{sorted(reply.report)[0]}" beside the model, which secure aggregation does not hide.'
            )
        # The weights of methods that may be summed securely are the default ones, for which no server is needed.
        weight = int(self.method.weigh(Server({}), reply))
        total = fixed.encode(reply.state, weight, everyone)
        total += crypto.mask(as_bytes(session["seed"]), len(total))
        for peer in peers:
            theirs = as_bytes(public[peer][1])
            total += pair_mask(as_bytes(session["mask"]), theirs, order.round, client, peer, len(total))
        answer = self._answer(client, order, {"masked": torch.from_numpy(total.view(np.int64))})
        return replace(answer, metrics=reply.metrics)

    def _unmask(self, client: ClientId, order: Order) -> Reply:
        """Shares of the others' seeds or keys, once: after that this round's secrets are gone."""
        session = self.client_states.session(client, order.round)
        held = unprefixed("share/", session)
        answered = {peer: bool(flag) for peer, flag in order.sealing.items()}
        everyone = len(unprefixed("public/", session)) + 1
        if "once" not in session or set(answered) != set(held) or not answered.get(client):
            raise UserError("The clients to unmask are not those with whom this client masked.")
        if sum(answered.values()) < crypto.threshold(everyone):
            raise UserError("Too few clients answered: their models are not unmasked.")
        self.client_states.end_session(client)
        return self._answer(client, order, {peer: held[peer][int(answered[peer])] for peer in answered})


def pair_mask(private: bytes, public: bytes, round: int, client: ClientId, peer: ClientId, length: int) -> Ring:
    """What `client` adds for `peer`: the one whose name comes first adds their common mask, the other subtracts it."""
    shared = crypto.mask(crypto.agreed(private, public, "mask", round, *sorted((client, peer))), length)
    return shared if client < peer else -shared
