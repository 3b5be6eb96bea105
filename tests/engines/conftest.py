"""One deployment for all tests of the Flower engine: most of the time of a deployment is its start."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.engines.sites import SITES, draw_sites, small

if TYPE_CHECKING:
    from tests.engines.deployment import Federation


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the images of all sites in `data`, and a cache of its own."""
    folder = tmp_path_factory.mktemp("flower")
    draw_sites(folder / "data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNSEEN_CACHE", str(folder / "cache"))
        yield folder


@pytest.fixture(scope="session")
def alone() -> Iterator[None]:
    """One process with deployments at a time on a machine, whatever worker asks: they would run into each other's timeouts.

    (The mark xdist_group does not keep them together: pytest 9.2 with xdist 3.8 deals marked tests out to both workers.)
    """
    with (Path(tempfile.gettempdir()) / f"unseen-flower-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def federation(folder: Path, alone: None) -> Iterator[Federation]:
    """SuperLink with TLS and keys, the proxy, and three sites. What the runs ship is hostile: see `marker`."""
    if importlib.util.find_spec("flwr") is None:
        pytest.skip("Flower is not installed: pip install unseen[flower]")
    from tests.engines.deployment import Federation

    settings = small(folder / "data", "fedavg", "flower", minimum_clients=3).with_changes({"root": None})
    made = Federation(folder / "deployment", folder / "data", SITES, settings)
    shipped = made.app / "unseen_app" / "client_app.py"
    shipped.write_text(f"open({str(made.marker)!r}, 'w').write('shipped code ran')\n" + shipped.read_text())
    try:
        made.open()
        yield made
    finally:
        made.close()
