"""The settings of one run: everything that decides its bits, in one tree of small dataclasses.

    Settings
      method, fields, target, protocol, engine
      data   DataSettings     which images, at what size, dealt out how
      net    NetSettings      which network, with what weights
      plan   Plan             the budget, the optimizer, selection      (core/plan.py)

A protocol holds the same three parts, so that a run is a protocol with some of them changed. Nothing here needs torch.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from unseen.core.errors import UserError
from unseen.core.options import changed, option, options_of, read_changes, value_of
from unseen.core.plan import HOW, Plan

DATA, NET = "Data", "Net"
NO_TARGET = "none"  # the target of a run that leaves no domain out
VERSION = 2  # of config.json
T = TypeVar("T")


@dataclass(frozen=True)
class DataSettings:
    """Which images, and how they are dealt out to clients."""

    name: str = option("digits", "Dataset: digits, or a name of `unseen data list`.", name="data", panel=DATA)
    root: str | None = option(None, "The folder of the dataset's images.", panel=DATA)
    image_size: int = option(32, "Side of the images in px.", panel=DATA, least=1, most=4096)
    partition: str = option(
        "domain",
        "Domains to clients: domain, iid:K, dirichlet:K:ALPHA, mixed:N:ALPHA, pairs, pooled.",
        panel=DATA,
    )
    validation: float = option(
        0.1, "Part of each client's images held back for validation.", panel=DATA, least=0, most=0.99
    )
    in_domain_test: float = option(
        0.0,
        "Part of each client's images held back for the in-domain test; with 0, validation images make that number.",
        panel=DATA,
        least=0,
        most=0.99,
    )
    skip_broken: bool = option(False, "Leave broken images out, and list them.", panel=HOW)
    content: str = ""  # a digest of the images themselves: the same folder with other images is another run


@dataclass(frozen=True)
class NetSettings:
    """Which network, and what it begins with."""

    backbone: str = option("convnet", "convnet, convnet_dg, alexnet, alexnet_bn or a name of timm's.", panel=NET)
    bottleneck: int | None = option(None, "Width of a layer before the head, or none.", panel=NET, least=1, most=65536)
    weights: str = option("none", "none, imagenet, or a .safetensors file.", panel=NET)
    content: str = ""  # a digest of the file of weights: the same path with other weights is another run

    @property
    def weights_are_a_file(self) -> bool:
        return self.weights not in ("none", "imagenet")


@dataclass(frozen=True)
class Protocol:
    """A budget with a name. It says everything but the target, the method and the seed."""

    name: str
    about: str
    data: DataSettings
    net: NetSettings
    plan: Plan
    seeds: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class Settings:
    """Everything that decides the bits of one run. The same settings are the same run directory."""

    method: str
    target: str
    protocol: str
    data: DataSettings = field(default_factory=DataSettings)
    net: NetSettings = field(default_factory=NetSettings)
    plan: Plan = field(default_factory=Plan)
    fields: dict[str, Any] = field(default_factory=dict)  # the method's fields that differ from their defaults
    engine: str = option("local", "What carries the orders: local or flower.", panel=HOW)
    client_gpus: float = option(
        1.0, "With the engine flower on GPUs: how many a client has, or which part of one.", panel=HOW, above=0
    )
    chosen_from: dict[str, Any] | None = None  # of a run that `unseen tune` chose: settings as they were before

    @property
    def seed(self) -> int:
        return self.plan.seed

    @property
    def left_out(self) -> str:
        """`unseen street`, or that nothing is: for sentences."""
        return "no domain left out" if self.target == NO_TARGET else f"unseen {self.target}"

    def with_changes(self, changes: Mapping[str, Any]) -> Settings:
        """Some settings changed, by their names on the command line."""
        return checked(changed(self, changes))

    # --- the name of a run ---------------------------------------------------------------------------------------
    def differences(self) -> dict[str, Any]:
        """All that makes this run another one than the run of the defaults, by name.

        Where the images and weights lie does not count; what is in them does.
        """
        found: dict[str, Any] = {
            "method": self.method,
            "fields": self.fields,
            "target": self.target,
            "seed": self.seed,
            "protocol": self.protocol,
        }
        for setting in options_of(type(self)).values():
            value = value_of(self, setting)
            if value != setting.default and setting.name != "root":
                found[setting.name] = value
        if self.chosen_from is not None:
            found["chosen from"] = self.chosen_from
        if self.data.content:
            found["data content"] = self.data.content
        if self.net.content:
            found |= {"weights": "file", "weights content": self.net.content}
        return found

    def digest(self) -> str:
        """Eight letters that name these settings."""
        text = json.dumps(self.differences(), sort_keys=True).encode()
        return hashlib.blake2b(text, digest_size=4).hexdigest()

    # --- JSON ----------------------------------------------------------------------------------------------------
    def to_json(self) -> dict[str, Any]:
        return {"version": VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Settings:
        """Settings of this version, of an older one that knew fewer of them, or of version 1, which was flat."""
        value = dict(value)
        version = value.pop("version", 1)
        if version > VERSION:
            raise UserError(f"These settings are of a newer unseen (format {version}); install that one to read them.")
        return tree_of(cls, value if version == VERSION else _from_flat(value))


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    """Once for each kind: Python compiles every annotation anew, and a report reads hundreds of records."""
    return get_type_hints(kind)


def check_types(kind: type, value: Mapping[str, Any]) -> None:
    """JSON that has the right names and means nothing is an error here, and not where it is first counted with."""
    for name, hint in _hints(kind).items():
        if name in value and not _fits(hint, value[name]):
            raise ValueError(f"{name} is {str(value[name])[:40]!r}")


def _fits(hint: Any, value: object) -> bool:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(kind, value) for kind in arguments)
    if hint in (int, float):
        return isinstance(value, int if hint is int else (int, float)) and not isinstance(value, bool)
    if hint in (str, bool, type(None)):
        return isinstance(value, hint)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(arguments[1], item) for item in value.values())
    if is_dataclass(hint):
        return isinstance(value, dict)
    return True  # words that stand for a choice are read by who knows the choices


def tree_of(kind: type[T], value: Mapping[str, Any]) -> T:
    """A dataclass and those inside it from nested JSON; what is not there has its default."""
    hints = _hints(kind)  # type: ignore[arg-type]  # a type can be hashed
    check_types(kind, value)
    known = {f.name for f in fields(kind)}  # type: ignore[arg-type]
    return kind(
        **{
            name: tree_of(hints[name], inner) if is_dataclass(hints[name]) else inner
            for name, inner in value.items()
            if name in known
        }
    )


def _from_flat(value: dict[str, Any]) -> dict[str, Any]:
    """Version 1 had the parts side by side, and the seed twice."""
    plan = {**value["plan"], "test_every": value.get("test_every", 0)}
    data = {
        name: value[name] for name in ("root", "image_size", "partition", "validation", "skip_broken") if name in value
    }
    net = {name: value[name] for name in ("backbone", "bottleneck", "weights") if name in value}
    rest: dict[str, Any] = {
        name: value[name] for name in ("method", "target", "protocol", "fields", "engine") if name in value
    }
    return {**rest, "data": {**data, "name": value["data"]}, "net": net, "plan": plan}


def checked(settings: Settings) -> Settings:
    """What one setting alone cannot know to be wrong."""
    if (settings.plan.local_epochs is None) == (settings.plan.local_steps is None):
        raise UserError("Give --local-epochs or --local-steps, and not both.")
    if settings.data.validation + settings.data.in_domain_test >= 1 - 1e-9:
        raise UserError(
            f"--validation {settings.data.validation} and --in-domain-test {settings.data.in_domain_test} leave no images "
            f"to train on; their sum must be below 1."
        )
    if settings.target == NO_TARGET and settings.plan.server_selection == "oracle":
        raise UserError("--server-selection oracle needs an unseen domain: give one with --target, or take validation.")
    return settings


def settings_of(
    protocol: Protocol,
    *,
    method: str,
    target: str,
    fields: Mapping[str, Any] | None = None,
    seed: int | None = None,
    changes: Mapping[str, object] | None = None,
) -> Settings:
    """A protocol, changed where the user said so. `changes` are words or values by name, as on the command line."""
    given = read_changes(Settings, changes or {})
    # Who gives the one means not the other, which the protocol may have set.
    for one, other in (("local_epochs", "local_steps"), ("local_steps", "local_epochs")):
        if given.get(one) is not None and other not in given:
            given[other] = None
    seed = protocol.seeds[0] if seed is None else seed
    base = Settings(method, target, protocol.name, protocol.data, protocol.net, protocol.plan, dict(fields or {}))
    settings = changed(base, given)
    return checked(with_seed(settings, seed))


def check_settings(given: Mapping[str, Any]) -> None:
    """Wrong names and values, before a large folder is looked at."""
    extra = ("protocol", "centralized", "device")
    read_changes(Settings, {name: value for name, value in given.items() if name not in extra and value is not None})


def with_seed(settings: Settings, seed: int) -> Settings:
    return replace(settings, plan=replace(settings.plan, seed=seed))


def absolute(path: str | Path | None) -> str | None:
    """A path that is still right when the run is resumed from another folder."""
    return str(Path(path).expanduser().resolve()) if path is not None else None
