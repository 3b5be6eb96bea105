"""Settings that say themselves what they are: one field, with its help, type and bounds, for every way to set it.

A field of a settings dataclass is made by `option`. The command line, TOML files, Python and a Flower app's config all
read the same fields by the same names (`options_of`), convert words by the same rules (`convert`) and complain in the
same sentences.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar, cast

from unseen.core.errors import UserError, nearest

T = TypeVar("T")
KEY = "option"  # in the metadata of a dataclass's field


@dataclass(frozen=True)
class Option:
    """What a field says of itself."""

    help: str
    panel: str = ""  # the heading it stands under in `--help`
    name: str = ""  # its name outside, where the field's own would say too little: the optimizer's name is `optimizer`
    above: float | None = None  # numbers must be greater than this
    least: float | None = None  # numbers must be at least this
    most: float | None = None


def option(
    default: Any = dataclasses.MISSING,
    help: str = "",
    *,
    panel: str = "",
    name: str = "",
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
) -> Any:
    """A dataclass field that can be set from everywhere."""
    about = Option(help, panel, name, above, least, most)
    return dataclasses.field(default=default, metadata={KEY: about})


@dataclass(frozen=True)
class Setting:
    """One settable field of a tree of dataclasses."""

    name: str  # `lr`
    path: tuple[str, ...]  # ("plan", "optimizer", "lr")
    hint: Any  # its type
    default: Any
    about: Option

    @property
    def flag(self) -> str:
        """`--local-steps`."""
        return f"--{self.name.replace('_', '-')}"

    def read(self, raw: object) -> Any:
        """A word or a JSON value as this setting's type, within its bounds."""
        try:
            value = convert(self.hint, raw)
        except (ValueError, TypeError):
            choices = [str(choice) for choice in _choices(self.hint)]
            raise UserError(
                f'"{raw}" is no choice for {self.flag}.{nearest(str(raw), choices)} It takes {spelled(self.hint)}.'
                if choices
                else f'"{raw}" does not fit {self.flag}: it takes {spelled(self.hint)}.'
            ) from None
        self._check(value)
        return value

    def _check(self, value: Any) -> None:
        about = self.about
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"{self.flag} must be a finite number, not {value}.")
        if about.above is not None and not value > about.above:
            raise UserError(f"{self.flag} must be above {about.above:g}, not {value}.")
        if about.least is not None and value < about.least:
            raise UserError(f"{self.flag} must be at least {about.least:g}, not {value}.")
        if about.most is not None and value > about.most:
            raise UserError(f"{self.flag} must be at most {about.most:g}, not {value}.")


def options_of(kind: type) -> Mapping[str, Setting]:
    """Every settable field of a dataclass and of the dataclasses in its fields, by its name outside."""
    return _options(cast(Any, kind))


@cache
def _options(kind: type) -> Mapping[str, Setting]:
    return {setting.name: setting for setting in _walk(kind, ())}


def _walk(kind: type, path: tuple[str, ...]) -> Iterator[Setting]:
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        here = (*path, field.name)
        if dataclasses.is_dataclass(hint := hints[field.name]):
            yield from _walk(typing.cast(type, hint), here)
        elif KEY in field.metadata:
            about = field.metadata[KEY]
            yield Setting(about.name or field.name, here, hint, field.default, about)


def value_of(tree: object, setting: Setting) -> Any:
    for name in setting.path:
        tree = getattr(tree, name)
    return tree


def changed(tree: T, changes: Mapping[str, Any]) -> T:
    """The tree with some settings changed, by their names outside. Values must have their types already."""
    known = options_of(type(tree))
    for name, value in changes.items():
        tree = _with(tree, known[name].path, value)
    return tree


def _with(tree: Any, path: tuple[str, ...], value: Any) -> Any:
    first, *rest = path
    inner = _with(getattr(tree, first), tuple(rest), value) if rest else value
    return dataclasses.replace(tree, **{first: inner})


def read_changes(kind: type, given: Mapping[str, object]) -> dict[str, Any]:
    """Words or values by name, checked and converted. A name that is not there is an error that names the nearest."""
    known = options_of(kind)
    found = {}
    for name, raw in given.items():
        if name not in known:
            raise UserError(f'A run has no setting "{name}".{nearest(name, known)} `unseen run --help` lists them.')
        found[name] = known[name].read(raw)
    return found


# --- words to values -------------------------------------------------------------------------------------------------
TRUE, FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


def convert(hint: Any, raw: object) -> Any:
    """A word of the command line, or a value of TOML or JSON, as a type. ValueError or TypeError if it does not fit."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return next(choice for choice in _or_fail(arguments, raw) if str(choice) == str(raw))
    if origin in (typing.Union, types.UnionType):
        if type(None) in arguments and (raw is None or str(raw).lower() in ("none", "")):
            return None
        for kind in arguments:
            try:
                return convert(kind, raw)
            except (ValueError, TypeError):
                continue
        raise ValueError
    if origin is tuple:
        items = raw.split(",") if isinstance(raw, str) else list(typing.cast(Iterable[object], raw))
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return tuple(convert(arguments[0], item) for item in items if item != "")
        return tuple(convert(kind, item) for kind, item in zip(arguments, items, strict=True))
    if hint is bool:
        if (word := str(raw).lower()) not in TRUE + FALSE:
            raise ValueError
        return word in TRUE
    if hint in (int, float, str) and not (isinstance(raw, bool) and hint is not str):
        return hint(str(raw))
    raise TypeError


def _or_fail(choices: tuple[object, ...], raw: object) -> tuple[object, ...]:
    if not any(str(choice) == str(raw) for choice in choices):
        raise ValueError
    return choices


def _choices(hint: Any) -> tuple[object, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) is typing.Literal else ()


def spelled(hint: object) -> str:
    """A type as a user reads it."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is type(None):
        return "none"
    if origin is typing.Literal:
        return " | ".join(str(a) for a in arguments)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(spelled(a) for a in arguments)
    if origin is tuple:
        return ",".join("..." if a is Ellipsis else spelled(a) for a in arguments)
    return getattr(hint, "__name__", str(hint))
