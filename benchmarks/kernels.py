"""Training steps by AVX2's kernels (`UNSEEN_CPU=avx2`) and in bfloat16 against the CPU's own in float32, in turns.

    python benchmarks/kernels.py

bfloat16 is left out where the CPU has no instructions for it: by others it is many times slower.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from allocator import measure
from speed import keep, keep_option

from unseen.core.platform import BFLOAT16, OURS, VARIABLES, cpu_flags

NETS = {"convnet": 32, "mobilenetv2_100": 112, "resnet18": 112}  # and their image sizes
KINDS = ("native", "avx2", "bfloat16")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--measure", choices=list(NETS), help=argparse.SUPPRESS)
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32", help=argparse.SUPPRESS)
    keep_option(parser)
    chosen = parser.parse_args()
    if chosen.measure:
        measure(True, chosen.measure, NETS[chosen.measure], chosen.steps, chosen.precision)
        return
    record = {}
    kinds = [kind for kind in KINDS if kind != "bfloat16" or cpu_flags() & BFLOAT16]
    for net, size in NETS.items():
        found: dict[str, list[float]] = {kind: [] for kind in kinds}
        command = [sys.executable, __file__, "--measure", net, "--steps", str(chosen.steps)]
        for _ in range(2):
            for kind, seconds in found.items():
                environment = {k: v for k, v in os.environ.items() if k not in {*VARIABLES, OURS}}
                environment["UNSEEN_CPU"] = "avx2" if kind == "avx2" else "native"
                precision = ["--precision", "bfloat16"] if kind == "bfloat16" else []
                done = subprocess.run(
                    [*command, *precision], capture_output=True, text=True, check=True, env=environment
                )
                seconds.append(float(done.stdout))
        best = {kind: min(seconds) for kind, seconds in found.items()}
        record[net] = {"image_size": size, **best}
        print(
            f"{net} at {size} px, batch 32, by the CPU's own kernels: {1e3 * best['native']:.1f} ms a step; "
            + ", ".join(f"{kind} {best[kind] / best['native']:.2f}x" for kind in kinds if kind != "native"),
            flush=True,
        )
    if chosen.keep:
        keep("kernels", {"nets": record})


if __name__ == "__main__":
    main()
