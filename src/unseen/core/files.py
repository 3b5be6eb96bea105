"""Safe files: safetensors and JSON only, written atomically, read with errors for people."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unseen.core.errors import UserError

if TYPE_CHECKING:  # torch is loaded by who has tensors to write
    from torch import Tensor

    from unseen.core.types import Tensors


@contextlib.contextmanager
def atomic(path: Path, mode: int = 0o644) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place when the block ends well: readers see the old or the new one."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise disk_error(path, error) from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())  # the data must be on the disk before the name points to it
        temporary.chmod(mode)
        os.replace(temporary, path)
    except OSError as error:
        raise disk_error(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


# A full, read-only or forbidden disk is the user's to mend, wherever it is met; any other error is a bug to be seen.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
USERS = FULL | {errno.EROFS, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG}


def disk_error(path: Path | str, error: OSError, advice: str = "run the same command again") -> UserError:
    """A sentence for an error of the operating system; `advice` is what to do once there is room."""
    if error.errno in FULL:
        return UserError(f"The disk is full: {path} could not be written; free some space and {advice}.")
    return UserError(f"{path} could not be written ({error.strerror}); check the folder and {advice}.")


LONGEST = 200  # bytes of a name: file systems take 255, and temporary files add some


def shortened(name: str) -> str:
    """The beginning of a name that is too long for a file; who needs it unique adds a digest."""
    return os.fsencode(name)[:LONGEST].decode(errors="ignore")


def write_json(path: Path, value: object) -> None:
    with atomic(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2, sort_keys=False) + "\n")


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(f"There is no file {path}.") from None
    except OSError as error:
        raise UserError(f"{path} could not be read ({error.strerror}).") from None
    except (ValueError, RecursionError):  # also a number of thousands of digits, and text that is nested too deeply
        raise UserError(
            f"{path} is not valid JSON; it may be cut off. Delete it and run the same command again."
        ) from None


def read_toml(path: Path) -> dict[str, Any]:
    """A file that people write."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} could not be read ({error.strerror}).") from None
    except RecursionError:
        raise UserError(f"{path} is not valid TOML: it is nested too deeply.") from None
    except ValueError as error:  # also text that is not UTF-8, and a number of thousands of digits
        raise UserError(f"{path} is not valid TOML: {error}.") from None


SEAL = "digest"


def write_sealed_json(path: Path, value: Mapping[str, Any]) -> None:
    """JSON with a checksum of its content."""
    write_json(path, {**value, SEAL: _seal(value)})


def read_sealed_json(path: Path) -> dict[str, Any]:
    value = read_json(path)
    if not isinstance(value, dict) or value.pop(SEAL, "") != _seal(value):
        raise UserError(f"{path} is damaged: its checksum does not fit; delete it and run the same command again.")
    return value


def _seal(value: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).hexdigest()


def append_line(path: Path, value: object) -> None:
    """One JSON line at the end of an append-only file. A line that a full disk cut off is ended first."""
    try:
        with path.open("ab+") as file:
            if file.seek(0, os.SEEK_END) and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n":
                file.write(b"\n")
            file.write(json.dumps(value).encode() + b"\n")
    except OSError as error:
        raise disk_error(path, error) from error


def write_lines(path: Path, values: Iterable[object]) -> None:
    """An append-only file with other lines than it had."""
    with atomic(path) as temporary:
        temporary.write_text("".join(json.dumps(value) + "\n" for value in values))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of an append-only file. A last line cut off by a crash is left out: it will be written again."""
    if not path.exists():
        return []
    lines: list[dict[str, Any]] = []
    try:
        written = path.read_text(errors="replace").splitlines()
    except OSError as error:
        raise UserError(f"{path} could not be read ({error.strerror}).") from None
    for text in written:
        with contextlib.suppress(json.JSONDecodeError, RecursionError):
            if isinstance(line := json.loads(text), dict):
                lines.append(line)
    return lines


DIGEST = "digest of the tensors"


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, object] | None = None, mode: int = 0o644
) -> None:
    """One safetensors file; `about` is JSON in its header, so that both are written at once or not at all."""
    import safetensors.torch

    plain = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
    # One entry: safetensors writes several in any order, and the same tensors must be the same file.
    metadata = {"about": json.dumps({**(about or {}), DIGEST: tensors_digest(plain)})}
    with atomic(path, mode) as temporary:
        temporary.write_bytes(safetensors.torch.save(plain, metadata=metadata))


def tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    """A checksum of names, shapes and bytes: a flipped bit on the disk does not pass for a weight."""
    import torch

    total = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        value = tensors[name].contiguous()
        total.update(f"{name}|{value.dtype}|{tuple(value.shape)}|".encode())
        total.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def read_tensors(path: Path) -> tuple[Tensors, dict[str, Any]]:
    """The tensors and the JSON of a file written by `write_tensors` (or of any safetensors file)."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            names = file.keys()
            tensors = {key: file.get_tensor(key) for key in names}
            about = json.loads(metadata.get("about", "{}"))
    except FileNotFoundError:
        raise UserError(f"There is no file {path}.") from None
    except (SafetensorError, OSError, json.JSONDecodeError, ValueError):
        raise UserError(
            f"{path} is cut off or is not a safetensors file; delete it and run the same command again."
        ) from None
    if about.pop(DIGEST, "") not in ("", tensors_digest(tensors)):  # files of earlier versions have none
        raise UserError(f"{path} is damaged: its checksum does not fit; delete it and run the same command again.")
    return tensors, about
