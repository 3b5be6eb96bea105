"""Images decoded once: a memory-mapped uint8 array, N x S x S x 3, in the user's cache.

How a cached array is found. Its name is a hash of the *contents* of the files (`content_of`), in the order of the
index, and of the size: the same images give the same array wherever they lie and whatever their folders are called,
and a changed image never gives an old one. Hashing reads every file, so a second, quick name is kept beside it: a
hash of the folder and of every file's path, length and time of change. A start that finds the quick name reads no
image at all. The quick name can only be fooled by changing a file while keeping its length and its time to the
nanosecond; delete the cache after doing that.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from unseen.core.errors import UserError
from unseen.core.files import USERS, disk_error
from unseen.core.platform import cores
from unseen.core.types import Batch
from unseen.data.domains import DomainIndex, IntArray, Pixels
from unseen.data.pictures import Converted, decode

_FORMAT = "unseen images 1"  # part of every key
_DECODING = "decoding 2"  # part of the key of decoded files: raise it when `decode` changes
_CHUNK = 64  # images per task: large enough that threads do not wait for each other

T = TypeVar("T")


def cache_folder() -> Path:
    """`UNSEEN_CACHE`, or `~/.cache/unseen`."""
    given = os.environ.get("UNSEEN_CACHE")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "unseen"


class StoreImages:
    """Some rows of a store: an `ImageSet`. Subsets share the one array; pickling sends its path, not its pixels."""

    def __init__(self, file: Path, rows: Tensor, labels: Tensor, domains: Tensor, pixels: Tensor | None = None) -> None:
        self._file, self._rows, self._labels, self._domains = file, rows, labels, domains
        self._pixels = _map(file) if pixels is None else pixels

    def __len__(self) -> int:
        return int(self._rows.shape[0])

    @property
    def labels(self) -> Tensor:
        return self._labels

    @property
    def domains(self) -> Tensor:
        return self._domains

    @property
    def size(self) -> int:
        """Height and width."""
        return int(self._pixels.shape[1])

    def batch(self, indices: Tensor) -> Batch:
        """Images by their place in this set: float32 in [0, 1], channels last in memory."""
        x_BHWC = self._pixels[self._rows[indices]]
        # Turning the axes before the conversion keeps the bytes in place: channels last, without a copy.
        x_BCHW = x_BHWC.permute(0, 3, 1, 2).to(torch.float32).div_(255)
        return Batch(x_BCHW, self._labels[indices], self._domains[indices])

    def pixels(self, indices: Tensor) -> Pixels:
        """Images as they are stored: uint8, B x H x W x 3."""
        chosen: Pixels = self._pixels[self._rows[indices]].numpy()
        return chosen

    def subset(self, indices: Tensor | IntArray) -> StoreImages:
        """Some images of this set, by their place in it."""
        places = torch.as_tensor(indices, dtype=torch.int64)
        return StoreImages(
            self._file, self._rows[places], self._labels[places], self._domains[places], pixels=self._pixels
        )

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_pixels"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._pixels = _map(self._file)


@dataclass(frozen=True)
class Store:
    """A dataset, ready: `images` has one row per row of `index`."""

    index: DomainIndex  # without the images that were left out
    images: StoreImages
    decoded: int  # images decoded or drawn at this start: 0 when the cache had them
    left_out: tuple[str, ...] = ()  # broken files that were skipped
    converted: Converted = field(default_factory=Converted)  # what was done to how many images, beyond reading them

    def domain(self, name: str) -> StoreImages:
        """All images of one domain."""
        return self.images.subset(self.index.rows(name))


def open_store(
    index: DomainIndex,
    size: int,
    *,
    skip_broken: bool = False,
    workers: int | None = None,
    progress: bool | None = None,
    cache: Path | None = None,
) -> Store:
    """The images of an index at `size` x `size` px, decoded now or taken from the cache.

    `progress`: True for a bar, False for silence, None for a bar in a terminal and plain lines elsewhere.
    """
    if size < 1:
        raise UserError(f"The image size must be at least 1 px, not {size}; give another --image-size.")
    folder = (cache or cache_folder()) / "images"
    with _disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        threads = workers or cores()
        if index.draw is not None:
            return _open_drawn(index, size, folder)
        key = _digest([_FORMAT, _DECODING, str(size), content_of(index, workers=threads, cache=cache)])
        broken = _cached(folder, key, len(index), size)
        decoded = 0
        if broken is None or (broken and not skip_broken):
            broken = _decode_all(index, size, folder, key, threads, skip_broken, progress)
            decoded = len(index) - len(broken)
    kept = index.without(broken) if broken else index
    if not len(kept):
        raise UserError(f"None of the images in {index.root} can be read.")
    rows = np.delete(np.arange(len(index)), broken)
    left_out = tuple(index.paths[row] for row in broken)
    return Store(kept, _images(folder / f"{key}.npy", kept, rows), decoded, left_out, _converted(folder, key))


def _images(file: Path, index: DomainIndex, rows: IntArray) -> StoreImages:
    return StoreImages(file, torch.from_numpy(rows), torch.from_numpy(index.label), torch.from_numpy(index.domain))


def _map(file: Path) -> Tensor:
    """The array in the file, mapped. Copy-on-write, because torch wants writable memory; nothing is ever written."""
    return torch.from_numpy(np.load(file, mmap_mode="c"))


# --- names ----------------------------------------------------------------------------------------------------------


def _digest(parts: Iterable[str | bytes]) -> str:
    total = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "big") + data)
    return total.hexdigest()


def content_of(index: DomainIndex, *, workers: int | None = None, cache: Path | None = None) -> str:
    """A digest of the images themselves and of their domains and classes. Wherever they lie, it is the same."""
    if index.draw is not None:
        return index.version
    folder = (cache or cache_folder()) / "images"
    with _disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        quick = folder / f"content-{_quick_key(index)}.json"
        content = _remembered(quick)
        if content is None:
            content = _read_content(index, workers or cores())
            _write_json(quick, {"content": content})
    return content


def _quick_key(index: DomainIndex) -> str:
    """Folder, paths, lengths and times of change: no file is opened."""

    def parts() -> Iterator[str]:
        yield f"{_FORMAT} {index.root.resolve()}"
        root = str(index.root)
        for path in index.paths:
            stat = os.stat(f"{root}/{path}")  # noqa: PTH116 - a Path for each of half a million files takes seconds
            yield f"{path}|{stat.st_size}|{stat.st_mtime_ns}"

    return _digest(parts())


def _read_content(index: DomainIndex, threads: int) -> str:
    def read(paths: tuple[str, ...]) -> list[bytes]:
        return [hashlib.blake2b((index.root / path).read_bytes(), digest_size=16).digest() for path in paths]

    with ThreadPoolExecutor(threads) as pool:
        digests = [digest for part in _in_order(pool, read, _chunks(index.paths), 4 * threads) for digest in part]
    return _digest([*digests, index.domain.tobytes(), index.label.tobytes()])


def _remembered(quick: Path) -> str | None:
    try:
        content = json.loads(quick.read_text())["content"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return content if isinstance(content, str) else None


def _cached(folder: Path, key: str, count: int, size: int) -> list[int] | None:
    """The broken rows of a cached array, or None when there is no whole array of this name."""
    try:
        broken = json.loads((folder / f"{key}.json").read_text())["broken"]
        whole = np.load(folder / f"{key}.npy", mmap_mode="r").shape == (count, size, size, 3)
    except (OSError, ValueError, KeyError, TypeError):  # absent or cut off: made again
        return None
    return [int(row) for row in broken] if whole else None


def _converted(folder: Path, key: str) -> Converted:
    """What was converted when the array was made: said again by every run that takes it from the cache."""
    return Converted(json.loads((folder / f"{key}.json").read_text())["converted"])


# --- decoding -------------------------------------------------------------------------------------------------------


def _decode_all(
    index: DomainIndex, size: int, folder: Path, key: str, threads: int, skip_broken: bool, progress: bool | None
) -> list[int]:
    """Decode into the cache, in parallel; returns the broken rows. Threads: PIL lets go of the GIL while it decodes."""
    broken: list[int] = []
    converted = Converted()

    def work(paths: tuple[str, ...]) -> tuple[list[Pixels | Exception], Converted]:
        done: list[Pixels | Exception] = []
        found = Converted()
        for path in paths:
            try:
                done.append(decode(index.root / path, size, found))
            except Exception as error:  # decoders raise all kinds for a broken file
                done.append(error)
        return done, found

    with (
        _array_file(folder / f"{key}.npy", (len(index), size, size, 3)) as write,
        ThreadPoolExecutor(threads) as pool,
        _bar(f"decoding {index.name}", len(index), progress) as advance,
    ):
        row = 0
        blank = np.zeros((size, size, 3), dtype=np.uint8)
        for part, found in _in_order(pool, work, _chunks(index.paths), 4 * threads):
            converted += found
            for result in part:
                if isinstance(result, Exception):
                    if not skip_broken:
                        raise UserError(
                            f"The image {index.root / index.paths[row]} cannot be read ({result}); "
                            "mend or delete it, or go on without such images with --skip-broken."
                        )
                    broken.append(row)
                    result = blank
                write(result)
                row += 1
            advance(len(part))
        _write_json(folder / f"{key}.json", {"broken": broken, "converted": dict(sorted(converted.items()))})
    return broken


def _open_drawn(index: DomainIndex, size: int, folder: Path) -> Store:
    assert index.draw is not None
    key = _digest([_FORMAT, index.version, str(size)])
    decoded = 0
    if _cached(folder, key, len(index), size) is None:
        drawn = index.draw()
        with _array_file(folder / f"{key}.npy", (len(drawn), size, size, 3)) as write:
            for picture in drawn:
                if picture.shape[0] != size:
                    resized = Image.fromarray(picture).resize((size, size), Image.Resampling.BILINEAR)
                    picture = np.asarray(resized, dtype=np.uint8)
                write(picture)
            _write_json(folder / f"{key}.json", {"broken": []})
        decoded = len(drawn)
    return Store(index, _images(folder / f"{key}.npy", index, np.arange(len(index))), decoded)


def _chunks(paths: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    return (paths[start : start + _CHUNK] for start in range(0, len(paths), _CHUNK))


def _in_order(
    pool: ThreadPoolExecutor, work: Callable[[tuple[str, ...]], T], tasks: Iterable[tuple[str, ...]], ahead: int
) -> Iterator[T]:
    """Results in the order of the tasks, with at most `ahead` of them waiting in memory."""
    waiting: deque[Future[T]] = deque()
    try:
        for task in tasks:
            waiting.append(pool.submit(work, task))
            if len(waiting) >= ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


# --- files ----------------------------------------------------------------------------------------------------------


@contextmanager
def _array_file(file: Path, shape: tuple[int, ...]) -> Iterator[Callable[[Pixels], None]]:
    """Write an .npy picture by picture. It gets its name only when it is whole.

    Written, not mapped: a full disk is then an error that can be reported, and not a bus error.
    """
    with NamedTemporaryFile(dir=file.parent, prefix=".tmp-", suffix=".npy", delete=False) as out:
        try:
            header = {"descr": "|u1", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_2_0(out, header)

            def write(picture: Pixels) -> None:
                out.write(np.ascontiguousarray(picture).data)

            yield write
            out.flush()
            os.fsync(out.fileno())
            os.replace(out.name, file)
        except BaseException:
            Path(out.name).unlink(missing_ok=True)
            raise


def _write_json(file: Path, content: dict[str, Any]) -> None:
    with NamedTemporaryFile("w", dir=file.parent, prefix=".tmp-", delete=False) as out:
        try:
            json.dump(content, out)
            out.flush()
            os.replace(out.name, file)
        except BaseException:
            Path(out.name).unlink(missing_ok=True)
            raise


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in USERS:
            raise disk_error(
                error.filename or folder, error, "start again, or set UNSEEN_CACHE to a folder on another disk"
            ) from error
        if error.errno == errno.ENOENT:
            raise UserError(f"{error.filename} vanished while the images were read; start again.") from error
        raise


# --- progress -------------------------------------------------------------------------------------------------------


@contextmanager
def _bar(what: str, total: int, progress: bool | None) -> Iterator[Callable[[int], None]]:
    """A bar in a terminal, two lines elsewhere. On stderr: stdout is for results."""
    console = Console(stderr=True)
    if progress is False:
        yield lambda done: None
        return
    if progress or console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(what, total=total)
            yield lambda done: bar.advance(task, done)
        return
    print(f"{what}: {total:,} images", file=sys.stderr, flush=True)
    start = time.monotonic()
    yield lambda done: None
    print(f"{what}: done in {time.monotonic() - start:.1f} s", file=sys.stderr, flush=True)
