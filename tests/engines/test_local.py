"""The local engine by itself: order of replies, orders ahead, workers that die or fail, and their end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from tests.tiny_federation import federation, same
from unseen.core.errors import UserError
from unseen.core.types import ClientId, Order, Reply
from unseen.engines.local import AHEAD, LocalEngine
from unseen.federation.client import ClientRunner

CLIENTS = [f"c{k}" for k in range(12)]
PATIENCE = 60.0  # seconds, for a busy machine


class Scripted:
    """Stands in for a ClientRunner: carries an order out by a function of the client's name."""

    def __init__(self, act: Callable[[ClientId], None]) -> None:
        self.act = act

    def reply(self, client: ClientId, order: Order) -> Reply:
        self.act(client)
        return Reply(
            client, order.kind, order.round, 1, state={"x": order.state["x"] + 1}, metrics={"pid": os.getpid()}
        )


def engine(act: Callable[[ClientId], None], workers: int = 2, clients: list[ClientId] = CLIENTS) -> LocalEngine:
    return LocalEngine(cast(ClientRunner, Scripted(act)), clients, workers)


def orders(clients: list[ClientId] = CLIENTS) -> dict[ClientId, Order]:
    return {client: Order("train", 1, {"x": torch.tensor([float(k)])}) for k, client in enumerate(clients)}


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def nothing(client: ClientId) -> None: ...


def pids(used: LocalEngine) -> list[int]:
    return [int(worker.process.pid) for worker in used._workers]


# --- order -----------------------------------------------------------------------------------------------------------
def test_replies_come_in_the_clients_order_whatever_worker_is_faster(tmp_path: Path) -> None:
    def act(client: ClientId) -> None:
        if client == "c0":  # the first is done after the three that may be given meanwhile
            until(lambda: len(list(tmp_path.iterdir())) == 3)
        else:
            (tmp_path / client).touch()

    with engine(act) as used:
        replies = list(used.ask(orders()))
    assert [reply.client for reply in replies] == CLIENTS
    assert [float(reply.state["x"]) for reply in replies] == [k + 1.0 for k in range(12)]
    assert len({reply.metrics["pid"] for reply in replies}) == 2


@pytest.mark.parametrize("workers", [2, 3])
def test_no_more_orders_are_given_ahead_than_are_bounded(workers: int, tmp_path: Path) -> None:
    """While the first client is slow, the others wait at a bound, also those whose worker is idle."""
    bound = AHEAD * workers

    def act(client: ClientId) -> None:
        (tmp_path / client).touch()
        if client == "c0":
            until(lambda: len(list(tmp_path.iterdir())) >= bound)
            time.sleep(0.5)  # time enough for one too many
            (tmp_path / f"seen-{len(list(tmp_path.iterdir()))}").touch()

    with engine(act, workers) as used:
        assert len(list(used.ask(orders()))) == 12
    assert [path.name for path in tmp_path.glob("seen-*")] == [f"seen-{bound}"]


def test_orders_are_given_only_as_replies_are_taken(tmp_path: Path) -> None:
    with engine(lambda client: (tmp_path / client).touch()) as used:
        replies = used.ask(orders())
        next(replies)
        time.sleep(0.3)
        assert len(list(tmp_path.iterdir())) <= AHEAD * 2
        assert [reply.client for reply in replies] == CLIENTS[1:]


# --- failures --------------------------------------------------------------------------------------------------------
def test_a_worker_that_dies_is_said_in_a_sentence() -> None:
    def act(client: ClientId) -> None:
        if client == "c3":
            os.kill(os.getpid(), signal.SIGKILL)

    with engine(act) as used, pytest.raises(UserError, match=r'trained client "c3" died .* fewer --workers'):
        list(used.ask(orders()))


def test_a_worker_that_died_between_rounds_is_said_in_a_sentence() -> None:
    with engine(nothing) as used:
        list(used.ask(orders()))
        worker = used._workers[0]
        os.kill(int(worker.process.pid), signal.SIGKILL)
        worker.process.join(PATIENCE)
        with pytest.raises(UserError, match=r'trained client "c0" died'):
            list(used.ask(orders()))


def test_an_exception_names_the_client_and_shows_where() -> None:
    def act(client: ClientId) -> None:
        if client == "c3":
            raise ZeroDivisionError("by hand")

    with engine(act) as used, pytest.raises(RuntimeError, match=r'client "c3" failed in a worker') as caught:
        list(used.ask(orders()))
    assert "ZeroDivisionError: by hand" in str(caught.value) and "in act" in str(caught.value)


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_for_people_stays_one(workers: int) -> None:
    def act(client: ClientId) -> None:
        raise UserError("The disk is full.")

    with engine(act, workers) as used, pytest.raises(UserError, match=r"^The disk is full\.$"):
        list(used.ask(orders()))


# --- processes -------------------------------------------------------------------------------------------------------
def test_one_worker_is_this_process_and_no_more_are_made_than_clients() -> None:
    with engine(nothing, workers=1) as used:
        assert not pids(used)
        assert {reply.metrics["pid"] for reply in used.ask(orders())} == {os.getpid()}
    with engine(nothing, workers=5, clients=["a", "b"]) as used:
        assert len(pids(used)) == 2


def test_workers_live_over_rounds_and_end_with_close() -> None:
    used = engine(nothing, workers=3)
    processes = pids(used)
    for _ in range(2):
        assert {int(reply.metrics["pid"]) for reply in used.ask(orders())} <= set(processes)
    assert all(map(alive, processes))
    used.close()
    assert not any(map(alive, processes))
    used.close()  # again is harmless


def test_close_ends_workers_in_the_middle_of_an_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def act(client: ClientId) -> None:
        (tmp_path / client).touch()
        if client != "c0":
            time.sleep(PATIENCE)

    used = engine(act)
    processes = [worker.process for worker in used._workers]
    replies: Iterator[Reply] = used.ask(orders())
    next(replies)
    until(lambda: (tmp_path / "c1").exists())
    for worker in used._workers:  # what a worker is given to end by itself
        monkeypatch.setattr(worker.process, "join", lambda timeout=None, join=worker.process.join: join(0.2))
    used.close()
    until(lambda: not any(process.is_alive() for process in processes))


# --- bits ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("method", ["fedavg", "fedbn"])
def test_one_worker_has_the_same_bits_as_several(method: str, tmp_path: Path) -> None:
    ends: list[Any] = []
    for workers in (1, 2, 3):
        made = federation(method, tmp_path / str(workers), workers, rounds=2)
        made.run()
        ends.append(made.server.state)
    assert same(ends[0], ends[1]) and same(ends[0], ends[2])
