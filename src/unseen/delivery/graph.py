"""A method's prediction as an ONNX graph: what `method.predict(net, x)` computes in eval mode, and nothing around it.

The graph takes images in [0, 1], float32, B x 3 x S x S, any B, and gives logits, B x K, float32. Pixel normalisation,
adaptation to the image and votes of branches are inside, because they are inside `predict`.
"""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from unseen.core.errors import UserError
from unseen.method import Method
from unseen.nets.net import Net

INPUT, OUTPUT = "images", "logits"
NEEDED = ("onnx", "onnxscript")


class Predictor(nn.Module):
    """`method.predict` as a module, which is what torch exports."""

    def __init__(self, method: Method, net: Net) -> None:
        super().__init__()
        self.method, self.net = method, net

    def forward(self, images: Tensor) -> Tensor:
        return self.method.predict(self.net, images).float()


@contextmanager
def decided(net: nn.Module) -> Iterator[None]:
    """Inside, integer state is constant: it decides what is computed (which branches are there), as an `if` does."""
    held = [
        (module, name, buffer)
        for module in net.modules()
        for name, buffer in module.named_buffers(recurse=False)
        if not buffer.is_floating_point()
    ]
    for module, name, buffer in held:
        del module._buffers[name]
        setattr(module, name, buffer)
    try:
        yield
    finally:
        for module, name, buffer in held:
            delattr(module, name)
            module._buffers[name] = buffer


def to_onnx(method: Method, net: Net) -> bytes:
    """The graph, as the bytes of a .onnx file."""
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise UserError(f"Exporting needs {' and '.join(missing)}: `pip install unseen[export]`.")
    images = torch.zeros(2, 3, net.image_size, net.image_size)  # two: with one, the exporter takes the batch for fixed
    predictor = Predictor(method, net).eval()
    with torch.no_grad(), decided(net), _quiet():
        # Not strict: Python runs the method's own code once and notes what was computed. Strict reads its bytecode,
        # which knows no `with ruled(...)`.
        batch = torch.export.Dim("batch")
        traced = torch.export.export(predictor, (images,), dynamic_shapes=({0: batch},), strict=False)
        program = torch.onnx.export(
            traced, (), dynamo=True, input_names=[INPUT], output_names=[OUTPUT], verbose=False, optimize=True
        )
    assert program is not None
    graph: bytes = program.model_proto.SerializeToString()
    return graph


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter speaks of its own registries."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    before = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
