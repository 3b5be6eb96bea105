"""Run directories with invented numbers: what a bench leaves, without training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from tests.small_runs import settings
from unseen.core.files import write_json, write_tensors
from unseen.runs.directory import RunDirectory
from unseen.runs.results import RoundLine, RunResult, UnseenScore, Validation
from unseen.runs.settings import Settings

ROUNDS = 4


def invent(
    out: Path,
    scores: Mapping[str, float],
    *,
    data: str = "digits",
    protocol: str = "digits",
    targets: Sequence[str] = ("ink", "street"),
    seeds: Sequence[int] = (0, 1, 2),
    fields: Mapping[str, Any] | None = None,
    insight: bool = False,
    **changes: Any,
) -> list[RunDirectory]:
    """A finished run per method, target and seed. The accuracy of target t and seed s is score + t / 100 + s / 1000."""
    made = []
    for method, score in scores.items():
        for t, target in enumerate(targets):
            for s, seed in enumerate(seeds):
                chosen = settings(
                    method=method,
                    data=data,
                    target=target,
                    protocol=protocol,
                    seed=seed,
                    fields=fields,
                    rounds=ROUNDS,
                    **changes,
                )
                run = RunDirectory.of(chosen, out).begin(chosen)
                accuracy = score + t / 100 + s / 1000
                for r in range(1, ROUNDS + 1):
                    unseen = UnseenScore(r, accuracy * r / ROUNDS, 1.0)
                    validation = Validation(r - 1, 0.9 * r / ROUNDS) if r > 1 else None
                    run.append(RoundLine(r, 2.0 / r, validation=validation, unseen=unseen))
                sends = method in ("stablefdg", "ccst")
                tensors = [
                    _crossing("up", "model", "backbone.0.weight", [16, 3, 3, 3]),
                    _crossing("down", "model", "backbone.0.weight", [16, 3, 3, 3]),
                    _crossing("up", "metrics", "loss", []),
                    *([_crossing("up", "statistics", "style", [4, 32])] if sends else []),
                ]
                write_json(run.path / "ledger.json", {"trips": 12, "tensors": tensors})
                write_json(run.path / "result.json", _result(chosen, accuracy, sends).to_json())
                if insight and s == 0 and t == 0:
                    invent_insight(run, method)
                made.append(run)
    return made


def _crossing(direction: str, kind: str, name: str, shape: list[int]) -> dict[str, Any]:
    size = 4 * math.prod(shape)
    return {
        "direction": direction, "kind": kind, "name": name, "shape": shape, "dtype": "float32", "bytes": size,
        "crossings": 12, "total": 12 * size,
    }  # fmt: skip


def _result(chosen: Settings, accuracy: float, sends: bool) -> RunResult:
    return RunResult(
        method=chosen.method,
        fields=chosen.fields,
        data=chosen.data.name,
        target=chosen.target,
        seed=chosen.seed,
        protocol=chosen.protocol,
        backbone=chosen.net.backbone,
        accuracy=accuracy,
        loss=1.0,
        in_domain_accuracy=accuracy + 0.1,
        in_domain={"a": accuracy + 0.1},
        selection=chosen.plan.server_selection,
        selection_words="best mean validation accuracy of the source clients",
        peeks=chosen.plan.server_selection == "oracle",
        selected_round=ROUNDS,
        rounds=ROUNDS,
        bytes_up=380_000 + 512 * sends,
        bytes_down=380_000,
        bytes_up_statistics=512 * sends,
        parameters=95_000 + 1000 * sends,
        clients=3,
        seconds=12.0 + 5 * sends,
        beyond_weights="style statistics" if sends else "",
        remark="weight-free, ours" if chosen.method == "ccst" and not chosen.fields.get("encoder") else "",
        ledger="each client sent 0.38 MB",
        validation_last=Validation(ROUNDS, 0.92),
    )


def invent_insight(run: RunDirectory, method: str) -> None:
    """Random images and places in the form that `unseen.experiments.insight` writes."""
    rng = torch.Generator().manual_seed(0)
    count, shown, classes = 90, 8, 10
    tensors = {
        "place": torch.randn(count, 2, generator=rng),
        "label": torch.arange(count) % classes,
        "domain": torch.arange(count) % 4,
        "image": (torch.rand(shown, 3, 32, 32, generator=rng) * 255).to(torch.uint8),
        "image.label": torch.arange(shown),
        "image.prediction": torch.arange(shown) + torch.arange(shown) % 2,
        "image.probability": torch.linspace(0.3, 0.99, shown),
    }
    same = torch.arange(16) % classes
    tensors |= {
        "same.image": (torch.rand(16, 3, 32, 32, generator=rng) * 255).to(torch.uint8),
        "same.label": same,
        # the best is wrong on every other image, the others on all
        "same.prediction": (same + (torch.arange(16) % 2 if method == "fedfd-a" else 1)) % classes,
    }
    if method == "fedfd-a":
        tensors["inspected/alpha"] = torch.rand(40, 8, generator=rng)
    if method == "fedadg":
        for when in ("before", "after"):
            tensors[f"{when}/place"] = torch.randn(int((tensors["domain"] < 3).sum()), 2, generator=rng)
            tensors[f"{when}/reference"] = torch.randn(20, 2, generator=rng)
            tensors[f"{when}/reference.class"] = torch.arange(20) % classes
    if method == "stablefdg":
        tensors["shown/attention"] = torch.rand(shown, 32, 32, generator=rng)
    sources = ["colour", "outline", "street"]
    clients = {
        name: [[(20 + d) * (d == c) for _ in range(classes)] for d in range(3)] for c, name in enumerate(sources)
    }
    write_tensors(
        run.path / "insight.safetensors",
        tensors,
        {
            "domains": [*sources, "ink"],
            "classes": [str(k) for k in range(classes)],
            "target": "ink",
            "clients": clients,
        },
    )
