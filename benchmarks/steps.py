"""Step and inference time of every method, as ratios to FedAvg measured side by side in one run (FedFD-A Table 4,
StableFDG Table 6).

python benchmarks/steps.py [--backbone resnet18] [--methods fedavg,fedfd]
"""

from __future__ import annotations

import argparse

from unseen.bench.cost import measure_costs
from unseen.errors import UserError
from unseen.registry import registered


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default="", help="with commas; all that can be built on the backbone without it")
    parser.add_argument("--backbone", default="convnet")
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    chosen = parser.parse_args()
    options = {"backbone": chosen.backbone, "image_size": chosen.image_size, "batch_size": chosen.batch_size}
    names = [name for name in chosen.methods.split(",") if name] or fitting(options)
    for one in measure_costs(names, **options, repeats=chosen.repeats):
        print(
            f"{one.method:14s} step {one.step_ratio:5.2f}  inference {one.inference_ratio:5.2f}  "
            f"{one.parameters:>12,} parameters  {one.bytes_up / 1e6:8.3f} MB up  {one.bytes_down / 1e6:8.3f} MB down"
        )


def fitting(options: dict[str, object]) -> list[str]:
    """Methods that run on this backbone; the others are named with the reason."""
    found = []
    for name in registered():
        try:
            measure_costs([name], **options, steps=1, repeats=1)  # type: ignore[arg-type]
            found.append(name)
        except UserError as error:
            print(f"{name:14s} left out: {error}")
    return found


if __name__ == "__main__":
    main()
