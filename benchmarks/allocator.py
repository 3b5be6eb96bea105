"""Training steps with and without `keep_freed_memory`, alternating processes in one run.

python benchmarks/allocator.py
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
from speed import keep, keep_option

from unseen.core.platform import ask_for_kernels, keep_freed_memory
from unseen.nets.backbones import create_net


def measure(kept: bool, backbone: str, size: int, steps: int, precision: str = "float32") -> None:
    ask_for_kernels(precision)
    torch.set_num_threads(1)
    if kept:
        keep_freed_memory()
    net = create_net(backbone, 7, image_size=size)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    x, y = torch.rand(32, 3, size, size), torch.arange(32) % 7
    seconds = []
    for _ in range(steps + 2):
        began = time.process_time()
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bfloat16"):  # as a run's steps
            loss = F.cross_entropy(net(x), y)
            loss.backward()
        optimizer.step()
        seconds.append(time.process_time() - began)
    print(statistics.median(seconds[2:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="mobilenetv2_100")
    parser.add_argument("--image-size", type=int, default=112)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--measure", choices=["kept", "default"], help=argparse.SUPPRESS)
    keep_option(parser)
    chosen = parser.parse_args()
    if chosen.measure:
        measure(chosen.measure == "kept", chosen.backbone, chosen.image_size, chosen.steps)
        return
    found: dict[str, list[float]] = {"default": [], "kept": []}
    for _ in range(2):
        for kind, seconds in found.items():
            command = [sys.executable, __file__, *sys.argv[1:], "--measure", kind]
            seconds.append(float(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    default, kept = min(found["default"]), min(found["kept"])
    print(
        f"{chosen.backbone} at {chosen.image_size} px, batch 32, one thread: {default:.3f} s per step, "
        f"{kept:.3f} s with freed memory kept: {default / kept:.2f}x"
    )
    if chosen.keep:
        shown = {"backbone": chosen.backbone, "image_size": chosen.image_size, "steps": chosen.steps}
        keep("allocator", {**shown, "default": default, "kept": kept})


if __name__ == "__main__":
    main()
