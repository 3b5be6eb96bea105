"""An exported model beside torch: seconds per batch on one thread, as a ratio.

    python benchmarks/export.py [METHOD ...]

Both take turns, several times, and the fastest of each counts. Below 1, the exported one is faster.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import onnxruntime
import torch

from unseen.delivery.graph import to_onnx
from unseen.nets.backbones import create_net
from unseen.registry import parse

METHODS = ("fedavg", "fedfd-a", "gperxan", "dson", "stablefdg")
NETS = (("convnet", 32, None, 64), ("mobilenetv2_100", 112, 256, 8))  # backbone, image size, neck, batch
REPEATS = 7


def best(turns: dict[str, Callable[[], object]]) -> dict[str, float]:
    found = dict.fromkeys(turns, float("inf"))
    for _ in range(REPEATS):
        for name, work in turns.items():
            started = time.process_time()
            work()
            found[name] = min(found[name], time.process_time() - started)
    return found


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    print("| net | method | torch, ms | exported, ms | exported / torch |\n|---|---|---:|---:|---:|")
    for backbone, size, neck, batch in NETS:
        for name in names:
            method = parse(name)
            torch.manual_seed(0)
            net = method.build(create_net(backbone, 7, image_size=size, bottleneck=neck)).eval()
            session = onnxruntime.InferenceSession(to_onnx(method, net), options, providers=["CPUExecutionProvider"])
            x = torch.rand(batch, 3, size, size)
            numbers = x.numpy()

            def by_torch(method=method, net=net, x=x) -> None:  # type: ignore[no-untyped-def]
                with torch.inference_mode():
                    method.predict(net, x)

            def exported(session=session, numbers=numbers) -> None:  # type: ignore[no-untyped-def]
                session.run(None, {"images": numbers})

            took = best({"torch": by_torch, "exported": exported})
            ratio = took["exported"] / took["torch"]
            print(
                f"| {backbone}, {size} px, batch {batch} | {name} | {1e3 * took['torch']:.1f} | "
                f"{1e3 * took['exported']:.1f} | {ratio:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1:] or list(METHODS))
