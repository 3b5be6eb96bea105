"""Short commands are short, and a word is read once."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from unseen.cli import app

SHORT = (
    ["--help"],
    ["run", "--help"],
    ["methods"],
    ["protocols"],
    ["protocols", "pacs-quick"],
    ["run", "--target", "street", "--method", "fedavgg"],
    ["run", "--target", "street", "--protocol", "digit"],
    ["run", "--target", "street", "--schedule", "cosin"],
)


@pytest.mark.parametrize("words", SHORT, ids=" ".join)
def test_a_short_command_does_not_wait_for_torch(words: list[str]) -> None:
    code = f"import sys; sys.argv = ['unseen', *{words!r}]\nfrom unseen.cli import main\n" + (
        "try:\n    main()\nexcept SystemExit:\n    pass\nprint('torch' in sys.modules, file=sys.stderr)"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.stderr.splitlines()[-1] == "False", "torch was loaded"
    # CPU seconds, which other processes do not change much: the aim is one, and torch alone takes three.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2.0


def counting(monkeypatch: pytest.MonkeyPatch, counts: Counter[str], where: str, name: str) -> None:
    module: Any = __import__(where, fromlist=["x"])
    real = getattr(module, name)

    def counted(*given: Any, **words: Any) -> Any:
        counts[name] += 1
        return real(*given, **words)

    monkeypatch.setattr(module, name, counted)


@pytest.mark.parametrize("command", ["run", "bench"])
def test_every_word_is_read_once(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The method is parsed, the dataset's folder looked through and the directory's name made once per run."""
    counts: Counter[str] = Counter()
    counting(monkeypatch, counts, "unseen.runs.planning", "parse")
    counting(monkeypatch, counts, "unseen.runs.run", "parse")
    counting(monkeypatch, counts, "unseen.runs.images", "load_index")
    counting(monkeypatch, counts, "unseen.runs.directory", "directory_for")
    counting(monkeypatch, counts, "unseen.runs.planning", "content_of")
    tiny = ["--rounds", "1", "--local-steps", "1", "--batch-size", "8", "--image-size", "16", "--test-every", "0"]
    tiny += ["--out", str(tmp_path)]
    if command == "run":
        words = ["run", "--target", "street", "--method", "fedprox", "--workers", "1", *tiny]
        expected = {"parse": 1, "load_index": 1, "directory_for": 1, "content_of": 1}
    else:
        monkeypatch.setattr("unseen.experiments.grid.sweep", lambda *_, **__: None)  # planning only
        words = ["bench", "--methods", "fedavg,fedprox,fedbn", "--targets", "street", *tiny]
        expected = {"parse": 3, "load_index": 1, "directory_for": 3, "content_of": 1}
    assert CliRunner().invoke(app, words).exit_code == 0
    assert dict(counts) == expected
