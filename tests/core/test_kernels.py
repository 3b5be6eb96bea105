"""AVX2's kernels on every x86-64 CPU that has them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from unseen.core import kernels

ASK = "import unseen, os, torch; torch.rand(3) @ torch.rand(3); print(torch.backends.cpu.get_cpu_capability())"
needs_avx2 = pytest.mark.skipif(not kernels._has_avx2(), reason="this CPU has no AVX2, or is not known to have it")


def asked(code: str, **variables: str) -> str:
    own = {name: value for name, value in os.environ.items() if name not in {*kernels.SETTINGS, "UNSEEN_CPU"}}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**own, **variables})
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@needs_avx2
def test_torch_takes_avx2s_kernels_also_if_it_was_imported_first() -> None:
    assert asked(ASK) == "AVX2"
    assert asked(f"import torch; {ASK}") == "AVX2"


@needs_avx2
def test_who_asks_for_others_gets_them() -> None:
    assert asked(ASK, ATEN_CPU_CAPABILITY="default") == "DEFAULT"
    native = asked("import torch; print(torch.backends.cpu.get_cpu_capability())")
    assert asked(ASK, UNSEEN_CPU="native") == native


def test_another_kind_of_cpu_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in kernels.SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(kernels.platform, "machine", lambda: "arm64")
    assert not kernels.same_everywhere()
    assert not set(kernels.SETTINGS) & set(os.environ)
