"""What goes wrong at real sites, with real processes: sites that lie, die and come back, a server that is killed.

What is waited for is a file, never a number of seconds; the one time-out that must pass grows with the machine's load.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install unseen[flower]")

from tests.attempts import attempt
from tests.engines.bits import assert_same, assert_same_tensors, final
from tests.engines.deployment import Federation, listens
from tests.engines.sites import SITES, TARGET, small
from tests.small_runs import run_local
from unseen.engines.flower.status import read_status
from unseen.methods import OWN_FILES
from unseen.runs.directory import RunDirectory

EAST, NORTH, WEST = SITES


def test_bad_updates_are_refused_by_name_and_not_merged(federation: Federation, folder: Path) -> None:
    config = {"seed": 1, "rounds": 6, "minimum_clients": 2, "server_selection": "last"}
    federation.part(EAST)
    federation.start_node(EAST, sys.executable, "-m", "tests.engines.liar")
    try:
        directory = federation.finish(federation.begin(**config), **config)
    finally:
        federation.part(EAST)
        federation.join(EAST)
    name = next(iter(final(directory).state))
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
        with attempt("form"):
            assert f'The reply of client "{EAST}" in round {number} was not merged: {fault}' in said
    # The rounds went on with the honest sites, as if the liar had not been there: the same bits.
    for site in (NORTH, WEST, TARGET):
        shutil.copytree(folder / "data" / site, folder / "honest" / site)
    honest = run_local(
        small(folder / "honest", "fedavg", seed=1, rounds=6, server_selection="last"), out=folder / "local"
    )
    assert honest.directory is not None
    assert_same_tensors(final(honest.directory).state, final(directory).state)


def test_a_site_with_another_version_of_an_own_file_says_so_and_takes_no_part(
    federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OWN_FILES, str(federation.own_file))
    config = {"seed": 4, "rounds": 1, "minimum_clients": 2, "method": "fednudge"}
    other = tmp_path / "own_method.py"
    other.write_text(federation.own_file.read_text() + "\n# changed\n")
    federation.part(EAST)
    federation.start_node(EAST, sys.executable, "-m", "unseen", "--with", str(other), "flower", "node")
    try:
        federation.finish(federation.begin(**config), **config)
    finally:
        federation.part(EAST)
        federation.join(EAST)
    assert 'another version of the method "fednudge"' in federation.said(**config)
    assert sorted(federation.rounds(**config)[0].clients) == [NORTH, WEST]


def test_sites_die_in_a_round_are_waited_for_and_come_back(federation: Federation) -> None:
    # As long as it must be for the others, and no longer: it is waited for twice.
    config = {"seed": 2, "rounds": 4, "minimum_clients": 2, "timeout": max(15.0, round(federation.opened_in, 1))}
    run = federation.begin(**config)
    federation.until(lambda: len(federation.rounds(**config)) >= 1, "round 1")

    # A site's machine goes down in the middle of a round, and never answers: the order waits for it at the SuperLink.
    os.kill(federation.processes[f"node-{EAST}"].pid, signal.SIGSTOP)
    federation.until(lambda: read_status(federation.directory(**config)).waiting == [EAST], "an order for the site")
    lost = len(federation.rounds(**config)) + 1
    with attempt("kill"):
        federation.leave(EAST)
        federation.until(lambda: len(federation.rounds(**config)) >= lost, "the round without the site")
        assert sorted(federation.rounds(**config)[lost - 1].clients) == [NORTH, WEST]
        said = federation.said(**config)
        assert f"Round {lost}: no reply from {EAST}; the others went on." in said
        assert f'The site "{EAST}" gave no reply in round {lost}' in said

    with attempt("kill"):
        # One more goes: fewer than the minimum. The run says so, and waits.
        federation.leave(NORTH)
        federation.until(lambda: waits(federation, config), "the wait")
        assert not (federation.directory(**config) / "result.json").exists()

        # The first one comes back, and the run ends with it.
        federation.join(EAST)
        directory = federation.finish(run, **config)
        assert sorted(federation.rounds(**config)[-1].clients) == [EAST, WEST]
        assert RunDirectory(directory).result().rounds == 4  # type: ignore[union-attr]
    federation.join(NORTH)


def waits(federation: Federation, config: dict[str, object]) -> bool:
    """After the first round, which sites were waited for before it began."""
    later = federation.said(**config).partition("round 1:")[2]
    return any("waiting for" in line and NORTH in line for line in later.splitlines())


def test_a_server_and_a_superlink_killed_go_on_in_new_runs(federation: Federation, folder: Path) -> None:
    config = {"seed": 3, "rounds": 4, "method": "fedbn"}
    federation.until(lambda: not federation.server_apps(), "the end of the run before")
    with attempt("kill", 2):
        federation.begin(**config)
        federation.until(lambda: len(federation.rounds(**config)) >= 1, "round 1")
        (server,) = federation.server_apps()
        os.kill(server, signal.SIGKILL)
        done = [len(federation.rounds(**config))]

        federation.begin(**config)
        federation.until(lambda: len(federation.rounds(**config)) > done[0], "another round")
        federation.kill("superlink")
        federation.until(lambda: not federation.server_apps(), "the end of its ServerApp")
        done += [len(federation.rounds(**config))]
        assert not (federation.directory(**config) / "result.json").exists()
        # The keys are in its database, and the sites find it again by themselves.
        federation.start_link()
        federation.until(lambda: listens(federation.link), "the SuperLink")

        directory = federation.finish(federation.begin(**config), **config)
        # A line is written before its checkpoint: killed in between, the round is played again, with the same numbers.
        first, *resumed = [int(number) for number in re.findall(r"rounds (\d) to 4", federation.said(**config))]
        assert first == 1
        assert len(resumed) == 2
        for before, number in zip(done, resumed, strict=True):
            assert number in (before, before + 1)
            assert number > 1
        # FedBN's own BatchNorm was on the sites' disks: the bits of a run that nobody killed.
        whole = run_local(small(folder / "data", "fedbn", seed=3, rounds=4), out=folder / "local")
        assert whole.directory is not None
        assert_same(whole.directory, directory)
