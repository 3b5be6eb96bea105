"""The machine: imports leave the process alone; a run asks for kernels, in time or with a remark; children inherit it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from unseen.core import platform
from unseen.core.platform import OURS, SETTINGS, VARIABLES

needs_avx2 = pytest.mark.skipif(
    "avx2" not in platform.cpu_flags(), reason="this CPU has no AVX2, or is not known to have it"
)
needs_avx512 = pytest.mark.skipif(platform._native(platform.cpu_flags()) != "AVX512", reason="this CPU has no AVX-512")

PREPARE = "from unseen.core.platform import prepare_process; "
COMPUTE = "import torch; torch.rand(3) @ torch.rand(3); "
CAPABILITY = "torch.backends.cpu.get_cpu_capability()"


def python(code: str, **variables: str) -> str:
    """What a new process prints, whose user has set these variables and no others of ours."""
    own = {name: value for name, value in os.environ.items() if name not in {*VARIABLES, OURS, "UNSEEN_CPU"}}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**own, **variables})
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


ZYGOTE = """
import json, os, sys, torch
for line in sys.stdin:
    code, variables = json.loads(line)
    there, back = os.pipe()
    if not os.fork():
        os.dup2(back, 1)
        os.environ.update(variables)
        try:
            exec(code, {"__name__": "__main__"})
            sys.stdout.flush()
        finally:
            os._exit(0)
    os.close(back)
    with os.fdopen(there) as pipe:
        said = pipe.read()
    os.wait()
    print(json.dumps(said.strip()), flush=True)
"""


@pytest.fixture(scope="module")
def forked() -> Iterator[Callable[..., str]]:
    """As `python`, by a fork of one process that has imported torch and computed nothing: an import takes seconds."""
    own = {name: value for name, value in os.environ.items() if name not in {*VARIABLES, OURS, "UNSEEN_CPU"}}
    with subprocess.Popen(
        [sys.executable, "-c", ZYGOTE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=own
    ) as zygote:
        assert zygote.stdin is not None and zygote.stdout is not None

        def ask(code: str, **variables: str) -> str:
            zygote.stdin.write(json.dumps([code, variables]) + "\n")
            zygote.stdin.flush()
            said: str = json.loads(zygote.stdout.readline())
            return said

        yield ask
        zygote.stdin.close()


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """This process as if nobody had asked for anything; as it was afterwards."""
    for name in (*VARIABLES, OURS, "UNSEEN_CPU"):
        monkeypatch.setenv(name, "")  # remembered, so that it is put back whatever happens in between
        monkeypatch.delenv(name)
    monkeypatch.setattr(platform, "cpu_flags", lambda: frozenset({"avx2", "fma"}))
    return monkeypatch


def asked() -> dict[str, str]:
    return {name: os.environ[name] for name in VARIABLES if name in os.environ}


# --- imports ---------------------------------------------------------------------------------------------------------
def test_an_import_changes_neither_environment_nor_torchvision() -> None:
    code = (
        "import importlib, os, sys, torch, numpy\n"  # what these do themselves is not ours
        "before = dict(os.environ)\n"
        "for module in ('unseen', 'unseen.nets', 'unseen.nets.backbones', 'unseen.api', 'unseen.cli'):\n"
        "    importlib.import_module(module)\n"
        "    assert dict(os.environ) == before, (module, set(os.environ.items()) ^ set(before.items()))\n"
        "    found = [name for name in sys.modules if name.split('.')[0] in ('timm', 'torchvision')]\n"
        "    assert not found and not hasattr(torch.ops.torchvision, 'nms'), (module, found)\n"
    )
    python(code)


@needs_avx2
def test_no_import_makes_torch_choose_its_kernels() -> None:
    code = "import unseen.api, unseen.registry, os, torch; unseen.registry.registered(); "
    assert python(f"{code}os.environ['ATEN_CPU_CAPABILITY'] = 'default'; print({CAPABILITY})") == "DEFAULT"


# --- asking ----------------------------------------------------------------------------------------------------------
@needs_avx2
def test_torch_takes_the_cpus_own_kernels_and_mkl_sums_in_one_order(forked: Callable[..., str]) -> None:
    native = forked(f"import torch; print({CAPABILITY})")
    show = f"{PREPARE}import os; print(prepare_process(), os.environ['MKL_CBWR'], os.environ['{OURS}'])"
    assert forked(show) == f"Kernels(asked='native', used='{native}', remark='') AUTO MKL_CBWR"


@needs_avx2
def test_torch_takes_avx2s_kernels_also_if_it_was_imported_first(forked: Callable[..., str]) -> None:
    for new in (python, forked):  # the second has imported it
        said = new(f"{PREPARE}print(prepare_process())", UNSEEN_CPU="avx2")
        assert said == "Kernels(asked='avx2', used='AVX2', remark='')"
    assert forked(f"{PREPARE}prepare_process(); {COMPUTE}print({CAPABILITY})", UNSEEN_CPU="avx2") == "AVX2"


@needs_avx2
def test_who_asks_for_others_gets_them(forked: Callable[..., str]) -> None:
    show = f"{PREPARE}k = prepare_process(); print(k.asked, k.used, k.remark)"
    assert forked(show, ATEN_CPU_CAPABILITY="default") == "default DEFAULT"
    assert (
        forked(f"{PREPARE}import os; prepare_process(); print(os.environ['MKL_CBWR'])", MKL_CBWR="SSE4_2") == "SSE4_2"
    )


@needs_avx2
def test_torch_that_computed_before_is_told_of(forked: Callable[..., str]) -> None:
    """A torch that has chosen plain kernels stands for one that has chosen AVX-512's, which not every CPU has."""
    code = (
        f"import os; os.environ['ATEN_CPU_CAPABILITY'] = 'default'; {COMPUTE}del os.environ['ATEN_CPU_CAPABILITY']\n"
        f"{PREPARE}k = prepare_process(); print(k.asked, k.used, k.remark)"
    )
    said = forked(code, UNSEEN_CPU="avx2")
    assert said.startswith("avx2 DEFAULT AVX2's kernels were asked for too late: torch had computed before"), said


