"""FedAvg through `unseen` against a bare PyTorch loop over the same batches with the same net, in one run.

    python benchmarks/overhead.py            at most 1.03 is the aim

Both train every client of a round from the same state for the same steps. The bare loop has its images decoded and on hand as
tensors, draws no augmentation and writes nothing; `unseen` resets the net, fetches by index, counts, checks and replies. Rounds
of the two alternate, and the medians are compared, so that a busy machine hits both.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from tests.small_runs import assembled, settings

from unseen.core.tensors import load, snapshot
from unseen.core.types import Server
from unseen.engines.local import LocalEngine
from unseen.federation.client import ClientRunner
from unseen.federation.client_state import ClientStates
from unseen.federation.ledger import Ledger
from unseen.federation.server import federate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="convnet")
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    config = settings(
        method="fedavg",
        target="street",
        protocol="digits",
        backbone=chosen.backbone,
        image_size=chosen.image_size,
        rounds=chosen.rounds,
        local_steps=chosen.steps,
        batch_size=chosen.batch_size,
        server_selection="last",
        augmentation="none",
    )
    assembly = assembled(config)
    net, plan, sites = assembly.net, config.plan, assembly.data.sites
    start = snapshot(net)

    # The bare loop: all batches of a round are tensors already.
    batches = {
        client: [site.train.batch(torch.randint(len(site.train), (plan.batch_size,))) for _ in range(chosen.steps)]
        for client, site in sites.items()
    }

    def bare_round() -> float:
        began = time.perf_counter()
        states = []
        for client in sites:
            load(net, start)
            optimizer = torch.optim.SGD(
                net.parameters(),
                lr=plan.optimizer.lr,
                momentum=plan.optimizer.momentum,
                weight_decay=plan.optimizer.weight_decay,
            )
            net.train()
            for batch in batches[client]:
                loss = F.cross_entropy(net(batch.x), batch.y)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
            states.append({key: value.clone() for key, value in net.state_dict().items()})
        for key, value in states[0].items():
            if value.is_floating_point():
                torch.stack([state[key] for state in states]).mean(0)
        return time.perf_counter() - began

    ours, bare = [], []
    with tempfile.TemporaryDirectory() as folder:
        runner = ClientRunner(
            assembly.method, net, plan, sites.__getitem__, ClientStates(Path(folder)), lambda x, rng: x
        )
        engine = LocalEngine(runner, list(sites))
        server = Server(dict(start))
        rounds = federate(assembly.method, assembly.share, plan, engine, server, Ledger())
        next(rounds), bare_round()  # warm up both
        while server.round < plan.rounds:
            began = time.perf_counter()
            next(rounds)
            ours.append(time.perf_counter() - began)
            bare.append(bare_round())
    ratio = statistics.median(ours) / statistics.median(bare)
    print(
        f"{chosen.backbone} at {chosen.image_size} px: bare loop {statistics.median(bare):.3f} s per round, "
        f"unseen {statistics.median(ours):.3f} s: {ratio:.3f}x (medians of {len(ours)} rounds of 3 clients x {chosen.steps} steps)"
    )


if __name__ == "__main__":
    main()
