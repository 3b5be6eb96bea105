"""The examples run, and the pages show what they run."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import unseen
from unseen.cli import app
from unseen.experiments.choose import Choice
from unseen.experiments.collect import collect
from unseen.methods import OWN_FILES

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "own_method.py"


def test_own_method(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    original, tiny = unseen.run, {"rounds": 1, "local_steps": 2, "image_size": 16, "workers": 1}
    monkeypatch.setattr(unseen, "run", lambda **said: original(**{**said, **tiny}), raising=False)
    monkeypatch.setattr("unseen.registry._own", {})
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert "with local BatchNorm:" in capsys.readouterr().out


def test_the_page_shows_the_example() -> None:
    assert EXAMPLE.read_text().strip() in (ROOT / "docs" / "write-a-method.md").read_text()


def unseen_with(file: Path, *words: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "unseen", "--with", str(file), *map(str, words)]
    return subprocess.run(line, capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"}, cwd=file.parent)


def shown_with(monkeypatch: pytest.MonkeyPatch, file: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The same in this process, for commands that compute nothing."""
    monkeypatch.setattr("unseen.registry._own", {})
    monkeypatch.setenv(OWN_FILES, "")  # so that what the command sets is taken back
    monkeypatch.setenv("COLUMNS", "200")
    found = CliRunner().invoke(app, ["--with", str(file), *words])
    return subprocess.CompletedProcess([], found.exit_code, found.stdout, found.stderr)


def test_an_own_file_is_benched_beside_the_others(tmp_path: Path) -> None:
    """In processes of their own, two runs at once: they must find the file too."""
    tiny = ["--rounds", 1, "--local-steps", 1, "--image-size", 16, "--test-every", 0, "--targets", "ink"]
    done = unseen_with(
        EXAMPLE, "bench", "--methods", "fedavg,fedbn+fednudge:strength=0.5", *tiny, "--workers", 2, "--out", tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (group,) = collect(tmp_path).groups
    assert [row.label for row in group.rows] == ["fedavg", "fedbn+fednudge (fednudge.strength=0.5)"]


SHARED = ROOT.parent / "shared"
PACS, WEIGHTS = SHARED / "data" / "PACS", SHARED / "weights" / "mobilenetv2_100.imagenet.safetensors"
DIGITS_STORY = (
    ["--each", "4"],
    ["protocol=digits", "rounds=1", "local_steps=2", "batch_size=8", "methods=fedavg,gperxan,randaug"],
)
PACS_STORY = (
    ["--each", "6", "--pacs", str(PACS), "--new", "sketch", "--unlabelled", "1"],
    [f"weights={WEIGHTS}", "image_size=64", "rounds=1", "local_steps=1", "batch_size=4", "methods=fedavg,mixstyle"],
)


@pytest.mark.usefixtures("runs_here")
@pytest.mark.parametrize(
    ("folders", "settings", "sites", "images"),
    [
        pytest.param(*DIGITS_STORY, ["colour", "ink", "outline"], 40, id="digits"),
        pytest.param(
            *PACS_STORY, ["art_painting", "cartoon", "photo"], 49, id="pacs",
            marks=pytest.mark.skipif(
                not (PACS.is_dir() and WEIGHTS.exists()), reason="PACS and MobileNetV2's weights are not on this machine"
            ),
        ),
    ],
)  # fmt: skip
def test_the_story_of_a_new_site(
    folders: list[str],
    settings: list[str],
    sites: list[str],
    images: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Folders, choose, fit, check, predict and export."""
    pytest.importorskip("onnxscript", reason="the extra `export` is not installed")

    folder = ROOT / "examples" / "new_site"
    monkeypatch.setattr(sys, "argv", ["make_sites.py", str(tmp_path), *folders])
    runpy.run_path(str(folder / "make_sites.py"), run_name="__main__")
    assert sorted(path.name for path in (tmp_path / "sites").iterdir()) == sites
    monkeypatch.setattr(sys, "argv", ["story.py", str(tmp_path), *settings])
    runpy.run_path(str(folder / "story.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert re.search(r"at the new site \d+\.\d % of \d+ labelled images are right", said)
    assert ("images without labels" in said) == (sites[0] == "art_painting")
    assert re.search(rf"\d+ of {images} images are unlike those of training", said)
    told = json.loads((tmp_path / "story.json").read_text())
    assert told["said"] == said.splitlines() and told["apart"] <= 1.1e-5  # the table rounds to six digits
    assert (tmp_path / "check" / "metrics.json").exists()
    choice = Choice.read(tmp_path / "choice" / "choice.json")
    assert f"trained {choice.method} on all sites: " in said and choice.sites == sites
    assert {path.name for path in (tmp_path / "packed").iterdir()} == {
        "model.onnx", "model.json", "predict.py", "pictures.py", "look.py", "README.md",
    }  # fmt: skip


def test_an_own_file_is_shown_as_the_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    done = shown_with(monkeypatch, EXAMPLE, "methods", "fednudge")
    assert "strength = 0.1 (float): weight of the entropy of the predictions" in done.stdout


def test_two_files_of_one_name_are_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method = (
        "from typing import ClassVar\nfrom unseen import Method\nclass M(Method):\n    name: ClassVar[str] = '{}'\n"
    )
    files = [tmp_path / name / "mine.py" for name in ("one", "two")]
    for file in files:
        file.parent.mkdir()
        file.write_text(f'"""What {file.parent.name} is. 2026."""\n' + method.format(f"of-{file.parent.name}"))
    shown = shown_with(monkeypatch, files[0], "--with", str(files[1]), "methods").stdout
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
def test_a_bad_file_is_one_sentence(
    content: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mine.py"
    if content is not None:
        file.write_text(content)
    done = shown_with(monkeypatch, file, "methods")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("Error: ") and said in done.stderr and "Traceback" not in done.stderr
    assert str(file) in done.stderr
