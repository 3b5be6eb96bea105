"""The processes of a deployment on one machine: each with its log, and none outlives who started it. Linux."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

BIN = Path(sys.executable).parent  # where Flower's commands are installed
GRACE = 10.0  # seconds between asking a process to end and ending it


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody has now."""
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def listens(port: int) -> bool:
    with socket.socket() as s:
        s.settimeout(1.0)
        return s.connect_ex(("127.0.0.1", port)) == 0


class Processes:
    """Started by name, each in a group of its own, with its output in FOLDER/NAME.log."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder, self.environment = folder, dict(environment)
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *command: str | Path, **environment: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**self.environment, **environment},
                cwd=self.folder,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def ended(self) -> dict[str, int]:
        """Those that ended by themselves, with their exit codes."""
        return {name: code for name, one in self.running.items() if (code := one.poll()) is not None}

    def kill(self, name: str) -> None:
        """kill -9, with all that it started."""
        process = self.running.pop(name)
        _signal(process, signal.SIGKILL)
        process.wait()

    def stop(self, chosen: Callable[[str], bool] = lambda name: True) -> None:
        """Ask the chosen ones to end, all at once; end those that do not."""
        names = [name for name in self.running if chosen(name)]
        for name in names:
            _signal(self.running[name], signal.SIGTERM)
        deadline = time.monotonic() + GRACE
        for name in names:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.running[name].wait(max(0.0, deadline - time.monotonic()))
            self.kill(name)  # its group too: what it started may have stayed


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
