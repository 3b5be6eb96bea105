"""What only the site decides: which of its files are read, how full its disk gets, which code it runs."""

from __future__ import annotations

import dataclasses
import shutil
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unseen.core.errors import UserError
from unseen.core.words import megabytes
from unseen.registry import own_files, registered
from unseen.runs.own_methods import digest_of
from unseen.runs.settings import Settings

SPARE = 1 << 30  # bytes of its disk that a run must leave free


def own_fields(settings: Settings, given: Mapping[str, str]) -> dict[str, Any]:
    """The method's fields as the server sent them, with the site's own.

    A field of free text may be the name of a file. If the server could name it, its errors would tell which files a
    site has, and what is in them: such a field is the site's to give.
    """
    names = settings.method.split("+")
    chosen: dict[str, Any] = {}
    for key, value in settings.fields.items():
        part, _, field = key.rpartition(".")
        owners = [name for name in ([part] if part else names) if _free_text(name, field)]
        if not owners:
            chosen[key] = value
        elif not {key, field, *(f"{name}.{field}" for name in owners)} & set(given):
            raise UserError(
                f'This site does not let the server choose "{key}", which may name a file here; if the run needs it, '
                f'give it in site.toml: fields = {{ "{key}" = "FILE" }}'
            )
    return {**chosen, **given}


def _free_text(method: str, field: str) -> bool:
    kind = registered().get(method)
    if kind is None or field not in {f.name for f in dataclasses.fields(kind)}:
        return False
    hint = typing.get_type_hints(kind)[field]
    return str in (hint, *typing.get_args(hint)) or Path in (hint, *typing.get_args(hint))


def check_room(folder: Path, bytes: int, what: str) -> None:
    """A run may not fill the site's disk: sizes come from the server."""
    place = next(one for one in (folder, *folder.parents) if one.exists())
    free = shutil.disk_usage(place).free
    if bytes + SPARE > free:
        raise UserError(
            f"This run would need {megabytes(bytes)} for {what} in {folder}, and the disk has {megabytes(free)} free; "
            f"at least {megabytes(SPARE)} must stay."
        )


def own_digests(method: str) -> dict[str, str]:
    """The parts of `"fedbn+mine"` that are of own files, each with a digest of its file."""
    names, known = method.split("+"), registered()
    return {name: digest_of(path)[:16] for name, path in own_files().items() if name in names and name in known}


def check_own_files(wanted: Mapping[str, str]) -> None:
    """A method of the coordinator's own file must be in the same file here: no code travels, only its digest."""
    for name, digest in wanted.items():
        here = own_digests(name).get(name)
        if here is None:
            raise UserError(
                f'This site does not have the coordinator\'s own method "{name}"; get its file, read it, and start the '
                f"node with `unseen --with FILE flower node`."
            )
        if here != digest:
            raise UserError(
                f'This site has another version of the method "{name}" ({here}) than the coordinator ({digest}); the '
                f"files must be the same."
            )
