"""Killed at every file operation of a round, on a full disk, rolled back: the run goes on, and ends with the same bits."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

import unseen
from tests.attempts import attempt
from tests.runs.crashes import Killed, counted, go_on, two_rounds
from unseen.cli import app
from unseen.core.errors import UserError
from unseen.core.files import read_tensors
from unseen.core.types import Tensors
from unseen.runs.directory import RunDirectory


def model(folder: Path) -> Tensors:
    return read_tensors(folder / "model.safetensors")[0]


def equal(one: Tensors, two: Tensors) -> bool:
    return one.keys() == two.keys() and all(one[name].equal(two[name]) for name in one)


def until(folder: Path, ending: str) -> Path:
    """A run that was killed just after this file was written."""
    with counted(folder) as fuse:
        go_on(RunDirectory(folder), two_rounds())
    number = next(i for i, what in enumerate(fuse.seen) if what.startswith("replace") and what.endswith(ending))
    shutil.rmtree(folder)
    with pytest.raises(Killed), counted(folder, number + 2):
        go_on(RunDirectory(folder), two_rounds())
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("whole") / "run"
    go_on(RunDirectory(folder), two_rounds())
    return folder


@pytest.fixture(scope="module")
def first_round(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return until(tmp_path_factory.mktemp("first") / "run", "round-000001.safetensors")


def test_killed_at_every_file_operation_of_a_round_the_run_ends_with_the_same_bits(
    whole: Path, first_round: Path, tmp_path: Path
) -> None:
    shutil.copytree(first_round, tmp_path / "counted")
    with counted(tmp_path / "counted") as fuse:
        go_on(RunDirectory(tmp_path / "counted"), two_rounds())
    assert equal(model(tmp_path / "counted"), model(whole))
    kinds = {what.split()[0] for what in fuse.seen}
    assert kinds == {"mkstemp", "write", "chmod", "replace", "unlink", "open", "mkdir"}  # the shim sees them all
    written = {what.split()[1] for what in fuse.seen if what.startswith(("replace", "open"))}
    assert {"round-000002.safetensors", "results.jsonl", "audit.jsonl", "result.json", "000002.safetensors"} <= written
    lines = RunDirectory(whole).rounds()
    for number in range(1, len(fuse.seen) + 1):
        run = RunDirectory(Path(shutil.copytree(first_round, tmp_path / str(number))))
        with attempt("kill"):
            with pytest.raises(Killed), counted(run.path, number) as again:
                go_on(run, two_rounds())
            assert [what.split()[0] for what in again.seen[:number]] == [what.split()[0] for what in fuse.seen[:number]]
            if not run.finished:
                go_on(run, two_rounds())
            where = fuse.seen[number - 1]
            assert equal(model(run.path), model(whole)), where
            assert [(line.round, line.loss, line.validation) for line in run.rounds()] == [
                (line.round, line.loss, line.validation) for line in lines
            ], where
            assert run.verify_audit().fault == "", where
        shutil.rmtree(run.path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True
        ).returncode
    ):
        pytest.skip("a small disk needs root and the right to mount a tmpfs")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_is_one_sentence_and_the_run_goes_on_where_there_is_room(small_disk: Path, whole: Path) -> None:
    ballast, run = small_disk / "ballast", RunDirectory(small_disk / "run")
    stopped: list[str] = []
    for free in range(20_000, 1_000_000, 120_000):  # so many bytes are free: the disk is full at another file each time
        shutil.rmtree(run.path, ignore_errors=True)
        size = shutil.disk_usage(small_disk).free - free
        ballast.write_bytes(b"\0" * max(size, 0))
        with attempt("disk"):
            try:
                go_on(run, two_rounds())
            except UserError as error:
                stopped.append(str(error))
            ballast.unlink()
            go_on(run, two_rounds())
            assert equal(model(run.path), model(whole)) and run.verify_audit().fault == ""
    assert len(stopped) >= 2 and all("disk is full" in sentence for sentence in stopped)


# --- the audit log ---------------------------------------------------------------------------------------------------
def entries(run: Path) -> list[dict[str, object]]:
    return [json.loads(line)["entry"] for line in (run / "audit.jsonl").read_text().splitlines()]


def test_the_audit_log_says_who_was_asked_what_and_what_came_back(whole: Path) -> None:
    log = entries(whole)
    assert [entry["event"] for entry in log[:7]] == ["begin", "reply", "reply", "round", "reply", "reply", "round"]
    assert all((entry["event"], entry["asked"]) == ("reply", "evaluate") for entry in log[7:])
    first = log[1]
    assert (first["round"], first["client"], first["asked"], first["images"]) == (1, "a", "train", 16)
    assert first["refused"] is None and float(str(first["norm"])) > 0
    sent, got = first["sent"], first["got"]
    assert isinstance(sent, dict) and isinstance(got, dict) and sent["bytes"] == got["bytes"] > 0
    assert got["names"] == log[2]["got"]["names"]  # type: ignore[index]  # both clients sent the same tensors
    assert log[3] == {**log[3], "round": 1, "merged": ["a", "b"], "left_out": []}


def test_a_killed_run_goes_on_with_the_chain(first_round: Path, tmp_path: Path) -> None:
    run = RunDirectory(Path(shutil.copytree(first_round, tmp_path / "run")))
    with (run.path / "audit.jsonl").open("ab") as file:
        file.write(b'{"entry": {"time": "20')  # the process was killed here
    assert run.verify_audit().cut and not run.verify_audit().fault
    go_on(run, two_rounds())
    found = CliRunner().invoke(app, ["ledger", "verify", str(run.path)])
    assert found.exit_code == 0 and found.stdout.startswith("whole: ")
    assert [entry["event"] for entry in entries_after_a_cut(run.path)].count("resume") == 1


def entries_after_a_cut(run: Path) -> list[dict[str, object]]:
    lines = (run / "audit.jsonl").read_text().splitlines()
    return [json.loads(line)["entry"] for line in lines if line.endswith("}")]


def changed_line(lines: list[str]) -> list[str]:
    return [*lines[:1], lines[1].replace('"images": 16', '"images": 17'), *lines[2:]]


BROKEN = {
    "changed": (changed_line, "line 2 was changed"),
    "taken out": (lambda lines: [*lines[:1], *lines[2:]], "line 2 does not follow"),
    "put in twice": (lambda lines: [*lines[:2], lines[1], *lines[2:]], "line 3 does not follow"),
    "swapped": (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], "line 2 does not follow"),
    "nonsense": (lambda lines: [*lines[:1], "nonsense", *lines[1:]], "line 2 is not an entry"),
    "the beginning": (lambda lines: lines[1:], "line 1 does not follow"),
    "the end": (lambda lines: lines[:3], "its end is missing: the checkpoint of round 2"),
    "all": (lambda lines: [], "its end is missing"),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_a_log_that_was_touched_says_where(what: str, whole: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    log = run / "audit.jsonl"
    change, words = BROKEN[what]
    log.write_text("".join(f"{line}\n" for line in change(log.read_text().splitlines())))
    with attempt("log"):
        found = CliRunner().invoke(app, ["ledger", "verify", str(run)])
        assert found.exit_code == 1 and found.stdout.startswith("BROKEN: ") and words in found.stdout.replace("\n", " ")


# --- rollback --------------------------------------------------------------------------------------------------------
def test_rolled_back_the_run_goes_on_from_there(whole: Path, tmp_path: Path) -> None:
    run = RunDirectory(Path(shutil.copytree(whole, tmp_path / "run")))
    unseen.rollback(run.path, 1)
    assert not run.finished and [line.round for line in run.rounds()] == [1]
    restored = run.restore()
    assert restored is not None and restored[0].round == 1
    go_on(run, two_rounds())
    assert equal(model(run.path), model(whole)) and unseen.verify_ledger(run.path).fault == ""
    assert [entry["event"] for entry in entries(run.path)].count("rollback") == 1


def test_a_rolled_back_deployment_goes_on_by_another_command(whole: Path, tmp_path: Path) -> None:
    run = RunDirectory(Path(shutil.copytree(whole, tmp_path / "run")))
    config = json.loads(run.config_path.read_text())
    config["data"] |= {"name": "folder", "root": None}  # its images are at the sites
    run.config_path.write_text(json.dumps(config))
    found = CliRunner().invoke(app, ["rollback", str(run.path), "--round", "1"])
    assert (found.exit_code, found.stdout) == (0, "back at round 1; `flwr run` again goes on\n")


def test_a_round_that_is_not_kept_is_a_sentence_and_nothing_is_lost(whole: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    found = CliRunner().invoke(app, ["rollback", str(run), "--round", "7"])
    assert found.exit_code == 2
    assert "no checkpoint of round 7: the last 3 are kept, and there are 1, 2" in found.stderr.replace("\n", " ")
    assert RunDirectory(run).finished
    assert CliRunner().invoke(app, ["rollback", str(tmp_path), "--round", "1"]).exit_code == 2
    assert CliRunner().invoke(app, ["ledger", "verify", str(tmp_path)]).exit_code == 2


# --- damage ----------------------------------------------------------------------------------------------------------
def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    if data:
        data[len(data) // 2] ^= 0x20
    path.write_bytes(bytes(data))


def wrong_types(path: Path) -> None:
    """The same keys, other things: JSON that can be read and means nothing."""
    if path.suffix == ".safetensors":
        save_file({"weight": torch.zeros(2, dtype=torch.int8)}, path, metadata={"about": json.dumps({"round": "x"})})
        return
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text() or "{}"]
    path.write_text("".join(json.dumps({key: [None] for key in json.loads(line)}) + "\n" for line in lines if line))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "flipped": flipped,
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "not JSON": lambda path: path.write_bytes(b"\x00\xff not JSON {{{"),
    "deep": lambda path: path.write_text("[" * 100_000),
    "wrong types": wrong_types,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_each_file_of_a_run_damaged_is_a_sentence_or_the_same_bits(damage: str, whole: Path, tmp_path: Path) -> None:
    """A run that was killed before its end goes on, or says what is wrong; `show` and `verify` do too."""
    files = sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file())
    assert {str(name).split("/")[0] for name in files} >= {
        "config.json",
        "checkpoints",
        "clients",
        "audit.jsonl",
        "lock",
    }
    for name in files:
        if name.name == "result.json" or name.parts[:2] == ("clients", "b"):  # as one client's, so the other's
            continue
        run = RunDirectory(Path(shutil.copytree(whole, tmp_path / "run")))
        (run.path / "result.json").unlink()
        DAMAGE[damage](run.path / name)
        for words in (["show"], ["ledger", "verify"])[: 2 if name.name == "audit.jsonl" else 1]:
            with attempt("damage"):
                found = CliRunner().invoke(app, [*words, str(run.path)])
                codes = (0, 1 if words == ["ledger", "verify"] else 0, 2)
                assert found.exit_code in codes, (name, words, found.exception)
                assert found.exception is None or isinstance(found.exception, SystemExit), (name, words)
        with attempt("damage"), contextlib.suppress(UserError):
            go_on(run, two_rounds())
            assert equal(model(run.path), model(whole)), name
        shutil.rmtree(run.path)
