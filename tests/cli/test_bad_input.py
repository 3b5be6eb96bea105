"""Bad input: one sentence on stderr, exit code 2, nothing lost."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import save_file
from torch import zeros
from typer.testing import CliRunner

import unseen
from unseen.cli import app
from unseen.core import files

TINY = ["--rounds", "1", "--local-steps", "1", "--image-size", "16", "--workers", "1", "--test-every", "0"]
RUN = ["run", "--data", "digits", "--target", "street", *TINY]


def refused(*words: object) -> str:
    """The one sentence of a command that must fail."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 2, (result.output, result.exception)
    *header, sentence = result.stderr.strip().splitlines()
    assert sentence.startswith("Error: "), result.stderr
    assert not any("Traceback" in line or "Error: " in line for line in header)
    return sentence.removeprefix("Error: ")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def photos(root: Path, classes: dict[str, dict[str, int]]) -> Path:
    """A folder DOMAIN/CLASS/*.png with as many random pictures as said."""
    rng = np.random.default_rng(0)
    for domain, by_class in classes.items():
        for label, count in by_class.items():
            (root / domain / label).mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / domain / label / f"{number}.png")
    return root


SMALL = ["--image-size", "32", "--backbone", "convnet", "--weights", "none", "--batch-size", "4", *TINY]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths, as the default --out, land in the test's own folder."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--method", "fedporx"], ['no method "fedporx"', 'Did you mean "fedprox"?']),
        (["--method", "fedavg+fedavg"], ["fedavg", "twice"]),
        (["--method", "fedprox", "--set", "mo=1"], ['no field "mo"', 'Did you mean "mu"?']),
        (["--method", "fedprox", "--set", "mu=much"], ["much", "mu", "float"]),
        (["--method", "fedprox", "--set", "mu"], ["--set FIELD=VALUE"]),
        (["--data", "didgits"], ['no dataset "didgits"', 'Did you mean "digits"?']),
        (["--data", "pacs"], ["PACS", "--root"]),
        (["--data", "pacs", "--root", "nowhere"], ["nowhere", "does not exist"]),
        (["--target", "streat"], ['"streat" is not a domain', 'Did you mean "street"?']),
        (["--backbone", "resnet81"], ['no backbone "resnet81"', "Did you mean"]),
        (["--protocol", "pacs-quik"], ['no protocol "pacs-quik"', 'Did you mean "pacs-quick"?']),
        (["--partition", "idd:3"], ["idd", 'Did you mean "iid"?']),
        (["--server-selection", "orakel"], ["orakel", "--server-selection", "oracle"]),
        (["--augmentation", "nonne"], ["nonne", 'Did you mean "none"?']),
        (["--engine", "flour"], ["flour", 'Did you mean "flower"?']),
        (["--device", "cpuu"], ["cpuu", "auto"]),
        (["--device", "cuda:99"], ["cuda:99", "not on this machine"]),
        (["--seed", "zero"], ["zero", "0-2"]),
        (["--workers", "0"], ["--workers", "at least 1"]),
        (["--rounds", "0"], ["--rounds", "at least 1"]),
        (["--lr", "-1"], ["--lr", "above 0"]),
        (["--local-epochs", "2"], ["--local-epochs or --local-steps"]),
        (["--validation", "1.5"], ["validation", "1.5"]),
        (["--weights", "none.safetensors"], ["none.safetensors"]),
        (["--resume", "nowhere"], ["--resume", "leave out --data"]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) and str(value[0]).startswith("--") else "",
)
def test_a_wrong_word_is_named_with_what_to_do(words: list[str], parts: list[str]) -> None:
    sentence = refused(*RUN, *words)
    for part in parts:
        assert part in sentence


def test_a_target_must_be_given() -> None:
    assert "--target: ink, colour, outline, street" in refused("run", "--data", "digits")


def test_python_raises_the_same_sentence() -> None:
    with pytest.raises(unseen.UserError, match='no setting "round"'):
        unseen.run(data="digits", target="street", round=3)


