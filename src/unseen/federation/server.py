"""The only round loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch import Tensor

from unseen.core.errors import UserError
from unseen.core.plan import Plan
from unseen.core.seeding import numpy_generator
from unseen.core.tensors import pick
from unseen.core.types import ClientId, Engine, Held, Metrics, Order, Reply, Server, Share, Tensors
from unseen.federation.audit import AuditLog, summary
from unseen.federation.checks import Checks, check_merged, faults, update_norm
from unseen.federation.ledger import Ledger
from unseen.federation.measure import Score
from unseen.federation.messages import carried
from unseen.method import Method

LONGEST_FAULT = 500  # letters: it may name what a client calls its tensors


@dataclass(frozen=True)
class Evaluation:
    """The aggregated model of one round on images that the clients do not train on."""

    round: int
    clients: dict[ClientId, Score]
    calibrating: dict[ClientId, Tensors] = field(
        default_factory=dict
    )  # what calibrates the model, where it was asked for
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
    left_out: list[ClientId] = field(default_factory=list)  # good replies that the method itself did not admit

    @property
    def loss(self) -> float:
        losses = [m["loss"] for m in self.metrics.values() if "loss" in m]
        return sum(losses) / len(losses) if losses else float("nan")


@dataclass
class Exchange:
    """One `ask`: counts what crosses, refuses bad replies, and says what came of it."""

    engine: Engine
    ledger: Ledger
    server: Server
    expected: Mapping[str, Tensor] = field(default_factory=dict)
    checks: Checks = field(default_factory=Checks)
    audit: AuditLog = field(default_factory=AuditLog)
    metrics: dict[ClientId, Metrics] = field(default_factory=dict)
    scores: dict[ClientId, Score] = field(default_factory=dict)
    bytes_up: dict[ClientId, int] = field(default_factory=dict)
    bytes_down: dict[ClientId, int] = field(default_factory=dict)
    enrolled: dict[ClientId, int] = field(default_factory=dict)  # those that were new in this exchange
    norms: dict[ClientId, float] = field(default_factory=dict)  # of the good updates
    refused: list[str] = field(default_factory=list)
    missing: list[ClientId] = field(default_factory=list)
    _last_sent: tuple[Tensors | None, dict[str, Any]] = (None, {})  # never changed, only replaced

    def replies(self, orders: Mapping[ClientId, Order]) -> Iterator[Reply]:
        """Good replies, as they arrive."""
        for client, order in orders.items():
            self.bytes_down[client] = self.bytes_down.get(client, 0) + self.ledger.sent(client, order)
        answered: set[ClientId] = set()
        for reply in self.engine.ask(orders):
            answered.add(reply.client)
            order = orders[reply.client]
            known = self.server.enrolled.get(reply.client, self.enrolled.get(reply.client))
            try:
                fault = faults(reply, order, self.expected, self.checks, known)[:LONGEST_FAULT]
            except Exception as error:  # whatever a client sends, it costs its own reply and nobody else's
                fault = f"checking it failed with {type(error).__name__}: {error}"
            size = self.ledger.refused(reply) if fault else self.ledger.received(reply)
            self.bytes_up[reply.client] = self.bytes_up.get(reply.client, 0) + size
            norm = update_norm(self.server, reply) if reply.kind == "train" and not fault else None
            self._note(reply, order, fault, norm)
            if fault:
                self.refuse(reply, fault)
                continue
            if reply.kind != "evaluate":
                self.enrolled.setdefault(reply.client, reply.num_examples if known is None else known)
            if "received.examples" in reply.metrics:
                self.scores[reply.client] = _score(reply.metrics)
            if norm is not None:
                self.metrics[reply.client], self.norms[reply.client] = reply.metrics, norm
            yield reply
        silent = [client for client in orders if client not in answered]
        for client in silent:
            self.audit.note("silence", round=orders[client].round, client=client, asked=orders[client].kind)
        self.missing += silent

    def _note(self, reply: Reply, order: Order, fault: str, norm: float | None) -> None:
        if self.audit.path is None:
            return
        self.audit.note(
            "reply",
            round=order.round,
            client=reply.client,
            sender=reply.sender,
            asked=order.kind,
            sent=self._sent(order),
            got=summary(carried(reply)),
            images=reply.num_examples,
            norm=norm if reply.state else None,  # of what is masked, nobody knows
            refused=fault or None,
        )

    def _sent(self, order: Order) -> dict[str, Any]:
        """What the log says of an order. Most of a round's have the same model and nothing else: once is enough."""
        state, said = self._last_sent
        plain = not order.brief and not order.sealing
        if not plain or order.state is not state:
            said = summary(carried(order))
        if plain:
            self._last_sent = order.state, said
        return said

    def refuse(self, reply: Reply, fault: str) -> None:
        self.metrics.pop(reply.client, None)
        self.norms.pop(reply.client, None)
        self.refused.append(f'The reply of client "{reply.client}" in round {reply.round} was not merged: {fault}.')


Gather = Callable[[Exchange, Mapping[ClientId, Order]], Iterator[Reply]]  # how the replies of a round are got


