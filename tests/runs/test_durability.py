"""What a full disk, a flipped byte, a second process or a lost file do to a run: one sentence, and nothing wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.attempts import attempt
from tests.reports.runs import invent
from tests.runs.test_crashes import wrong_types
from tests.small_runs import run_local, settings
from unseen.core.errors import UserError
from unseen.core.files import append_line, read_lines, read_tensors
from unseen.runs.directory import RunDirectory
from unseen.runs.model import load_trained
from unseen.runs.settings import Settings

TINY = {"rounds": 2, "local_steps": 1, "batch_size": 8, "image_size": 16, "test_every": 0}


def tiny(method: str = "fedavg") -> Settings:
    return settings(method=method, target="street", protocol="digits", **TINY)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = run_local(tiny(), out=tmp_path_factory.mktemp("durable")).directory
    assert directory is not None
    return directory


def copied(run: Path, to: Path) -> Path:
    import shutil

    return Path(shutil.copytree(run, to / run.name))


def test_a_line_that_a_full_disk_cut_off_does_not_swallow_the_next(tmp_path: Path) -> None:
    log = tmp_path / "results.jsonl"
    append_line(log, {"round": 1})
    with log.open("a") as file:
        file.write('{"round": 2, "lo')  # the disk was full here
    append_line(log, {"round": 2, "loss": 0.5})
    assert read_lines(log) == [{"round": 1}, {"round": 2, "loss": 0.5}]


def test_a_flipped_byte_in_a_model_is_noticed(finished: Path, tmp_path: Path) -> None:
    run = copied(finished, tmp_path)
    model = run / "model.safetensors"
    data = bytearray(model.read_bytes())
    data[-5] ^= 1  # among the weights
    model.write_bytes(bytes(data))
    with attempt("damage"), pytest.raises(UserError, match="damaged: its checksum does not fit"):
        load_trained(run)
    data[-5] ^= 1
    model.write_bytes(bytes(data))
    assert load_trained(run).selected_round in (1, 2)


def test_a_flipped_byte_in_a_checkpoint_is_passed_over_for_the_one_before(tmp_path: Path) -> None:
    chosen = tiny("fedbn")
    whole = run_local(chosen, out=tmp_path / "whole").directory
    broken = run_local(chosen, out=tmp_path / "broken").directory
    assert whole is not None and broken is not None
    for name in ("result.json", "model.safetensors"):
        (broken / name).unlink()
    last = max((broken / "checkpoints").glob("round-*.safetensors"))
    data = bytearray(last.read_bytes())
    data[-5] ^= 1
    last.write_bytes(bytes(data))
    run_local(chosen, out=tmp_path / "broken")
    assert read_tensors(broken / "model.safetensors")[0].keys() == read_tensors(whole / "model.safetensors")[0].keys()
    for name, value in read_tensors(whole / "model.safetensors")[0].items():
        assert value.equal(read_tensors(broken / "model.safetensors")[0][name]), name


def test_a_run_whose_model_is_lost_is_not_finished(finished: Path, tmp_path: Path) -> None:
    run = copied(finished, tmp_path)
    (run / "model.safetensors").unlink()
    assert not RunDirectory(run).finished
    again = run_local(tiny(), out=tmp_path)  # makes it again from the last checkpoint
    assert again.directory == run and RunDirectory(run).finished
    before, after = (read_tensors(path / "model.safetensors")[0] for path in (finished, run))
    assert all(before[name].equal(after[name]) for name in before)


def test_two_processes_do_not_work_on_one_run(tmp_path: Path) -> None:
    chosen = tiny()
    directory = RunDirectory.of(chosen, tmp_path).begin(chosen)
    holder = subprocess.Popen(
        [sys.executable, "-c", "import sys; from pathlib import Path; from unseen.runs.directory import RunDirectory\n"
         "with RunDirectory(Path(sys.argv[1])).locked():\n    print('held', flush=True)\n    sys.stdin.read()",
         str(directory.path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with pytest.raises(UserError, match="Another process is working on"):
            run_local(chosen, out=tmp_path)
    finally:
        holder.communicate("")
    assert run_local(chosen, out=tmp_path).accuracy is not None


DAMAGE = {
    "empty": lambda path: path.write_bytes(b""),
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "noise": lambda path: path.write_bytes(bytes(range(256)) * 4),
    "another type": lambda path: path.write_text(json.dumps([1, 2, 3])),
    "other types inside": lambda path: wrong_types(path),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize(
    "name", ["config.json", "result.json", "results.jsonl", "model.safetensors", "ledger.json", "calibration.json"]
)
def test_damaged_files_give_a_sentence_and_no_traceback(name: str, damage: str, finished: Path, tmp_path: Path) -> None:
    """Every command that reads a run: it works, or says in one sentence what is wrong."""
    from typer.testing import CliRunner

    from unseen.cli import app

    run = copied(finished, tmp_path)
    DAMAGE[damage](run / name)
    for words in (["show", run], ["show", tmp_path], ["report", tmp_path, "--no-insight"], ["run", "--resume", run],
                  ["predict", run, tmp_path]):  # fmt: skip
        with attempt("damage"):
            found = CliRunner().invoke(app, [str(word) for word in words])
            assert found.exit_code in (0, 2), (words, found.output, found.exception)
            if found.exit_code == 2:
                assert found.stderr.strip().splitlines()[-1].startswith(("Error:", "Usage", "│", "╰")), found.stderr


def test_records_that_were_kept_without_their_model_are_not_called_unfinished(tmp_path: Path) -> None:
    (run,) = invent(tmp_path, {"fedavg": 0.5}, targets=("ink",), seeds=[0])
    with pytest.raises(UserError, match=r"is finished, but its model \(model.safetensors\) is not there"):
        load_trained(run.path)
    (run.path / "result.json").unlink()
    with pytest.raises(UserError, match="is not finished: go on with it by"):
        load_trained(run.path)
