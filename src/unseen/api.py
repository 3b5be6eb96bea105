"""A run from Python; the command line is a thin layer over these functions."""

from __future__ import annotations

import importlib.util
import json
import os
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields as fields_of
from pathlib import Path
from typing import Any

import torch

from unseen.core.errors import UserError, nearest, unknown
from unseen.core.plan import OptimizerPlan, Plan
from unseen.data.augment import PRESETS
from unseen.data.catalog import load_index
from unseen.data.domains import DomainIndex
from unseen.method import Method, name_of, parts_of
from unseen.registry import parse, register, registered
from unseen.runs.protocols import Protocol, Settings, protocol_for, protocol_of, settings
from unseen.runs.run import Result, Watcher, run_settings


def run(
    *,
    target: str,
    data: str | None = None,
    method: str | Method = "fedavg",
    seed: int | None = None,
    workers: int | None = None,
    out: str | Path | None = None,
    watcher: Watcher | None = None,
    **changes: Any,
) -> Result:
    """Train on all domains but `target`, test on `target`.

    Other arguments are those of the command line, as words: `rounds=3`, `protocol="pacs-quick"`, `root=...`,
    `backbone=...`, `lr=...`; `fields={"mu": 0.2}` sets fields of the method. Without `out` nothing is left on the disk.
    `workers=None` takes a process per core.
    """
    chosen = plan_run(target=target, data=data, method=method, seed=seed, **changes)
    return carry_out(chosen, out=Path(out) if out is not None else None, workers=workers, watcher=watcher)


def plan_run(
    *,
    target: str,
    data: str | None = None,
    method: str | Method = "fedavg",
    seed: int | None = None,
    protocol: str | None = None,
    root: str | Path | None = None,
    fields: Mapping[str, Any] | None = None,
    device: str = "auto",
    weights: str | Path | None = None,
    **changes: Any,
) -> Settings:
    """The settings of one run, spelled in the one way that names its directory."""
    changes = {key: value for key, value in changes.items() if value is not None}
    _check(changes)
    named, own_fields = spell_method(method, fields)
    where = absolute(root)
    index = dataset(data, protocol, where)
    return settings(
        method=named,
        fields=own_fields,
        data=index.name,
        target=index.find(target),
        protocol=protocol,
        seed=seed,
        root=where,
        device=find_device(device),
        weights=spell_weights(weights),
        **changes,
    )


def carry_out(
    chosen: Settings, *, out: Path | None, workers: int | None = None, watcher: Watcher | None = None
) -> Result:
    """Run, or go on with, or read the run of these settings, on the engine that they name."""
    if workers is not None and workers < 1:
        raise UserError(f"--workers must be at least 1, not {workers}.")
    return engine_of(chosen.engine)(chosen, out, workers or spare_workers(chosen.plan.device), watcher)


# --- engines ----------------------------------------------------------------------------------------------------
Runner = Callable[[Settings, Path | None, int, Watcher | None], Result]


def _local(chosen: Settings, out: Path | None, workers: int, watcher: Watcher | None) -> Result:
    return run_settings(chosen, out=out, workers=workers, watcher=watcher)


def _flower(chosen: Settings, out: Path | None, workers: int, watcher: Watcher | None) -> Result:
    if any(importlib.util.find_spec(module) is None for module in ("flwr", "ray")):
        raise UserError("The engine flower needs Flower and Ray: `pip install unseen[flower]`.")
    flower: Any = importlib.import_module("unseen.engines.flower")
    result: Result = flower.run_simulation(chosen, out, watcher)
    return result


ENGINES: dict[str, Runner] = {"local": _local, "flower": _flower}


def engine_of(name: str) -> Runner:
    if name not in ENGINES:
        raise unknown("engine", name, ENGINES, f"The engines are {', '.join(ENGINES)}.")
    return ENGINES[name]


def spare_workers(device: str) -> int:
    """A process per core; one for an accelerator, whose memory a second process would only share."""
    if torch.device(device).type != "cpu":
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# --- spelling ---------------------------------------------------------------------------------------------------
def protocol_named(data: str | None, protocol: str | None) -> Protocol:
    """The protocol that was named, or the small one for the data."""
    return protocol_of(protocol) if protocol else protocol_for(data or "digits")


def dataset(data: str | None, protocol: str | None, root: str | None) -> DomainIndex:
    """The index of the data that a run would use."""
    name = data or protocol_named(data, protocol).data
    if name is None:
        raise UserError(f'The protocol "{protocol}" is for any dataset; give one with --data.')
    return load_index(name, Path(root) if root else None)


def spell_method(method: str | Method, given: Mapping[str, Any] | None) -> tuple[str, dict[str, Any]]:
    """A method's name and those of its fields that differ from their defaults, as JSON has them."""
    if isinstance(method, Method):
        if given:
            raise UserError("Give a method's fields in the method itself, or its name and `fields`, not both.")
        for part in parts_of(method):
            if registered().get(part.name) is not type(part):
                register(type(part))
    else:
        method = parse(method, given)
    parts = parts_of(method)
    changed: dict[str, Any] = {}
    for part in parts:
        plain = type(part)()
        for f in fields_of(part):
            value = getattr(part, f.name)
            if value != getattr(plain, f.name):
                changed[f.name if len(parts) == 1 else f"{part.name}.{f.name}"] = json.loads(json.dumps(value))
    return name_of(method), changed


def absolute(path: str | Path | None) -> str | None:
    """A path that is still right when the run is resumed from another folder."""
    return str(Path(path).expanduser().resolve()) if path is not None else None


def spell_weights(weights: str | Path | None) -> str | None:
    if weights is None or str(weights) in ("none", "imagenet"):
        return str(weights) if weights is not None else None
    return absolute(weights)


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


_KINDS: tuple[type, ...] = (Settings, Plan, OptimizerPlan)


def _check(changes: Mapping[str, Any]) -> None:
    """Names and choices of the changes to a protocol."""
    hints = {name: hint for kind in _KINDS for name, hint in typing.get_type_hints(kind).items()}
    # `name` is the optimizer's, which a protocol sets; the objects inside are changed field by field.
    known = set(hints) - {"name", "plan", "optimizer"}
    for key, value in changes.items():
        if key not in known:
            raise UserError(f'A run has no setting "{key}".{nearest(key, known)} `unseen run --help` lists them.')
        if typing.get_origin(hints[key]) is typing.Literal:
            _choose(key, value, typing.get_args(hints[key]))
    engine_of(changes.get("engine", "local"))
    if "augmentation" in changes:
        _choose("augmentation", changes["augmentation"], PRESETS)
    for key in ("lr", "participation", "local_epochs", "local_steps", "image_size", "bottleneck"):
        if key in changes and not changes[key] > 0:
            raise UserError(f"--{key.replace('_', '-')} must be above 0, not {changes[key]}.")
    if changes.get("test_every", 0) < 0:
        raise UserError(f"--test-every must be 0 or more, not {changes['test_every']}.")


def _choose(key: str, value: object, choices: Iterable[object]) -> None:
    words = [str(choice) for choice in choices]
    if value not in words:
        option = f"--{key.replace('_', '-')}"
        raise UserError(
            f'"{value}" is no choice for {option}.{nearest(str(value), words)} It takes {", ".join(words)}.'
        )
