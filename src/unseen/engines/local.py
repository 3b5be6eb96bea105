"""The engine in this process, or in a few worker processes: one net per worker, the same bits for any number of them."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import signal
import traceback
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType

import torch

from unseen.core.errors import UserError
from unseen.core.types import ClientId, Engine, Order, Reply
from unseen.federation.client import ClientRunner
from unseen.federation.messages import pack_order, pack_reply, unpack_order, unpack_reply
from unseen.runs.directory import RunDirectory
from unseen.runs.run import Assembly, OpenEngine

AHEAD = 2  # orders per worker that may be under way or waiting for an earlier reply: bounds memory with many clients


class LocalEngine:
    """Carries orders out in the caller's process (`workers=1`) or in forked ones.

    Replies come in the clients' order whatever worker is faster, so that sums are the same bits.
    """

    def __init__(self, runner: ClientRunner, clients: Sequence[ClientId], workers: int = 1) -> None:
        self._runner, self._clients = runner, list(clients)
        self._workers = [_Worker(runner) for _ in range(min(workers, len(self._clients)))] if workers > 1 else []

    def clients(self) -> Sequence[ClientId]:
        return self._clients

    def ask(self, orders: Mapping[ClientId, Order]) -> Iterator[Reply]:
        if not self._workers:
            for client, order in orders.items():
                yield self._runner.reply(client, order)
            return
        todo = list(orders.items())
        done: dict[int, Reply] = {}
        busy: dict[multiprocessing.connection.Connection, tuple[int, _Worker]] = {}
        idle = list(self._workers)
        given = shown = 0
        while shown < len(todo):
            while idle and given < len(todo) and given - shown < AHEAD * len(self._workers):
                worker = idle.pop(0)
                worker.give(*todo[given])
                busy[worker.pipe] = (given, worker)
                given += 1
            for ready in multiprocessing.connection.wait(list(busy)):
                index, worker = busy.pop(ready)  # type: ignore[call-overload]
                done[index] = worker.take()
                idle.append(worker)
            while shown in done:
                yield done.pop(shown)
                shown += 1

    def close(self) -> None:
        # All pipes first: a worker inherits the parent's ends of those forked before it, and only their last closing is seen.
        for worker in self._workers:
            worker.hang_up()
        for worker in self._workers:
            worker.join()
        self._workers = []

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_local(workers: int) -> OpenEngine:
    """The engine of `unseen run`: this process, or so many forked ones."""

    @contextlib.contextmanager
    def opened(assembly: Assembly, directory: RunDirectory) -> Iterator[Engine]:
        with LocalEngine(assembly.runner(directory.client_states), list(assembly.data.sites), workers) as engine:
            yield engine

    return opened


class _Worker:
    """A process with the net it was forked with."""

    def __init__(self, runner: ClientRunner) -> None:
        # Fork, where there is one: the net and the memory-mapped images are inherited, nothing is sent or imported again.
        # CUDA cannot be used after a fork, so there the slower way is taken.
        forkable = "fork" in multiprocessing.get_all_start_methods() and not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        context = multiprocessing.get_context("fork" if forkable else "spawn")
        self.pipe, theirs = context.Pipe()
        process = context.Process  # type: ignore[attr-defined]  # of every context but the abstract one
        self.process = process(target=_serve, args=(theirs, self.pipe if forkable else None, runner), daemon=True)
        self.process.start()
        theirs.close()
        self.client: ClientId = ""

    def give(self, client: ClientId, order: Order) -> None:
        self.client = client
        try:
            self.pipe.send_bytes(pack_order(client, order))
        except OSError:
            raise self._died() from None

    def take(self) -> Reply:
        try:
            sort, data = self.pipe.recv_bytes(1)[:1], self.pipe.recv_bytes()
        except (EOFError, OSError):
            raise self._died() from None
        if sort == b"u":
            raise UserError(data.decode())
        if sort == b"e":
            raise RuntimeError(f'client "{self.client}" failed in a worker:\n{data.decode()}')
        return unpack_reply(data)

    def _died(self) -> UserError:
        return UserError(
            f'The worker process that trained client "{self.client}" died (out of memory?); run the same command again to go on '
            f"after the last finished round, perhaps with fewer --workers."
        )

    def hang_up(self) -> None:
        with contextlib.suppress(OSError):
            self.pipe.close()

    def join(self) -> None:
        self.process.join(timeout=5)
        if self.process.is_alive():
            self.process.kill()


def _serve(
    pipe: multiprocessing.connection.Connection,
    parents: multiprocessing.connection.Connection | None,
    runner: ClientRunner,
) -> None:
    """The life of a worker: read an order, carry it out, send the reply; end with the pipe."""
    if parents is not None:
        parents.close()  # a fork inherits the parent's end too: while it is open here, the parent's death would go unseen
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    while True:
        try:
            client, order = unpack_order(pipe.recv_bytes())
        except (EOFError, OSError):
            return
        try:
            sort, data = b"r", pack_reply(runner.reply(client, order))
        except UserError as error:
            sort, data = b"u", str(error).encode()
        except Exception:
            sort, data = b"e", traceback.format_exc().encode()
        try:
            pipe.send_bytes(sort)
            pipe.send_bytes(data)
        except OSError:
            return
