"""SWAD over rounds: the model that is kept is the mean of the server's models of the late rounds.

Cha, Chun, Lee, Cho, Park, Lee, Park: SWAD: Domain Generalization by Seeking Flat Minima. NeurIPS 2021. There the mean is
over every step; in a federation the server has one model per round, and takes the mean over rounds.

The method: from round `start` of the run on, the model that is validated and kept after round r is the mean of the models of
the rounds from `start` to r. Training goes on from the model itself, as ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from unseen.core.tensors import RunningMean
from unseen.core.types import ClientId, Server, Tensors
from unseen.method import Method, Range, Traits


@dataclass(frozen=True)
class SWAD(Method):
    name: ClassVar[str] = "swad"
    year: ClassVar[int] = 2021
    family: ClassVar[str] = "flat minima"
    traits: ClassVar[Traits] = Traits(remark="mean over rounds, not over steps")
    ranges: ClassVar[Mapping[str, Range]] = {"start": Range(0.3, 0.9, log=False)}

    start: float = 0.5  # part of the rounds that passes before the first model counts

    def evaluated(self, server: Server) -> Tensors:
        if not self.counts(server):
            return server.state
        mean = RunningMean()
        if server.memory:
            before = {key: value for key, value in server.memory.items() if key != "rounds"}
            mean.add(before, float(server.memory["rounds"]))
        mean.add(server.state, 1.0)
        return mean.result()

    def brief(
        self, server: Server, surveys: Mapping[ClientId, Tensors], chosen: Sequence[ClientId]
    ) -> Mapping[ClientId, Tensors]:
        # The round that begins will overwrite the server's model: now it joins the mean.
        if self.counts(server):
            joined, rounds = self.evaluated(server), server.memory.get("rounds", torch.zeros(()))
            server.memory.update(joined)
            server.memory["rounds"] = rounds + 1
        return {}

    def counts(self, server: Server) -> bool:
        """Is the model of the last finished round one of the late ones?"""
        return server.round > self.start * server.rounds
