"""From a user's words to runs: each word is read once, each folder looked at once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from unseen.core.errors import UserError
from unseen.data.domains import DomainIndex
from unseen.data.store import content_of
from unseen.method import Method, changed_fields, check_plan, name_of, parts_of
from unseen.registry import parse, register, registered
from unseen.runs.images import index_of
from unseen.runs.protocols import protocol_named
from unseen.runs.run import PlannedRun
from unseen.runs.settings import NO_TARGET, Protocol, Settings, absolute, checked, settings_of, with_seed

LARGEST_SEED = 2**31 - 1
MOST_SEEDS = 10_000
LONGEST_NUMBER = 30  # letters; Python itself refuses to read very long ones


@dataclass(frozen=True)
class Experiment:
    """What all runs of one command have in common: data, net and budget."""

    protocol: Protocol
    settings: Settings  # of no method and no target yet
    index: DomainIndex

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Experiment:
        """Settings by their names on the command line, `protocol` and `centralized` among them."""
        changes = {name: value for name, value in given.items() if value is not None}
        if changes.pop("centralized", False) and changes.setdefault("partition", "pooled") != "pooled":
            raise UserError(
                "--centralized pools all source domains: leave out --partition, or leave out --centralized."
            )
        protocol = protocol_named(changes.get("data"), changes.pop("protocol", None))
        changes["device"] = find_device(str(changes.get("device", "auto")))
        changes["root"] = absolute(changes.get("root"))
        settings = settings_of(protocol, method="", target="", changes=changes)
        index = index_of(settings)
        data = replace(settings.data, name=index.name, content=content_of(index))
        net = settings.net
        if net.weights_are_a_file:
            path = Path(net.weights).expanduser().resolve()
            net = replace(net, weights=str(path), content=file_digest(path))
        return cls(protocol, replace(settings, data=data, net=net), index)

    def targets(self, words: str | Sequence[str]) -> list[str]:
        """`"all"`, `"photo,sketch"` or a list, as the dataset spells them; `"none"` leaves no domain out."""
        if listed(words) == [NO_TARGET]:
            return [NO_TARGET]
        if words == "all" or list(words) == ["all"]:
            return list(self.index.domains)
        return list(dict.fromkeys(self.index.find(word) for word in listed(words)))

    def seeds(self, words: str | Sequence[int] | int | None) -> list[int]:
        if isinstance(words, (str, int)) or words is None:
            return read_seeds(None if words is None else str(words), self.protocol.seeds)
        return list(dict.fromkeys(_seed(word) for word in words))

    def run(self, method: Method, target: str, seed: int) -> PlannedRun:
        name, fields = spell_method(method)
        settings = replace(self.settings, method=name, fields=fields, target=target)
        if target == NO_TARGET:
            settings = settings.with_changes({"test_every": 0})  # there is nothing to test on
        check_plan(method, settings.plan)
        return PlannedRun(with_seed(checked(settings), seed), method, self.index)


def read_method(method: str | Method, fields: Mapping[str, Any] | None = None) -> Method:
    """A method by its name and fields, or one that was made in Python."""
    if isinstance(method, str):
        return parse(method, fields)
    if fields:
        raise UserError("Give a method's fields in the method itself, or its name and `fields`, not both.")
    for part in parts_of(method):
        if registered().get(part.name) is not type(part):
            register(type(part))
    return method


def spell_method(method: Method) -> tuple[str, dict[str, Any]]:
    """A method's name and those of its fields that differ from their defaults, as JSON has them."""
    parts = parts_of(method)
    changed = {
        name if len(parts) == 1 else f"{part.name}.{name}": json.loads(json.dumps(value))
        for part in parts
        for name, value in changed_fields(part).items()
    }
    return name_of(method), changed


def file_digest(path: Path) -> str:
    """A digest of what is in a file."""
    if not path.is_file():
        raise UserError(f'There is no weights file "{path}": give none, imagenet or a .safetensors file.')
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def find_device(name: str) -> str:
    """`auto`, `cpu`, `cuda`, `cuda:1` or `mps` as a device that is there."""
    there: dict[str, Callable[[], bool]] = {
        "cuda": torch.cuda.is_available,
        "mps": torch.backends.mps.is_available,
        "cpu": lambda: True,
    }
    if name == "auto":
        return next(kind for kind, available in there.items() if available())
    kind, _, number = name.partition(":")
    if kind not in there or (number and not number.isdigit()):
        raise UserError(f'"{name}" is not a device: give auto, cpu, cuda, cuda:NUMBER or mps.')
    if not there[kind]() or (kind == "cuda" and number and int(number) >= torch.cuda.device_count()):
        raise UserError(f'The device "{name}" is not on this machine: give --device auto or cpu.')
    return name


# --- words -----------------------------------------------------------------------------------------------------------
def listed(words: str | Iterable[Any]) -> list[Any]:
    """`"a, b"` or a list."""
    return [word.strip() for word in words.split(",")] if isinstance(words, str) else list(words)


def read_fields(words: Iterable[str]) -> dict[str, str]:
    """`["mu=0.1"]` -> `{"mu": "0.1"}`."""
    fields = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise UserError(f'"{word}" is not understood; write --set FIELD=VALUE.')
        fields[name.strip()] = value.strip()
    return fields


def read_named(word: str) -> tuple[str, dict[str, str]]:
    """`"fedfd:lambda2=0.02:reduce=sum"` -> its name and its fields."""
    name, *settings = word.split(":")
    return name.strip(), read_fields(settings)


def read_seeds(text: str | None, protocols: Sequence[int]) -> list[int]:
    """`"0"`, `"0,1,2"`, `"0-2"`, `"all"` of the protocol's; the protocol's first without a word."""
    if text is None:
        return [protocols[0]]
    if text == "all":
        return list(protocols)
    seeds: list[int] = []
    for word in text.split(","):
        ends = word.strip().split("-")
        sound = len(ends) <= 2 and all(end.isdecimal() and len(end) < LONGEST_NUMBER for end in ends)
        if not sound or int(ends[-1]) < int(ends[0]):
            raise UserError(f'"{text}" is not understood as seeds; write 0, or 0,1,2, or 0-2, or all.')
        first, last = _seed(ends[0]), _seed(ends[-1])
        if last - first >= MOST_SEEDS:
            raise UserError(f'"{text}" is {last - first + 1:,} seeds; give {MOST_SEEDS:,} at most.')
        seeds += range(first, last + 1)
    return list(dict.fromkeys(seeds))


def _seed(word: Any) -> int:
    try:
        seed = int(word)
    except (ValueError, TypeError):
        raise UserError(f'"{word}" is not a seed; write 0, or 0,1,2, or 0-2, or all.') from None
    if not 0 <= seed <= LARGEST_SEED:
        raise UserError(f"A seed is a number from 0 to {LARGEST_SEED}, not {seed}.")
    return seed
