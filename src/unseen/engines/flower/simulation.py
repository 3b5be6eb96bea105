"""Runs on Flower's simulation engine: a Ray actor per core plays the clients. With RAY_ADDRESS set, on that cluster."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import tempfile
import threading
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation as run_flower

from unseen.core.errors import UserError
from unseen.engines.flower.grid import RayEngine
from unseen.engines.flower.site import app as client_app
from unseen.runs.directory import RunDirectory
from unseen.runs.model import load_trained
from unseen.runs.protocols import Settings
from unseen.runs.run import Assembly, Result, Silent, Trial, Watcher, assemble, one_thread, run_settings


def simulate(todo: Sequence[Settings], out: Path | None, watcher: Watcher | None = None) -> list[Result]:
    """Runs one after the other on one start of Ray. A finished one is read, a begun one goes on."""
    watcher = watcher or Silent()
    with contextlib.ExitStack() as stack:
        folder = out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="unseen-")))
        directories = [RunDirectory.create(settings, folder.resolve()) for settings in todo]
        stack.enter_context(one_thread())
        waiting = [
            (assemble(settings, watcher), directory)
            for settings, directory in zip(todo, directories, strict=True)
            if directory.result() is None
        ]
        if waiting:
            _start_ray(waiting, watcher)
        # Every run is finished now: this only reads the results.
        results = [run_settings(settings, out=folder.resolve()) for settings in todo]
        if out is None:
            for result, directory in zip(results, directories, strict=True):
                result._trained, result.directory = load_trained(directory.path), None
    return results


def _start_ray(waiting: Sequence[tuple[Assembly, RunDirectory]], watcher: Watcher) -> None:
    server_app, over = ServerApp(), threading.Event()

    @server_app.main()  # type: ignore[untyped-decorator]
    def main(grid: Grid, context: Context) -> None:
        with one_thread():  # this is another thread than the caller's
            for assembly, directory in waiting:
                about = {
                    "settings": json.dumps(assembly.settings.to_json()),
                    "classes": json.dumps(assembly.classes),
                    "keep": str(directory.client_states.root),
                }
                Trial(assembly, directory, RayEngine(grid, about, list(assembly.sites), over), watcher).run()

    on_gpu = any(assembly.plan.device.startswith("cuda") for assembly, _ in waiting)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    nodes = max(len(assembly.sites) for assembly, _ in waiting)
    start: dict[str, Any] = {} if os.environ.get("RAY_ADDRESS") else {"num_cpus": min(cores, nodes)}
    try:
        with _quiet():
            run_flower(
                server_app=server_app,
                client_app=client_app,
                num_supernodes=nodes,
                backend_config={
                    "client_resources": {"num_cpus": 1, "num_gpus": 1.0 if on_gpu else 0.0},
                    "init_args": {**start, "logging_level": logging.ERROR, "log_to_driver": False},
                },
            )
    except RuntimeError as error:
        # Flower's words around what went wrong; an error of the run itself comes bare.
        if "Ending simulation" not in str(error):
            raise
        raise UserError(
            f"The simulation broke off: {_root(error)} On a busy machine Ray may not come up in time: try again, start a "
            f"Ray of your own (docs/flower.md), or take --engine local."
        ) from error
    finally:
        over.set()  # the server's thread would wait for ever, and the process for it


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
