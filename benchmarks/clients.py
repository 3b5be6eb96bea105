"""Peak memory and time per selected client with 1,000 clients against 10, each in a process of its own.

    python benchmarks/clients.py             flat is the aim: ratios near 1

Every client holds 32 images; 10 take part in each round. FedBN is measured too, because its clients keep state.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from unseen.core.plan import OptimizerPlan, Plan
from unseen.core.tensors import snapshot
from unseen.core.types import Batch, Server, Site
from unseen.engines.local import LocalEngine
from unseen.federation.client import ClientRunner
from unseen.federation.client_state import ClientStates
from unseen.federation.ledger import Ledger
from unseen.federation.server import federate
from unseen.nets.backbones import create_net
from unseen.registry import parse


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
    plan = Plan(rounds, 16, OptimizerPlan(lr=0.01), 0, participation=10, server_selection="last")
    names = [f"client-{i:04d}" for i in range(clients)]
    images = Images()
    with tempfile.TemporaryDirectory() as folder:
        runner = ClientRunner(
            method, net, plan, lambda name: Site(name, images, images), ClientStates(Path(folder)), lambda x, rng: x
        )
        server = Server(snapshot(net))
        loop = federate(method, method.share(net), replace(plan), LocalEngine(runner, names), server, Ledger())
        next(loop)
        began = time.perf_counter()
        for _ in loop:
            pass
        seconds = (time.perf_counter() - began) / (10 * (rounds - 1))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"peak": peak, "seconds": seconds}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", nargs=2, metavar=("CLIENTS", "METHOD"), help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=30)
    chosen = parser.parse_args()
    if chosen.measure:
        measure(int(chosen.measure[0]), chosen.measure[1], chosen.rounds)
        return
    for method in ("fedavg", "fedbn"):
        found = {}
        for clients in (10, 1000):
            command = [sys.executable, __file__, "--measure", str(clients), method, "--rounds", str(chosen.rounds)]
            out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            found[clients] = json.loads(out.splitlines()[-1])
        few, many = found[10], found[1000]
        print(
            f"{method}: peak memory {few['peak']:.0f} MB with 10 clients, {many['peak']:.0f} MB with 1,000: "
            f"{many['peak'] / few['peak']:.2f}x; per selected client {1000 * few['seconds']:.1f} ms and "
            f"{1000 * many['seconds']:.1f} ms: {many['seconds'] / few['seconds']:.2f}x"
        )


if __name__ == "__main__":
    main()
