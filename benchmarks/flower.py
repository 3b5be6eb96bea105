"""What Flower costs: seconds per round of a 10 MB model with three clients, on the local engine, on Ray and deployed.

    python -m benchmarks.flower [--rounds 5] [--no-simulation]

One step of four small images per round, so that the time is the engine's. Prints a table; nothing is kept.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from tests.engines.deployment import Federation
from tests.engines.sites import SITES, draw_sites, small
from tests.small_runs import run_local, simulate

from unseen.runs.progress import Silent

NET: dict[str, Any] = {
    "backbone": "mobilenetv2_100",
    "image_size": 32,
    "local_steps": 1,
    "batch_size": 4,
    "server_selection": "last",
    "minimum_clients": 3,
}


class Clock(Silent):
    """When each round ended."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def round(self, line: dict[str, Any]) -> None:
        self.times.append(time.monotonic())


def per_round(times: list[float]) -> float:
    """The median time between two rounds: the first, with all that starts up, is not among them."""
    return median(b - a for a, b in pairwise(times))


def deployed(folder: Path, rounds: int) -> tuple[float, float]:
    """(seconds per round, seconds until the first round ended)."""
    settings = small(folder / "data", "fedavg", "flower", rounds=rounds, **NET).with_changes({"root": None})
    federation = Federation(folder / "deployment", folder / "data", SITES, settings)
    began, times = time.monotonic(), list[float]()
    try:
        federation.open()
        run = federation.begin()
        for number in range(1, rounds + 1):
            federation.until(lambda number=number: len(federation.rounds()) >= number, f"round {number}")  # type: ignore[misc]
            times.append(time.monotonic())
        federation.finish(run)
    finally:
        federation.close()
    return per_round(times), times[0] - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--no-simulation", action="store_true", help="without Ray, which does not start on a busy machine"
    )
    given = parser.parse_args()
    rounds = given.rounds
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["UNSEEN_CACHE"] = str(folder / "cache")
        draw_sites(folder / "data")
        rows: list[tuple[str, float, float]] = []
        for engine in ("local",) if given.no_simulation else ("local", "flower"):
            clock, began = Clock(), time.monotonic()
            settings = small(folder / "data", "fedavg", engine, rounds=rounds, **NET)
            if engine == "local":
                result = run_local(settings, out=folder / "runs", watcher=clock)
                print(f"{result.record.bytes_up / 1e6:.1f} MB up per client and round")
            else:
                simulate([settings], folder / "runs", clock)
            rows.append((engine, per_round(clock.times), clock.times[0] - began))
        rows.append(("deployment", *deployed(folder, rounds)))
    base = rows[0][1]
    print(f"{'engine':12}{'s per round':>12}{'overhead':>12}{'first round after':>20}")
    for engine, seconds, first in rows:
        print(f"{engine:12}{seconds:12.2f}{seconds - base:12.2f}{first:18.1f} s")


if __name__ == "__main__":
    main()
