"""A simulation that breaks off, without a real one."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install unseen[flower]")

from flwr.app import Context, RecordDict

from tests.engines.sites import small
from tests.small_runs import simulate
from unseen.core.errors import UserError
from unseen.engines.flower import simulation


class Nobody:
    """A grid without nodes."""

    def get_node_ids(self) -> list[int]:
        return []


def test_when_ray_does_not_start_the_run_says_so_and_ends(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []

    def broken(server_app: Any, **_: Any) -> None:
        """What Flower does: the server runs in a thread, and what went wrong comes out wrapped, without it."""

        def serve() -> None:
            with contextlib.suppress(UserError):
                server_app(Nobody(), Context(1, 0, {}, RecordDict(), {}))

        threads.append(threading.Thread(target=serve, daemon=True))
        threads[0].start()
        raise RuntimeError("Ending simulation.") from OSError("The current node timed out during startup. This could")

    monkeypatch.setattr(simulation, "run_simulation", broken)
    with pytest.raises(UserError, match=r"broke off: The current node timed out.*--engine local"):
        simulate([small(folder / "data", "fedavg", "flower")], folder / "broken")
    threads[0].join(60)
    assert not threads[0].is_alive()


@pytest.mark.parametrize(
    ("gpus", "per_client", "at_once"),
    [(1, 1.0, 1), (2, 1.0, 2), (1, 0.5, 2), (2, 0.3, 6), (4, 2.0, 2), (3, 2.0, 1), (1, 0.1, 8), (2, 0.6, 2)],
)
def test_gpus_are_dealt_out(monkeypatch: pytest.MonkeyPatch, gpus: int, per_client: float, at_once: int) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(simulation, "cores", lambda: 8)
    monkeypatch.setattr(simulation.torch.cuda, "device_count", lambda: gpus)
    share = simulation.resources(20, "cuda", per_client)
    assert (share.cpus, share.gpus, share.client_gpus) == (8, gpus, per_client)
    assert share.at_once() == at_once  # 8 cores and 20 clients: the cores bound what a tenth of a GPU would allow


def test_gpus_that_are_not_there_are_said_before_ray_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(simulation.torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UserError, match="more than the 2 GPUs"):
        simulation.resources(3, "cuda", 4)
    with pytest.raises(UserError, match="whole number"):
        simulation.resources(3, "cuda", 1.5)
    with pytest.raises(UserError, match="Ray chooses"):
        simulation.resources(3, "cuda:1", 1)
    assert simulation.resources(3, "cpu", 1).client_gpus == 0
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    cluster = simulation.resources(3, "cuda", 4)
    assert (cluster.cpus, cluster.gpus, cluster.at_once()) == (None, None, None)


def test_what_ray_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(simulation, "run_simulation", lambda **given: asked.update(given))
    simulation._run_flower(None, 3, simulation.Resources(2, 4, 0.25))  # type: ignore[arg-type]
    assert asked["backend_config"]["client_resources"] == {"num_cpus": 1, "num_gpus": 0.25}
    assert asked["backend_config"]["init_args"].items() >= {"num_cpus": 2, "num_gpus": 4}.items()
