"""What goes wrong at real sites, with real processes: sites that lie, die and come back, a server that is killed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install unseen[flower]")

from tests.engines.deployment import Federation
from tests.engines.sites import SITES, TARGET, small
from unseen.bench.records import RunDirectory
from unseen.bench.run import run_settings
from unseen.types import Tensors

EAST, NORTH, WEST = SITES


def final(directory: Path) -> Tensors:
    restored = RunDirectory(directory).restore()
    assert restored is not None
    return restored[0].state


def assert_same(one: Tensors, other: Tensors) -> None:
    assert list(one) == list(other)
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


def test_bad_updates_are_refused_by_name_and_not_merged(federation: Federation, folder: Path) -> None:
    config = {"seed": 1, "rounds": 6, "minimum_clients": 2, "server_selection": "last"}
    federation.kill(f"worker-{EAST}")
    federation.work(EAST, sys.executable, "-m", "tests.engines.liar")
    try:
        directory = federation.finish(federation.begin(**config), **config)
    finally:
        federation.kill(f"worker-{EAST}")
        federation.work(EAST)
    name = next(iter(final(directory)))
    said = federation.said(**config)
    for number, fault in enumerate(
        (
            f'"{name}" holds NaN or infinity',
            f'"{name}" holds NaN or infinity',
            f'"{name}" has shape',
            f'the tensor "{name}" is missing',
            'the tensor "intruder" is unknown',
            f'"{name}" is torch.float64, not torch.float32',
        ),
        start=1,
    ):
        assert f'The reply of client "{EAST}" in round {number} was not merged: {fault}' in said
    # The rounds went on with the honest sites, as if the liar had not been there: the same bits.
    for site in (NORTH, WEST, TARGET):
        shutil.copytree(folder / "data" / site, folder / "honest" / site)
    honest = run_settings(
        small(folder / "honest", "fedavg", seed=1, rounds=6, server_selection="last"), out=folder / "local"
    )
    assert honest.directory is not None
    assert_same(final(honest.directory), final(directory))


def test_sites_die_in_a_round_are_waited_for_and_come_back(federation: Federation) -> None:
    config = {"seed": 2, "rounds": 4, "minimum_clients": 2, "timeout": 30.0}
    run = federation.begin(**config)
    federation.until(lambda: len(federation.rounds(**config)) >= 1, "round 1")

    # A site's machine goes down in the middle of a round: it has the order, and never answers.
    os.kill(federation.processes[f"worker-{EAST}"].pid, signal.SIGSTOP)
    before = federation.log(f"node-{EAST}").count("Receiving: train")
    federation.until(lambda: federation.log(f"node-{EAST}").count("Receiving: train") > before, "an order at the site")
    lost = len(federation.rounds(**config)) + 1
    federation.leave(EAST)
    federation.until(lambda: len(federation.rounds(**config)) >= lost, "the round without the site")
    assert sorted(federation.rounds(**config)[lost - 1]["clients"]) == [NORTH, WEST]
    said = federation.said(**config)
    assert f"Round {lost}: no reply from {EAST}; the others went on." in said
    assert f'The site "{EAST}" gave no reply in round {lost}' in said

    # One more goes: fewer than the minimum. The run says so, and waits.
    federation.leave(NORTH)
    federation.until(lambda: waits(federation, config), "the wait")
    assert not (federation.directory(**config) / "result.json").exists()

    # The first one comes back, and the run ends with it.
    federation.join(EAST)
    directory = federation.finish(run, **config)
    assert sorted(federation.rounds(**config)[-1]["clients"]) == [EAST, WEST]
    assert RunDirectory(directory).result()["rounds"] == 4  # type: ignore[index]
    federation.join(NORTH)


def waits(federation: Federation, config: dict[str, object]) -> bool:
    """After the first round, which sites were waited for before it began."""
    later = federation.said(**config).partition("round 1:")[2]
    return any("waiting for" in line and NORTH in line for line in later.splitlines())


def test_a_server_killed_between_rounds_goes_on_in_a_new_run(federation: Federation, folder: Path) -> None:
    config = {"seed": 3, "rounds": 3, "method": "fedbn"}
    federation.begin(**config)
    federation.until(lambda: len(federation.rounds(**config)) >= 1, "round 1")
    (server,) = federation.server_apps()
    os.kill(server, signal.SIGKILL)
    done = len(federation.rounds(**config))
    assert not (federation.directory(**config) / "result.json").exists()

    directory = federation.finish(federation.begin(**config), **config)
    # A line is written before its checkpoint: killed in between, the round is played again, with the same numbers.
    resumed = [int(first) for first in re.findall(r"rounds (\d) to 3", federation.said(**config))]
    assert resumed[0] == 1
    assert resumed[1] in (done, done + 1)
    assert resumed[1] > 1
    # FedBN's own BatchNorm was on the sites' disks: the bits of a run that nobody killed.
    whole = run_settings(small(folder / "data", "fedbn", seed=3, rounds=3), out=folder / "local")
    assert whole.directory is not None
    assert_same(final(whole.directory), final(directory))
