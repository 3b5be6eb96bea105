"""What every method computes, as one digest each: proof that a change of the code changed no number.

    python benchmarks/digests.py before.json             # before the change
    python benchmarks/digests.py after.json --like before.json

Each method trains two rounds on a tiny net: in one process, in two, broken off after the first round and gone on with,
and (`--flower`) on Flower's simulation. A digest is of the server's state and memory after the last round.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import unseen

COMPOSED = (
    "fedbn+fedfd",
    "silobn+fedfd-a",
    "fedavg+guide",
    "mixstyle+guide",
    "fedprox+gperxan",
    "silobn+ga",
    "rsc+ga",
)
SMALL: dict[str, Any] = {
    "data": "digits", "target": "street", "seed": 0, "rounds": 2, "local_steps": 3, "batch_size": 8, "image_size": 16,
    "test_every": 0,
}  # fmt: skip
NEEDS: dict[str, dict[str, Any]] = {"doprompt": {"backbone": "test_vit", "image_size": 32}}  # it needs tokens


class Broken(Exception):
    """The run was stopped on purpose."""


class Breaks:
    """Watches a run, and stops it after its first round."""

    def began(self, *_: Any) -> None: ...

    def testing(self, *_: Any) -> None: ...

    def said(self, *_: Any) -> None: ...

    def round(self, *_: Any) -> None:
        raise Broken


def digest(directory: Path) -> str:
    """Of the last checkpoint's tensors, by name."""
    from safetensors import safe_open

    found = hashlib.blake2b(digest_size=12)
    with safe_open(max((directory / "checkpoints").glob("round-*.safetensors")), framework="np") as file:
        for name in sorted(file.keys()):
            found.update(name.encode() + file.get_tensor(name).tobytes())
    return found.hexdigest()


def digests(method: str, flower: bool) -> dict[str, str]:
    ways: dict[str, dict[str, Any]] = {"one process": {"workers": 1}, "two processes": {"workers": 2}, "broken": {}}
    if flower:
        ways["flower"] = {"engine": "flower"}
    found = {}
    for way, how in ways.items():
        with tempfile.TemporaryDirectory() as out:
            given = {**SMALL, **NEEDS.get(method, {}), **how, "method": method, "out": out}
            if way == "broken":
                try:
                    unseen.run(**given, workers=1, watcher=Breaks())
                except Broken:
                    given["workers"] = 1
                else:
                    raise RuntimeError("the run was not stopped")
            found[way] = digest(Path(str(unseen.run(**given).directory)))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("out", type=Path)
    parser.add_argument("--like", type=Path, help="digests to compare with")
    parser.add_argument("--flower", action="store_true", help="Flower's simulation too (ten seconds a method)")
    parser.add_argument("--methods", help="with commas; all by default")
    given = parser.parse_args()
    from unseen.registry import registered

    methods = given.methods.split(",") if given.methods else [*registered(), *COMPOSED]
    found: dict[str, dict[str, str]] = json.loads(given.out.read_text()) if given.out.exists() else {}
    for method in methods:
        if method not in found or (given.flower and "flower" not in found[method]):
            found[method] = digests(method, given.flower)
            given.out.write_text(json.dumps(found, indent=1) + "\n")
        ways = set(found[method].values())
        print(f"{method:16} {next(iter(ways))}{'' if len(ways) == 1 else '  DIFFERENT BITS BY ENGINE'}", flush=True)
    if given.like is None:
        return 0
    before = json.loads(given.like.read_text())
    changed = [m for m in methods if m in before and any(found[m].get(w, v) != v for w, v in before[m].items())]
    print(f"{len(methods) - len(changed)} of {len(methods)} as before; changed: {', '.join(changed) or 'none'}")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
