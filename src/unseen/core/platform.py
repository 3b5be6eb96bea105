"""The machine: its cores, signals, memory that is kept when freed, and the kernels that compute.

Nothing here happens by an import: whoever starts a run asks for it, and it then holds for this process and its children.

**The CPU's own kernels**, summed in one order. torch, oneDNN, MKL and OpenBLAS look at the CPU and take the widest kernels
it has; MKL is asked to sum in an order that depends on nothing else. So a run has the same bits on every machine with that
model of CPU. Between two models the last bits differ, and training makes points of accuracy of the last digit: a result names
its CPU and its kernels. `UNSEEN_CPU=avx2` asks all four for AVX2's kernels on every x86-64 CPU. It brings machines closer
together, not always to the same bits, and training takes 1.2 to 1.6 times as long on a CPU with AVX-512
(benchmarks/kernels.py), so it is not the default.

**Freed memory is kept.** glibc gives blocks over 32 MB back to the system as soon as they are freed, and a new one comes
as untouched pages. A training step frees and asks for dozens of them: on one CPU thread, MobileNetV2 at 112 px in batches
of 32 trains about 1.5 times as fast with this (benchmarks/allocator.py).
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# --- cores and memory ------------------------------------------------------------------------------------------------
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
NEVER = 2**31 - 1


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keep_freed_memory() -> bool:
    """For this process and its children; returns whether the C library took it: glibc does, others may not."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, NEVER)) and bool(mallopt(M_TRIM_THRESHOLD, NEVER))


