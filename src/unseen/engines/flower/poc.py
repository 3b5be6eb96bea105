"""A whole deployment on this machine, from one command: SuperLink, proxy, a node per site folder, keys and TLS.

The same files, processes and commands as on real machines (`scaffold`), on free ports of loopback. It is for trying a
deployment, and for learning what its parts are; the machine's own users are trusted.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from unseen.core.errors import UserError
from unseen.core.platform import end_as_interrupted
from unseen.data.domains import existing_folder, subfolders
from unseen.engines.flower.config import Deployment
from unseen.engines.flower.processes import BIN, Processes, free_ports, listens
from unseen.engines.flower.scaffold import PACKAGE, write_app, write_keys
from unseen.engines.flower.status import FILE, Status, read_status
from unseen.runs.directory import RunDirectory, directory_for

LOOK = 0.25  # seconds between two looks
ASK = 3.0  # seconds between two questions to the SuperLink
STARTED = 300.0  # seconds in which everything must be up


def site_folders(root: Path, sites: Sequence[str] = (), leave_out: Sequence[str] = ()) -> dict[str, Path]:
    """ROOT/SITE/CLASS/*: the sites' folders by name."""
    folder = existing_folder(root)
    found = {name: folder / name for name in subfolders(folder) if name not in leave_out}
    for name in sites:
        if name not in found:
            raise UserError(f'There is no site "{name}" in {folder}; it has {", ".join(found) or "no folders"}.')
    chosen = {name: path.resolve() for name, path in found.items() if not sites or name in sites}
    if not chosen:
        raise UserError(f"There are no sites in {folder}: their images are expected as {folder}/SITE/CLASS/*.png.")
    return chosen


@dataclass
class Poc:
    """A deployment that is running on this machine."""

    folder: Path
    deployment: Deployment
    processes: Processes
    public: int
    link: int
    proxied: bool
    said: Callable[[str], None]
    run: int = 0  # Flower's number of it

    @property
    def app(self) -> Path:
        return self.folder / "app"

    @property
    def directory(self) -> RunDirectory:
        return RunDirectory(directory_for(self.deployment.fitting(), Path(self.deployment.out)))

    # --- start ---------------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Everything up, the sites' names bound to their keys."""
        run, app = self.processes, self.app
        # The nodes first: they import torch while the rest starts, and wait for the SuperLink.
        for site in self.deployment.sites:
            run.start(f"node-{site}", sys.executable, "-m", "unseen", "flower", "node", app / "sites" / site)
        run.start("superlink", *_superlink(), *self._superlink_options())
        if self.proxied:
            (app / "nginx_temp").mkdir(exist_ok=True)
            run.start("proxy", "nginx", "-c", app / "nginx.conf", "-p", app, "-g", "daemon off; master_process off;")
        else:
            self.said(
                "nginx is not installed: the sites reach the SuperLink directly, which a real deployment must not allow"
            )
        self.until(lambda: listens(self.link) and listens(self.public), "the SuperLink and the proxy")
        from unseen.engines.flower.control import register

        register(app, list(self.deployment.sites))
        for site in self.deployment.sites:
            self.until(lambda site=site: "takes orders" in run.log(f"node-{site}"), f"the node of {site}")  # type: ignore[misc]

    def _superlink_options(self) -> list[str | Path]:
        keys = self.app / "keys"
        return [
            "--host", "127.0.0.1", "--port", str(self.link), "--database", self.app / "flower" / "state.db",
            "--enable-supernode-auth", "--ssl-ca-certfile", keys / "ca.crt",
            "--ssl-certfile", keys / "server.crt", "--ssl-keyfile", keys / "server.key",
        ]  # fmt: skip

    def begin(self) -> None:
        """Start the run, as `flwr run` does."""
        from unseen.engines.flower.control import start_run

        self.run = start_run(self.app)

    # --- watch ---------------------------------------------------------------------------------------------------
    def until(self, true: Callable[[], bool], what: str, seconds: float = STARTED) -> None:
        end = time.monotonic() + seconds
        while not true():
            self.check()
            if time.monotonic() > end:
                raise UserError(f"{what} did not come up within {seconds:g} s; see the logs in {self.folder}.")
            time.sleep(LOOK)

    def check(self) -> None:
        """An error if a process has ended by itself."""
        for name, code in self.processes.ended().items():
            lines = self.processes.log(name).strip().splitlines() or ["it said nothing"]
            raise UserError(f"{name} ended (code {code}): {lines[-1]} See {self.folder / name}.log.")

    def follow(self, changed: Callable[[Status], None]) -> None:
        """Until the run is finished, each new status. `flwr stop` ends a run without a word in its status."""
        from unseen.engines.flower.control import how_it_ended

        last, ask = 0.0, time.monotonic() + ASK
        while True:
            self.check()
            ended = ""
            if time.monotonic() >= ask:
                with contextlib.suppress(UserError):  # a SuperLink that is busy; one that is gone is noticed by `check`
                    ended = how_it_ended(self.app, self.run)
                ask = time.monotonic() + ASK
            if (self.directory.path / FILE).exists() and (status := read_status(self.directory.path)).written > last:
                last = status.written
                changed(status)
                if status.failed:
                    raise UserError(status.failed)
            if self.directory.finished:
                return
            if ended:
                raise UserError(f"The run ended without a result ({ended}); the same command again goes on.")
            time.sleep(LOOK)

    # --- stop ----------------------------------------------------------------------------------------------------
    def stop(self) -> None:
        """The nodes first, so that they can say good-bye; the SuperLink last. Nothing stays."""
        for first in ("node-", "proxy", "superlink"):
            self.processes.stop(lambda name, first=first: name.startswith(first))  # type: ignore[misc]
        _end_server_apps(self.link)


def _superlink() -> list[str]:
    """The SuperLink's command; tests put a more patient one in its place."""
    return [str(BIN / "flower-superlink")]


def _end_server_apps(link: int) -> None:
    """Flower's processes for this SuperLink, which notice that it is gone, but may get stuck on the way out."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            ours = any(word.endswith((b"flwr-serverapp", b"flower-superexec")) for word in words)
            if ours and f"127.0.0.1:{link}".encode() in words:
                os.kill(int(entry.name), 9)


@contextlib.contextmanager
def poc(folder: Path, deployment: Deployment, images: dict[str, Path], said: Callable[[str], None]) -> Iterator[Poc]:
    """Write the app and start everything; stop it at the end, whatever happens."""
    folder = folder.expanduser().resolve()
    public, link = free_ports(2)
    proxied = shutil.which("nginx") is not None
    public = public if proxied else link
    app = folder / "app"
    if (app / "nginx.conf").exists() and (app / PACKAGE).exists():
        shutil.rmtree(app)  # of a trial before this one; runs and what the sites keep lie beside it, and go on
    write_app(app, deployment, port=public, link_port=link, bind="127.0.0.1", images=images)
    write_keys(app, deployment.sites)
    for site in deployment.sites:
        with (app / "sites" / site / "site.toml").open("a") as file:
            file.write(f'keep = "{folder / f"keep-{site}"}"\n')
    environment = {
        **os.environ,
        "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
        "FLWR_HOME": str(app / "flower"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "OMP_NUM_THREADS": "1",
    }
    end_as_interrupted()
    running = Poc(folder, deployment, Processes(folder, environment), public, link, proxied, said)
    try:
        running.start()
        yield running
    finally:
        running.stop()
