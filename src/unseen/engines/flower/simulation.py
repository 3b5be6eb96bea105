"""Runs on Flower's simulation engine: a Ray actor per core plays the clients. With RAY_ADDRESS set, on that cluster."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from unseen.core.errors import UserError
from unseen.core.platform import cores
from unseen.core.types import Engine
from unseen.engines.flower.grid import RayEngine
from unseen.engines.flower.site import app as client_app
from unseen.runs.directory import RunDirectory
from unseen.runs.run import Assembly, OpenEngine


@contextlib.contextmanager
def open_simulation(assembly: Assembly, directory: RunDirectory) -> Iterator[Engine]:
    """The engine of `unseen run --engine flower`: Ray is started for this run, and ended with it."""
    settings = assembly.settings
    with (
        simulation(len(assembly.data.sites), settings.plan.device, settings.client_gpus) as opened,
        opened(assembly, directory) as e,
    ):
        yield e


@contextlib.contextmanager
def simulation(nodes: int, device: str = "cpu", client_gpus: float = 1.0) -> Iterator[OpenEngine]:
    """One start of Ray for as many runs as are wanted, one after the other, of up to `nodes` clients each.

    Flower calls the server's code; ours calls the engine. So Flower runs in a thread of its own, whose server does
    nothing but hand its grid over and wait for the end.
    """
    share = resources(nodes, device, client_gpus)
    server_app, over, done = ServerApp(), threading.Event(), threading.Event()
    handed: queue.Queue[Grid | BaseException] = queue.Queue()

    @server_app.main()  # type: ignore[untyped-decorator]
    def main(grid: Grid, context: Context) -> None:
        handed.put(grid)
        done.wait()

    def flower() -> None:
        try:
            _run_flower(server_app, nodes, share)
        except BaseException as error:
            handed.put(error)
        finally:
            over.set()  # nobody will answer any more

    with _quiet():
        thread = threading.Thread(target=flower, daemon=True)
        thread.start()
        try:
            grid = handed.get()
            if isinstance(grid, BaseException):
                raise _in_words(grid) from grid
            yield _opener(grid, over)
        except UserError as error:
            # "The simulation is over": what ended it says more.
            if over.is_set() and not handed.empty() and isinstance(cause := handed.get(), BaseException):
                raise _in_words(cause) from error
            raise
        finally:
            done.set()
            thread.join(timeout=60)


def _opener(grid: Grid, over: threading.Event) -> OpenEngine:
    @contextlib.contextmanager
    def opened(assembly: Assembly, directory: RunDirectory) -> Iterator[Engine]:
        about = {
            "settings": json.dumps(assembly.settings.to_json()),
            "classes": json.dumps(assembly.data.classes),
            "keep": str(directory.client_states.root.resolve()),
        }
        yield RayEngine(grid, about, list(assembly.data.sites), over)

    return opened


@dataclass(frozen=True)
class Resources:
    """What Ray gives: to the whole simulation, and to each client."""

    cpus: int | None  # None: a cluster has what it has
    gpus: int | None
    client_gpus: float

    def at_once(self) -> int | None:
        """Clients that compute at the same time; None on a cluster, whose size Ray knows."""
        if self.cpus is None or self.gpus is None:
            return None
        if self.client_gpus == 0:
            return self.cpus
        # A client has parts of one GPU or several whole ones: what is left over of a GPU is not added to the next.
        by_gpu = (
            self.gpus * int(1 / self.client_gpus + 1e-9)
            if self.client_gpus <= 1
            else self.gpus // int(self.client_gpus)
        )
        return min(self.cpus, by_gpu)


def resources(nodes: int, device: str, client_gpus: float) -> Resources:
    """The share of each client, checked before Ray starts: it would wait for ever for what is not there."""
    cluster = bool(os.environ.get("RAY_ADDRESS"))
    cpus = None if cluster else min(cores(), nodes)
    if not device.startswith("cuda"):
        return Resources(cpus, None if cluster else 0, 0.0)
    if device != "cuda":
        raise UserError(f"With --engine flower Ray chooses the GPU: give --device cuda, not {device}.")
    if client_gpus > 1 and client_gpus != int(client_gpus):
        raise UserError(f"--client-gpus is a part of one GPU or a whole number of them, not {client_gpus:g}.")
    if cluster:
        return Resources(None, None, client_gpus)
    gpus = torch.cuda.device_count()
    if client_gpus > gpus:
        raise UserError(f"--client-gpus {client_gpus:g} is more than the {gpus} GPUs of this machine.")
    return Resources(cpus, gpus, client_gpus)


def _run_flower(server_app: ServerApp, nodes: int, share: Resources) -> None:
    start: dict[str, Any] = {} if share.cpus is None else {"num_cpus": share.cpus, "num_gpus": share.gpus}
    run_simulation(
        server_app=server_app,
        client_app=client_app,
        num_supernodes=nodes,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": share.client_gpus},
            "init_args": {**start, "logging_level": logging.ERROR, "log_to_driver": False},
        },
    )


def _in_words(error: BaseException) -> BaseException:
    """Flower's words around what went wrong, as one sentence; an error of the run itself as it is."""
    if not (isinstance(error, RuntimeError) and "Ending simulation" in str(error)):
        return error
    return UserError(
        f"The simulation broke off: {_root(error)} On a busy machine Ray may not come up in time: try again, start a "
        f"Ray of your own (docs/flower.md), or take --engine local."
    )


def _root(error: BaseException) -> str:
    """The first error of a chain, as a sentence."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{(str(error).splitlines() or [type(error).__name__])[0].rstrip('.')}."


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Flower's and Ray's own lines would be mixed with those of the run. No numbers are sent to anyone."""
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    for key, value in quiet.items():
        os.environ.setdefault(key, value)
    logger = logging.getLogger("flwr")
    before, logger.level = logger.level, logging.CRITICAL
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
