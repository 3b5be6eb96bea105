"""Attack by attack: how many were tried, how many held. The tests that play attacks count them; this writes the sums down.

    python -m benchmarks.attacks                       # tests without a deployment, some minutes
    python -m benchmarks.attacks --deployed            # those with real Flower processes, some more
    python -m benchmarks.attacks tests/engines/test_flower_proxy.py
    python benchmarks/results.py write                 # the table in docs/security.md

The record has a part for each file of tests; running a file again replaces its part. `tests/attempts.py` says what is counted.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.attempts import COUNTS, KINDS

from unseen.core.files import read_json, write_json
from unseen.core.platform import source_version

TOP = Path(__file__).parent.parent
RECORD = Path(__file__).parent / "results" / "attacks.json"
FILES = (
    "tests/engines/test_flower_proxy.py",
    "tests/engines/test_flower_records.py",
    "tests/engines/test_flower_replies.py",
    "tests/engines/test_flower_roll_call.py",
    "tests/engines/test_flower_own_affairs.py",
    "tests/federation/test_forms.py",
    "tests/federation/test_checks.py",
    "tests/runs/test_crashes.py",
    "tests/runs/test_durability.py",
    "tests/cli/test_hostile_input.py",
)
DEPLOYED = ("tests/engines/test_flower_same_bits.py", "tests/engines/test_flower_faults.py")


class Outcomes:
    """A plugin of pytest that counts tests by what became of them."""

    def __init__(self) -> None:
        self.tests = {"passed": 0, "failed": 0, "skipped": 0}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.tests[report.outcome] += 1


def played(file: str) -> dict[str, Any]:
    """The attempts of one file of tests."""
    COUNTS.clear()
    outcomes = Outcomes()
    pytest.main(["-q", "-p", "no:cacheprovider", str(TOP / file)], plugins=[outcomes])
    return {"commit": source_version(), "tests": outcomes.tests, "attempts": {k: list(v) for k, v in COUNTS.items()}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*")
    parser.add_argument("--deployed", action="store_true")
    given = parser.parse_args()
    bad = 0
    for file in given.files or (DEPLOYED if given.deployed else FILES):
        found = played(file)
        before = read_json(RECORD)["files"] if RECORD.exists() else {}
        write_json(RECORD, {"kinds": KINDS, "files": {**before, file: found}})
        bad += found["tests"]["failed"]
        print(f"{file}: {found['tests']}, {found['attempts']}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
