"""A deployment as the flat keys of a Flower app: those of `[tool.flwr.app.config]` and `flwr run --run-config`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from unseen.core.errors import UserError
from unseen.core.options import Setting, options_of, value_of
from unseen.core.types import ClientId
from unseen.runs.settings import NO_TARGET, Settings, with_seed

Value = str | int | float | bool
# Where the images are is each site's own affair, and a site is a client.
FIXED: dict[str, Any] = {"data": "folder", "partition": "domain", "root": None, "engine": "flower", "client_gpus": 1.0}


@dataclass(frozen=True)
class Deployment:
    """A run's settings, and what only a deployment has."""

    settings: Settings
    sites: tuple[ClientId, ...]
    classes: tuple[str, ...] = ()  # in the net's order; (): all that the sites have, sorted
    target_folder: str = ""  # the unseen site's images on the server's disk, CLASS/*; "": nobody has them
    timeout: float = 3600.0  # seconds a round waits for a site
    out: str = "runs"

    def __post_init__(self) -> None:
        if self.settings.target == NO_TARGET and self.target_folder:
            raise UserError("--target none leaves no site out: name the unseen site, or leave out --target-folder.")

    def to_config(self) -> dict[str, Value]:
        """Every key with its value; none is the empty string."""
        settings = self.settings
        keys: dict[str, Value] = {
            "sites": ",".join(self.sites),
            "classes": ",".join(self.classes),
            "target-folder": self.target_folder,
            "timeout": self.timeout,
            "out": self.out,
            "method": settings.method,
            "set": ",".join(f"{key}={_word(value)}" for key, value in settings.fields.items()),
            "target": settings.target,
            "protocol": settings.protocol,
            "seed": settings.seed,
        }
        for setting in _carried():
            value = value_of(settings, setting)
            keys[setting.name.replace("_", "-")] = "" if value is None else value
        return keys

    def fitting(self) -> Settings:
        """The settings as they are run: without the unseen site's images nothing can be tested on them."""
        if self.target_folder:
            return self.settings
        if self.settings.plan.server_selection == "oracle":
            raise UserError(
                "server-selection oracle needs the unseen site's images: give target-folder, or validation."
            )
        return self.settings.with_changes({"test_every": 0})

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Deployment:
        def needed(key: str) -> Any:
            if key not in config:
                raise UserError(f'The run config has no "{key}"; write the app again with `unseen flower init`.')
            return config[key]

        changes = {setting.name: _read(setting, needed(setting.name.replace("_", "-"))) for setting in _carried()}
        settings = Settings(
            method=str(needed("method")),
            target=str(needed("target")),
            protocol=str(needed("protocol")),
            fields=_fields(str(config.get("set", ""))),
        )
        settings = with_seed(settings.with_changes({**FIXED, **changes}), int(needed("seed")))
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


def _carried() -> list[Setting]:
    """The settings that a run config carries."""
    return [setting for name, setting in options_of(Settings).items() if name not in FIXED]


def _read(setting: Setting, value: Any) -> Any:
    try:
        return setting.read(value)
    except UserError as error:
        raise UserError(f"The run config has {setting.name.replace('_', '-')}={value!r}. {error}") from None


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
