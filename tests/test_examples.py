"""The examples run, and the pages show what they run."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import unseen
from unseen.experiments.collect import collect

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "own_method.py"


def test_own_method(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    original = unseen.run
    monkeypatch.setattr(
        unseen, "run", lambda **said: original(**{**said, "rounds": 1, "local_steps": 2}), raising=False
    )
    monkeypatch.setattr("unseen.registry._own", {})
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert "with local BatchNorm:" in capsys.readouterr().out


def test_the_page_shows_the_example() -> None:
    assert EXAMPLE.read_text().strip() in (ROOT / "docs" / "write-a-method.md").read_text()


def unseen_with(file: Path, *words: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "unseen", "--with", str(file), *map(str, words)]
    return subprocess.run(line, capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"}, cwd=file.parent)


def test_an_own_file_is_benched_beside_the_others(tmp_path: Path) -> None:
    """In processes of its own, two runs at once: they must find the file too."""
    tiny = ["--rounds", 1, "--local-steps", 1, "--test-every", 0, "--targets", "ink", "--workers", 2]
    done = unseen_with(
        EXAMPLE, "bench", "--methods", "fedavg,fednudge,fedbn+fednudge:strength=0.5", *tiny, "--out", tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (group,) = collect(tmp_path).groups
    assert [row.label for row in group.rows] == ["fedavg", "fednudge", "fedbn+fednudge (fednudge.strength=0.5)"]
    shown = unseen_with(EXAMPLE, "methods", "fednudge").stdout
    assert "strength = 0.1 (float): weight of the entropy of the predictions" in shown


def test_two_files_of_one_name_are_two(tmp_path: Path) -> None:
    method = (
        "from typing import ClassVar\nfrom unseen import Method\nclass M(Method):\n    name: ClassVar[str] = '{}'\n"
    )
    files = [tmp_path / name / "mine.py" for name in ("one", "two")]
    for file in files:
        file.parent.mkdir()
        file.write_text(f'"""What {file.parent.name} is. 2026."""\n' + method.format(f"of-{file.parent.name}"))
    shown = unseen_with(files[0], "--with", files[1], "methods").stdout
    assert "What one is. 2026." in shown and "What two is. 2026." in shown


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "There is no file"),
        ("import nothing_of_that_name", "ModuleNotFoundError"),
        ("x = 1", "has no method"),
        (
            "from typing import ClassVar\nfrom unseen import Method\nclass M(Method):\n    name: ClassVar[str] = 'fedavg'",
            '"fedavg", as one of unseen is called',
        ),
    ],
)
def test_a_bad_file_is_one_sentence(content: str | None, said: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    if content is not None:
        file.write_text(content)
    done = unseen_with(file, "methods")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("Error: ") and said in done.stderr and "Traceback" not in done.stderr
    assert str(file) in done.stderr
