"""Names of methods: one file in `methods/` per method, found by being there. `"fedbn+ga"` -> a Method."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import math
import pkgutil
import sys
import types as pytypes
import typing
import zlib
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path

import unseen.methods
from unseen.core import options
from unseen.core.errors import UserError, nearest
from unseen.method import Method, compose

_own: dict[str, type[Method]] = {}  # of `register` and of own files


def registered() -> dict[str, type[Method]]:
    """Every method by its name on the command line: the files of `methods/`, own files, and what was registered."""
    for path in unseen.methods.listed_files():
        read_own_file(path)
    return dict(sorted({**_built_in(), **_own}.items()))


def register(kind: type[Method]) -> type[Method]:
    """Make an own method known by its `name` (a class decorator)."""
    if not kind.name:
        raise UserError(f'The class {kind.__name__} has no name: add `name: ClassVar[str] = "..."`.')
    _own[kind.name] = kind
    return kind


def own_files() -> dict[str, Path]:
    """The file of each method that is not of unseen, where there is one: a prompt or a notebook has none."""
    registered()  # reads what `--with` names
    found = {}
    for name, kind in _own.items():
        try:
            path = Path(inspect.getsourcefile(kind) or "")
        except (OSError, TypeError):
            continue
        # A class of a prompt may name the program that runs the prompt: the file must be the one that defines it.
        if path.is_file() and name in unseen.methods.names_in(path):
            found[name] = path
    return found


_reading: list[Path] = []


def check_not_reading() -> None:
    """An error if this is called by an own file that is being read: it would train before anybody asked it to."""
    if _reading:
        raise UserError(f'"{_reading[-1]}" trains when it is read; put that part below `if __name__ == "__main__":`.')


@cache
def _built_in() -> dict[str, type[Method]]:
    modules = [f"unseen.methods.{found.name}" for found in pkgutil.iter_modules(unseen.methods.__path__)]
    return {kind.name: kind for module in modules for kind in _methods_in(importlib.import_module(module))}


def _methods_in(module: pytypes.ModuleType) -> list[type[Method]]:
    """A file defines the classes that set `name` in their own body."""
    own = [v for v in vars(module).values() if isinstance(v, type) and v.__module__ == module.__name__]
    return [kind for kind in own if issubclass(kind, Method) and kind.__dict__.get("name")]


@cache
def read_own_file(path: Path) -> None:
    """Run a user's file, once, and make its methods known."""
    if not path.is_file():
        raise UserError(f'There is no file "{path}" to read methods from; give --with a Python file.')
    name = f"unseen_own_{zlib.crc32(str(path).encode()):08x}_{path.stem}"  # two files of one name are two modules
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UserError(f'"{path}" is not a Python file; methods are read from files that end with .py.')
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    _reading.append(path)
    try:
        spec.loader.exec_module(module)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f'"{path}" could not be read: {type(error).__name__}: {error}.') from error
    finally:
        _reading.pop()
    found = _methods_in(module)
    if not found:
        raise UserError(f'"{path}" has no method: a class of Method with `name: ClassVar[str] = "..."`.')
    for kind in found:
        if kind.name in _built_in():
            raise UserError(f'"{path}" calls a method "{kind.name}", as one of unseen is called; give it another name.')
        register(kind)


def parse(text: str, settings: Mapping[str, str | object] | None = None) -> Method:
    """`"fedbn+fedfd"` and `{"lambda2": "0.02"}` -> a Method. `fedfd.lambda2` names the part where two have the field."""
    names = [name.strip() for name in text.split("+")]
    known = registered()
    for name in names:
        if name not in known:
            raise unseen.methods.no_method(name, known)
    values: dict[str, dict[str, object]] = {name: {} for name in names}
    for key, raw in (settings or {}).items():
        part, _, field_name = key.rpartition(".")
        owners = [
            n for n in ([part] if part else names) if n in values and field_name in {f.name for f in fields(known[n])}
        ]
        if not owners:
            all_fields = [f.name for n in names for f in fields(known[n])]
            raise UserError(
                f'The method "{text}" has no field "{key}".{nearest(field_name, all_fields)} '
                f"`unseen methods {names[-1]}` lists its fields."
            )
        for owner in owners:
            values[owner][field_name] = convert(known[owner], field_name, raw)
    return compose(*(known[name](**values[name]) for name in names))


def convert(kind: type[Method], field_name: str, raw: object) -> object:
    """A value from the command line or from JSON, as the field's type."""
    hint = typing.get_type_hints(kind)[field_name]
    try:
        value = options.convert(hint, raw)
    except (ValueError, TypeError):
        raise UserError(
            f'"{raw}" does not fit the field {field_name} of {kind.name}: it takes {options.spelled(hint)}.'
        ) from None
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"The field {field_name} of {kind.name} must be a finite number, not {raw}.")
    return value
