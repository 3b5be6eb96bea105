"""The hospital example, as its README says it, with small data."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install unseen[flower]")

from tests.engines.deployment import BIN, free_ports

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "hospital" / "run.sh"


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
@pytest.mark.usefixtures("alone")
def test_three_hospitals_train_and_a_fourth_predicts(tmp_path: Path) -> None:
    link, public = free_ports(2)
    node = 20000 + os.getpid() % 10000  # and the next two; below the ports that the system gives away
    patient = tmp_path / "bin" / "flower-superlink"  # the script calls it by its name
    patient.parent.mkdir()
    patient.write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.engines.patient_superlink "$@"\n')
    patient.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(patient.parent), str(BIN), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "LINK_PORT": str(link), "PUBLIC_PORT": str(public), "NODE_PORT": str(node),
        "IMAGES": "20", "ROUNDS": "2", "PATIENCE": "1200",
        "UNSEEN_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    done = subprocess.run(
        ["bash", str(SCRIPT), str(tmp_path / "demo")], env=environment, capture_output=True, text=True, timeout=1800
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = list(csv.DictReader((tmp_path / "demo" / "delft.csv").open()))
    assert len(rows) == 40
    assert {row["class"] for row in rows} <= {"benign", "malignant"}
    assert "delft, which took no part" in done.stdout
    # Nothing stays behind.
    for port in (link, public, node):
        assert subprocess.run(["bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{port}"], capture_output=True).returncode != 0
