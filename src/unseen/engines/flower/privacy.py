"""Flower's local differential privacy for what a site sends, set by the site itself in its node config.

The update of the net's parameters is clipped to the norm `clip` and Gaussian noise is added by Flower's `LocalDpMod`,
for (epsilon, delta) per round and for the site's images as a whole. Of what else a reply could tell, running statistics
go back as they came, what calibrates the model stays at the site, and a method that sends statistics beyond the model
is refused. The numbers in the reply (images, loss, accuracy) are sent as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp.mod import LocalDpMod

from unseen.core.errors import UserError
from unseen.core.types import Order, Reply, Tensors
from unseen.nets.net import Net


@dataclass(frozen=True)
class LocalPrivacy:
    """(epsilon, delta) of one round, and the largest norm of an update."""

    epsilon: float
    delta: float
    clip: float

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> LocalPrivacy | None:
        if "epsilon" not in config:
            return None
        self = cls(float(config["epsilon"]), float(config.get("delta", 1e-5)), float(config.get("clip", 1.0)))
        if not (self.epsilon > 0 and 0 < self.delta < 1 and self.clip > 0):
            raise UserError("Local privacy needs epsilon > 0, 0 < delta < 1 and clip > 0 in the node config.")
        return self


def guarded(reply: Reply, order: Order, privacy: LocalPrivacy, net: Net, context: Context) -> Reply:
    """The reply as it may leave the site."""
    if reply.kind == "evaluate":
        # What calibrates counts single images: a site that asks for privacy keeps it, and the others calibrate.
        return replace(reply, report={})
    if reply.report:
        raise UserError(
            f"this method sends statistics of the site's images ({', '.join(sorted(reply.report)[:3])}), which local "
            f"privacy does not cover"
        )
    if reply.kind != "train":
        return reply
    parameters = [name for name, _ in net.named_parameters() if name in reply.state]
    unknown = [name for name in reply.state if name not in order.state]
    if unknown:
        raise UserError(
            f'local privacy clips the change of what the server sent, and "{unknown[0]}" was not sent; take fedavg '
            f"or fedprox"
        )
    before, after = ({name: state[name] for name in parameters} for state in (order.state, reply.state))
    noisy = _through_flower(before, after, privacy, context)
    return replace(reply, state={name: noisy.get(name, order.state[name]) for name in reply.state})


def _through_flower(before: Tensors, after: Tensors, privacy: LocalPrivacy, context: Context) -> Tensors:
    # Two updates within the clip are at most twice the clip apart: that is the sensitivity.
    mod = LocalDpMod(privacy.clip, 2 * privacy.clip, privacy.epsilon, privacy.delta)
    inward = Message(RecordDict({"parameters": _record(before)}), context.node_id, "train")

    def trained(message: Message, _: Context) -> Message:
        return Message(RecordDict({"parameters": _record(after)}), reply_to=message)

    outward = mod(inward, context, trained)
    if outward.has_error():
        raise UserError(f"Flower's local privacy could not be applied ({outward.error.reason})")
    noisy = outward.content["parameters"]
    return {name: torch.from_numpy(noisy[name].numpy().copy()).to(value.dtype) for name, value in after.items()}


def _record(tensors: Tensors) -> ArrayRecord:
    return ArrayRecord({name: Array(value.numpy()) for name, value in tensors.items()})
