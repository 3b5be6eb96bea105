"""What the checks of replies, the audit log and the robust parts cost: whole rounds, side by side in one run.

    python benchmarks/checks.py                    # keeps benchmarks/results/speed/checks.json
    python benchmarks/results.py write             # the table in docs/speed.md

FedAvg without checks, FedAvg as it is, and FedAvg with each robust part play a round in turn, so that a busy machine hits
all alike, and medians are compared. Process time, not wall time. Three clients are the domains of `digits` with the
protocol's steps; thirty have a tenth of the images and of the steps. At most 1.02 for the checks is the aim.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.small_runs import assembled, settings

from unseen.core.files import write_json
from unseen.core.platform import source_version
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

RECORD = Path(__file__).parent / "results" / "speed" / "checks.json"
BARE = "no checks"
PARTS = ("normbound", "krum", "median", "trimmedmean", "geomedian")
CLIENTS = {3: ("domain", 45), 30: ("iid:10", 5)}  # partition, steps of a client in a round


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
        "summary": lambda _: {},
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


def compared(clients: int, count: int) -> list[dict[str, object]]:
    """A row for each way to play a round with so many clients."""
    partition, steps = CLIENTS[clients]
    ways = (BARE, "fedavg", *PARTS)
    with tempfile.TemporaryDirectory() as folder:
        playing = []
        for way in ways:
            chosen = settings(
                method="fedavg" if way == BARE else way,
                target="street",
                protocol="digits",
                partition=partition,
                rounds=count,
                local_steps=steps,
                server_selection="last",
            )
            playing.append(rounds(assembled(chosen), Path(folder) / way, way != BARE))
        seen = list(zip(*playing, strict=True))[1:]  # the first round warms up
    medians = dict(zip(ways, map(statistics.median, zip(*seen, strict=True)), strict=True))
    return [
        {
            "way": way,
            "clients": clients,
            "steps": steps,
            "pairs": len(seen),
            "seconds": round(medians[way], 4),
            "ratio": round(medians[way] / medians[BARE if way == "fedavg" else "fedavg"], 4),
        }
        for way in ways
        if way != BARE
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for clients in CLIENTS:
        rows += compared(clients, given.rounds)
        print(*rows[-1 - len(PARTS) :], sep="\n", flush=True)
    write_json(RECORD, {"commit": source_version(), "rows": rows})


if __name__ == "__main__":
    main()
