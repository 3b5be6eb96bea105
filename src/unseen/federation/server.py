"""The only round loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from unseen.core.errors import UserError
from unseen.core.plan import Plan
from unseen.core.seeding import numpy_generator
from unseen.core.tensors import pick
from unseen.core.types import ClientId, Engine, Held, Metrics, Order, Reply, Server, Share, Tensors
from unseen.federation import calibrate as calibration
from unseen.federation.ledger import Ledger
from unseen.federation.measure import Score
from unseen.method import Method


@dataclass(frozen=True)
class Evaluation:
    """The aggregated model of one round on images that the clients do not train on."""

    round: int
    clients: dict[ClientId, Score]
    told: dict[ClientId, Tensors] = field(default_factory=dict)  # what calibrates the model, where it was asked for
    refused: list[str] = field(default_factory=list)  # sentences: whose reply was not used, and why

    def accuracy(self, mean: str = "clients") -> float:
        """The mean over clients, plain or weighted by their images."""
        scores = list(self.clients.values())
        if not scores:
            return float("nan")
        if mean == "examples":
            return sum(s.correct for s in scores) / sum(s.examples for s in scores)
        return sum(s.accuracy for s in scores) / len(scores)


@dataclass(frozen=True)
class Round:
    """What happened in one round. `server` already holds the new state; `before` is the model that the round before kept."""

    round: int
    before: Tensors
    evaluation: Evaluation | None  # of `before`, that is of the round before this one
    metrics: dict[ClientId, Metrics]  # of the clients that trained
    bytes_up: dict[ClientId, int]
    bytes_down: dict[ClientId, int]
    refused: list[str]  # sentences: whose update was not merged, and why
    missing: list[ClientId]  # asked, but no reply came

    @property
    def loss(self) -> float:
        losses = [m["loss"] for m in self.metrics.values() if "loss" in m]
        return sum(losses) / len(losses) if losses else float("nan")


@dataclass
class Exchange:
    """One `ask`: counts what crosses, refuses bad replies, and says what came of it."""

    engine: Engine
    ledger: Ledger
    expected: Mapping[str, Tensor]
    metrics: dict[ClientId, Metrics] = field(default_factory=dict)
    scores: dict[ClientId, Score] = field(default_factory=dict)
    bytes_up: dict[ClientId, int] = field(default_factory=dict)
    bytes_down: dict[ClientId, int] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    missing: list[ClientId] = field(default_factory=list)

    def replies(self, orders: Mapping[ClientId, Order]) -> Iterator[Reply]:
        """Good replies, as they arrive."""
        for client, order in orders.items():
            self.bytes_down[client] = self.bytes_down.get(client, 0) + self.ledger.sent(client, order)
        answered: set[ClientId] = set()
        for reply in self.engine.ask(orders):
            answered.add(reply.client)
            self.bytes_up[reply.client] = self.bytes_up.get(reply.client, 0) + self.ledger.received(reply)
            fault = faults(reply, orders[reply.client], self.expected)
            if fault:
                self.refused.append(
                    f'The reply of client "{reply.client}" in round {reply.round} was not merged: {fault}.'
                )
                continue
            if "received.examples" in reply.metrics:
                self.scores[reply.client] = _score(reply.metrics)
            if reply.kind == "train":
                self.metrics[reply.client] = reply.metrics
            yield reply
        self.missing += [client for client in orders if client not in answered]


def federate(
    method: Method, share: Share, plan: Plan, engine: Engine, server: Server, ledger: Ledger
) -> Iterator[Round]:
    """Rounds after `server.round` up to the plan's last. Updates `server` and yields after each round.

    A model is evaluated by the same message that opens the next round: one exchange per round, on every engine.
    """
    clients = list(engine.clients())
    server.rounds = plan.rounds
    while server.round < plan.rounds:
        number = server.round + 1
        chosen = sample(clients, plan, number)
        asked = plan.server_selection == "validation" and server.round > 0
        model = method.evaluated(server)
        exchange = Exchange(engine, ledger, pick(server.state, share.up))
        states = {client: _state_for(client, method, share, server, asked) for client in chosen}
        surveys = _surveys(method, exchange, states, number)
        briefs = method.brief(server, surveys, chosen)
        orders = {
            # Who answered the survey has the model already: it travels once a round.
            client: Order("train", number, {} if client in surveys else state, dict(briefs.get(client, {})), asked)
            for client, state in states.items()
        }
        evaluation = None
        if asked and model is not server.state:  # what the clients receive is not what is kept: they measure both
            evaluation = evaluate(engine, model, number, ledger)
        elif asked:
            orders |= {c: Order("evaluate", number, server.state) for c in clients if c not in orders}
            orders = {client: orders[client] for client in clients}
        # Replies are heard in a copy: orders on their way hold the old state, and a round that fails leaves no trace.
        new = replace(server, state=dict(server.state), memory=dict(server.memory))
        state = method.merge(new, _enough(method, new, exchange, orders, plan), partial(method.weigh, new))
        server.state, server.memory, server.round = state, new.memory, number
        server.met |= set(exchange.metrics)
        yield Round(
            number,
            model,
            Evaluation(number - 1, evaluation.clients if evaluation else exchange.scores) if asked else None,
            exchange.metrics,
            exchange.bytes_up,
            exchange.bytes_down,
            exchange.refused,
            exchange.missing,
        )


def evaluate(
    engine: Engine,
    state: Tensors,
    round: int,
    ledger: Ledger,
    images: Held = "validation",
    calibrate: bool = False,
) -> Evaluation:
    """One state on all clients' validation or test images; also what calibrates it, if that is asked for."""
    exchange = Exchange(engine, ledger, {})
    orders = {
        client: Order("evaluate", round, state, images=images, calibrate=calibrate) for client in engine.clients()
    }
    told = {reply.client: reply.report for reply in exchange.replies(orders) if reply.report}
    return Evaluation(round, exchange.scores, told, exchange.refused)


