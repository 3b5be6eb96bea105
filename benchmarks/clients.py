"""Peak memory and time per selected client with 10, 1,000 and 100,000 clients, each in a process of its own.

    python benchmarks/clients.py             flat is the aim: ratios near 1

Every client holds 32 images; 10 take part in each round. Clients of FedBN and SCAFFOLD keep state, and SCAFFOLD's server
too. Time is CPU time. Processes of the same method take turns, and the fastest of each one's counts.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from speed import cpu_seconds, keep, keep_option

from unseen.core.plan import OptimizerPlan, Plan
from unseen.core.platform import ask_for_kernels
from unseen.core.tensors import snapshot
from unseen.core.types import Batch, Server, Site
from unseen.core.updates import stepped_state
from unseen.engines.local import LocalEngine
from unseen.federation.audit import AuditLog
from unseen.federation.checks import Checks
from unseen.federation.client import ClientRunner
from unseen.federation.client_state import ClientStates
from unseen.federation.ledger import Ledger
from unseen.federation.server import federate
from unseen.nets.backbones import create_net
from unseen.registry import parse

METHODS = ("fedavg", "fedbn", "scaffold")
CLIENTS = (10, 1_000, 100_000)
SELECTED = 10


class Images:
    """The same 32 random images for everyone: what grows must be the federation, not the data."""

    x = torch.rand(32, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(32) % 10
    domains = torch.zeros(32, dtype=torch.int64)

    def __len__(self) -> int:
        return 32

    def batch(self, indices: torch.Tensor) -> Batch:
        return Batch(self.x[indices], self.labels[indices], self.domains[indices])


def measure(clients: int, method_name: str, rounds: int) -> None:
    torch.set_num_threads(1)
    method = parse(method_name)
    net = method.build(create_net("convnet", 10, image_size=32))
    share = method.share(net)
    plan = Plan(
        rounds=rounds,
        batch_size=16,
        optimizer=OptimizerPlan(lr=0.01),
        local_epochs=1,
        local_steps=None,
        participation=SELECTED,
        server_selection="last",
    )
    names = [f"client-{i:06d}" for i in range(clients)]
    images = Images()
    with tempfile.TemporaryDirectory() as folder:
        states, audit = ClientStates(Path(folder) / "clients"), AuditLog.at(Path(folder) / "audit.jsonl")
        runner = ClientRunner(method, net, plan, lambda name: Site(name, images, images), states, lambda x, rng: x)
        server = Server(snapshot(net), stepped=stepped_state(net, share))
        checks = Checks.of(method, net, share, plan)
        loop = federate(method, share, plan, LocalEngine(runner, names), server, Ledger(), checks, audit)
        next(loop)
        began = cpu_seconds()
        for _ in loop:
            audit.write()
        seconds = (cpu_seconds() - began) / (SELECTED * (rounds - 1))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"peak": peak, "seconds": seconds}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", nargs=2, metavar=("CLIENTS", "METHOD"), help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--turns", type=int, default=3)
    keep_option(parser)
    chosen = parser.parse_args()
    if chosen.measure:
        measure(int(chosen.measure[0]), chosen.measure[1], chosen.rounds)
        return
    record: dict[str, dict[int, dict[str, float]]] = {}
    for method in METHODS:
        found: dict[int, list[dict[str, float]]] = {clients: [] for clients in CLIENTS}
        for _ in range(chosen.turns):
            for clients, ones in found.items():
                command = [sys.executable, __file__, "--measure", str(clients), method, "--rounds", str(chosen.rounds)]
                out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
                ones.append(json.loads(out.splitlines()[-1]))
        record[method] = {
            clients: {key: min(one[key] for one in ones) for key in ("peak", "seconds")}
            for clients, ones in found.items()
        }
        few = record[method][CLIENTS[0]]
        for clients, one in record[method].items():
            print(
                f"{method}, {clients:,} clients: peak memory {one['peak']:.0f} MB ({one['peak'] / few['peak']:.2f}x), "
                f"per selected client {1000 * one['seconds']:.1f} ms ({one['seconds'] / few['seconds']:.2f}x)",
                flush=True,
            )
    if chosen.keep:
        keep("clients", {"rounds": chosen.rounds, "selected": SELECTED, "methods": record})


if __name__ == "__main__":
    ask_for_kernels()
    main()
