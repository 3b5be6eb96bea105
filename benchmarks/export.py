"""An exported model beside torch: seconds per batch on one thread, as a ratio.

    python benchmarks/export.py [METHOD ...]

Both take turns, several times, and the fastest of each counts. Below 1, the exported one is faster. Beside them, the numbers
of the look, which both need. Each by its library's own choice of kernels. Writes benchmarks/results/export.json.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import onnxruntime
import torch

from unseen.core.files import write_json
from unseen.core.look import look_of
from unseen.delivery.graph import to_onnx
from unseen.nets.backbones import create_net
from unseen.registry import parse

METHODS = ("fedavg", "fedfd-a", "gperxan", "dson", "stablefdg")
NETS = (("convnet", 32, None, 64), ("mobilenetv2_100", 112, 256, 8))  # backbone, image size, neck, batch
REPEATS = 7
RECORD = Path(__file__).parent / "results" / "export.json"


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
    rows = []
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

            took = best({"torch": by_torch, "exported": exported, "look": lambda numbers=numbers: look_of(numbers)})
            rows.append({"backbone": backbone, "image_size": size, "batch": batch, "method": name, "seconds": took})
            print(backbone, name, f"{took['exported'] / took['torch']:.2f}", flush=True)
    versions = {"torch": torch.__version__, "onnxruntime": onnxruntime.__version__}
    write_json(RECORD, {"kernels": torch.backends.cpu.get_cpu_capability(), "versions": versions, "rows": rows})


if __name__ == "__main__":
    main(sys.argv[1:] or list(METHODS))
