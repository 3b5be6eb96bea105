"""The same kernels on every x86-64 CPU, so that a run has the same bits on another machine.

torch, oneDNN, MKL and OpenBLAS look at the CPU and take the widest kernels it has. Those of AVX-512 sum in another order
than those of AVX2, and training makes points of accuracy of the last digit: FedAvg on `digits` (unseen colour, seed 0) has
78.95 % by AVX2's and 80.40 % by AVX-512's. x86-64 CPUs have had AVX2 for ten years, so its kernels are taken where it is.
`UNSEEN_CPU=native` takes the CPU's own instead; docs/speed.md has what that is worth.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

SETTINGS = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_CBWR": "AVX2",
    "OPENBLAS_CORETYPE": "Haswell",
}


def same_everywhere() -> bool:
    """For this process and its children, if torch has not computed yet. Returns whether it was asked of the libraries.

    Who has set one of the variables is obeyed.
    """
    if os.environ.get("UNSEEN_CPU") == "native" or not _has_avx2():
        return False
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    return True


def _has_avx2() -> bool:
    """As far as it can be known without a library: on other systems than Linux nothing is changed."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    try:
        return " avx2 " in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
