"""The hospital example, as its README says it, with small data."""

from __future__ import annotations

import csv
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install unseen[flower]")

from tests.engines.deployment import BIN, free_ports

SCRIPT = Path(__file__).parents[2] / "examples" / "hospital" / "run.sh"


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_three_hospitals_train_and_a_fourth_predicts(tmp_path: Path) -> None:
    link, public, node = free_ports(1)[0], free_ports(1)[0], 20000 + os.getpid() % 20000
    environment = {
        **os.environ,
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "LINK_PORT": str(link), "PUBLIC_PORT": str(public), "NODE_PORT": str(node),
        "IMAGES": "20", "ROUNDS": "2", "PATIENCE": "240",
        "UNSEEN_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    assert Path(sys.executable).parent == BIN
    with (Path(tempfile.gettempdir()) / f"unseen-flower-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(
            ["bash", str(SCRIPT), str(tmp_path / "demo")], env=environment, capture_output=True, text=True, timeout=400
        )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = list(csv.DictReader((tmp_path / "demo" / "delft.csv").open()))
    assert len(rows) == 40
    assert {row["class"] for row in rows} <= {"benign", "malignant"}
    assert "delft, which took no part" in done.stdout
    # Nothing stays behind.
    for port in (link, public, node):
        assert subprocess.run(["bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{port}"], capture_output=True).returncode != 0
