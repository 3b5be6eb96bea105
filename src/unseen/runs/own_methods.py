"""A user's own methods in a run directory: a copy of their files, so that the run can be used without `--with`.

own/NAME.py             the file as it was when the run began
own/methods.json        which methods come from which file, and the digest of each file

Reading such a file runs it. That is done only if the run's method is not known already, if the copy has the digest that
was written down, and never under `--with none`; and it is said. The digest keeps accidents out, not people: whoever can
write into a run directory can write both. Give `--with none` with runs of strangers.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from unseen.core.errors import UserError
from unseen.core.files import atomic, read_json, write_json
from unseen.core.terminal import errors
from unseen.methods import NO_OWN_FILES, OWN_FILES
from unseen.registry import own_files, read_own_file, registered

FOLDER = "own"
LIST = "methods.json"


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _names(method: str) -> list[str]:
    return [name.strip() for name in method.split("+")]


def keep(directory: Path, method: str) -> None:
    """Copy the files of the method's own parts into a run directory that begins."""
    files = {name: path for name, path in own_files().items() if name in _names(method)}
    about = {}
    for name, path in sorted(files.items()):
        copy = f"{name}.py"
        (directory / FOLDER).mkdir(exist_ok=True)
        with atomic(directory / FOLDER / copy) as temporary:
            temporary.write_bytes(path.read_bytes())
        about[name] = {"file": copy, "from": path.name, "digest": digest_of(path)}
    if about:
        write_json(directory / FOLDER / LIST, {"methods": about})


def check(directory: Path, method: str) -> None:
    """An error if a run was begun with another version of the user's file: its rounds and numbers are of that one."""
    recorded = _recorded(directory)
    for name, path in own_files().items():
        if name in _names(method) and name in recorded and digest_of(path) != recorded[name]["digest"]:
            raise UserError(
                f"{directory} was begun with another version of {path.name}, which is kept there as "
                f"{FOLDER}/{recorded[name]['file']}; move the run away, or give another --out."
            )


def recall(directory: Path, method: str) -> None:
    """Make the run's own methods known, from their copies, unless they are known already."""
    recorded = _recorded(directory)
    known = registered()
    for name in _names(method):
        if name in known or name not in recorded:
            continue
        copy = directory / FOLDER / recorded[name]["file"]
        if os.environ.get(OWN_FILES) == NO_OWN_FILES:
            raise UserError(
                f"The method {name} of this run is in {copy}, which --with none leaves unread; leave that out to run it."
            )
        if not copy.is_file() or digest_of(copy) != recorded[name]["digest"]:
            raise UserError(f"{copy} is not the file that the run was made with; give yours with `unseen --with FILE`.")
        errors().print(
            f"reading the method {name} from {copy}, as it was when the run began", markup=False, highlight=False,
            soft_wrap=True,
        )  # fmt: skip
        read_own_file(copy)
        known = registered()


def _recorded(directory: Path) -> dict[str, dict[str, str]]:
    path = directory / FOLDER / LIST
    if not path.exists():
        return {}
    try:
        found: dict[str, dict[str, str]] = read_json(path)["methods"]
        safe = all(Path(one["file"]).name == one["file"] and "digest" in one for one in found.values())
    except (KeyError, TypeError, AttributeError):
        safe = False
    if not safe:
        raise UserError(f"{path} is not a list of methods of unseen; give your file with `unseen --with FILE`.")
    return found
