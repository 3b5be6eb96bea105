"""A worker whose site sends bad updates, another kind in every round. Started like `unseen flower node`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import torch
from flwr.app import Context, Message

from unseen.core.types import Tensors
from unseen.engines.flower import node
from unseen.engines.flower.records import read_reply, reply_content
from unseen.engines.flower.site_file import SiteFile

HONEST = node.app


def spoil(state: Tensors, number: int) -> Tensors:
    """The state of round 1, 2, ... 6."""
    name = next(iter(state))
    bad = state[name].clone()
    if number == 1:
        bad.view(-1)[0] = float("nan")
    elif number == 2:
        bad.view(-1)[-1] = float("inf")
    elif number == 3:
        bad = bad[:1]
    elif number == 4:
        return {key: value for key, value in state.items() if key != name}
    elif number == 5:
        return {**state, "intruder": torch.zeros(3)}
    elif number == 6:
        bad = bad.to(torch.float64)
    return {**state, name: bad}


def app(message: Message, context: Context) -> Message:
    reply = HONEST(message=message, context=context)
    if message.metadata.message_type != "train":
        return reply
    told = read_reply("", reply.content)
    return Message(reply_content(replace(told, state=spoil(told.state, told.round))), reply_to=message)


if __name__ == "__main__":
    node.app = app  # type: ignore[assignment]
    node.serve(SiteFile.read(Path(sys.argv[-1])))
