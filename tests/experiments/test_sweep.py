"""Sweeps: several processes, failures, resuming, locks. The runs themselves are stand-ins that write what a run
writes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.small_runs import settings
from unseen.experiments import sweep as sweeping
from unseen.experiments.sweep import Job, last_words, make_jobs, sweep, time_left
from unseen.runs.settings import Settings

# A run in few words: rounds of 50 ms, going on after the last one; "silobn" fails, "fedbn" waits for a file called go.
STAND_IN = """
import json, os, pathlib, sys, time
path = pathlib.Path(sys.argv[1])
config = json.loads((path / "config.json").read_text())
assert os.environ["OMP_NUM_THREADS"] == "1"
if config["method"] == "silobn":
    print("round 1/3")
    print("Error: The disk is full.")
    raise SystemExit(2)
log = path / "results.jsonl"
done = len(log.read_text().splitlines()) if log.exists() else 0
for number in range(done + 1, config["plan"]["rounds"] + 1):
    time.sleep(0.05)
    with log.open("a") as file:
        file.write(json.dumps({"round": number, "loss": 1.0}) + "\\n")
    while config["method"] == "fedbn" and not (path / "go").exists():
        time.sleep(0.02)
with (path.parent / "order").open("a") as file:
    file.write(path.name + "\\n")
(path / "model.safetensors").touch()
(path / "result.json").write_text(json.dumps({
    "method": config["method"], "data": "digits", "target": "ink", "seed": 0, "protocol": "digits",
    "accuracy": 0.5, "in_domain_accuracy": 0.6, "selected_round": 3, "rounds": 3, "selection": "last"}))
