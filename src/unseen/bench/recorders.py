"""A live view for those who use one: TensorBoard, MLflow or Weights & Biases, each where it is installed.

A recorder is a `Watcher` that writes numbers somewhere; `Fan` lets several watch one run. Nothing of a run depends on
them.
"""

from __future__ import annotations

import importlib
import importlib.util
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from unseen.bench.protocol import Settings
from unseen.bench.run import Silent, Watcher
from unseen.errors import UserError, unknown


class Fan:
    """Tells several watchers what one would be told."""

    def __init__(self, *watchers: Watcher) -> None:
        self.watchers = watchers

    def began(self, settings: Settings, clients: int, first: int, last: int) -> None:
        for watcher in self.watchers:
            watcher.began(settings, clients, first, last)

    def round(self, line: dict[str, Any]) -> None:
        for watcher in self.watchers:
            watcher.round(line)

    def testing(self, done: int, total: int) -> None:
        for watcher in self.watchers:
            watcher.testing(done, total)

    def said(self, sentence: str) -> None:
        for watcher in self.watchers:
            watcher.said(sentence)


class Recorder(Silent):
    """Numbers by name and round. A new one is `write` and `close`, and a line in `RECORDERS`."""

    @abstractmethod
    def write(self, name: str, value: float, round: int) -> None: ...

    def close(self) -> None:
        pass

    def round(self, line: dict[str, Any]) -> None:
        for name, value, number in numbers(line):
            self.write(name, value, number)

    def finished(self, summary: Mapping[str, Any]) -> None:
        """The result of the selected model, at its round."""
        for name, key in (("result/unseen accuracy", "accuracy"), ("result/in-domain accuracy", "in_domain_accuracy")):
            if summary.get(key) is not None:
                self.write(name, summary[key], summary["selected_round"])


def numbers(line: Mapping[str, Any]) -> Iterator[tuple[str, float, int]]:
    """(name, value, round) of a line of results.jsonl; validation is of the round that it names."""
    if line.get("loss") is not None:
        yield "loss", line["loss"], line["round"]
    for name in ("validation", "unseen"):
        own = line.get(name)
        if own and own["accuracy"] is not None:
            yield f"{name} accuracy", own["accuracy"], own["round"]
    for client, metrics in line.get("clients", {}).items():
        for name, value in metrics.items():
            yield f"{client}/{name}", value, line["round"]


class TensorBoard(Recorder):
    def __init__(self, directory: Path, settings: Settings) -> None:
        tensorboard: Any = importlib.import_module("torch.utils.tensorboard")
        self.writer = tensorboard.SummaryWriter(str(directory / "tensorboard"))

    def write(self, name: str, value: float, round: int) -> None:
        self.writer.add_scalar(name, value, round)

    def close(self) -> None:
        self.writer.close()


class MLflow(Recorder):
    def __init__(self, directory: Path, settings: Settings) -> None:
        self.mlflow: Any = importlib.import_module("mlflow")
        self.mlflow.set_experiment("unseen")
        self.mlflow.start_run(run_name=directory.name)
        self.mlflow.log_params(
            {"method": settings.method, "data": settings.data, "target": settings.target, "seed": settings.seed}
        )

    def write(self, name: str, value: float, round: int) -> None:
        self.mlflow.log_metric(name, value, step=round)

    def close(self) -> None:
        self.mlflow.end_run()


class WandB(Recorder):
    def __init__(self, directory: Path, settings: Settings) -> None:
        wandb: Any = importlib.import_module("wandb")
        # The directory's name is the run's identity: a resumed run goes on in the same curve.
        self.run = wandb.init(
            project="unseen",
            id=directory.name,
            name=directory.name,
            resume="allow",
            dir=str(directory),
            config=settings.to_json(),
        )

    def write(self, name: str, value: float, round: int) -> None:
        self.run.log({name: value, "round": round})

    def close(self) -> None:
        self.run.finish()


# name on the command line -> (the package it needs, the recorder)
RECORDERS: dict[str, tuple[str, Callable[[Path, Settings], Recorder]]] = {
    "tensorboard": ("tensorboard", TensorBoard),
    "mlflow": ("mlflow", MLflow),
    "wandb": ("wandb", WandB),
}


def check_recorders(names: Sequence[str]) -> None:
    """An error for people, before anything runs."""
    for name in names:
        if name not in RECORDERS:
            raise unknown("log", name, RECORDERS, f"The logs are {', '.join(RECORDERS)}.")
        if importlib.util.find_spec(RECORDERS[name][0]) is None:
            raise UserError(f"--log {name} needs the package {RECORDERS[name][0]}: `pip install {RECORDERS[name][0]}`.")


def record(names: Sequence[str], directory: Path, settings: Settings) -> list[Recorder]:
    """Recorders by name, for the run in this directory."""
    check_recorders(names)
    return [RECORDERS[name][1](directory, settings) for name in names]
