"""A real deployment on loopback for the tests: SuperLink, nginx, and per site a SuperNode and its worker, as processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from unseen.bench.protocol import Settings
from unseen.bench.records import directory_for
from unseen.engines.flower.config import Deployment
from unseen.engines.flower.scaffold import write_app, write_keys

BIN = Path(sys.executable).parent
PATIENCE = 240.0  # seconds: processes that import torch on a busy machine


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def until(true: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"waited {seconds:g} s for {what}"
        time.sleep(0.2)


class Federation:
    """One SuperLink with TLS and keys on loopback, published by nginx; sites join and leave."""

    def __init__(self, folder: Path, data: Path, sites: Sequence[str], settings: Settings, **deployment: Any) -> None:
        self.folder, self.data, self.sites, self.settings = folder, data, tuple(sites), settings
        self.public, self.link, *node_ports = free_ports(2 + len(self.sites))
        self.node_ports = dict(zip(self.sites, node_ports, strict=True))
        self.app = folder / "app"
        given = {"classes": (), "timeout": 120.0, **deployment}
        self.deployment = Deployment(settings, self.sites, out=str(folder / "runs"), **given)
        write_app(self.app, self.deployment, port=self.public, link_port=self.link)
        write_keys(self.app / "keys", self.sites)
        (self.app / "nginx_temp").mkdir()
        self.environment = {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(self.app / "flower"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "OMP_NUM_THREADS": "1",
            "UNSEEN_CACHE": str(folder / "cache"),
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    # --- processes -----------------------------------------------------------------------------------------------
    def start(self, name: str, *command: str | Path, **environment: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(word) for word in command],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**self.environment, **environment},
                cwd=self.folder,
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        """kill -9, with all that it started."""
        process = self.processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def open(self) -> None:
        keys = self.app / "keys"
        self.start(
            "superlink", BIN / "flower-superlink", "--host", "127.0.0.1", "--port", str(self.link), "--enable-supernode-auth",
            "--ssl-ca-certfile", keys / "ca.crt", "--ssl-certfile", keys / "server.crt", "--ssl-keyfile", keys / "server.key",
        )  # fmt: skip
        if shutil.which("nginx"):
            self.start("nginx", "nginx", "-c", self.app / "nginx.conf", "-p", self.app, "-g", "daemon off;")
        until(lambda: listens(self.link), "the SuperLink")
        # At once: most of the time of a `flwr` command is its start.
        for site in self.sites:
            self.start(f"register-{site}", BIN / "flwr", "supernode", "register", keys / f"{site}.pub", "coordinator")
        for site in self.sites:
            assert self.processes.pop(f"register-{site}").wait(PATIENCE) == 0, self.log(f"register-{site}")

    @property
    def address(self) -> str:
        """Where the sites come in."""
        return f"127.0.0.1:{self.public if 'nginx' in self.processes else self.link}"

    def join(self, site: str, *, key: Path | None = None, more: str = "", worker: Sequence[str | Path] = ()) -> None:
        """A SuperNode and its worker, as the README says."""
        keys, port = self.app / "keys", self.node_ports[site]
        config = f'site="{site}" folder="{self.data / site}" keep="{self.folder / "keep" / site}" {more}'
        self.start(
            f"node-{site}", BIN / "flower-supernode", "--superlink", self.address, "--root-certificates", keys / "ca.crt",
            "--auth-supernode-private-key", key or keys / site, "--host", "127.0.0.1", "--port", str(port),
            "--isolation", "process", "--node-config", config.strip(),
        )  # fmt: skip
        command = worker or (sys.executable, "-m", "unseen", "flower", "node")
        self.start(f"worker-{site}", *command, "--supernode", f"127.0.0.1:{port}")

    def leave(self, site: str) -> None:
        self.kill(f"worker-{site}")
        self.kill(f"node-{site}")

    def close(self) -> None:
        for name in sorted(self.processes, key=lambda n: ("link" in n, "nginx" in n)):
            self.kill(name)

    # --- runs ----------------------------------------------------------------------------------------------------
    def flwr(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(BIN / "flwr"), *words], env=self.environment, cwd=self.app, capture_output=True, text=True, timeout=PATIENCE
        )

    def begin(self, **config: Any) -> str:
        """Start a run; its id."""
        words = " ".join(f"{key.replace('_', '-')}={json.dumps(value)}" for key, value in config.items())
        done = self.flwr("run", ".", "coordinator", "--format", "json", *(["--run-config", words] if words else []))
        assert '"run-id"' in done.stdout, done.stdout + done.stderr
        return str(json.loads(done.stdout[done.stdout.index("{") :])["run-id"])

    def status(self, run: str) -> str:
        done = self.flwr("list", "coordinator", "--format", "json")
        runs = json.loads(done.stdout[done.stdout.index("{") :])["runs"]
        return next(str(r["status"]) for r in runs if str(r["run-id"]) == run)

    def lines(self, run: str) -> str:
        """What a run said so far."""
        return self.flwr("log", run, "coordinator", "--show").stdout

    def finish(self, run: str, **config: Any) -> Path:
        """Wait for a run's result; its directory. Asking Flower starts a process each time: the files say it as well."""
        result = self.directory(**config) / "result.json"
        end = time.monotonic() + PATIENCE
        while not result.exists():
            assert time.monotonic() < end, f"run {run} has no result:\n{self.lines(run)}"
            time.sleep(0.2)
        return result.parent

    def directory(self, **changes: Any) -> Path:
        """The run directory of the settings with some flat keys changed."""
        config = {**self.deployment.to_config(), **{k.replace("_", "-"): v for k, v in changes.items()}}
        return directory_for(Deployment.from_config(config).settings, Path(self.deployment.out))


def listens(port: int) -> bool:
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0
