"""The engine over Flower's grid: learns who is there, sends orders, brings replies in the clients' order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Event

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from unseen.core.errors import UserError
from unseen.core.types import ClientId, Order, Reply
from unseen.engines.flower.records import (
    HELLO,
    MESSAGE_TYPES,
    SENTENCE,
    ArrayPacker,
    Hello,
    Unreadable,
    order_content,
    read_hello,
    read_reply,
)

POLL, LONGEST = 0.25, 3.0  # seconds between two looks for replies; Flower's own loop always takes 3
REMIND = 60.0  # seconds between two sentences about the same wait
# Flower's codes for silence: order or reply expired, the node's heartbeat stopped, the process that had the task died.
# Such a site is asked for a sign of life before it gets another order; every other error is an answer.
SILENCE = frozenset({3, 4, 5, 8})


def rest(looked: float) -> None:
    """Between two looks. Longer when a look takes long: where machines are busy, waiting must not be what they do."""
    time.sleep(min(max(POLL, 5 * (time.monotonic() - looked)), LONGEST))


class FlowerEngine:
    """A deployment: sites come and go. Knows no method by name.

    Node ids are random, and new after a restart without a key: a node is asked for its site before it gets an order.
    """

    def __init__(
        self,
        grid: Grid,
        about: Mapping[str, str],
        sites: Sequence[ClientId],
        *,
        minimum: int = 1,
        timeout: float = 3600.0,
        said: Callable[[str], None] = print,
    ) -> None:
        self._grid, self._about, self._sites = grid, dict(about), sorted(sites)
        self._minimum, self._timeout, self._said = minimum, timeout, said
        self._roll = RollCall(grid, frozenset(sites), said)

    def clients(self) -> Sequence[ClientId]:
        return self._sites

    def tell(self, key: str, value: str) -> None:
        """Something that every order carries from now on."""
        self._about[key] = value

    def ask(self, orders: Mapping[ClientId, Order]) -> Iterator[Reply]:
        """Replies in the clients' order. Who is not there is missing; fewer than the minimum are waited for."""
        chief = [client for client, order in orders.items() if order.kind != "evaluate"] or list(orders)
        needed = min(self._minimum, len(chief))
        replies: dict[ClientId, Reply] = {}
        failed: set[ClientId] = set()
        while True:
            open_orders = {c: o for c, o in orders.items() if c not in replies and c not in failed}
            lacking = needed - sum(c in replies for c in chief)
            if lacking > sum(c in open_orders for c in chief):
                break  # those who failed will fail again: the server says what is wrong
            self._wait_for([c for c in chief if c in open_orders], lacking)
            there = self._roll.nodes
            replies |= self._exchange({c: (there[c], o) for c, o in open_orders.items() if c in there}, failed)
            if sum(c in replies for c in chief) >= needed:
                break
        for client in orders:
            if client in replies:
                yield replies.pop(client)

    def _exchange(self, orders: Mapping[ClientId, tuple[int, Order]], failed: set[ClientId]) -> dict[ClientId, Reply]:
        packer = ArrayPacker()
        waiting: dict[str, ClientId] = {}
        for client, (node, order) in orders.items():
            content = order_content(client, order, self._about, packer)
            message = Message(content, node, MESSAGE_TYPES[order.kind], ttl=self._timeout, group_id=str(order.round))
            # One by one: all messages of a large model at once may exceed the size of a request.
            waiting |= {name: client for name in self._grid.push_messages([message]) if name}
        replies: dict[ClientId, Reply] = {}
        deadline = time.monotonic() + self._timeout
        while waiting and (looked := time.monotonic()) < deadline:
            before = len(waiting)
            # Errors that the SuperLink makes do not name the node; what they reply to does.
            for message in self._grid.pull_messages(list(waiting)):
                client = waiting.pop(message.metadata.reply_to_message_id)
                number = orders[client][1].round
                if message.has_error() and message.error.code in SILENCE:
                    self._silent(client, number)
                    continue
                try:
                    replies[client] = _opened(client, message)
                except Unreadable as error:
                    failed.add(client)
                    self._said(f'The reply of client "{client}" in round {number} was not merged: {error}.')
            if waiting and len(waiting) == before:  # a look that brought something took long because of that
                rest(looked)
        for client in waiting.values():
            self._silent(client, orders[client][1].round)
        return replies

    def _silent(self, client: ClientId, number: int) -> None:
        self._said(f'The site "{client}" gave no reply in round {number} (it has {self._timeout:g} s).')
        self._roll.forget(client)

    def _wait_for(self, clients: Sequence[ClientId], count: int) -> None:
        """Until so many of the clients are there, for ever; says so once a minute."""
        say = 0.0
        while True:
            looked = time.monotonic()
            self._roll.look()
            there = [client for client in clients if client in self._roll.nodes]
            if len(there) >= count:
                return
            if time.monotonic() >= say:
                absent = ", ".join(client for client in clients if client not in there)
                self._said(f"{len(there)} of at least {count} sites are connected; waiting for {absent}.")
                say = time.monotonic() + REMIND
            rest(looked)

    def gather(self, patience: float | None = None) -> None:
        """Before the first round: all sites, for so many seconds; after that the minimum is enough."""
        deadline = time.monotonic() + (self._timeout if patience is None else patience)
        say, looked = 0.0, time.monotonic()
        self._roll.look()
        while (absent := [c for c in self._sites if c not in self._roll.nodes]) and time.monotonic() < deadline:
            if time.monotonic() >= say:
                there = len(self._sites) - len(absent)
                self._said(f"{there} of {len(self._sites)} sites are connected; waiting for {', '.join(absent)}.")
                say = time.monotonic() + REMIND
            rest(looked)
            looked = time.monotonic()
            self._roll.look()

    def classes(self) -> tuple[str, ...]:
        """All classes that the connected sites have, sorted."""
        return tuple(sorted({c for own in self._roll.classes.values() for c in own}))


