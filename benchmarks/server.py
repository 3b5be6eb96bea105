"""The server's part of a round of GA against the weighted mean of the replies written plainly, in one run.

    python benchmarks/server.py

The plain mean is that of the authors' code: one sum in float32. `unseen` sums in float64, looks at every number of every
reply, measures how far each update went, counts what crossed and adjusts the weights. CPU time; rounds take turns.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from speed import cpu_seconds, keep, keep_option

from unseen.core.plan import Plan
from unseen.core.platform import ask_for_kernels, keep_freed_memory
from unseen.core.tensors import RunningMean, snapshot
from unseen.core.types import ClientId, Order, Reply, Server, Tensors
from unseen.core.updates import stepped_state
from unseen.federation.checks import Checks, faults, update_norm
from unseen.federation.ledger import Ledger
from unseen.federation.server import federate
from unseen.nets.backbones import create_net
from unseen.registry import parse

CLIENTS = ("one", "two", "three")
METRICS = {
    f"{model}.{name}": value
    for model in ("received", "local")
    for name, value in {"accuracy": 0.5, "loss": 1.0, "examples": 100.0}.items()
}


class Ready:
    """An engine whose clients have their replies on hand."""

    def __init__(self, states: Mapping[ClientId, Tensors]) -> None:
        self.states = states

    def clients(self) -> Sequence[ClientId]:
        return CLIENTS

    def ask(self, orders: Mapping[ClientId, Order]) -> Iterator[Reply]:
        for client, order in orders.items():
            yield Reply(client, order.kind, order.round, 100, state=self.states[client], metrics=METRICS)


def timed(work: Callable[[], object]) -> float:
    began = cpu_seconds()
    work()
    return cpu_seconds() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="resnet18")
    parser.add_argument("--pairs", type=int, default=8)
    keep_option(parser)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    method = parse("ga")
    net = create_net(chosen.backbone, 7, image_size=64, weights="none", seed=0)
    share, state = method.share(net), snapshot(net)
    rng = torch.Generator().manual_seed(0)

    def moved(value: torch.Tensor) -> torch.Tensor:
        step = 0.01 * torch.rand(value.shape, generator=rng) if value.is_floating_point() else 0
        return value + step

    states = {client: {key: moved(value) for key, value in state.items()} for client in CLIENTS}
    plan = Plan(rounds=chosen.pairs + 1)
    checks = Checks.of(method, net, share, plan)
    server = Server(state, stepped=stepped_state(net, share))
    rounds = federate(method, share, plan, Ready(states), server, Ledger(), checks)
    floating = [key for key, value in state.items() if value.is_floating_point()]
    weights = dict.fromkeys(CLIENTS, 1 / len(CLIENTS))

    def plain() -> None:
        for key in floating:
            sum(weight * states[client][key] for client, weight in weights.items())

    replies = [Reply(c, "train", 1, 100, state=s, metrics=METRICS) for c, s in states.items()]
    order = Order("train", 1, state)

    def mean() -> None:
        running = RunningMean()
        for reply in replies:
            running.add(reply.state, weights[reply.client])
        running.result()

    parts: dict[str, Callable[[], object]] = {
        "ours": lambda: next(rounds),
        "plain": plain,
        "mean": mean,
        "checks": lambda: [faults(reply, order, state, checks) for reply in replies],
        "norms": lambda: [update_norm(server, reply) for reply in replies],
    }
    for work in parts.values():
        work()
    seconds = {name: [timed(work)] for name, work in parts.items()}
    for _ in range(chosen.pairs - 1):
        for name, work in parts.items():
            seconds[name].append(timed(work))
    found = {name: statistics.median(values) for name, values in seconds.items()}
    print(f"{chosen.backbone}: " + ", ".join(f"{name} {1e3 * value:.1f} ms" for name, value in found.items()))
    if chosen.keep:
        size = sum(value.numel() for value in state.values())
        keep("server", {"backbone": chosen.backbone, "parameters": size, "clients": len(CLIENTS), **found})


if __name__ == "__main__":
    ask_for_kernels()
    main()
