"""The recorder sees what crossed, and the run does not see the recorder."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.audits.tiny_audit import recorded
from tests.small_runs import run_local, settings
from tests.tiny_federation import federation, same
from unseen.audits.record import Recorder, read_recorded
from unseen.audits.replay import replay, replayable
from unseen.core.types import Order, Reply
from unseen.runs.directory import RunDirectory
from unseen.runs.progress import Silent
from unseen.runs.run import PlannedRun, assemble, load_data


def test_a_recorded_run_has_the_same_bits(tmp_path: Path) -> None:
    plain, watched = federation("ccst", tmp_path / "a"), federation("ccst", tmp_path / "b")
    plain.run()
    recorded(watched, tmp_path / "recorded")
    assert same(plain.server.state, watched.server.state)


def test_what_was_recorded_is_what_crossed(tmp_path: Path) -> None:
    fed = federation("ccst", tmp_path / "clients")
    rounds = recorded(fed, tmp_path / "recorded", frozenset({2}))
    found = read_recorded(tmp_path / "recorded", {1, 2})
    assert [(one.client, one.round) for one in found] == [("a", 2), ("b", 2), ("c", 2)]  # only the round asked for
    assert same(found[0].received, rounds[1].before)  # which came with the survey
    assert set(found[0].survey) == {"styles"} and found[0].survey["styles"].shape == (1, 2, 8)
    others = torch.cat([found[1].survey["styles"], found[2].survey["styles"]])
    assert torch.equal(found[0].brief["styles"], others)
    weights = [one.images / sum(other.images for other in found) for one in found]
    mean = sum(w * one.state["head.bias"].double() for w, one in zip(weights, found, strict=True))
    assert torch.allclose(fed.server.state["head.bias"].double(), mean, atol=1e-7)


class OneReply:
    def clients(self) -> list[str]:
        return ["a"]

    def ask(self, orders: dict[str, Order]) -> list[Reply]:
        return [Reply("a", "train", 1, 5, state={"w": torch.zeros(1000)})]


def test_the_recorder_keeps_within_its_bytes(tmp_path: Path) -> None:
    orders = {"a": Order("train", 1, {})}
    for most, files in ((3_999, 0), (100_000, 1)):
        folder = tmp_path / str(most)
        assert len(list(Recorder(OneReply(), folder, frozenset({1}), most).ask(orders))) == 1  # type: ignore[arg-type]
        assert len(list(folder.rglob("*.safetensors"))) == files


def test_the_first_and_the_last_round_are_replayed_bit_by_bit(tmp_path: Path) -> None:
    chosen = settings(method="scaffold", rounds=3, local_steps=1, batch_size=4, test_every=0)
    run = RunDirectory.of(chosen, tmp_path)
    run_local(chosen, out=tmp_path)
    planned = PlannedRun.of(chosen)
    data = load_data(planned, Silent())
    assert replayable(run, 3) == (1, 3)
    folder = tmp_path / "recorded"
    # SCAFFOLD's clients keep control variates: the last round comes out right only from what they had before it.
    assert replay(lambda: assemble(planned, data), run, (1, 3), folder, Silent()) is True
    assert {one.round for one in read_recorded(folder, (1, 3))} == {1, 3}
    other = PlannedRun.of(chosen.with_changes({"local_steps": 2}))
    assert replay(lambda: assemble(other, data), run, (3,), folder, Silent()) is False
