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
