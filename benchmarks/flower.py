"""What Flower costs: seconds per round of a 10 MB model with three clients, on the local engine, on Ray and deployed.

    python -m benchmarks.flower [--rounds 5] [--no-simulation]      # keeps benchmarks/results/speed/flower.json
    python benchmarks/results.py write                              # the table in docs/flower.md

One step of four small images per round, so that the time is the engine's. The last row is `unseen flower poc`, from the
command to the end of its first round, with a small net; the other deployment has the tests' patient SuperLink.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from tests.engines.deployment import Federation
from tests.engines.sites import SITES, draw_sites, small
from tests.small_runs import run_local, simulate

from unseen.core.files import write_json
from unseen.core.platform import source_version
from unseen.runs.directory import find_runs
from unseen.runs.progress import Silent

RECORD = Path(__file__).parent / "results" / "speed" / "flower.json"
NET: dict[str, Any] = {
    "backbone": "mobilenetv2_100",
    "image_size": 32,
    "local_steps": 1,
    "batch_size": 4,
    "server_selection": "last",
    "minimum_clients": 3,
}


@dataclass(frozen=True)
class Row:
    engine: str
    first: float  # seconds from the start to the end of the first round
    seconds: float  # per round after it
    cpu: dict[str, float] = field(default_factory=dict)  # CPU seconds per round, by process of a deployment


class Clock(Silent):
    """When each round ended."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def round(self, line: dict[str, Any]) -> None:
        self.times.append(time.monotonic())


def row(engine: str, began: float, times: list[float]) -> Row:
    """The median time between two rounds: the first, with all that starts up, is not among them."""
    return Row(engine, round(times[0] - began, 2), round(median(b - a for a, b in pairwise(times)), 3))


def deployed(folder: Path, rounds: int) -> Row:
    settings = small(folder / "data", "fedavg", "flower", rounds=rounds, **NET).with_changes({"root": None})
    federation = Federation(folder / "deployment", folder / "data", SITES, settings)
    began, times = time.monotonic(), list[float]()
    try:
        federation.open()
        run = federation.begin()
        watch(times, lambda: len(federation.rounds()), 1)
        before = cpu_seconds(federation)
        watch(times, lambda: len(federation.rounds()), rounds - 1)
        after = cpu_seconds(federation)  # before the last round: then the ServerApp ends
        watch(times, lambda: len(federation.rounds()), rounds)
        federation.finish(run)
    finally:
        federation.close()
    per_round = {name: round((after[name] - spent) / (rounds - 2), 2) for name, spent in before.items()}
    return replace(row("deployment (TLS, keys, nginx, 3 sites, 1 machine)", began, times), cpu=per_round)


def cpu_seconds(federation: Federation) -> dict[str, float]:
    """CPU seconds so far, by process; the sites together."""
    processes = [(name, one.pid) for name, one in federation.processes.items()]
    processes += [("ServerApp", process) for process in federation.server_apps()]
    found: dict[str, float] = {}
    for name, process in processes:
        words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        label = {"superlink": "SuperLink"}.get(name, "sites together" if name.startswith("node-") else name)
        ticks = int(words[11]) + int(words[12])  # in user and in system mode
        found[label] = found.get(label, 0.0) + ticks / os.sysconf("SC_CLK_TCK")
    return found


def trial(folder: Path, rounds: int) -> Row:
    """`unseen flower poc`, as a user types it."""
    out = folder / "poc"
    words = ["--root", folder / "data", "--sites", ",".join(SITES), "--protocol", "digits", "--image-size", 16]
    words += ["--rounds", rounds, "--local-steps", 1, "--batch-size", 4, "--server-selection", "last", "--out", out]
    began, times = time.monotonic(), list[float]()
    process = subprocess.Popen([sys.executable, "-m", "unseen", "flower", "poc", *map(str, words)])
    try:
        watch(
            times, lambda: max((len(run.rounds()) for run in find_runs(out)), default=0) if out.exists() else 0, rounds
        )
        process.wait(120)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
    return row("`unseen flower poc` (a small net)", began, times)


def watch(times: list[float], done: Any, rounds: int) -> None:
    """Until so many rounds are done, the moment of each."""
    end = time.monotonic() + 600
    while len(times) < rounds:
        if time.monotonic() > end:
            raise SystemExit(f"round {len(times) + 1} did not come within 600 s")
        times += [time.monotonic()] * (done() - len(times))
        time.sleep(0.02)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="3 or more")
    parser.add_argument(
        "--no-simulation", action="store_true", help="without Ray, which does not start on a busy machine"
    )
    given = parser.parse_args()
    rounds = given.rounds
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["UNSEEN_CACHE"] = str(folder / "cache")
        draw_sites(folder / "data")
        rows: list[Row] = []
        for engine in ("local",) if given.no_simulation else ("local", "flower"):
            clock, began = Clock(), time.monotonic()
            settings = small(folder / "data", "fedavg", engine, rounds=rounds, **NET)
            if engine == "local":
                result = run_local(settings, out=folder / "runs", watcher=clock)
                megabytes = round(result.record.bytes_up / 1e6, 1)
            else:
                simulate([settings], folder / "runs", clock)
            rows.append(row("local" if engine == "local" else "Flower simulation (Ray)", began, clock.times))
        rows += [deployed(folder, rounds), trial(folder, rounds)]
    record = {
        "commit": source_version(),
        "rounds": rounds,
        "megabytes": megabytes,
        "cores": os.cpu_count(),
        "load": load,
        "nice": os.nice(0),
    }
    write_json(RECORD, {**record, "rows": [asdict(one) for one in rows]})
    for one in rows:
        print(f"{one.engine:60}{one.seconds:8.2f} s per round, the first after {one.first:.1f} s")


if __name__ == "__main__":
    main()
