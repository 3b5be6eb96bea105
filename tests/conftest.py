"""For every test: the kernels that runs take, before torch computes in this process (see `unseen.core.platform`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest

from unseen.core.platform import ask_for_kernels

if TYPE_CHECKING:
    from unseen.experiments.sweep import Job, Watching

ask_for_kernels()


@pytest.fixture
def runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs of a bench are made in this process. A new one imports torch, which takes longer than a small run.

    That a bench starts processes is what `test_a_bench_and_its_report_from_end_to_end` and `test_sweep.py` are about.
    """
    from unseen.api import carry_out
    from unseen.experiments import grid
    from unseen.runs.progress import Silent
    from unseen.runs.run import PlannedRun

    def sweep(jobs: Sequence[Job], workers: int, watching: Watching, **_: Any) -> None:
        for job in jobs:
            if job.status != "finished":
                carry_out(PlannedRun.of(job.settings), job.directory, workers=1, watcher=Silent())
                job.status = "finished"
                watching.ended(job)

    monkeypatch.setattr(grid, "sweep", sweep)
