"""A deployment as the flat keys of a Flower app: those of `[tool.flwr.app.config]` and `flwr run --run-config`."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from unseen.core.errors import UserError
from unseen.core.plan import OptimizerPlan, Plan
from unseen.core.types import ClientId
from unseen.runs.protocols import Settings

Value = str | int | float | bool
# Where the images are is each site's own affair, and a site is a client.
FIXED: dict[str, Any] = {"partition": "domain", "root": None, "engine": "flower"}


@dataclass(frozen=True)
class Deployment:
    """A run's settings, and what only a deployment has."""

    settings: Settings
    sites: tuple[ClientId, ...]
    classes: tuple[str, ...] = ()  # in the net's order; (): all that the sites have, sorted
    target_folder: str = ""  # the unseen site's images on the server's disk, CLASS/*; "": nobody has them
    timeout: float = 3600.0  # seconds a round waits for a site
    out: str = "runs"

    def to_config(self) -> dict[str, Value]:
        """Every key with its value; none is the empty string."""
        keys: dict[str, Value] = {
            "sites": ",".join(self.sites),
            "classes": ",".join(self.classes),
            "target-folder": self.target_folder,
            "timeout": self.timeout,
            "out": self.out,
            "set": ",".join(f"{key}={_word(value)}" for key, value in self.settings.fields.items()),
        }
        for key, owner, name, _ in _keys():
            whole = {Settings: self.settings, Plan: self.settings.plan, OptimizerPlan: self.settings.plan.optimizer}
            value = getattr(whole[owner], name)
            keys[key] = "" if value is None else value
        return keys

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Deployment:
        values: dict[type, dict[str, Any]] = {Settings: {}, Plan: {}, OptimizerPlan: {}}
        for key, owner, name, hint in _keys():
            if key not in config:
                raise UserError(f'The run config has no "{key}"; write the app again with `unseen flower init`.')
            values[owner][name] = _converted(key, config[key], hint)
        plan = Plan(**values[Plan], optimizer=OptimizerPlan(**values[OptimizerPlan]), seed=values[Settings]["seed"])
        if (plan.local_epochs is None) == (plan.local_steps is None):
            raise UserError("Give local-epochs or local-steps, and the other one as an empty string.")
        settings = Settings(**values[Settings], **FIXED, plan=plan, fields=_fields(str(config.get("set", ""))))
        sites = _words(config.get("sites", ""))
        if not sites:
            raise UserError('The run config names no sites; give them as sites="a,b,c".')
        return cls(
            settings=settings,
            sites=tuple(sorted(sites)),
            classes=_words(config.get("classes", "")),
            target_folder=str(config.get("target-folder", "")),
            timeout=float(config.get("timeout", 3600.0)),
            out=str(config.get("out", "runs")),
        )


def _keys() -> Iterator[tuple[str, type, str, Any]]:
    """(key, dataclass, field, type) of every setting that a run config carries."""
    skipped = {Settings: {"plan", "fields", *FIXED}, Plan: {"optimizer", "seed"}, OptimizerPlan: set[str]()}
    for owner, without in skipped.items():
        hints = typing.get_type_hints(owner)
        for f in fields(typing.cast(Any, owner)):
            if f.name not in without:
                yield "optimizer" if f.name == "name" else f.name.replace("_", "-"), owner, f.name, hints[f.name]


def _converted(key: str, value: Any, hint: Any) -> Any:
    """A TOML value as the field's type: 1 is a fine learning rate."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        if value == "":
            return None
        hint = next(option for option in typing.get_args(hint) if option is not type(None))
    if typing.get_origin(hint) is typing.Literal:
        fits = value in typing.get_args(hint)
    elif hint is float:
        fits = isinstance(value, (int, float)) and not isinstance(value, bool)
        value = float(value) if fits else value
    else:
        fits = type(value) is hint
    if not fits:
        raise UserError(f"The run config has {key}={value!r}, which does not fit; see the comments in pyproject.toml.")
    return value


def _words(text: Any) -> tuple[str, ...]:
    return tuple(word.strip() for word in str(text).split(",") if word.strip())


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _fields(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for word in _words(text):
        name, equals, value = word.partition("=")
        if not equals:
            raise UserError(f'"{word}" in set is not FIELD=VALUE.')
        found[name.strip()] = value.strip()
    return found


def toml_lines(config: Mapping[str, Value]) -> Iterator[str]:
    """The keys as lines of a TOML table. JSON's strings, numbers and booleans are TOML's."""
    for key, value in config.items():
        yield f"{key} = {json.dumps(value)}"
