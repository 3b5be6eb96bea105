"""What the checks of replies and the audit log cost: a round with them against a round without, in one run.

    python benchmarks/checks.py            at most 1.02 is the aim

Rounds of the two alternate, and the medians are compared, so that a busy machine hits both. Process time, not wall time.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import torch
from tests.small_runs import assembled, settings

from unseen.core.tensors import snapshot
from unseen.core.types import Server
from unseen.core.updates import stepped_state
from unseen.engines.local import LocalEngine
from unseen.federation import server as loop
from unseen.federation.audit import AuditLog
from unseen.federation.checks import Checks
from unseen.federation.client_state import ClientStates
from unseen.federation.ledger import Ledger
from unseen.runs.run import Assembly


def rounds(assembly: Assembly, folder: Path, checked: bool) -> Iterator[float]:
    """CPU seconds of each round."""
    plan, share = assembly.settings.plan, assembly.share
    server = Server(snapshot(assembly.net), plan.seed, stepped=stepped_state(assembly.net, share))
    log = AuditLog.at(folder / "audit.jsonl") if checked else AuditLog()
    checks = Checks.of(assembly.method, assembly.net, share, plan)
    none = {
        "faults": lambda *_: "",
        "update_norm": lambda *_: 0.0,
        "check_merged": lambda *_: None,
        "told": lambda _: {},
    }
    runner = assembly.runner(ClientStates(folder / "clients"))
    with LocalEngine(runner, list(assembly.data.sites)) as engine:
        played = loop.federate(assembly.method, share, plan, engine, server, Ledger(), checks, log)
        for _ in range(plan.rounds):
            started = time.process_time()
            with contextlib.nullcontext() if checked else mock.patch.multiple(loop, **none):
                next(played)
                log.write()
            yield time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="fedavg")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=45)
    given = parser.parse_args()
    torch.set_num_threads(1)
    chosen = settings(
        method=given.method,
        target="street",
        protocol="digits",
        rounds=given.rounds,
        local_steps=given.steps,
        server_selection="last",
    )
    assembly = assembled(chosen)
    with tempfile.TemporaryDirectory() as folder:
        both = zip(
            *(rounds(assembly, Path(folder) / name, name == "with") for name in ("with", "without")), strict=True
        )
        seen = [pair for number, pair in enumerate(both) if number]  # the first round warms up
    checked, bare = (statistics.median(column) for column in zip(*seen, strict=True))
    print(f"{given.method}: {checked:.3f} s with, {bare:.3f} s without, ratio {checked / bare:.4f} ({len(seen)} pairs)")


if __name__ == "__main__":
    main()