@needs_avx512
def test_torch_that_computed_before_by_avx512_is_told_of(forked: Callable[..., str]) -> None:
    said = forked(f"{COMPUTE}{PREPARE}k = prepare_process(); print(k.asked, k.used, k.remark)", UNSEEN_CPU="avx2")
    assert said.startswith("avx2 AVX512 AVX2's kernels were asked for too late"), said
    show = "k = prepare_process('bfloat16'); print(k.asked, k.used, k.remark)"
    said = forked(f"{PREPARE}prepare_process(); {show}", UNSEEN_CPU="avx2")
    assert said.startswith("native AVX2 AVX512's kernels were asked for too late"), said


def test_another_kind_of_cpu_is_left_alone(clean: pytest.MonkeyPatch) -> None:
    for flags in (frozenset(), frozenset({"asimd", "bf16"})):
        clean.setattr(platform, "cpu_flags", lambda flags=flags: flags)
        platform.ask_for_kernels()
        assert not asked() and OURS not in os.environ


def test_asking_does_not_import_torch() -> None:
    code = (
        "import sys; from unseen.core.platform import ask_for_kernels; ask_for_kernels(); print('torch' in sys.modules)"
    )
    assert python(code) == "False"


# --- bfloat16 --------------------------------------------------------------------------------------------------------
def test_bfloat16_on_a_cpu_takes_back_what_was_set_for_another_run(clean: pytest.MonkeyPatch) -> None:
    clean.setenv("UNSEEN_CPU", "avx2")
    platform.ask_for_kernels()
    assert asked() == SETTINGS["avx2"]
    platform.ask_for_kernels("bfloat16", "cpu")
    assert asked() == SETTINGS["native"]
    platform.ask_for_kernels("bfloat16", "cuda:0")
    assert asked() == SETTINGS["avx2"]


def test_bfloat16_leaves_what_the_user_has_set(clean: pytest.MonkeyPatch) -> None:
    clean.setenv("UNSEEN_CPU", "avx2")
    clean.setenv("MKL_CBWR", "AVX2")  # as we would have
    platform.ask_for_kernels()
    os.environ["ONEDNN_MAX_CPU_ISA"] = "SSE41"  # set by the user since
    platform.ask_for_kernels("bfloat16", "cpu")
    assert asked() == {"MKL_CBWR": "AVX2", "ONEDNN_MAX_CPU_ISA": "SSE41"}


