"""FedAvg through `unseen` against a bare PyTorch loop over the same batches with the same net, in one run.

    python benchmarks/overhead.py            at most 1.03 is the aim

Both train every client of a round from the same state for the same steps. The bare loop has its images decoded and on hand as
tensors, draws no augmentation and writes nothing; `unseen` resets the net, fetches by index, counts, checks, notes every
message in its audit log and replies. Rounds are timed in pairs, one of each, and who is first takes turns. What counts is
CPU time, so that other work on the machine hits neither, and the median over the pairs of the ratio.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from speed import cpu_seconds, keep, keep_option

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.small_runs import assembled, settings

from unseen.core.platform import ask_for_kernels
from unseen.core.tensors import load, snapshot
from unseen.core.types import Server
from unseen.core.updates import stepped_state
from unseen.engines.local import LocalEngine
from unseen.federation.audit import AuditLog
from unseen.federation.checks import Checks
from unseen.federation.client import ClientRunner
from unseen.federation.client_state import ClientStates
from unseen.federation.ledger import Ledger
from unseen.federation.server import federate


def timed(work: Callable[[], object]) -> float:
    began = cpu_seconds()
    work()
    return cpu_seconds() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="convnet")
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32)
    keep_option(parser)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    config = settings(
        method="fedavg",
        target="street",
        protocol="digits",
        backbone=chosen.backbone,
        image_size=chosen.image_size,
        rounds=chosen.pairs + 1,
        local_steps=chosen.steps,
        batch_size=chosen.batch_size,
        server_selection="last",
        augmentation="none",
    )
    assembly = assembled(config)
    method, net, share = assembly.method, assembly.net, assembly.share
    plan, sites = config.plan, assembly.data.sites
    start = snapshot(net)

    # The bare loop: all batches of a round are tensors already.
    batches = {
        client: [site.train.batch(torch.randint(len(site.train), (plan.batch_size,))) for _ in range(chosen.steps)]
        for client, site in sites.items()
    }

    def bare_round() -> None:
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

    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        states, audit = ClientStates(Path(folder) / "clients"), AuditLog.at(Path(folder) / "audit.jsonl")
        runner = ClientRunner(method, net, plan, sites.__getitem__, states, lambda x, rng: x)
        engine, server = LocalEngine(runner, list(sites)), Server(dict(start), stepped=stepped_state(net, share))
        checks = Checks.of(method, net, share, plan)
        rounds = federate(method, share, plan, engine, server, Ledger(), checks, audit)

        def our_round() -> None:
            next(rounds)
            audit.write()

        our_round(), bare_round()  # warm up both
        for number in range(chosen.pairs):
            if number % 2:
                bare = timed(bare_round)
                pairs.append((timed(our_round), bare))
            else:
                pairs.append((timed(our_round), timed(bare_round)))
    ratios = [ours / bare for ours, bare in pairs]
    low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
    print(
        f"{chosen.backbone} at {chosen.image_size} px: {median:.3f}x, half of the pairs from {low:.3f} to {high:.3f} "
        f"({len(pairs)} pairs of rounds of {len(sites)} clients x {chosen.steps} steps of {chosen.batch_size} images; "
        f"bare {statistics.median(bare for _, bare in pairs):.3f} s of CPU per round)"
    )
    if chosen.keep:
        shown = {key: value for key, value in vars(chosen).items() if key != "keep"}
        record = {"clients": len(sites), "ratio": median, "low": low, "high": high, "seconds": pairs}
        keep(f"overhead-{chosen.backbone}", {**shown, **record})


if __name__ == "__main__":
    ask_for_kernels()
    main()
