"""Orders and replies as bytes, for workers in other processes: JSON, then safetensors. Nothing is pickled."""

from __future__ import annotations

import json
from typing import Any

import safetensors.torch

from unseen.core.tensors import prefixed, unprefixed
from unseen.core.types import Order, Reply, Tensors


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
    return _pack(about, prefixed("state/", order.state) | prefixed("brief/", order.brief))


def unpack_order(data: bytes) -> tuple[str, Order]:
    about, tensors = _unpack(data)
    client = about.pop("client")
    return client, Order(**about, state=unprefixed("state/", tensors), brief=unprefixed("brief/", tensors))


def pack_reply(reply: Reply) -> bytes:
    about = {
        "client": reply.client,
        "kind": reply.kind,
        "round": reply.round,
        "num_examples": reply.num_examples,
        "metrics": reply.metrics,
    }
    return _pack(about, prefixed("state/", reply.state) | prefixed("report/", reply.report))


def unpack_reply(data: bytes) -> Reply:
    about, tensors = _unpack(data)
    return Reply(**about, state=unprefixed("state/", tensors), report=unprefixed("report/", tensors))
