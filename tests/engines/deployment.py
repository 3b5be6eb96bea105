"""A real deployment on loopback for the tests: SuperLink, nginx and a node per site, as processes.

Flower starts a ServerApp anew when it has not come up within 30 s. On a busy machine they would multiply, so the
SuperLink is `patient_superlink`, runs are begun one after the other, `until` stops everything when there are too many,
and no process outlives the tests.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from unseen.engines.flower.config import Deployment
from unseen.engines.flower.control import register
from unseen.engines.flower.processes import BIN, Processes, free_ports, listens
from unseen.engines.flower.scaffold import PACKAGE, write_app, write_keys
from unseen.methods import OWN_FILES
from unseen.runs.directory import RunDirectory, directory_for
from unseen.runs.results import RoundLine
from unseen.runs.settings import Settings

PATIENCE = 600.0  # seconds: a process that imports torch can take minutes when others have the cores
OWN_METHOD = Path(__file__).parents[2] / "examples" / "own_method.py"
MANY = 8  # ServerApps of one SuperLink: more means that Flower starts them faster than they come up


class Federation:
    """One SuperLink with TLS and keys on loopback, published by nginx; sites join and leave."""

    def __init__(self, folder: Path, data: Path, sites: Sequence[str], settings: Settings, **deployment: Any) -> None:
        self.folder, self.data, self.sites, self.settings = folder, data, tuple(sites), settings
        self.public, self.link = free_ports(2)
        self.app = folder / "app"
        self.marker = folder / "shipped-code-ran"  # what the bundle's ClientApp would write
        given = {"classes": (), "timeout": PATIENCE, **deployment}
        self.deployment = Deployment(settings, self.sites, out=str(folder / "runs"), **given)
        if not shutil.which("nginx"):
            self.public = self.link
        images = {site: data / site for site in self.sites}
        write_app(self.app, self.deployment, port=self.public, link_port=self.link, bind="127.0.0.1", images=images)
        write_keys(self.app, self.sites)
        for site in self.sites:
            with (self.package(site) / "site.toml").open("a") as file:
                file.write(f'keep = "{folder / "keep" / site}"\n')
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
        self.started = Processes(folder, self.environment)
        # A method of an own file, which the coordinator and every site have.
        self.own_file = folder / "own_method.py"
        shutil.copy(OWN_METHOD, self.own_file)
        self.started.environment[OWN_FILES] = str(self.own_file)
        self.opened_in = 0.0  # seconds: how busy the machine is; a round takes a fraction of it

    # --- processes -----------------------------------------------------------------------------------------------
    @property
    def processes(self) -> dict[str, subprocess.Popen[bytes]]:
        return self.started.running

    def start(self, name: str, *command: str | Path, **environment: str) -> None:
        self.started.start(name, *command, **environment)

    def log(self, name: str) -> str:
        return self.started.log(name)

    def kill(self, name: str) -> None:
        """kill -9, with all that it started."""
        self.started.kill(name)
        if name == "superlink":
            # They notice that it is gone, but some get stuck on the way out.
            for server in self.server_apps():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(server, signal.SIGKILL)

    def open(self) -> None:
        began = time.monotonic()
        # The nodes first: they import torch while the rest starts, and wait for the SuperLink.
        for site in self.sites:
            self.start_node(site)
        self.start_link()
        if shutil.which("nginx"):
            (self.app / "nginx_temp").mkdir(exist_ok=True)
            self.start(
                "nginx", "nginx", "-c", self.app / "nginx.conf", "-p", self.app, "-g", "daemon off; master_process off;"
            )
        self.until(lambda: listens(self.link), "the SuperLink")
        assert register(self.app, list(self.sites)) == list(self.sites)
        for site in self.sites:
            self.until(lambda site=site: "takes orders" in self.log(f"node-{site}"), f"the node of {site}")  # type: ignore[misc]
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
        return f"127.0.0.1:{self.public}"

    def package(self, site: str) -> Path:
        return self.app / "sites" / site

    def start_node(self, site: str, *command: str) -> None:
        """The site's process; after a kill it waits by itself until the SuperLink has noticed."""
        words = command or (sys.executable, "-m", "unseen", "flower", "node")
        self.start(f"node-{site}", *words, self.package(site))

    def join(self, site: str) -> None:
        before = self.log(f"node-{site}").count("takes orders")
        self.start_node(site)
        self.until(lambda: self.log(f"node-{site}").count("takes orders") > before, f"the node of {site}")

    def leave(self, site: str) -> None:
        self.kill(f"node-{site}")

    def part(self, site: str) -> None:
        """As by its service manager: it says good-bye, and another process of the site is let in at once."""
        self.started.stop(lambda name: name == f"node-{site}")

    def close(self) -> None:
        for name in sorted(self.started.running, key=lambda n: ("link" in n, "nginx" in n)):
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

    def rounds(self, **config: Any) -> list[RoundLine]:
        """The finished rounds of a run."""
        return RunDirectory(self.directory(**config)).rounds()

    def directory(self, **changes: Any) -> Path:
        """The run directory of the settings with some flat keys changed."""
        config = {**self.deployment.to_config(), **{k.replace("_", "-"): v for k, v in changes.items()}}
        return directory_for(Deployment.from_config(config).settings, Path(self.deployment.out))