@pytest.mark.parametrize(
    ("classes", "parts"),
    [
        ({"a": {"cat": 1, "dog": 1}, "b": {"cat": 1, "cow": 1}, "c": {"cat": 1, "dog": 1}}, ['"b"', '"cow"']),
        ({"a": {"cat": 1, "dog": 1}, "b": {"cat": 1}, "c": {"cat": 1, "dog": 1}}, ['"b"', '"dog"']),
        ({"a": {"cat": 1, "dog": 1}, "b": {"cat": 1, "dog": 0}}, ['"dog"', '"b"', "empty"]),
    ],
    ids=["other class", "class lacking", "empty class"],
)
def test_a_folder_that_does_not_do(classes: dict[str, dict[str, int]], parts: list[str], tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", classes)
    before = contents(root)
    sentence = refused("run", "--data", "folder", "--root", root, "--target", "a", *SMALL)
    for part in parts:
        assert part in sentence
    assert contents(root) == before


def test_a_client_with_one_image_is_named(tmp_path: Path) -> None:
    many, two = {"cat": 9, "dog": 9}, {"cat": 1, "dog": 1}
    root = photos(tmp_path / "photos", {"a": many, "b": two, "c": many})
    sentence = refused("run", "--data", "folder", "--root", root, "--target", "a", "--partition", "iid:2", *SMALL)
    assert '"b-00"' in sentence and "too few training images (1)" in sentence


def test_a_broken_image_is_named_and_may_be_skipped(tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", {d: {"cat": 6, "dog": 6} for d in "abc"})
    (root / "b" / "cat" / "0.png").write_bytes(b"no image")
    words = ["run", "--data", "folder", "--root", root, "--target", "a", *SMALL, "--out", tmp_path / "runs"]
    sentence = refused(*words)
    assert str(root / "b" / "cat" / "0.png") in sentence and "--skip-broken" in sentence
    result = CliRunner().invoke(app, [*map(str, words), "--skip-broken"])
    assert result.exit_code == 0 and "left out 1 broken images: b/cat/0.png" in result.stderr


def test_weights_that_do_not_fit_name_their_tensors(tmp_path: Path) -> None:
    save_file({"strange.weight": zeros(2)}, tmp_path / "other.safetensors")
    assert "strange.weight" in refused(*RUN, "--weights", tmp_path / "other.safetensors")
    (tmp_path / "cut.safetensors").write_bytes((tmp_path / "other.safetensors").read_bytes()[:20])
    assert "cut.safetensors" in refused(*RUN, "--weights", tmp_path / "cut.safetensors")


def test_training_that_ends_in_nan_says_so(tmp_path: Path) -> None:
    sentence = refused(*RUN, "--lr", "1e30", "--local-steps", "3", "--out", tmp_path)
    assert '"loss" is not a finite number' in sentence and "try a smaller --lr" in sentence


# --- run directories ---------------------------------------------------------------------------------------------
LONG = ["run", "--target", "street", "--rounds", "3", *TINY[2:]]


class Enough(Exception):
    pass


@pytest.fixture
def broken_off(tmp_path: Path) -> Path:
    """A run of three rounds that was killed after its second."""

    class Impatient:
        def began(self, *_: object) -> None: ...

        def testing(self, *_: object) -> None: ...

        def said(self, *_: object) -> None: ...

        def round(self, line: dict[str, Any]) -> None:
            if line.round == 2:
                raise Enough

    with pytest.raises(Enough):
        unseen.run(
            target="street",
            rounds=3,
            local_steps=1,
            image_size=16,
            test_every=0,
            workers=1,
            out=tmp_path / "runs",
            watcher=Impatient(),
        )
    (path,) = (tmp_path / "runs").iterdir()
    return path


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_a_checkpoint_that_is_cut_off_is_passed_over(broken_off: Path) -> None:
    cut(broken_off / "checkpoints" / "round-000002.safetensors")
    result = CliRunner().invoke(app, ["run", "--resume", str(broken_off), "--workers", "1"])
    assert result.exit_code == 0, result.output
    assert "going on after round 1" in result.stderr
    unbroken = unseen.run(target="street", rounds=3, local_steps=1, image_size=16, test_every=0, workers=1)
    again = unseen.load_trained(broken_off).net.state_dict()
    assert all(value.equal(again[name]) for name, value in unbroken.model.net.state_dict().items())


def test_without_a_whole_checkpoint_nothing_is_overwritten(broken_off: Path) -> None:
    for path in (broken_off / "checkpoints").glob("round-*"):
        cut(path)
    before = contents(broken_off)
    sentence = refused(*LONG, "--out", broken_off.parent)
    assert "cut off" in sentence and "delete" in sentence
    assert contents(broken_off) == before


def test_a_directory_of_other_arguments_is_left_alone(broken_off: Path) -> None:
    config = broken_off / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "target": "ink"}))
    before = contents(broken_off)
    assert "other arguments" in refused(*LONG, "--out", broken_off.parent)
    assert "other arguments" in refused("run", "--resume", broken_off)
    assert contents(broken_off) == before
    cut(config)
    assert "config.json" in refused("run", "--resume", broken_off)


