"""The engine over Flower's grid: learns who is there, sends orders, brings replies in the clients' order."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Event

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from unseen.core.errors import UserError
from unseen.core.types import ClientId, Order, Reply
from unseen.engines.flower.packing import Packer, Unreadable
from unseen.engines.flower.records import (
    HELLO,
    MESSAGE_TYPES,
    SENTENCE,
    Hello,
    order_content,
    read_hello,
    read_reply,
    same,
)
from unseen.engines.flower.replies import Post
from unseen.engines.flower.status import StatusBoard

POLL, LONGEST = 0.1, 3.0  # seconds between two looks for replies; Flower's own loop always takes 3
REMIND = 60.0  # seconds between two sentences about the same wait
# Flower's codes for silence: order or reply expired, the node's heartbeat stopped, the process that had the task died.
# Such a site is asked for a sign of life before it gets another order; every other error is an answer.
SILENCE = frozenset({3, 4, 5, 8})


def rest(looked: float) -> None:
    """Between two looks. Longer when a look takes long: where machines are busy, waiting must not be what they do."""
    time.sleep(min(max(POLL, 2 * (time.monotonic() - looked)), LONGEST))


class FlowerEngine:
    """A deployment: sites come and go. Knows no method by name.

    A node's name is the one that its key was registered with; it is asked for its classes before it gets an order.
    """

    def __init__(
        self,
        grid: Post,
        about: Mapping[str, str],
        sites: Sequence[ClientId],
        *,
        minimum: int = 1,
        timeout: float = 3600.0,
        said: Callable[[str], None] = print,
        board: StatusBoard | None = None,
    ) -> None:
        self._grid, self._about, self._sites = grid, dict(about), sorted(sites)
        self._minimum, self._timeout, self._said, self._board = minimum, timeout, said, board
        self._roll = RollCall(grid, frozenset(sites), said, board)

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
        waiting = self._send(orders)
        self._note_waiting(waiting.values())
        replies: dict[ClientId, Reply] = {}
        deadline = time.monotonic() + self._timeout
        while waiting and (looked := time.monotonic()) < deadline:
            before = len(waiting)
            if self._board is not None:
                self._board.tick()
            # Errors that the SuperLink makes do not name the node; what they reply to does.
            for message in self._grid.pull_messages(list(waiting)):
                client = waiting.pop(message.metadata.reply_to_message_id)
                number = orders[client][1].round
                if message.has_error() and message.error.code in SILENCE:
                    self._silent(client, number)
                    continue
                if self._board is not None:
                    self._board.replied(client)
                try:
                    replies[client] = _opened(client, message)
                except Unreadable as error:
                    failed.add(client)
                    self._said(f'The reply of client "{client}" in round {number} was not merged: {error}.')
            if waiting and len(waiting) == before:  # a look that brought something took long because of that
                rest(looked)
        for client in waiting.values():
            self._silent(client, orders[client][1].round)
        self._note_waiting(())
        return replies

    def _send(self, orders: Mapping[ClientId, tuple[int, Order]]) -> dict[str, ClientId]:
        """Who was sent which message. Clients with the same order share its records, which are then hashed once."""
        groups: dict[Hashable, list[ClientId]] = {}
        for client, (_, order) in orders.items():
            groups.setdefault(same(order), []).append(client)
        packer = Packer()
        waiting: dict[str, ClientId] = {}
        for clients in groups.values():
            order = orders[clients[0]][1]
            content, kind, number = order_content(order, self._about, packer), MESSAGE_TYPES[order.kind], order.round
            messages = [Message(content, orders[c][0], kind, ttl=self._timeout, group_id=str(number)) for c in clients]
            names = self._grid.push_messages(messages)
            waiting |= {name: client for name, client in zip(names, clients, strict=True) if name}
        return waiting

    def _note_waiting(self, clients: Iterable[ClientId]) -> None:
        if self._board is not None:
            self._board.now.waiting = sorted(clients)
            self._board.changed()

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
            absent = [client for client in clients if client not in there]
            if time.monotonic() >= say:
                self._said(f"{len(there)} of at least {count} sites are connected; waiting for {', '.join(absent)}.")
                say = time.monotonic() + REMIND
            self._note_waiting(absent)
            rest(looked)

    def gather(self) -> None:
        """Before the first round: all sites, until the time-out; after that as many as a round needs."""
        began, say = time.monotonic(), 0.0
        while True:
            looked = time.monotonic()
            self._roll.look()
            absent = [c for c in self._sites if c not in self._roll.nodes]
            there = len(self._sites) - len(absent)
            if not absent:
                break
            late = looked - began >= self._timeout
            if late and there >= max(1, self._minimum):
                self._said(
                    f"Starting with {there} of {len(self._sites)} sites, which is enough: {', '.join(absent)} did not "
                    f"come within {self._timeout:g} s, and may come later."
                )
                break
            if looked >= say:
                needed = f" (at least {self._minimum} are needed)" if late else ""
                self._said(
                    f"{there} of {len(self._sites)} sites are connected{needed}; waiting for {', '.join(absent)}."
                )
                say = looked + REMIND
            self._note_waiting(absent)
            rest(looked)
        self._note_waiting(())

    def classes(self) -> tuple[str, ...]:
        """All classes that the connected sites have, sorted."""
        return tuple(sorted({c for own in self._roll.classes.values() for c in own}))


@dataclass
class RollCall:
    """Which node is which site: its registered name says so, and it is asked once, again after it fell silent."""

    grid: Post
    sites: frozenset[ClientId]
    said: Callable[[str], None]
    board: StatusBoard | None = None
    nodes: dict[ClientId, int] = field(default_factory=dict)
    classes: dict[ClientId, list[str]] = field(default_factory=dict)
    asking: dict[str, int] = field(default_factory=dict)  # message -> node
    unfit: set[int] = field(default_factory=set)  # nodes that cannot take part, until they leave
    names: dict[int, ClientId] = field(default_factory=dict)  # node -> the name its key was registered with

    def look(self) -> None:
        # By age: of two keys that were registered with one name, the first has it.
        listed = sorted(self.grid.get_nodes(), key=lambda node: (node.registered_at, node.node_id))
        self.names = {node.node_id: node.name for node in listed}
        online = set(self.names)
        for site, node in list(self.nodes.items()):
            if node not in online:
                self.said(f'The site "{site}" is no longer connected.')
                self._lost(site)
        self.unfit &= online
        self.asking = {name: node for name, node in self.asking.items() if node in online}
        for node in self.names:
            if node not in {*self.nodes.values(), *self.asking.values(), *self.unfit}:
                self._meet(node)
        if self.asking:
            for message in self.grid.pull_messages(list(self.asking)):
                node = self.asking.pop(message.metadata.reply_to_message_id)
                if not message.has_error():
                    self._heard(node, read_hello(message.content))
        if self.board is not None:
            self.board.tick()

    def forget(self, site: ClientId) -> None:
        """A site that fell silent is there again when it answers."""
        if (node := self._lost(site)) is not None and any(node == there.node_id for there in self.grid.get_nodes()):
            self._ask(node)

    def _lost(self, site: ClientId) -> int | None:
        if self.board is not None:
            self.board.now.sites[site].alive = False
            self.board.changed()
        return self.nodes.pop(site, None)

    def _meet(self, node: int) -> None:
        """A node that is new here: its key must have been registered with the name of a site that is still free."""
        name = self.names[node]
        if not name:
            self._refuse(node, "its key was registered without a name; register it with `unseen flower register`.")
        elif name not in self.sites:
            self._refuse(node, f'its site "{name}" is not one of this run.')
        elif any(self.names.get(other) == name for other in (*self.nodes.values(), *self.asking.values())):
            self._refuse(
                node, f'a second node is registered as "{name}", and the name belongs to the key of the first.'
            )
        else:
            self._ask(node)

    def _ask(self, node: int) -> None:
        content = RecordDict({"hello": ConfigRecord({})})
        for name in self.grid.push_messages([Message(content, node, HELLO)]):
            self.asking[name] = node

    def _heard(self, node: int, hello: Hello) -> None:
        name = self.names[node]
        wrong = hello.sentence
        if not wrong and hello.site != name:
            wrong = f'the key of "{name}" came with the name "{hello.site}".'
        if wrong:
            self._refuse(node, wrong, name)
            return
        self.nodes[name] = node
        self.classes[name] = list(hello.classes)
        if self.board is not None:
            site = self.board.now.sites[name]
            site.images, site.version, site.refused = hello.images, hello.version, ""
            self.board.replied(name)
            if hello.version != self.board.now.version:
                self.said(
                    f'The site "{name}" has unseen {hello.version}; the coordinator has {self.board.now.version}.'
                )

    def _refuse(self, node: int, why: str, name: str = "") -> None:
        self.said(f"A node cannot take part: {why}")
        self.unfit.add(node)
        if self.board is not None and name:
            self.board.now.sites[name].refused = why
            self.board.changed()


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
        packer = Packer()
        waiting: dict[ClientId, str] = {}
        for client, order in orders.items():
            node = self._nodes[self._clients.index(client)]
            # One record dict per client, never shared: here Flower writes into what it is given.
            content = order_content(order, {**self._about, "client": client}, packer)
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
