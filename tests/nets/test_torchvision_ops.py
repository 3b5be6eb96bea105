"""The operators are declared when missing, and a working install is left alone. Each in a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_timm_is_imported_with_the_operators_declared_and_not_earlier() -> None:
    out = run(
        "import torch, unseen.nets.backbones\n"
        "print(hasattr(torch.ops.torchvision, 'nms'))\n"
        "from unseen.nets.timm_backbones import timm\n"
        "print(hasattr(torch.ops.torchvision, 'nms'), timm.is_model('resnet18'))\n"
    )
    assert out.split() == ["False", "True", "True"]


def test_nothing_is_declared_when_the_operators_exist() -> None:
    out = run(
        "import torch\n"
        "library = torch.library.Library('torchvision', 'DEF')\n"
        "library.define('nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor')\n"
        "library.define('qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor')\n"
        "library.impl('nms', lambda dets, scores, threshold: scores + threshold, 'CPU')\n"
        "from unseen.nets import torchvision_ops\n"
        "print(torchvision_ops.declare_missing_operators(), len(torchvision_ops._libraries))\n"
        "print(float(torch.ops.torchvision.nms(torch.ones(1), torch.ones(1), 0.5)))\n"
    )
    assert out.split() == ["False", "0", "1.5"]


def test_a_compiled_library_that_loads_is_used() -> None:
    """Stand-in for a proper install: `load_library` brings the operators, as torchvision's own would."""
    out = run(
        "import torch\n"
        "kept = []\n"
        "def load_library(path):\n"
        "    kept.append(torch.library.Library('torchvision', 'DEF'))\n"
        "    for name in ('nms', 'qnms'):\n"
        "        kept[0].define(name + '(Tensor dets, Tensor scores, float iou_threshold) -> Tensor')\n"
        "torch.ops.load_library = load_library\n"
        "from unseen.nets import torchvision_ops\n"
        "print(torchvision_ops.declare_missing_operators(), len(kept), len(torchvision_ops._libraries))\n"
    )
    assert out.split() == ["False", "1", "0"]


def test_asking_again_changes_nothing() -> None:
    out = run(
        "import torch\n"
        "from unseen.nets import torchvision_ops as ops\n"
        "ops.declare_missing_operators()\n"
        "before = len(ops._libraries)\n"
        "print(ops.operators_exist(), ops.declare_missing_operators(), len(ops._libraries) == before)\n"
        "print(str(torch.ops.torchvision.nms.default._schema).startswith('torchvision::nms('))\n"
    )
    assert out.split() == ["True", "False", "True", "True"]