def test_a_directory_that_is_no_run(tmp_path: Path, broken_off: Path) -> None:
    assert "no run directory" in refused("run", "--resume", tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "config.json" in refused("run", "--resume", tmp_path / "empty")
    assert "no runs in" in refused("show", tmp_path / "empty")
    assert "no folder" in refused("show", tmp_path / "nowhere")
    Image.new("RGB", (9, 9)).save(tmp_path / "a.png")
    assert "not finished" in refused("predict", broken_off, tmp_path / "a.png")
    assert "no image or folder" in refused("predict", broken_off, tmp_path / "nowhere")
    assert "no images in" in refused("predict", broken_off, tmp_path / "empty")


def full_when(monkeypatch: pytest.MonkeyPatch, is_victim: Callable[[Path], bool]) -> None:
    """The disk is full for some files: what is written to them arrives only in part."""
    write = Path.write_bytes

    def write_some(self: Path, data: bytes) -> int:
        if is_victim(self):
            write(self, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))
        return write(self, data)

    monkeypatch.setattr(Path, "write_bytes", write_some)


def test_a_full_disk_keeps_the_rounds_before(broken_off: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(broken_off)
    with monkeypatch.context() as patch:
        full_when(patch, lambda path: "round-000003" in path.name)
        sentence = refused(*LONG, "--out", broken_off.parent)
    assert "disk is full" in sentence and "free some space" in sentence
    after = contents(broken_off)
    grow = ("results.jsonl", "audit.jsonl")  # lines are only ever added
    assert {name: after[name] for name in before if name not in grow} == {
        name: data for name, data in before.items() if name not in grow
    }
    assert all(after[name].startswith(before[name]) for name in grow)
    assert not [name for name in after if ".safetensors." in name]  # no half-written file stays
    result = CliRunner().invoke(app, [*LONG, "--out", str(broken_off.parent)])
    assert result.exit_code == 0 and "going on after round 2" in result.stderr


def test_a_full_disk_at_the_predictions_keeps_the_old_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, *_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    assert CliRunner().invoke(app, [*RUN, "--out", str(tmp_path / "runs")]).exit_code == 0
    (run,) = (tmp_path / "runs").iterdir()
    Image.new("RGB", (9, 9)).save(tmp_path / "a.png")
    (tmp_path / "p.csv").write_text("old")
    monkeypatch.setattr(files.os, "fsync", full)
    assert "disk is full" in refused("predict", run, tmp_path / "a.png", "--out", tmp_path / "p.csv")
    assert (tmp_path / "p.csv").read_text() == "old"


def test_an_out_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("keep me")
    assert "--out" in refused(*RUN, "--out", tmp_path / "file")
    assert (tmp_path / "file").read_text() == "keep me"


def test_options_that_do_not_exist_are_typers_own() -> None:
    result = CliRunner().invoke(app, [*RUN, "--nothing"])
    assert result.exit_code == 2 and "--nothing" in result.output