def test_bfloat16_without_instructions_for_it_is_remarked(clean: pytest.MonkeyPatch) -> None:
    sentence = "This CPU has no bfloat16 instructions: float32 is faster on it."
    for flags, said in (({"avx2"}, True), ({"avx2", "avx512_bf16"}, False), ({"asimd", "bf16"}, False), (set(), False)):
        clean.setattr(platform, "cpu_flags", lambda flags=flags: frozenset(flags))
        assert platform.kernels_used("bfloat16", "cpu").remark.endswith(sentence) == said, flags
        assert sentence not in platform.kernels_used("bfloat16", "cuda").remark
        assert sentence not in platform.kernels_used().remark


def test_a_cpu_that_reports_amx_and_cannot_do_it_computes_bfloat16_on_avx512(clean: pytest.MonkeyPatch) -> None:
    """The trial is a real one, of a process that a signal ends; a CPU that can do it is left alone."""
    for flags, code, lacks in (
        ({"avx2", "avx512_bf16", "amx_tile"}, "import os, signal; os.kill(os.getpid(), signal.SIGILL)", True),
        ({"avx2", "avx512_bf16", "amx_tile"}, "raise SystemExit(1)", False),  # no torch there: not a signal
        ({"avx2", "avx512_bf16"}, "import os, signal; os.kill(os.getpid(), signal.SIGILL)", False),
    ):
        clean.setattr(platform, "cpu_flags", lambda flags=flags: frozenset(flags))
        clean.setattr(platform, "TRY_BFLOAT16", code)
        platform.ask_for_kernels("bfloat16", "cpu")
        assert asked() == SETTINGS["without amx" if lacks else "native"]
        assert ("AVX-512 instead" in platform.kernels_used("bfloat16", "cpu").remark) == lacks
        platform.ask_for_kernels("float32", "cpu")  # which takes it back
        assert asked() == SETTINGS["native"]
        assert "AVX-512 instead" not in platform.kernels_used("float32", "cpu").remark


def test_who_limits_onednn_is_not_asked_about_amx(clean: pytest.MonkeyPatch) -> None:
    clean.setattr(platform, "cpu_flags", lambda: frozenset({"avx2", "amx_tile"}))
    clean.setattr(platform, "TRY_BFLOAT16", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    clean.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_AMX")
    platform.ask_for_kernels("bfloat16", "cpu")
    assert asked() == {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_AMX", "MKL_CBWR": "AUTO"}


# --- children --------------------------------------------------------------------------------------------------------
@needs_avx2
def test_a_child_has_its_parents_kernels_and_may_take_them_back(forked: Callable[..., str]) -> None:
    """As a sweep does it: the parent asks, a child asks again for its own run."""
    native = forked(f"import torch; print({CAPABILITY})")
    for run, expected in (("", "avx2 AVX2"), ("'bfloat16'", f"native {native}")):
        child = f"{PREPARE}k = prepare_process({run}); print(k.asked, k.used)"
        parent = (
            f"{PREPARE}import subprocess, sys; prepare_process(); subprocess.run([sys.executable, '-c', {child!r}])"
        )
        assert forked(parent, UNSEEN_CPU="avx2") == expected
    assert forked(f"{PREPARE}import subprocess, sys; prepare_process(); subprocess.run([sys.executable, '-c', "
                  f"'import torch; print({CAPABILITY})'])", UNSEEN_CPU="avx2") == "AVX2"  # fmt: skip


@needs_avx2
def test_a_forked_process_has_its_parents_kernels(forked: Callable[..., str]) -> None:
    code = (
        f"{PREPARE}import multiprocessing, torch\n"
        "prepare_process()\n"
        "child = multiprocessing.get_context('fork').Process(target=lambda: print(torch.rand(3).shape[0], "
        f"{CAPABILITY}, flush=True))\n"
        "child.start(); child.join()\n"
    )
    assert forked(code, UNSEEN_CPU="avx2") == "3 AVX2"


def test_cores_are_those_this_process_may_use() -> None:
    one = "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"
    code = f"import os; from unseen.core.platform import cores; {one}; print(cores())"
    if hasattr(os, "sched_setaffinity"):
        assert python(code) == "1"
    assert platform.cores() >= 1
