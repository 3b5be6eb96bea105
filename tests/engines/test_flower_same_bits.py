"""The same bits on every engine: local, Flower's simulation, and a deployment with TLS, keys and a proxy."""

from __future__ import annotations

import shutil
import ssl
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install unseen[flower]")
pytest.importorskip("ray", reason="Ray is not installed: pip install unseen[flower]")

import unseen
from tests.attempts import attempt
from tests.engines.bits import assert_same, final
from tests.engines.deployment import BIN, Federation, free_ports
from tests.engines.sites import SITES, small
from tests.small_runs import run_local, simulate
from unseen.runs.directory import RunDirectory
from unseen.runs.model import load_trained

RUNS: dict[str, dict[str, Any]] = {m: {"method": m} for m in ("fedavg", "fedbn", "fedfd-a", "stablefdg", "fedadg")}
RUNS["fedavg, secure"] = {"method": "fedavg", "secure": True}  # keys and masks are random, the bits are not


@pytest.fixture(scope="module")
def local(folder: Path) -> dict[str, Path]:
    """The local engine's run directories, by name."""
    runs = {name: run_local(small(folder / "data", **given), out=folder / "local") for name, given in RUNS.items()}
    return {name: run.directory for name, run in runs.items() if run.directory is not None}


def test_a_simulation_gives_the_local_engines_bits(folder: Path, local: dict[str, Path]) -> None:
    results = simulate(
        [small(folder / "data", engine="flower", **given) for given in RUNS.values()], folder / "simulation"
    )
    for name, result in zip(RUNS, results, strict=True):
        assert result.directory is not None
        assert_same(local[name], result.directory)
        assert final(result.directory).round == 2
        assert final(result.directory).met == set(SITES)
        assert result.record.bytes_up == RunDirectory(local[name]).result().bytes_up  # type: ignore[union-attr]


def test_a_deployment_gives_the_local_engines_bits(federation: Federation, local: dict[str, Path]) -> None:
    runs: dict[str, str] = {}
    for name, given in RUNS.items():
        runs[name] = federation.begin(**given)
        # One ServerApp starts at a time; the runs themselves overlap.
        federation.until(lambda: federation.said(**given) != "", "the ServerApp")  # noqa: B023
    for name, run in runs.items():
        directory = federation.finish(run, **RUNS[name])
        assert_same(local[name], directory)
        # A run directory like any other: result, ledger, and a model that predicts.
        result = RunDirectory(directory).result()
        assert result is not None
        assert result.accuracy is None  # nobody had the unseen site's images
        assert set(result.in_domain) == set(SITES)
        assert load_trained(directory).predict_proba(torch.rand(2, 3, 16, 16)).shape == (2, 3)


def test_what_a_site_keeps_is_on_its_own_disk(federation: Federation) -> None:
    directory = federation.finish("", method="fedbn")
    for site in SITES:
        own = federation.folder / "keep" / site / directory.name / site
        assert sorted(path.name for path in own.iterdir()) == ["000001.safetensors", "000002.safetensors"]
        log = unseen.verify_ledger(own.parent)  # its own, beside the coordinator's
        assert log.fault == "" and log.entries >= 3
    assert not (directory / "clients").exists()


def refused(federation: Federation, path: str) -> int:
    """The status of a POST to the published port, from a stranger who has only the authority's certificate."""
    trust = ssl.create_default_context(cafile=str(federation.app / "keys" / "ca.crt"))
    request = urllib.request.Request(f"https://localhost:{federation.public}{path}", data=b"", method="POST")
    try:
        with urllib.request.urlopen(request, context=trust, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_the_published_port_refuses_keys_and_runs(federation: Federation) -> None:
    assert federation.address.endswith(str(federation.public))  # the runs above came through the proxy
    for path in (
        "/v1/control/start-run",
        "/v1/control/register-node",
        "/v1/control/list-runs",
        "/v1/runtime/acquire-task",
    ):
        with attempt("requests"):
            assert refused(federation, path) == 403, path
    assert refused(federation, "/v1/fleet/pull-messages") != 403
    # And with Flower's own command: the same one that works on loopback.
    config = federation.app / "flower" / "config.toml"
    before = config.read_text()
    config.write_text(before.replace(f"127.0.0.1:{federation.link}", f"localhost:{federation.public}"))
    try:
        stranger = federation.app / "keys" / f"{SITES[0]}.pub"
        for words in (("supernode", "register", str(stranger), "coordinator"), ("run", ".", "coordinator")):
            with attempt("requests"):
                said = federation.flwr(*words)
                assert "403" in said.stderr + said.stdout, words
    finally:
        config.write_text(before)


def test_sites_never_run_what_a_run_ships(federation: Federation) -> None:
    """Every run above brought a ClientApp that leaves a mark when it is imported."""
    assert "shipped code ran" in (federation.app / "unseen_app" / "client_app.py").read_text()
    with attempt("code", len(RUNS)):
        assert not federation.marker.exists()


def test_an_unknown_supernode_is_refused(federation: Federation) -> None:
    """A key that nobody registered, and no key at all."""
    strange = Federation(federation.folder / "stranger", federation.data, SITES[:1], federation.settings)
    text = (strange.package(SITES[0]) / "site.toml").read_text()
    shutil.copy(federation.app / "keys" / "ca.crt", strange.package(SITES[0]) / "ca.crt")
    (strange.package(SITES[0]) / "site.toml").write_text(
        text.replace(f"localhost:{strange.public}", federation.address)
    )
    federation.start("unregistered", sys.executable, "-m", "unseen", "flower", "node", strange.package(SITES[0]))
    process = federation.processes["unregistered"]
    federation.until(lambda: "not registered" in federation.log("unregistered"), "the stranger's refusal")
    # It asks for a while, because Flower has the same answer for a site that comes back at once; then it ends.
    federation.until(lambda: process.poll() is not None, "the stranger's end")
    federation.processes.pop("unregistered")
    with attempt("keys"):
        assert process.returncode == 2
        assert "refuses this site" in federation.log("unregistered")
        assert "takes orders" not in federation.log("unregistered")
    # Without a key Flower's own SuperNode registers one by itself, which a SuperLink with keys does not allow.
    (port,) = free_ports(1)
    federation.start(
        "keyless", BIN / "flower-supernode", "--superlink", federation.address, "--isolation", "process",
        "--root-certificates", federation.app / "keys" / "ca.crt", "--host", "127.0.0.1", "--port", str(port),
    )  # fmt: skip
    keyless = federation.processes["keyless"]
    federation.until(lambda: keyless.poll() is not None, "the end of the one without a key")
    federation.processes.pop("keyless")
    with attempt("keys"):
        assert keyless.returncode != 0
        assert "SuperNode ID" not in federation.log("keyless"), federation.log("keyless")