"""


class Listener:
    def __init__(self) -> None:
        self.ends: list[tuple[str, str]] = []
        self.most = 0

    def looked(self, jobs: Sequence[Job]) -> None:
        self.most = max(self.most, sum(job.status == "running" for job in jobs))

    def ended(self, job: Job) -> None:
        self.ends.append((job.settings.method, job.status))


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "command", lambda path: [sys.executable, "-S", "-c", STAND_IN, str(path)])


def runs(*methods: str, seeds: Sequence[int] = (0,)) -> list[Settings]:
    return [settings(method=m, data="digits", target="ink", seed=s, rounds=3) for s in seeds for m in methods]


def test_all_are_carried_out_and_not_more_than_so_many_at_once(tmp_path: Path) -> None:
    jobs, heard = make_jobs(runs("fedavg", "fedprox", seeds=(0, 1)), tmp_path), Listener()
    sweep(jobs, 2, heard, every=0.02)
    assert [job.status for job in jobs] == ["finished"] * 4
    assert len(heard.ends) == 4 and heard.most == 2
    assert all(job.round == 3 and job.seconds_per_round for job in jobs)


def test_a_failed_run_is_kept_and_does_not_stop_the_others(tmp_path: Path) -> None:
    jobs, heard = make_jobs(runs("silobn", "fedavg"), tmp_path), Listener()
    sweep(jobs, 1, heard, every=0.02)
    assert sorted(heard.ends) == [("fedavg", "finished"), ("silobn", "failed")]
    assert jobs[0].reason == "Error: The disk is full."
    assert (jobs[0].directory.path / "log.txt").read_text().startswith("round 1/3")


def test_the_same_sweep_runs_only_what_is_new(tmp_path: Path) -> None:
    sweep(make_jobs(runs("fedavg"), tmp_path), 1, Listener(), every=0.02)
    jobs, heard = make_jobs(runs("fedavg", "fedprox"), tmp_path), Listener()
    assert [job.status for job in jobs] == ["finished", "waiting"]
    sweep(jobs, 2, heard, every=0.02)
    assert heard.ends == [("fedprox", "finished")]


def test_an_interrupted_sweep_ends_its_runs_and_goes_on_after_their_last_round(tmp_path: Path) -> None:
    class Impatient(Listener):
        def looked(self, jobs: Sequence[Job]) -> None:
            if jobs[0].round >= 1:
                raise KeyboardInterrupt

    jobs = make_jobs(runs("fedbn"), tmp_path)
    with pytest.raises(KeyboardInterrupt):
        sweep(jobs, 1, Impatient(), every=0.02)
    assert jobs[0].process is None and jobs[0].status == "waiting" and jobs[0].result is None
    (jobs[0].directory.path / "go").touch()
    again = make_jobs(runs("fedbn"), tmp_path)
    assert again[0].round == 1
    sweep(again, 1, Listener(), every=0.02)
    assert again[0].status == "finished"
    written = (again[0].directory.path / "results.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in written] == [1, 2, 3]  # round 1 was not done again


def begun(folder: Path) -> tuple[subprocess.Popen[bytes], Job]:
    """A sweep in a process of its own, as the command line starts one, whose run has finished its first round."""
    script = (
        "import sys; from unseen.experiments import sweep as s; from tests.experiments.test_sweep import STAND_IN, Listener, runs\n"
        "from pathlib import Path; from unseen.core.platform import end_as_interrupted; end_as_interrupted()\n"
        "s.command = lambda path: [sys.executable, '-S', '-c', STAND_IN, str(path)]\n"
        f"s.sweep(s.make_jobs(runs('fedbn'), Path({str(folder)!r})), 1, Listener(), every=0.02)"
    )
    process = subprocess.Popen([sys.executable, "-c", script], cwd=Path(__file__).parents[2], stderr=subprocess.DEVNULL)
    (job,) = make_jobs(runs("fedbn"), folder)
    deadline = time.monotonic() + 240
    while job.round < 1 and time.monotonic() < deadline:
        time.sleep(0.05)
        job.look()
    return process, job


def runs_of(folder: Path) -> list[str]:
    """The processes that carry out a run below a folder."""
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if os.access(path, os.R_OK)]
    return [line.decode() for line in lines if b"-S" in line and str(folder).encode() in line]


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="processes are looked up in Linux's /proc")
def test_a_sweep_that_is_told_to_end_takes_its_runs_with_it(tmp_path: Path) -> None:
    sweeping, _ = begun(tmp_path)
    assert runs_of(tmp_path)
    sweeping.terminate()
    assert sweeping.wait(60) != 0 and runs_of(tmp_path) == []


def test_a_run_that_outlived_a_killed_sweep_is_waited_for_and_not_run_twice(tmp_path: Path) -> None:
    killed, job = begun(tmp_path)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()

    class Releasing(Listener):
        def looked(self, jobs: Sequence[Job]) -> None:
            if jobs[0].status == "elsewhere":
                (jobs[0].directory.path / "go").touch()
            self.most = max(self.most, sum(j.status == "running" for j in jobs))

    heard = Releasing()
    sweep([job], 1, heard, every=0.02)
    assert job.status == "finished" and heard.most == 0
    assert len((tmp_path / "order").read_text().splitlines()) == 1


def test_time_left_is_by_method_and_by_the_mean(tmp_path: Path) -> None:
    jobs = make_jobs(runs("fedavg", "fedprox", "fedbn"), tmp_path)
    assert time_left(jobs, 1) is None
    now = time.monotonic()
    jobs[0].status, jobs[0].round, jobs[0].started, jobs[0].ended = "finished", 3, now - 30, now  # 10 s a round
    jobs[1].status, jobs[1].round, jobs[1].started, jobs[1].ended = "running", 1, now - 20, now  # 20 s a round, 40 left
    assert jobs[1].left == pytest.approx(40, rel=0.01)
    assert time_left(jobs, 1) == pytest.approx(40 + 3 * 15, rel=0.01)
    assert time_left(jobs, 2) == pytest.approx(45, rel=0.01)  # not less than the longest


def test_last_words(tmp_path: Path) -> None:
    assert last_words(tmp_path / "no") == ""
    (tmp_path / "log").write_text("Error: mend it.\n\nsome more\n")
    assert last_words(tmp_path / "log") == "Error: mend it."
