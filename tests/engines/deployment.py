"""A real deployment on loopback for the tests: SuperLink, nginx, per site a SuperNode and its worker, as processes.

Flower starts a ServerApp anew when it has not come up within 30 s. On a busy machine they would multiply, so the
SuperLink is `patient_superlink`, runs are begun one after the other, `until` stops everything when there are too many,
and no process outlives the tests.
"""

from __future__ import annotations

import contextlib
import ctypes
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

from unseen.engines.flower.config import Deployment
from unseen.engines.flower.scaffold import PACKAGE, write_app, write_keys
from unseen.runs.directory import RunDirectory, directory_for
from unseen.runs.settings import Settings

BIN = Path(sys.executable).parent
PATIENCE = 600.0  # seconds: a process that imports torch can take minutes when others have the cores
MANY = 8  # ServerApps of one SuperLink: more means that Flower starts them faster than they come up
_LIBC = ctypes.CDLL(None)


def _die_with_parent() -> None:
    _LIBC.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG; what Flower starts watches its parent by itself


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


class Federation:
    """One SuperLink with TLS and keys on loopback, published by nginx; sites join and leave."""

    def __init__(self, folder: Path, data: Path, sites: Sequence[str], settings: Settings, **deployment: Any) -> None:
        self.folder, self.data, self.sites, self.settings = folder, data, tuple(sites), settings
        self.public, self.link, *node_ports = free_ports(2 + len(self.sites))
        self.node_ports = dict(zip(self.sites, node_ports, strict=True))
        self.app = folder / "app"
        self.marker = folder / "shipped-code-ran"  # what the bundle's ClientApp would write
        given = {"classes": (), "timeout": PATIENCE, **deployment}
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
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]),
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.opened_in = 0.0  # seconds: how busy the machine is; a round takes a fraction of it

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
                preexec_fn=_die_with_parent,
            )

    def kill(self, name: str) -> None:
        """kill -9, with all that it started."""
        process = self.processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if name == "superlink":
            # They notice that it is gone, but some get stuck on the way out.
            for server in self.server_apps():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(server, signal.SIGKILL)

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def open(self) -> None:
        began = time.monotonic()
        # The workers first: they import torch while the rest starts, and wait for their SuperNodes.
        for site in self.sites:
            self.work(site)
        self.start_link()
        if shutil.which("nginx"):
            self.start(
                "nginx", "nginx", "-c", self.app / "nginx.conf", "-p", self.app, "-g", "daemon off; master_process off;"
            )
        self.until(lambda: listens(self.link), "the SuperLink")
        # At once: most of the time of a `flwr` command is its start.
        for site in self.sites:
            key = self.app / "keys" / f"{site}.pub"
            self.start(f"register-{site}", BIN / "flwr", "supernode", "register", key, "coordinator")
        for site in self.sites:
            assert self.processes.pop(f"register-{site}").wait(PATIENCE) == 0, self.log(f"register-{site}")
        for site in self.sites:
            self.start_node(site)
        for site in self.sites:
            self.until(lambda site=site: "SuperNode ID" in self.log(f"node-{site}"), f"the SuperNode of {site}")  # type: ignore[misc]
        self.opened_in = time.monotonic() - began

    def start_link(self) -> None:
        """The SuperLink. Its database keeps the registered keys when it is killed."""
        keys = self.app / "keys"
        self.start(
            "superlink", sys.executable, "-m", "tests.engines.patient_superlink",
            "--host", "127.0.0.1", "--port", str(self.link), "--database", self.app / "flower" / "state.db",
            "--enable-supernode-auth", "--ssl-ca-certfile", keys / "ca.crt",
            "--ssl-certfile", keys / "server.crt", "--ssl-keyfile", keys / "server.key",
        )  # fmt: skip

    @property
    def address(self) -> str:
        """Where the sites come in."""
        return f"127.0.0.1:{self.public if 'nginx' in self.processes else self.link}"

    def join(self, site: str) -> None:
        """A SuperNode and its worker, as the README says, with a service manager that starts the SuperNode again.

        After a kill Flower holds a site for connected for 60 s, and a new SuperNode with its key is refused and ends.
        """
        node = f"node-{site}"
        before = self.log(node).count("SuperNode ID")
        self.work(site)
        self.start_node(site)

        def up() -> bool:
            if self.processes[node].poll() is not None:
                time.sleep(2)
                self.start_node(site)
            return self.log(node).count("SuperNode ID") > before

        self.until(up, f"the SuperNode of {site}")

    def start_node(self, site: str) -> None:
        keys, port = self.app / "keys", self.node_ports[site]
        config = f'site="{site}" folder="{self.data / site}" keep="{self.folder / "keep" / site}"'
        self.start(
            f"node-{site}", BIN / "flower-supernode", "--superlink", self.address,
            "--root-certificates", keys / "ca.crt", "--auth-supernode-private-key", keys / site,
            "--host", "127.0.0.1", "--port", str(port), "--isolation", "process", "--node-config", config,
        )  # fmt: skip

    def work(self, site: str, *command: str) -> None:
        """The process that takes a site's tasks."""
        words = command or (sys.executable, "-m", "unseen", "flower", "node")
        self.start(f"worker-{site}", *words, "--supernode", f"127.0.0.1:{self.node_ports[site]}")

    def leave(self, site: str) -> None:
        self.kill(f"worker-{site}")
        self.kill(f"node-{site}")

    def close(self) -> None:
        for name in sorted(self.processes, key=lambda n: ("link" in n, "nginx" in n)):
            self.kill(name)

    def until(self, true: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
        end, count = time.monotonic() + seconds, 0.0
        while not true():
            assert time.monotonic() < end, f"waited {seconds:g} s for {what}"
            if time.monotonic() > count:
                if len(self.server_apps()) > MANY:
                    self.close()
                    raise AssertionError("the machine is too busy: Flower starts ServerApps faster than they come up")
                count = time.monotonic() + 5  # it reads all of /proc
            time.sleep(0.25)

    def server_apps(self) -> list[int]:
        """Processes of ServerApps that this SuperLink has."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if any(w.endswith(b"flwr-serverapp") for w in words) and f"127.0.0.1:{self.link}".encode() in words:
                found.append(int(entry.name))
        return found

    def ship(self, name: str, text: str | None = None) -> None:
        """Another module in the app that the next run brings; without a text, the one that it had."""
        module = self.app / PACKAGE / name
        before = self.folder / name
        if not before.exists():
            shutil.copy(module, before)
        module.write_text(before.read_text() if text is None else text)

    # --- runs ----------------------------------------------------------------------------------------------------
    def flwr(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(BIN / "flwr"), *words],
            env=self.environment,
            cwd=self.app,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
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

    def finish(self, run: str, **config: Any) -> Path:
        """Wait for a run's result; its directory. Asking Flower starts a process each time, a file does not."""
        result = self.directory(**config) / "result.json"
        try:
            self.until(result.exists, f"the result of run {run}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.said(**config)}") from None
        return result.parent

    def said(self, **config: Any) -> str:
        """What a run said so far."""
        log = self.directory(**config) / "log.txt"
        return log.read_text() if log.exists() else ""

    def rounds(self, **config: Any) -> list[dict[str, Any]]:
        """The finished rounds of a run."""
        return RunDirectory(self.directory(**config)).rounds()

    def directory(self, **changes: Any) -> Path:
        """The run directory of the settings with some flat keys changed."""
        config = {**self.deployment.to_config(), **{k.replace("_", "-"): v for k, v in changes.items()}}
        return directory_for(Deployment.from_config(config).settings, Path(self.deployment.out))


def listens(port: int) -> bool:
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0
