"""Training steps by AVX2's kernels (`UNSEEN_CPU=avx2`) against the CPU's own, alternating processes in one run.

python benchmarks/kernels.py
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from allocator import measure
from speed import keep, keep_option

from unseen.core.platform import OURS, VARIABLES

NETS = {"convnet": 32, "mobilenetv2_100": 112, "resnet18": 112}  # and their image sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--measure", choices=list(NETS), help=argparse.SUPPRESS)
    keep_option(parser)
    chosen = parser.parse_args()
    if chosen.measure:
        measure(True, chosen.measure, NETS[chosen.measure], chosen.steps)
        return
    record = {}
    for net, size in NETS.items():
        found: dict[str, list[float]] = {"native": [], "avx2": []}
        command = [sys.executable, __file__, "--measure", net, "--steps", str(chosen.steps)]
        for _ in range(2):
            for cpu, seconds in found.items():
                environment = {k: v for k, v in os.environ.items() if k not in {*VARIABLES, OURS}} | {"UNSEEN_CPU": cpu}
                done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
                seconds.append(float(done.stdout))
        own, same = min(found["native"]), min(found["avx2"])
        record[net] = {"image_size": size, "avx2": same, "native": own}
        print(
            f"{net} at {size} px, batch 32: {1e3 * same:.1f} ms a step, {1e3 * own:.1f} by the CPU's own: {same / own:.2f}x"
        )
    if chosen.keep:
        keep("kernels", {"nets": record})


if __name__ == "__main__":
    main()