def federate(
    method: Method,
    share: Share,
    plan: Plan,
    engine: Engine,
    server: Server,
    ledger: Ledger,
    checks: Checks | None = None,
    audit: AuditLog | None = None,
    gather: Gather = Exchange.replies,
) -> Iterator[Round]:
    """Rounds after `server.round` up to the plan's last. Updates `server` and yields after each round.

    A model is evaluated by the same message that opens the next round: one exchange per round, on every engine.
    """
    clients, checks, audit = list(engine.clients()), checks or Checks.plain(plan), audit or AuditLog()
    server.rounds = plan.rounds
    while server.round < plan.rounds:
        number = server.round + 1
        chosen = sample(clients, plan, number)
        asked = plan.server_selection == "validation" and server.round > 0
        model = method.evaluated(server)
        exchange = Exchange(engine, ledger, server, pick(server.state, share.up), checks, audit)
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
            evaluation = evaluate(engine, model, number, ledger, audit=audit)
        elif asked:
            orders |= {c: Order("evaluate", number, server.state) for c in clients if c not in orders}
            orders = {client: orders[client] for client in clients}
        # Replies are heard in a copy: orders on their way hold the old state, and a round that fails leaves no trace.
        new = replace(server, state=dict(server.state), memory=dict(server.memory))
        admitted = _Admitted(method, new, exchange, plan, gather)
        state = method.merge(new, admitted.replies(orders), partial(method.weigh, new))
        check_merged(number, state, checks.variances, exchange.norms)
        server.state, server.memory, server.round = state, new.memory, number
        server.met |= set(exchange.metrics)
        server.enrolled |= exchange.enrolled
        left_out = [client for client in exchange.metrics if client not in admitted.clients]
        audit.note("round", round=number, merged=admitted.clients, left_out=left_out)
        yield Round(
            number,
            model,
            Evaluation(number - 1, evaluation.clients if evaluation else exchange.scores) if asked else None,
            exchange.metrics,
            exchange.bytes_up,
            exchange.bytes_down,
            exchange.refused,
            exchange.missing,
            left_out,
        )


def evaluate(
    engine: Engine,
    state: Tensors,
    round: int,
    ledger: Ledger,
    images: Held = "validation",
    audit: AuditLog | None = None,
    calibrate: bool = False,
) -> Evaluation:
    """One state on all clients' validation or test images; also what calibrates it, if that is asked for."""
    exchange = Exchange(engine, ledger, Server(state), audit=audit or AuditLog())
    orders = {
        client: Order("evaluate", round, state, images=images, calibrate=calibrate) for client in engine.clients()
    }
    calibrating = {reply.client: reply.report for reply in exchange.replies(orders) if reply.report}
    return Evaluation(round, exchange.scores, calibrating, exchange.refused)


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


@dataclass
class _Admitted:
    """The good replies to train orders on their way to `merge`: admitted by the method, then heard one by one."""

    method: Method
    server: Server
    exchange: Exchange
    plan: Plan
    gather: Gather
    clients: list[ClientId] = field(default_factory=list)

    def replies(self, orders: Mapping[ClientId, Order]) -> Iterator[Reply]:
        """As they come; an error when there are too few to make a round."""
        failure: Exception | None = None
        for reply in self.method.admit(self.server, self._enough(orders)):
            try:
                self._hear(reply)
            except Exception as error:
                fault = f"hearing it failed with {type(error).__name__}: {error}"
                self.exchange.refuse(reply, fault)
                self.exchange.audit.note("refusal", round=reply.round, client=reply.client, refused=fault)
                failure = error
                continue
            self.clients.append(reply.client)
            yield reply
        if not self.clients:
            raise self._too_few(0) from failure

    def _enough(self, orders: Mapping[ClientId, Order]) -> Iterator[Reply]:
        good = 0
        for reply in self.gather(self.exchange, orders):
            if reply.kind == "train":
                good += 1
                yield reply
        if good < max(1, self.plan.minimum_clients):
            raise self._too_few(good)

    def _hear(self, reply: Reply) -> None:
        """A reply that cannot be heard leaves no trace. In place: the parts of a method hold these mappings already."""
        kept = [(held, dict(held)) for held in (self.server.state, self.server.memory)]
        try:
            self.method.hear(self.server, reply)
        except Exception:
            for held, before in kept:
                held.clear()
                held.update(before)
            raise

    def _too_few(self, good: int) -> UserError:
        exchange, needed = self.exchange, max(1, self.plan.minimum_clients)
        reasons = " ".join(exchange.refused) or f"No reply came from {', '.join(exchange.missing)}."
        return UserError(
            f"Round {self.server.round + 1} has {good} good updates and needs {needed}. {reasons} "
            f"If the loss grew without bound, try a smaller --lr; if one client spoilt the model, `unseen rollback`."
        )


def _score(metrics: Metrics) -> Score:
    examples = int(metrics["received.examples"])
    return Score(round_half_up(metrics["received.accuracy"] * examples), examples, metrics["received.loss"] * examples)
