"""Every registered method and some compositions: the same bits on the local engine, in a simulation, and deployed.

A method is tested by existing: an engine that carries orders and replies must carry those of all.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install unseen[flower]")
pytest.importorskip("ray", reason="Ray is not installed: pip install unseen[flower]")

from tests.engines.bits import assert_same, final
from tests.engines.cluster import ray_cluster
from tests.engines.deployment import Federation
from tests.engines.sites import SITES, small
from tests.small_runs import run_local, simulate
from unseen.registry import parse, registered
from unseen.runs.directory import RunDirectory

METHODS = [*registered(), "fedbn+fedfd+ga", "fedavg+guide"]
TOKENS: dict[str, Any] = {"backbone": "test_vit", "image_size": 32}  # no convnet will do
NEEDS = dict.fromkeys(("doprompt", "promptfl", "fedclip", "fedins", "feddgmoe"), TOKENS)
NOISY = [name for name in METHODS if parse(name).about.noise > 0]
POOLED = "erm, centralized"  # all images in one place: a client of its own, and no deployment
LANES = 4  # ServerApps at a time: while one waits for its sites, another has them work


def given(name: str) -> dict[str, Any]:
    """What `small` is told for a name of this file."""
    return {"method": "erm", "partition": "pooled"} if name == POOLED else {"method": name, **NEEDS.get(name, {})}


@pytest.fixture(scope="module")
def local(folder: Path) -> dict[str, Path]:
    """The local engine's run directories, by name."""
    runs = {m: run_local(small(folder / "data", **given(m)), out=folder / "local") for m in (*METHODS, POOLED)}
    return {m: run.directory for m, run in runs.items() if run.directory is not None}


def test_a_simulation_on_a_ray_cluster_gives_the_local_engines_bits(
    folder: Path, local: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    todo = [small(folder / "data", engine="flower", **given(m)) for m in local]
    with ray_cluster() as address:
        monkeypatch.setenv("RAY_ADDRESS", address)
        results = simulate(todo, folder / "simulation")
    for name, result in zip(local, results, strict=True):
        assert result.directory is not None
        assert_same(local[name], result.directory)
        assert final(result.directory).round == 2
        assert result.record.bytes_up == RunDirectory(local[name]).result().bytes_up  # type: ignore[union-attr]


def test_a_deployment_gives_the_local_engines_bits(federation: Federation, local: dict[str, Path]) -> None:
    plain = [m for m in METHODS if m not in NEEDS]
    federation.ship("server_app.py", 'from tests.engines.many import app\n\n__all__ = ["app"]\n')
    try:
        for lane in range(LANES):
            begin(federation, method=",".join(plain[lane::LANES]))
        for name in NEEDS:
            begin(federation, **given(name))
        for name in METHODS:
            directory = federation.finish(name, **given(name))
            if name not in NOISY:  # a real site draws its noise from a secret of its own
                assert_same(local[name], directory)
            assert final(directory).met == set(SITES)
    finally:
        federation.ship("server_app.py")


def begin(federation: Federation, method: str, **config: Any) -> None:
    """One ServerApp starts at a time; the runs themselves overlap."""
    federation.begin(method=method, **config)
    first = method.partition(",")[0]
    federation.until(lambda: federation.said(method=first, **config) != "", "the ServerApp")