def end_as_interrupted() -> None:
    """SIGTERM as Ctrl-C: what is under way ends cleanly, with its children. Only a main thread can ask for it."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)


# --- code ------------------------------------------------------------------------------------------------------------
@cache
def source_version() -> str:
    """The commit of the source tree this runs from, with a + if it has changes; else the installed version."""
    tree = Path(__file__).resolve().parents[3]
    if (tree / ".git").exists():
        try:
            found = subprocess.run(
                ["git", "-C", str(tree), "describe", "--always", "--dirty=+", "--abbrev=7"],
                capture_output=True,
                text=True,
                check=True,
                timeout=10,
            )
            return found.stdout.strip()
        except (OSError, subprocess.SubprocessError):
            pass
    import unseen

    return unseen.__version__


# --- kernels ---------------------------------------------------------------------------------------------------------
CAPABILITY = "ATEN_CPU_CAPABILITY"  # torch's own
SETTINGS = {
    "native": {"MKL_CBWR": "AUTO"},
    "avx2": {
        CAPABILITY: "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_CBWR": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",  # numpy's and scipy's; read when they are imported, the others at the first sum
    },
    # bfloat16 on AVX-512, where the CPU reports AMX but ends a process that uses it (some virtual machines).
    "without amx": {"MKL_CBWR": "AUTO", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"},
}
VARIABLES = tuple(SETTINGS["avx2"])  # all that may be set here
# Names the variables above that were set here and not by the user: a child process may then take them back.
OURS = "UNSEEN_CPU_VARIABLES"
# torch's names for the kernels, the widest first, and what a CPU must have for them.
LEVELS = {"AVX512": {"avx512vl", "avx512bw", "avx512dq", "fma"}, "AVX2": {"avx2", "fma"}}
TRY_BFLOAT16 = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); x @ x"
BFLOAT16 = {"avx512_bf16", "amx_bf16", "avx_ne_convert", "bf16"}  # instructions; the last is ARM's


@dataclass(frozen=True)
class Kernels:
    """Which kernels compute in this process."""

    asked: str  # "native", "avx2", or what the user has set ATEN_CPU_CAPABILITY to
    used: str  # torch's word for those it has taken: DEFAULT, AVX2, AVX512, ...
    remark: str  # what a user should know of them, in sentences; mostly empty


def prepare_process(precision: str = "float32", device: str = "cpu") -> Kernels:
    """Ask for the kernels of a run, before torch computes anything, and say which there are."""
    ask_for_kernels(precision, device)
    return kernels_used(precision, device)


def ask_for_kernels(precision: str = "float32", device: str = "cpu") -> None:
    """Set the variables that the libraries read, or take back those set for an earlier run; torch is not imported.

    Who has set one of the variables is obeyed.
    """
    for name in os.environ.pop(OURS, "").split():
        if os.environ.get(name) in {
            values.get(name) for values in SETTINGS.values()
        }:  # else the user has changed it since
            os.environ.pop(name, None)
    if "avx2" not in cpu_flags():
        return
    # By AVX2's kernels, bfloat16 is more than ten times as slow as float32.
    avx2 = os.environ.get("UNSEEN_CPU") == "avx2" and not _by_bfloat16(precision, device)
    wanted = SETTINGS["avx2" if avx2 else "without amx" if _lacks_amx(precision, device) else "native"]
    missing = [name for name in wanted if name not in os.environ]
    os.environ.update({name: wanted[name] for name in missing})
    if missing:
        os.environ[OURS] = " ".join(missing)


def kernels_used(precision: str = "float32", device: str = "cpu") -> Kernels:
    """The kernels that torch computes by; after this call it has chosen them for good."""
    import torch

    used = torch.backends.cpu.get_cpu_capability()
    asked = os.environ.get(CAPABILITY, "native")
    flags, remarks = cpu_flags(), []
    expected = _native(flags) if asked == "native" else "AVX2" if asked == "avx2" and "avx2" in flags else ""
    if expected and used != expected:
        remarks.append(
            f"{expected}'s kernels were asked for too late: torch had computed before in this process and keeps "
            f"{used}'s, so the numbers may differ in the last digits; start the run in a new process."
        )
    if _by_bfloat16(precision, device) and flags and not flags & BFLOAT16:
        remarks.append("This CPU has no bfloat16 instructions: float32 is faster on it.")
    if _lacks_amx(precision, device):
        remarks.append("This machine reports AMX but ends programs that use it, so bfloat16 runs on AVX-512 instead.")
    return Kernels(asked, used, " ".join(remarks))


def _by_bfloat16(precision: str, device: str) -> bool:
    return precision == "bfloat16" and device.partition(":")[0] == "cpu"


def _lacks_amx(precision: str, device: str) -> bool:
    """Whether bfloat16 would end this process, as the CPU reports AMX and cannot do it. Tried in a process of its own."""
    if not _by_bfloat16(precision, device) or "amx_tile" not in cpu_flags():
        return False
    if os.environ.get("ONEDNN_MAX_CPU_ISA"):  # the user's own, or set here before
        return os.environ["ONEDNN_MAX_CPU_ISA"] == SETTINGS["without amx"]["ONEDNN_MAX_CPU_ISA"]
    return _dies(TRY_BFLOAT16)


@cache
def _dies(code: str) -> bool:
    """Whether a signal ends a new Python process with this code."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120).returncode < 0


def _native(flags: frozenset[str]) -> str:
    """What torch takes on this CPU by itself; empty where it is not known."""
    if platform.machine() not in ("x86_64", "AMD64") or not flags:
        return ""
    return next((name for name, needed in LEVELS.items() if needed <= flags), "DEFAULT")


def cpu() -> str:
    """Which CPU computes, as "GenuineIntel 6-207" (vendor, family, model); elsewhere than on x86 Linux, what there is."""
    about = _cpuinfo()
    named = " ".join(filter(None, [about.get("vendor_id"), f"{about.get('cpu family', '')}-{about.get('model', '')}"]))
    return named if "vendor_id" in about else platform.machine()


def cpu_flags() -> frozenset[str]:
    """What the CPU can do, as Linux names it; nothing on other systems, where nothing is changed."""
    about = _cpuinfo()
    return frozenset(about.get("flags", about.get("Features", "")).split())


def _cpuinfo() -> dict[str, str]:
    """Linux's words about the first core; nothing on other systems."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}
