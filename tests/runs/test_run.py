"""Whole runs on the built-in digits: what is written, same bits, kill -9 at any moment."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.small_runs import assembled, run_local, settings
from unseen.core.errors import UserError
from unseen.core.files import read_json, read_tensors
from unseen.federation.calibrate import OF_LOOKS, SHAPES
from unseen.federation.measure import measure
from unseen.runs.directory import RunDirectory, directory_for, find_runs
from unseen.runs.results import RunResult
from unseen.runs.settings import Settings, with_seed

TINY: dict[str, Any] = {"rounds": 4, "local_steps": 2, "batch_size": 16, "image_size": 16, "test_every": 2}


def tiny(method: str = "fedbn", target: str = "street", **changes: Any) -> Settings:
    return settings(method=method, target=target, protocol="digits", **{**TINY, **changes})


def bits(path: Path) -> dict[str, bytes]:
    tensors, _ = read_tensors(path / "model.safetensors")
    return {key: value.numpy().tobytes() for key, value in tensors.items()}


def numbers(path: Path) -> dict[str, Any]:
    return {key: value for key, value in read_json(path / "result.json").items() if key != "seconds"}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    result = run_local(tiny(), out=tmp_path_factory.mktemp("unbroken"))
    assert result.directory is not None
    return result.directory


def test_the_run_directory(unbroken: Path) -> None:
    assert {p.name for p in unbroken.iterdir()} == {
        "config.json", "results.jsonl", "checkpoints", "clients", "ledger.json", "lock", "model.safetensors", "result.json",
        "audit.jsonl",
        "calibration.json",
    }  # fmt: skip
    result = read_json(unbroken / "result.json")
    assert result["method"] == "fedbn" and result["target"] == "street" and result["protocol"] == "digits"
    assert 0 <= result["accuracy"] <= 1 and 0 <= result["in_domain_accuracy"] <= 1
    assert result["bytes_up"] > 0 and result["bytes_down"] > 0 and result["seconds"] > 0
    rounds = [p.name for p in (unbroken / "checkpoints").glob("round-*")]
    assert sorted(rounds) == [f"round-00000{number}.safetensors" for number in (2, 3, 4)]
    lines = RunDirectory(unbroken).rounds()
    assert [line.round for line in lines] == [1, 2, 3, 4]
    assert [line.unseen is not None for line in lines] == [False, True, False, True]
    assert [line.validation.round for line in lines[1:]] == [1, 2, 3]


def test_the_selected_round_is_the_best_validated(unbroken: Path) -> None:
    result = read_json(unbroken / "result.json")
    lines = RunDirectory(unbroken).rounds()
    scores = {line.validation.round: line.validation.accuracy for line in lines[1:]}
    scores[4] = result["validation_last"]["accuracy"]
    best = max(scores.values())
    assert result["selected_round"] == min(r for r, s in scores.items() if s == best)
    assert result["in_domain_images"] == "test"  # measured on images that selected nothing


def test_without_test_images_the_validation_images_make_the_in_domain_number(tmp_path: Path) -> None:
    record = run_local(tiny(in_domain_test=0, validation=0.2, test_every=0), out=tmp_path).record
    assert record.in_domain_images == "validation"
    assert record.validation_last is not None
    assert record.last_in_domain_accuracy == record.validation_last.accuracy


def test_the_in_domain_number_and_the_last_round_are_those_of_their_models(tmp_path: Path) -> None:
    chosen = tiny(method="fedavg", server_selection="last")
    by_hand = assembled(chosen)
    result = run_local(chosen, out=tmp_path)
    record = result.record
    assert record.selected_round == 4
    assert (record.accuracy, record.in_domain_accuracy) == (record.last_accuracy, record.last_in_domain_accuracy)
    scores = {}
    for client, site in by_hand.data.sites.items():
        assert site.test is not None and len(site.test) > 0
        assert not {tuple(row) for row in rows_of(site.test)} & {tuple(row) for row in rows_of(site.validation)}
        scores[client] = measure(by_hand.method.predict, result.model.net, site.test, chosen.plan).accuracy
    assert record.in_domain == scores
    assert record.in_domain_accuracy == pytest.approx(sum(scores.values()) / 3)
    assert record.worst_client == min(scores.values())
    # The measures beside accuracy are of the same model on the same unseen images, and come back from the file.
    target = by_hand.data.target
    assert target is not None and record.measured is not None and record.accuracy is not None
    probabilities = torch.from_numpy(result.model.predict_proba(target.batch(torch.arange(len(target))).x))
    confusion = torch.zeros(10, 10, dtype=torch.int64)
    confusion.index_put_((target.labels, probabilities.argmax(1)), torch.ones((), dtype=torch.int64), accumulate=True)
    assert record.measured.confusion == confusion.tolist()
    assert confusion.trace().item() / len(target) == pytest.approx(record.accuracy)
    assert RunDirectory.of(chosen, tmp_path).result() == record
    old = {key: value for key, value in record.to_json().items() if key != "measured"}
    assert RunResult.from_json(old).measured is None and RunResult.from_json(old).accuracy == record.accuracy


def rows_of(images: Any) -> list[list[float]]:
    return images.batch(torch.arange(len(images))).x.flatten(1).tolist()


def test_the_target_is_never_with_a_client(unbroken: Path) -> None:
    result = read_json(unbroken / "result.json")
    assert set(result["in_domain"]) == {"ink", "colour", "outline"}


def test_the_ledger_counts_every_tensor(unbroken: Path) -> None:
    ledger = read_json(unbroken / "ledger.json")
    state, _ = read_tensors(unbroken / "model.safetensors")
    rows = {(r["direction"], r["name"]): r for r in ledger["tensors"] if r["kind"] == "model"}
    for name, value in state.items():
        row = rows["up", name]
        assert (row["shape"], row["bytes"], row["crossings"]) == (list(value.shape), value.nbytes, 3 * 4)
    assert ledger["trips"] == 3 * 4
    up = [r for r in ledger["tensors"] if r["direction"] == "up"]
    assert {r["name"] for r in up if r["kind"] == "calibration"} == {*SHAPES, *OF_LOOKS}  # once, after training
    total = sum(r["total"] for r in up if r["kind"] != "calibration")
    assert read_json(unbroken / "result.json")["bytes_up"] == pytest.approx(total / 12)


def test_a_finished_run_is_not_run_again(unbroken: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in unbroken.rglob("*") if p.is_file()}
    again = run_local(tiny(), out=unbroken.parent)
    assert again.directory == unbroken
    assert before == {p: p.stat().st_mtime_ns for p in unbroken.rglob("*") if p.is_file()}


def test_two_workers_same_bits(unbroken: Path, tmp_path: Path) -> None:
    result = run_local(tiny(), out=tmp_path, workers=2)
    assert result.directory is not None
    assert bits(result.directory) == bits(unbroken)
    assert numbers(result.directory) == numbers(unbroken)


@pytest.mark.parametrize("lines", [0, 1, 3])
def test_killed_and_resumed_same_bits(unbroken: Path, tmp_path: Path, lines: int) -> None:
    """kill -9 once `lines` rounds stand in results.jsonl, which is before the checkpoint of the last of them is written."""
    directory = directory_for(tiny(), tmp_path)
    child = os.fork()
    if child == 0:
        try:
            run_local(tiny(), out=tmp_path)
        finally:
            os._exit(0)  # whatever happens, this process must not go on as a second pytest
    log = directory / "results.jsonl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if directory.exists() and (log.read_text().count("\n") if log.exists() else 0) >= lines:
            break
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert not (directory / "result.json").exists()
    run_local(tiny(), out=tmp_path)
    assert bits(directory) == bits(unbroken)
    assert numbers(directory) == numbers(unbroken)


def test_a_cut_off_checkpoint_is_passed_over(unbroken: Path, tmp_path: Path) -> None:
    directory = _broken_off(tmp_path, rounds=3)
    newest = max((directory / "checkpoints").glob("round-*"))
    newest.write_bytes(newest.read_bytes()[:100])
    run_local(tiny(), out=tmp_path)
    assert bits(directory) == bits(unbroken)


def test_no_whole_checkpoint_is_an_error_that_overwrites_nothing(tmp_path: Path) -> None:
    directory = _broken_off(tmp_path, rounds=3)
    for path in (directory / "checkpoints").glob("round-*"):
        path.write_bytes(path.read_bytes()[:100])
    before = sorted(p.name for p in (directory / "checkpoints").iterdir())
    with pytest.raises(UserError, match="cut off"):
        run_local(tiny(), out=tmp_path)
    assert before == sorted(p.name for p in (directory / "checkpoints").iterdir())


def _broken_off(out: Path, rounds: int) -> Path:
    """A run that stopped after some rounds, as if the machine had gone down between two of them."""

    class Stop(Exception):
        pass

    class Stopper:
        def began(self, *args: object) -> None: ...
        def testing(self, *args: object) -> None: ...
        def said(self, sentence: str) -> None: ...
        def round(self, line: dict[str, Any]) -> None:
            if line.round == rounds:
                raise Stop

    with pytest.raises(Stop):
        run_local(tiny(), out=out, watcher=Stopper())
    return directory_for(tiny(), out)


def test_other_arguments_other_directory_and_a_foreign_config_is_refused(tmp_path: Path) -> None:
    assert directory_for(tiny(), tmp_path) != directory_for(tiny(seed=1), tmp_path)
    assert directory_for(tiny(), tmp_path) == directory_for(tiny(), tmp_path)
    directory = RunDirectory.of(tiny(), tmp_path).begin(tiny())
    config = read_json(directory.config_path)
    directory.config_path.write_text(json.dumps({**config, "target": "ink"}))
    with pytest.raises(UserError, match="other arguments"):
        RunDirectory.of(tiny(), tmp_path).begin(tiny())


def test_oracle_peeks_and_says_so(tmp_path: Path) -> None:
    result = run_local(tiny("fedavg", server_selection="oracle"), out=tmp_path)
    assert result.record.peeks is True and "PEEKS" in result.record.selection_words
    tested = {line.unseen.round: line.unseen.accuracy for line in result.rounds}
    assert result.accuracy == max(tested.values())


def test_last_selects_the_last(tmp_path: Path) -> None:
    result = run_local(tiny("fedavg", server_selection="last", test_every=0), out=tmp_path)
    assert result.selected_round == 4
    assert all(line.validation is None for line in result.rounds)
    assert result.in_domain_accuracy is not None


def test_client_side_best_and_partial_participation(tmp_path: Path) -> None:
    chosen = tiny("fedbn", partition="iid:2", participation=3, client_selection="best", check_every=1, batch_size=8)
    result = run_local(chosen, out=tmp_path)
    assert result.record.clients == 6
    assert all(len(line.clients) == 3 for line in result.rounds)
    assert all("local.accuracy" in m for line in result.rounds for m in line.clients.values())
    assert [d.path for d in find_runs(tmp_path)] == [result.directory]


def test_the_trained_model_predicts_as_it_was_tested(unbroken: Path) -> None:
    from tests.small_runs import assembled
    from unseen.runs.model import load_trained

    trained = load_trained(unbroken)
    target = assembled(tiny()).data.target
    assert target is not None
    batch = target.batch(torch.arange(len(target)))
    accuracy = (trained.predict(batch.x) == np.array(trained.classes)[batch.y]).mean()
    assert accuracy == pytest.approx(read_json(unbroken / "result.json")["accuracy"])


def test_a_persistent_optimizer_is_kept_by_the_client(tmp_path: Path) -> None:
    keep = run_local(tiny("fedavg", keep_optimizer=True), out=tmp_path / "keep", workers=2)
    drop = run_local(tiny("fedavg"), out=tmp_path / "drop")
    assert keep.directory is not None and drop.directory is not None
    assert bits(keep.directory) != bits(drop.directory)
    kept, _ = read_tensors(max((keep.directory / "clients" / "ink").iterdir()))
    assert any(name.endswith("momentum_buffer") for name in kept)


def test_settings_survive_json() -> None:
    chosen = tiny(lr=0.3, seed=4)
    assert Settings.from_json(json.loads(json.dumps(chosen.to_json()))) == chosen
    assert with_seed(chosen, 5) != chosen
    assert chosen.plan.optimizer.lr == 0.3 and chosen.plan.local_epochs is None
