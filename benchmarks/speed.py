"""What the benchmarks of speed have in common: CPU time, and records of what was measured.

    python benchmarks/speed.py --methods all [--backbone convnet] [...]     # `unseen cost`, with a record

`benchmarks/{overhead,clients,store,allocator,kernels}.py --keep` write their records too, each as
benchmarks/results/speed/NAME.json; `make results` makes the tables of docs/speed.md of them.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from unseen.core.files import write_json
from unseen.core.platform import ask_for_kernels, cores, source_version

RECORDS = Path(__file__).parent / "results" / "speed"


def cpu_seconds() -> float:
    """Of this process and of its children that have ended: other work on the machine does not count."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def keep_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keep", action="store_true", help="write a record to benchmarks/results/speed")


def keep(name: str, found: Mapping[str, Any]) -> None:
    """A record: what was found, by which command and commit, on which machine and how busy it was."""
    about = {
        "command": " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
        "commit": source_version(),
        "cpu": cpu_name(),
        "cores": cores(),
        "load": round(os.getloadavg()[0], 1),  # processes that wanted a core, over the last minute
    }
    write_json(RECORDS / f"{name}.json", {**about, **found})


def cpu_name() -> str:
    told = Path("/proc/cpuinfo")
    lines = told.read_text().splitlines() if told.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def main() -> None:
    from unseen.experiments.cost import measure_costs

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default="all")
    parser.add_argument("--backbone", default="convnet")
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5)
    keep_option(parser)
    chosen = parser.parse_args()
    left_out = []

    def said(sentence: str) -> None:
        print(sentence, file=sys.stderr, flush=True)
        if sentence.startswith("left out: "):
            left_out.append(sentence.removeprefix("left out: "))

    settings = {key: value for key, value in vars(chosen).items() if key not in ("methods", "keep")}
    costs = measure_costs(chosen.methods.split(","), **settings, said=said)
    for one in costs:
        print(f"{one.method:16} step {one.step_ratio:.2f}x, inference {one.inference_ratio:.2f}x")
    if chosen.keep:
        rows = [asdict(one) for one in costs]
        keep(f"cost-{chosen.backbone}", {"settings": settings, "left_out": left_out, "methods": rows})


if __name__ == "__main__":
    ask_for_kernels()
    main()