def sample(clients: Sequence[ClientId], plan: Plan, round: int) -> list[ClientId]:
    """The clients of a round, in their own order."""
    count = (
        int(plan.participation) if plan.participation > 1 else max(1, round_half_up(plan.participation * len(clients)))
    )
    if count >= len(clients):
        return list(clients)
    rows = numpy_generator(plan.seed, round=round, purpose="sample").choice(len(clients), count, replace=False)
    return [clients[row] for row in sorted(rows)]


def round_half_up(value: float) -> int:
    return int(value + 0.5)


def _state_for(client: ClientId, method: Method, share: Share, server: Server, evaluate: bool) -> Tensors:
    """What an order carries: what the client loads; all of it if it is new, evaluates, or the method reads the rest."""
    full = evaluate or client not in server.met or method.about.needs_full_state
    return server.state if full else pick(server.state, share.down)


def _surveys(
    method: Method, exchange: Exchange, states: Mapping[ClientId, Tensors], round: int
) -> dict[ClientId, Tensors]:
    """What the chosen clients tell before the round, if the method asks."""
    if not method.surveys(round):
        return {}
    orders = {client: Order("survey", round, state) for client, state in states.items()}
    return {reply.client: reply.report for reply in exchange.replies(orders)}


def _enough(
    method: Method, server: Server, exchange: Exchange, orders: Mapping[ClientId, Order], plan: Plan
) -> Iterator[Reply]:
    """The good replies to train orders, each heard as it comes; an error when there are too few to make a round."""
    good = 0
    for reply in exchange.replies(orders):
        if reply.kind == "train":
            good += 1
            method.hear(server, reply)
            yield reply
    if good < max(1, plan.minimum_clients):
        reasons = " ".join(exchange.refused) or f"No reply came from {', '.join(exchange.missing)}."
        raise UserError(
            f"Round {server.round + 1} has {good} good updates and needs {max(1, plan.minimum_clients)}. {reasons} "
            f"If the loss grew without bound, try a smaller --lr."
        )


def faults(reply: Reply, order: Order, expected: Mapping[str, Tensor]) -> str:
    """Why a reply cannot be merged, naming the tensor; empty when it can."""
    if reply.kind != order.kind or reply.round != order.round:
        return f"it answers {reply.kind} of round {reply.round}, not {order.kind} of round {order.round}"
    for name, value in reply.report.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            return f'"{name}" of its report holds NaN or infinity'
    if reply.kind == "evaluate":
        return calibration.faults(reply.report)
    if reply.kind != "train":
        return ""
    if reply.num_examples <= 0:
        return f"it counts {reply.num_examples} training images"
    for name, like in expected.items():
        if name not in reply.state:
            return f'the tensor "{name}" is missing'
        value = reply.state[name]
        if value.shape != like.shape:
            return f'"{name}" has shape {tuple(value.shape)}, not {tuple(like.shape)}'
        if value.dtype != like.dtype:
            return f'"{name}" is {value.dtype}, not {like.dtype}'
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            return f'"{name}" holds NaN or infinity'
    for name in reply.state:
        if name not in expected:
            return f'the tensor "{name}" is unknown'
    return ""


def _score(metrics: Metrics) -> Score:
    examples = int(metrics["received.examples"])
    return Score(round_half_up(metrics["received.accuracy"] * examples), examples, metrics["received.loss"] * examples)
