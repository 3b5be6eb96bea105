"""`unseen flower poc`, and the hospital example that uses it, with small data and real processes."""

from __future__ import annotations

import csv
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install unseen[flower]")

from tests.engines.deployment import BIN, PATIENCE
from unseen.engines.flower.status import read_status
from unseen.runs.directory import find_runs

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "hospital" / "run.sh"
pytestmark = [
    pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed"),
    pytest.mark.usefixtures("alone"),
]


def environment(tmp_path: Path) -> dict[str, str]:
    """With an `unseen` whose SuperLink is patient."""
    patient = tmp_path / "bin" / "unseen"
    patient.parent.mkdir()
    patient.write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.engines.patient_unseen "$@"\n')
    patient.chmod(0o755)
    return {
        **os.environ,
        "PATH": os.pathsep.join([str(patient.parent), str(BIN), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "UNSEEN_CACHE": str(tmp_path / "cache"),
        "OMP_NUM_THREADS": "1",
    }


def left_behind(folder: Path) -> list[str]:
    """Processes that still know a folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in words and int(entry.name) != os.getpid():
            found.append(words)
    return found


def test_three_hospitals_train_and_a_fourth_predicts(tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", str(SCRIPT), str(tmp_path / "demo")],
        env={**environment(tmp_path), "IMAGES": "20", "ROUNDS": "2"},
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = list(csv.DictReader((tmp_path / "demo" / "delft.csv").open()))
    assert len(rows) == 40
    assert {row["class"] for row in rows} <= {"benign", "malignant"}
    assert "delft, which took no part" in done.stdout
    status = read_status(tmp_path / "demo" / "poc")
    assert status.finished
    assert (status.round, set(status.sites)) == (2, {"aachen", "bergen", "cadiz"})
    assert {site.images for site in status.sites.values()} == {40}
    assert left_behind(tmp_path / "demo") == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_trial_that_is_stopped_leaves_nothing(tmp_path: Path, folder: Path, number: signal.Signals) -> None:
    out = tmp_path / "trial"
    words = ["--root", folder / "data", "--protocol", "digits", "--image-size", "16", "--rounds", "1000"]
    process = subprocess.Popen(
        ["unseen", "flower", "poc", *map(str, words), "--local-steps", "1", "--batch-size", "6", "--out", str(out)],
        env=environment(tmp_path),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    end = time.monotonic() + PATIENCE
    while not (out.exists() and any(run.rounds() for run in find_runs(out))):
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        assert time.monotonic() < end
        time.sleep(0.5)
    assert len(left_behind(out)) >= 5  # SuperLink, proxy, four nodes, the server
    process.send_signal(number)
    assert process.wait(60) == 130
    assert left_behind(out) == []
