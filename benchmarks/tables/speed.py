"""Ratios of time and memory, measured side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tables import kept
from tables.kept import NOTHING, filled, row_of, speed_record, top

from unseen.core.words import megabytes
from unseen.reports.names import titled


def _net(record: Mapping[str, Any]) -> str:
    return f"{record['backbone']} at {record['image_size']} px"


def speed() -> str:
    """One row per benchmark."""
    rows: list[tuple[str, str, dict[str, Any]]] = []
    for file in sorted((kept.RECORDS / "speed").glob("overhead-*.json")):
        one = json.loads(file.read_text())
        rows.append((
            "FedAvg through `unseen` against a bare PyTorch loop over the same batches",
            f"{one['ratio']:.2f}x, half of {one['pairs']} pairs of rounds from {one['low']:.2f} to {one['high']:.2f} "
            f"({_net(one)}; {one['clients']} clients x {one['steps']} steps of {one['batch_size']})",
            one,
        ))  # fmt: skip
    for file in sorted((kept.RECORDS / "speed").glob("store-*.json")):
        one = json.loads(file.read_text())
        rows.append((
            "an epoch from JPEG files: PIL and per-image torchvision against the store and batched augmentation",
            f"{one['ratio']:.1f}x faster ({one['images']:,} images at {one['size']} px; {one['of']})",
            one,
        ))  # fmt: skip
    if one := speed_record("allocator"):
        ratio = one["default"] / one["kept"]
        rows.append((
            "a training step with freed memory kept, against glibc's default",
            f"{ratio:.2f}x faster ({_net(one)}, batch 32)",
            one,
        ))  # fmt: skip
    if one := speed_record("kernels"):
        kinds = {
            "avx2": "by AVX2's kernels ([`UNSEEN_CPU=avx2`](architecture.md#same-bits))",
            "bfloat16": "in bfloat16 (`--precision bfloat16`)",
        }
        for kind, words in kinds.items():
            nets = [
                f"{n[kind] / n['native']:.2f}x ({net} at {n['image_size']} px)"
                for net, n in one["nets"].items()
                if kind in n
            ]
            if nets:
                what = f"the time of a training step {words} against the CPU's own in float32"
                rows.append((what, ", ".join(nets), one))
    if one := speed_record("server"):
        rows.append((
            "the server's part of a GA round against the weighted mean of the replies alone",
            f"{one['ours'] / one['plain']:.1f}x ({one['parameters'] / 1e6:.1f} million numbers, {one['clients']} clients): "
            f"of {1e3 * one['ours']:.0f} ms the mean in float64 takes {1e3 * one['mean']:.0f}, checks of the replies "
            f"{1e3 * one['checks']:.0f} and norms of their updates {1e3 * one['norms']:.0f}; the mean alone in float32 "
            f"{1e3 * one['plain']:.0f} ms",
            one,
        ))  # fmt: skip
    if not rows:
        return NOTHING
    lines = top(["what", "measured", "by"], 3)
    lines += [f"| {what} | {measured} | `{one['command']}` |" for what, measured, one in rows]
    return "\n".join([*lines, "", filled(_machine([one for _, _, one in rows]))]) + "\n"


def _machine(ones: Sequence[Mapping[str, Any]]) -> str:
    loads = [one["load"] for one in ones]
    cpus = sorted({f"{one['cpu']}, {one['cores']} cores" for one in ones})
    busy = f"{min(loads):g}" if min(loads) == max(loads) else f"{min(loads):g} to {max(loads):g}"
    return f"{'; '.join(cpus)}; load {busy} meanwhile; commits {', '.join(sorted({one['commit'] for one in ones}))}."


def clients() -> str:
    """Peak memory and time per selected client, by the number of clients (benchmarks/clients.py)."""
    record = speed_record("clients")
    if record is None:
        return NOTHING
    counts = list(next(iter(record["methods"].values())))
    head = [f"{what}, {int(count):,} clients" for what in ("peak memory", "per selected client") for count in counts]
    lines = top(["method", *head])
    for name, found in record["methods"].items():
        few = found[counts[0]]
        cells = [f"{one['peak']:.0f} MB ({one['peak'] / few['peak']:.2f}x)" for one in found.values()]
        cells += [f"{1e3 * one['seconds']:.1f} ms ({one['seconds'] / few['seconds']:.2f}x)" for one in found.values()]
        lines.append(f"| {titled(name)} | " + " | ".join(cells) + " |")
    note = (
        f"{record['selected']} clients take part in each of {record['rounds']} rounds; CPU time. `{record['command']}`; "
        f"{_machine([record])}"
    )
    return "\n".join([*lines, "", filled(note)]) + "\n"


def cost(backbone: str) -> str:
    """Every method's step, inference and bytes beside FedAvg's."""
    record = speed_record(f"cost-{backbone}")
    if record is None:
        return NOTHING
    lines = [
        "| method | parameters | step | passes | per pass | inference | up, per client and round | beyond weights | down |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for one in record["methods"]:
        cells = [titled(one["method"]), f"{one['parameters']:,}", f"{one['step_ratio']:.2f}x"]
        passes = one["passes"]
        cells += ["-", "-"] if passes is None else [f"{passes:g}", f"{one['step_ratio'] / passes:.2f}"]
        cells.append(f"{one['inference_ratio']:.2f}x")
        cells += [megabytes(one[key]) for key in ("bytes_up", "bytes_up_statistics", "bytes_down")]
        lines.append(row_of(cells))
    base, settings = record["methods"][0], record["settings"]
    notes = [
        f"{_net(settings)}, batch {settings['batch_size']}; FedAvg's step takes {1e3 * base['step_seconds']:.1f} ms of "
        f"CPU, its inference {1e3 * base['inference_seconds']:.1f} ms a batch; the fastest of {settings['repeats']} "
        f"measurements of {settings['steps']} steps.",
        *(f"Left out: {sentence}" for sentence in dict.fromkeys(record["left_out"])),
        f"`{record['command']}`; {_machine([record])}",
    ]
    return "\n".join([*lines, "", filled(" ".join(notes))]) + "\n"
