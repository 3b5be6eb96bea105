"""A small run whose process can be killed at any file operation, for tests.

The process is not really killed: from the n-th operation on, every one of them raises `Killed`, also those in `finally`
blocks, so that nothing more reaches the disk. A write that is hit leaves half of its bytes.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.small_runs import settings
from tests.tiny_work import random_images, site, tiny_net
from unseen.core.platform import Kernels
from unseen.engines.local import LocalEngine
from unseen.registry import parse
from unseen.runs.directory import RunDirectory
from unseen.runs.progress import Silent
from unseen.runs.results import RunResult
from unseen.runs.run import Assembly, Execution, RunData
from unseen.runs.settings import Settings


class Killed(BaseException):
    """What a `kill -9` is to the code that it hits: nothing catches it."""


@dataclass
class Fuse:
    """Counts file operations below a folder; the one with this number, and all after it, do not happen."""

    folder: Path
    fatal: int | None = None
    seen: list[str] = field(default_factory=list)

    def spent(self, name: str, path: object) -> bool:
        if not str(path).startswith(str(self.folder)):
            return False
        self.seen.append(f"{name} {Path(str(path)).name}")
        return self.fatal is not None and len(self.seen) >= self.fatal


@contextlib.contextmanager
def counted(folder: Path, fatal: int | None = None) -> Iterator[Fuse]:
    fuse = Fuse(folder, fatal)

    def before(name: str, real: Callable[..., Any], place: Callable[..., object]) -> Callable[..., Any]:
        def instead(*args: Any, **named: Any) -> Any:
            if fuse.spent(name, place(*args, **named)):
                raise Killed(fuse.seen[-1])
            return real(*args, **named)

        return instead

    def writing(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def instead(path: Path, data: Any, *args: Any, **named: Any) -> Any:
            if fuse.spent(name, path):
                if len(fuse.seen) == fuse.fatal:
                    real(path, data[: len(data) // 2], *args, **named)
                raise Killed(fuse.seen[-1])
            return real(path, data, *args, **named)

        return instead

    open_path = Path.open

    def opened(path: Path, mode: str = "r", *args: Any, **named: Any) -> Any:
        if ("a" in mode or "w" in mode) and path.name != "lock" and fuse.spent("open", path):
            if len(fuse.seen) == fuse.fatal:  # a line that is cut off
                with open_path(path, "ab") as file:
                    file.write(b'{"entry": {"ti')
            raise Killed(fuse.seen[-1])
        return open_path(path, mode, *args, **named)

    first = lambda path, *args, **named: path
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "mkstemp", before("mkstemp", tempfile.mkstemp, lambda *a, **k: k.get("dir", "")))
        patch.setattr(os, "replace", before("replace", os.replace, lambda one, two: two))
        patch.setattr(Path, "unlink", before("unlink", Path.unlink, first))
        patch.setattr(Path, "chmod", before("chmod", Path.chmod, first))
        patch.setattr(Path, "mkdir", before("mkdir", Path.mkdir, first))
        patch.setattr(Path, "write_bytes", writing("write", Path.write_bytes))
        patch.setattr(Path, "write_text", writing("write", Path.write_text))
        patch.setattr(Path, "open", opened)
        yield fuse


def two_rounds(method: str = "fedbn") -> Settings:
    return settings(
        method=method, target="street", protocol="digits", rounds=2, local_steps=1, batch_size=8, local_epochs=None
    )


def go_on(directory: RunDirectory, chosen: Settings) -> RunResult:
    """The run from where it is to its end, with images that are made in memory."""
    made = parse(chosen.method, chosen.fields)
    sites = {name: site(name, 16, seed=number) for number, name in enumerate("ab")}
    net = tiny_net(made)
    assembly = Assembly(chosen, made, RunData(("x", "y", "z"), sites, random_images(12, seed=9)), net, made.share(net))
    directory.begin(chosen)
    with directory.locked(), LocalEngine(assembly.runner(directory.client_states), list(sites)) as engine:
        return Execution(assembly, directory, engine, Silent(), Kernels("avx2", "AVX2", ""), directory.audit()).run()
