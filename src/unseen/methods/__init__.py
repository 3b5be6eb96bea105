"""One file per method. A file here is registered by being here; no method imports another.

What a file says of its methods in plain text (`cards`) is read without running it: a list of all methods, or the error
for a mistyped name, does not wait for torch.
"""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from unseen.core.errors import UserError, unknown

OWN_FILES = "UNSEEN_METHODS"  # the variable with the files of `unseen --with`, which all processes of a run inherit
NO_OWN_FILES = "none"  # its value if no file is to be read, not even a copy in a run directory


def listed_files() -> list[Path]:
    """The files of `unseen --with`."""
    listed = os.environ.get(OWN_FILES, "")
    return [] if listed == NO_OWN_FILES else [Path(name) for name in listed.split(os.pathsep) if name]


@dataclass(frozen=True)
class Card:
    """What a method's source says of it."""

    name: str
    headline: str  # the first sentence of its class, or of its file
    sends: str  # beyond the model's weights; "" for nothing


def cards() -> dict[str, Card]:
    """Every method by its name on the command line: the files of this folder, and the user's own."""
    files = [path for path in Path(__file__).parent.glob("*.py") if path.name != "__init__.py"]
    files += listed_files()
    return {card.name: card for path in sorted(files) for card in _cards_in(path)}


def check_names(text: str) -> None:
    """An error for people if a part of `"fedbn+fedprox"` is no method."""
    known = cards()
    for name in (word.strip() for word in text.split("+")):
        if name not in known:
            raise unknown(
                "method", name, known, "`unseen methods` lists them all; one of your own comes by `unseen --with FILE`."
            )


@cache
def _cards_in(path: Path) -> tuple[Card, ...]:
    if not path.is_file():
        raise UserError(f'There is no file "{path}" to read methods from; give --with a Python file.')
    try:
        tree = ast.parse(path.read_text())
    except (SyntaxError, ValueError, OSError) as error:
        raise UserError(f'"{path}" could not be read: {type(error).__name__}: {error}.') from None
    return tuple(_read(tree))


def _read(tree: ast.Module) -> Iterator[Card]:
    for node in tree.body:
        if not isinstance(node, ast.ClassDef):
            continue
        values = {
            _target(statement): statement.value for statement in node.body if isinstance(statement, ast.AnnAssign)
        }
        values |= {_target(statement): statement.value for statement in node.body if isinstance(statement, ast.Assign)}
        name = values.get("name")
        if isinstance(name, ast.Constant) and isinstance(name.value, str) and name.value:
            about = inspect.cleandoc(ast.get_docstring(node) or ast.get_docstring(tree) or "")
            headline = about.split("\n\n")[0].replace("\n", " ")
            yield Card(name.value, headline, _sends(values.get("traits")))


def _target(statement: ast.AnnAssign | ast.Assign) -> str:
    target = statement.target if isinstance(statement, ast.AnnAssign) else statement.targets[0]
    return target.id if isinstance(target, ast.Name) else ""


def _sends(traits: ast.expr | None) -> str:
    """The word `sends` of `traits = Traits(sends="...")`."""
    for keyword in traits.keywords if isinstance(traits, ast.Call) else ():
        if keyword.arg == "sends" and isinstance(keyword.value, ast.Constant):
            return str(keyword.value.value)
    return ""
