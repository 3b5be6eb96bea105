"""Runs by their settings, for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unseen.engines.local import open_local
from unseen.runs.directory import RunDirectory
from unseen.runs.progress import Silent, Watcher
from unseen.runs.protocols import protocol_named
from unseen.runs.run import Assembly, PlannedRun, Result, assemble, load_data, run
from unseen.runs.settings import Settings, settings_of


def settings(
    *,
    method: str = "fedavg",
    target: str = "street",
    protocol: str | None = None,
    seed: int | None = None,
    fields: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Settings:
    """A protocol with changes, by their names on the command line."""
    chosen = protocol_named(changes.get("data"), protocol)
    return settings_of(chosen, method=method, target=target, seed=seed, fields=fields, changes=changes)


def run_local(chosen: Settings, *, out: Path | None = None, workers: int = 1, watcher: Watcher | None = None) -> Result:
    directory = RunDirectory.of(chosen, out) if out is not None else None
    return run(PlannedRun.of(chosen), open_local(workers), directory=directory, watcher=watcher)


def assembled(chosen: Settings) -> Assembly:
    planned = PlannedRun.of(chosen)
    return assemble(planned, load_data(planned, Silent()))


def simulate(todo: Sequence[Settings], out: Path, watcher: Watcher | None = None) -> list[Result]:
    """Runs on one start of Ray."""
    from unseen.engines.flower.simulation import simulation

    planned = [PlannedRun.of(chosen) for chosen in todo]
    nodes = max(len(load_data(one, Silent()).sites) for one in planned)
    with simulation(nodes) as opened:
        return [
            run(one, opened, directory=RunDirectory.of(one.settings, out.resolve()), watcher=watcher) for one in planned
        ]
