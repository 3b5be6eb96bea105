"""Orders and replies as bytes, for workers in other processes: JSON, then safetensors. Nothing is pickled."""

from __future__ import annotations

import json
from typing import Any

import safetensors.torch

from unseen.core.tensors import prefixed, unprefixed
from unseen.core.types import Order, Reply, Tensors


def carried(message: Order | Reply) -> Tensors:
    """All tensors of a message, below the name of their field."""
    beside = prefixed("brief/", message.brief) if isinstance(message, Order) else prefixed("report/", message.report)
    return prefixed("state/", message.state) | beside | prefixed("sealing/", message.sealing)


def _pack(about: dict[str, Any], tensors: Tensors) -> bytes:
    header = json.dumps(about).encode()
    body = safetensors.torch.save({key: value.contiguous() for key, value in tensors.items()})
    return len(header).to_bytes(8, "little") + header + body


def _unpack(data: bytes) -> tuple[dict[str, Any], Tensors]:
    size = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + size]), safetensors.torch.load(data[8 + size :])


def pack_order(client: str, order: Order) -> bytes:
    about = {
        "client": client,
        "kind": order.kind,
        "round": order.round,
        "evaluate": order.evaluate,
        "images": order.images,
        "calibrate": order.calibrate,
    }
    return _pack(about, carried(order))


def unpack_order(data: bytes) -> tuple[str, Order]:
    about, tensors = _unpack(data)
    client = about.pop("client")
    state, brief, sealing = (unprefixed(f"{name}/", tensors) for name in ("state", "brief", "sealing"))
    return client, Order(**about, state=state, brief=brief, sealing=sealing)


def pack_reply(reply: Reply) -> bytes:
    about = {
        "client": reply.client,
        "kind": reply.kind,
        "round": reply.round,
        "num_examples": reply.num_examples,
        "metrics": reply.metrics,
    }
    return _pack(about, carried(reply))


def unpack_reply(data: bytes) -> Reply:
    about, tensors = _unpack(data)
    state, report, sealing = (unprefixed(f"{name}/", tensors) for name in ("state", "report", "sealing"))
    return Reply(**about, state=state, report=report, sealing=sealing)
