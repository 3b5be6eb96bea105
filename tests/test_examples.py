"""The examples run, and the pages show what they run."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

import unseen
from unseen.registry import registered

ROOT = Path(__file__).parent.parent


def test_own_method(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    original = unseen.run
    monkeypatch.setattr(
        unseen, "run", lambda **said: original(**{**said, "rounds": 1, "local_steps": 2}), raising=False
    )
    try:
        runpy.run_path(str(ROOT / "examples" / "own_method.py"))
    finally:
        registered().pop("fednudge", None)
    assert "with local BatchNorm:" in capsys.readouterr().out


def test_the_page_shows_the_example() -> None:
    code = (ROOT / "examples" / "own_method.py").read_text().strip()
    assert code in (ROOT / "docs" / "write-a-method.md").read_text()