@dataclass
class RollCall:
    """Which node is which site: asked once per node, again after it fell silent."""

    grid: Grid
    sites: frozenset[ClientId]
    said: Callable[[str], None]
    nodes: dict[ClientId, int] = field(default_factory=dict)
    classes: dict[ClientId, list[str]] = field(default_factory=dict)
    asking: dict[str, int] = field(default_factory=dict)  # message -> node
    unfit: set[int] = field(default_factory=set)  # nodes that cannot take part, until they leave

    def look(self) -> None:
        online = set(self.grid.get_node_ids())
        for site, node in list(self.nodes.items()):
            if node not in online:
                self.said(f'The site "{site}" is no longer connected.')
                del self.nodes[site]
        self.unfit &= online
        self.asking = {name: node for name, node in self.asking.items() if node in online}
        for node in sorted(online - set(self.nodes.values()) - set(self.asking.values()) - self.unfit):
            self._ask(node)
        if self.asking:
            for message in self.grid.pull_messages(list(self.asking)):
                node = self.asking.pop(message.metadata.reply_to_message_id)
                if not message.has_error():
                    self._heard(node, read_hello(message.content))

    def forget(self, site: ClientId) -> None:
        """A site that fell silent is there again when it answers."""
        if (node := self.nodes.pop(site, None)) is not None and node in set(self.grid.get_node_ids()):
            self._ask(node)

    def _ask(self, node: int) -> None:
        content = RecordDict({"hello": ConfigRecord({})})
        for name in self.grid.push_messages([Message(content, node, HELLO)]):
            self.asking[name] = node

    def _heard(self, node: int, hello: Hello) -> None:
        if hello.sentence or hello.site not in self.sites:
            why = hello.sentence or f'its site "{hello.site}" is not one of this run.'
            self.said(f"A SuperNode cannot take part: {why}")
            self.unfit.add(node)
            return
        # Without a key a restarted node has a new id, and the old one may still be listed: who answered last counts.
        self.nodes[hello.site] = node
        self.classes[hello.site] = list(hello.classes)


def _opened(client: ClientId, message: Message) -> Reply:
    if message.has_error():
        reason = (str(message.error.reason or "").strip().splitlines() or ["no reason given"])[0]
        raise Unreadable(f"it failed with Flower's error {message.error.code}: {reason}")
    if SENTENCE in (config := message.content.config_records.get("reply", {})):
        raise Unreadable(f"it could not do it: {str(config[SENTENCE]).rstrip('.')}")
    try:
        return replace(read_reply(client, message.content), sender=str(message.metadata.src_node_id))
    except Unreadable:
        raise
    except Exception as error:  # whatever a site sends, it costs its own reply and nobody else's
        raise Unreadable(f"reading it failed with {type(error).__name__}: {error}") from error


class RayEngine:
    """A simulation: node i is client i, nobody goes away, and one reply at a time is in memory.

    `over` is set when the simulation has ended without the server: then nobody will answer any more.
    """

    def __init__(self, grid: Grid, about: Mapping[str, str], clients: Sequence[ClientId], over: Event) -> None:
        self._grid, self._about, self._clients, self._over = grid, dict(about), list(clients), over
        # Flower starts the server before it has made the nodes.
        while len(nodes := sorted(grid.get_node_ids())) < len(clients):
            self._wait()
        self._nodes = nodes

    def _wait(self) -> None:
        if self._over.wait(0.02):
            raise UserError("The simulation is over.")

    def clients(self) -> Sequence[ClientId]:
        return self._clients

    def ask(self, orders: Mapping[ClientId, Order]) -> Iterator[Reply]:
        packer = ArrayPacker()
        waiting: dict[ClientId, str] = {}
        for client, order in orders.items():
            node = self._nodes[self._clients.index(client)]
            content = order_content(client, order, self._about, packer)
            message = Message(content, node, MESSAGE_TYPES[order.kind], group_id=str(order.round))
            (waiting[client],) = self._grid.push_messages([message])
        del packer
        for client, name in waiting.items():
            while not (messages := list(self._grid.pull_messages([name]))):
                self._wait()
            try:
                yield _opened(client, messages[0])
            except Unreadable as error:
                raise UserError(f'The client "{client}" stopped the simulation: {error}.') from None
