"""Names of methods: one file in `methods/` per method, found by being there. `"fedbn+ga"` -> a Method."""

from __future__ import annotations

import importlib
import pkgutil
import types as pytypes
import typing
from collections.abc import Mapping
from dataclasses import fields
from functools import cache

import unseen.methods
from unseen.errors import UserError, nearest, unknown
from unseen.method import Method, compose


@cache
def registered() -> dict[str, type[Method]]:
    """Every method by its name on the command line. A file defines the classes that set `name` in their own body."""
    found: dict[str, type[Method]] = {}
    for module_info in pkgutil.iter_modules(unseen.methods.__path__):
        module = importlib.import_module(f"unseen.methods.{module_info.name}")
        for value in vars(module).values():
            own = isinstance(value, type) and issubclass(value, Method) and value.__module__ == module.__name__
            if own and (name := value.__dict__.get("name")):
                found[name] = value
    return dict(sorted(found.items()))


def register(kind: type[Method]) -> type[Method]:
    """Make an own method known by its `name` (a class decorator)."""
    if not kind.name:
        raise UserError(f'The class {kind.__name__} has no name: add `name: ClassVar[str] = "..."`.')
    registered()[kind.name] = kind
    return kind


def parse(text: str, settings: Mapping[str, str | object] | None = None) -> Method:
    """`"fedbn+fedfd"` and `{"lambda2": "0.02"}` -> a Method. `fedfd.lambda2` names the part where two have the field."""
    names = [name.strip() for name in text.split("+")]
    known = registered()
    for name in names:
        if name not in known:
            raise unknown("method", name, known, "`unseen methods` lists them all.")
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
        return _as(hint, raw)
    except (ValueError, TypeError):
        raise UserError(
            f'"{raw}" does not fit the field {field_name} of {kind.name}: it takes {spelled(hint)}.'
        ) from None


def spelled(hint: object) -> str:
    """A type as a user reads it."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is type(None):
        return "none"
    if origin is typing.Literal:
        return " | ".join(str(a) for a in arguments)
    if origin in (typing.Union, pytypes.UnionType):
        return " | ".join(spelled(a) for a in arguments)
    if origin is tuple:
        return ",".join("..." if a is Ellipsis else spelled(a) for a in arguments)
    return getattr(hint, "__name__", str(hint))


def _as(hint: object, raw: object) -> object:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        for choice in arguments:
            if str(choice) == str(raw):
                return choice
        raise ValueError
    if origin in (typing.Union, pytypes.UnionType):
        if type(None) in arguments and (raw is None or str(raw).lower() == "none"):
            return None
        for option in arguments:
            try:
                return _as(option, raw)
            except (ValueError, TypeError):
                continue
        raise ValueError
    if origin is tuple:
        items = raw.split(",") if isinstance(raw, str) else list(typing.cast(typing.Iterable[object], raw))
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return tuple(_as(arguments[0], item) for item in items if item != "")
        if len(items) != len(arguments):
            raise ValueError
        return tuple(_as(kind, item) for kind, item in zip(arguments, items, strict=True))
    if hint is bool:
        words = {
            "true": True,
            "1": True,
            "yes": True,
            "on": True,
            "false": False,
            "0": False,
            "no": False,
            "off": False,
        }
        if str(raw).lower() not in words:
            raise ValueError
        return words[str(raw).lower()]
    if hint is int:
        return int(str(raw))
    if hint is float:
        return float(str(raw))
    if hint is str:
        return str(raw)
    raise TypeError
