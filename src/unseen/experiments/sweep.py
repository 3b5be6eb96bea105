"""Many runs, several at once, each an own process with one thread.

A run's directory is all there is between the sweep and a run: it is begun by writing its config, carried out by `python
-m unseen run --resume DIRECTORY`, watched by reading its results.jsonl, and finished when it has a result. So the sweep
may be killed at any moment, and the same sweep again goes on with what is not finished.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal, Protocol

from unseen.runs.directory import LOCK_VARIABLE, RunDirectory, take_lock
from unseen.runs.results import RunResult
from unseen.runs.settings import Settings

Status = Literal["waiting", "running", "elsewhere", "finished", "failed"]
LOG = "log.txt"
GRACE = 5.0  # seconds a process is given to end by itself
# One thread for whatever library does the sums: N runs at once already use N cores, and sums keep one order.
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass
class Job:
    """One run of a sweep, and how far it is."""

    settings: Settings
    directory: RunDirectory
    status: Status = "waiting"
    round: int = 0  # the last finished one
    first: int = 0  # rounds that were done before this start
    started: float = 0.0  # on the monotonic clock
    ended: float | None = None
    reason: str = ""  # why it failed
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    lock: IO[bytes] | None = field(default=None, repr=False)

    @property
    def seconds_per_round(self) -> float | None:
        """Of this start, once it has finished a round."""
        if not self.started or self.round <= self.first:
            return None
        return ((self.ended or time.monotonic()) - self.started) / (self.round - self.first)

    @property
    def left(self) -> float | None:
        """Seconds until it is done, as far as its own rounds tell."""
        pace = self.seconds_per_round
        return None if pace is None else pace * (self.settings.plan.rounds - self.round)

    def look(self) -> None:
        """Read how far the run is."""
        lines = self.directory.rounds()
        self.round = lines[-1].round if lines else 0

    @property
    def result(self) -> RunResult | None:
        return self.directory.result()


class Watching(Protocol):
    """Who is told how far a sweep is."""

    def looked(self, jobs: Sequence[Job]) -> None: ...  # now and then

    def ended(self, job: Job) -> None: ...  # a run finished or failed


def make_jobs(settings: Sequence[Settings], out: Path) -> list[Job]:
    """A job per run, its directory begun. Those that are finished already are known as such."""
    jobs = []
    for chosen in settings:
        job = Job(chosen, RunDirectory.of(chosen, out).begin(chosen))
        job.look()
        if job.directory.finished:
            job.status = "finished"
        jobs.append(job)
    return jobs


def command(path: Path) -> list[str]:
    """What carries out the run of a directory."""
    return [sys.executable, "-m", "unseen", "run", "--resume", str(path), "--workers", "1"]


def sweep(
    jobs: Sequence[Job], workers: int, watching: Watching, every: float = 0.5, options: Sequence[str] = ()
) -> None:
    """Carry out what is not finished, `workers` at once. A failed run does not stop the others."""
    try:
        while True:
            for job in jobs:
                _look_after(job, watching)
            busy = sum(job.status == "running" for job in jobs)
            for job in jobs:
                if busy < workers and job.status in ("waiting", "elsewhere"):
                    busy += _start(job, options)
            watching.looked(jobs)
            if all(job.status in ("finished", "failed") for job in jobs):
                return
            time.sleep(every)
    finally:
        _stop(jobs)


def time_left(jobs: Sequence[Job], workers: int) -> float | None:
    """Seconds until all are done: each run by its own pace, or by its method's, or by the mean; None before a first
    round.
    """
    paces: dict[str, list[float]] = {}
    for job in jobs:
        if (pace := job.seconds_per_round) is not None:
            paces.setdefault(job.settings.method, []).append(pace)
    known = [pace for own in paces.values() for pace in own]
    if not known:
        return None
    mean = sum(known) / len(known)
    total, longest = 0.0, 0.0
    for job in jobs:
        if job.status in ("finished", "failed"):
            continue
        own = paces.get(job.settings.method)
        pace = job.seconds_per_round or (sum(own) / len(own) if own else mean)
        seconds = pace * (job.settings.plan.rounds - job.round)
        total, longest = total + seconds, max(longest, seconds)
    return max(total / workers, longest)


def _start(job: Job, options: Sequence[str]) -> bool:
    """A process for this run, unless another one is at it. Is there one now?"""
    lock = take_lock(job.directory.path)
    if lock is None:
        job.status = "elsewhere"
        return False
    if job.directory.finished:  # whoever held the lock has finished it
        lock.close()
        job.status = "finished"
        return False
    with (job.directory.path / LOG).open("ab") as log:
        job.process = subprocess.Popen(
            [*command(job.directory.path), *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **dict.fromkeys(THREADS, "1"), LOCK_VARIABLE: _handed(lock, job.directory.path)},
            # The process holds the lock too: if this sweep is killed and the run lives on, the next sweep waits for it.
            pass_fds=(lock.fileno(),) if sys.platform != "win32" else (),
        )
    job.look()
    job.lock, job.status, job.first, job.started, job.ended = lock, "running", job.round, time.monotonic(), None
    return True


def _look_after(job: Job, watching: Watching) -> None:
    if job.status == "elsewhere":
        job.look()
        if job.directory.finished:
            job.status = "finished"
            watching.ended(job)
    if job.status != "running" or job.process is None:
        return
    code = job.process.poll()
    job.look()
    if code is None:
        return
    job.process, job.ended = None, time.monotonic()
    if job.lock is not None:
        job.lock.close()
    job.status = "finished" if job.directory.finished else "failed"
    if job.status == "failed":
        job.reason = last_words(job.directory.path / LOG) or f"it ended with code {code}"
    watching.ended(job)


def _stop(jobs: Sequence[Job]) -> None:
    """End what is still running; each has its last round on disk."""
    running = [job for job in jobs if job.process is not None]
    for job in running:
        assert job.process is not None
        with contextlib.suppress(OSError):
            job.process.terminate()
    deadline = time.monotonic() + GRACE
    for job in running:
        assert job.process is not None
        try:
            job.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            job.process.kill()
            job.process.wait()
        job.process, job.status = None, "waiting"
        if job.lock is not None:
            job.lock.close()


def _handed(lock: IO[bytes], path: Path) -> str:
    return f"{lock.fileno()}:{path.resolve()}"


def last_words(log: Path) -> str:
    """Why a process ended, from its log: its error for people, or the last line."""
    if not log.exists():
        return ""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return next((line for line in reversed(lines) if line.startswith("Error:")), lines[-1] if lines else "")
