"""`unseen` whose trial deployment has the tests' patient SuperLink: `python -m tests.engines.patient_unseen flower poc`."""

from __future__ import annotations

import sys

from unseen.cli import main
from unseen.engines.flower import poc

if __name__ == "__main__":
    poc._superlink = lambda: [sys.executable, "-m", "tests.engines.patient_superlink"]
    main()
