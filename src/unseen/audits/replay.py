"""Rounds of a run, carried out once more with a recorder: the same bits, so the replies are those of the run itself.

The first rounds are replayed from the start, a later one from the checkpoint before it. Where the run has a checkpoint of
the replayed round, the two states are compared: equal bits prove that these are the run's own replies.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection
from pathlib import Path

import torch

from unseen.audits.record import Recorder
from unseen.core.errors import UserError
from unseen.core.tensors import snapshot
from unseen.core.types import Server, Tensors
from unseen.core.updates import stepped_state
from unseen.engines.local import open_local
from unseen.federation.ledger import Ledger
from unseen.federation.server import federate
from unseen.runs.directory import RunDirectory
from unseen.runs.progress import Watcher
from unseen.runs.run import Assembly


def replayable(run: RunDirectory, rounds: int) -> tuple[int, ...]:
    """The first round, and the last where the checkpoint before it is still there."""
    return (1, rounds) if rounds > 1 and run.server_after(rounds - 1) is not None else (1,)


def replay(
    assembled: Callable[[], Assembly],
    run: RunDirectory | None,
    rounds: Collection[int],
    folder: Path,
    watcher: Watcher,
) -> bool | None:
    """Record some rounds in `folder`. Were their states those of the run's checkpoints? None: there was none.

    `assembled` makes the run's net anew for each round: one that has trained is not what a client begins with.
    """
    compared: list[bool] = []
    for number in sorted(rounds):
        assembly = assembled()
        scratch = RunDirectory(folder / "replayed")
        shutil.rmtree(scratch.path, ignore_errors=True)
        before = run.server_after(number - 1) if run is not None and number > 1 else None
        server = before or Server(
            snapshot(assembly.net, sorted(assembly.share.up | assembly.share.down)), assembly.settings.seed
        )
        if server.round != number - 1:
            raise UserError(
                f"Round {number} cannot be replayed: the checkpoint of round {number - 1} is gone. The first round and the "
                f"last one can."
            )
        if before is not None and run is not None and run.client_states.root.is_dir():
            shutil.copytree(run.client_states.root, scratch.client_states.root)
        watcher.said(f"replaying round {number} to record its replies")
        state = _one_round(assembly, server, scratch, folder)
        after = run.server_after(number) if run is not None else None
        if after is not None:
            compared.append(_same(state, after.state))
        shutil.rmtree(scratch.path, ignore_errors=True)
    return all(compared) if compared else None


def _one_round(assembly: Assembly, server: Server, scratch: RunDirectory, folder: Path) -> Tensors:
    server.stepped = stepped_state(assembly.net, assembly.share)
    number, plan = server.round + 1, assembly.settings.plan
    with open_local(1)(assembly, scratch) as engine:
        recorder = Recorder(engine, folder, frozenset({number}))
        # The plan is the run's: the rate of a round depends on how many there are.
        next(federate(assembly.method, assembly.share, plan, recorder, server, Ledger()))
    return server.state


def _same(one: Tensors, two: Tensors) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)
