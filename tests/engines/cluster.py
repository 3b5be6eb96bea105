"""A Ray cluster of one machine, as processes that end with the tests."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.engines.deployment import BIN, free_ports

TRIES = 3  # Ray gives up when its agent is not up after 15 s: https://github.com/ray-project/ray/issues/65983


@contextlib.contextmanager
def ray_cluster(cores: int = 2) -> Iterator[str]:
    """Its address, for RAY_ADDRESS."""
    with contextlib.ExitStack() as stack:
        # Ray's sockets lie in it, and a socket's path must be short.
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True))
        for attempt in range(TRIES):
            (port,) = free_ports(1)
            log = Path(folder) / f"{attempt}.log"
            words = ["start", "--head", "--block", f"--num-cpus={cores}", f"--port={port}", f"--temp-dir={folder}"]
            with log.open("wb") as file:
                process = subprocess.Popen(
                    [str(BIN / "ray"), *words, "--include-dashboard=false", "--disable-usage-stats"],
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            stack.callback(_end, process)
            while process.poll() is None and "Ray runtime started" not in log.read_text():
                time.sleep(0.5)
            if process.poll() is None:
                yield f"127.0.0.1:{port}"
                return
            _end(process)
        raise AssertionError(f"Ray did not start, {TRIES} times: the machine is too busy\n{log.read_text()}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Not `ray stop`, which ends every Ray of this machine."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(60)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
