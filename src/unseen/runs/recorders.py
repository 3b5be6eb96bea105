"""A live view for those who use one: TensorBoard, MLflow or Weights & Biases, each where it is installed.

A recorder is a `Watcher` that writes numbers somewhere. Nothing of a run depends on
them: one that fails on the way is left, and the run goes on.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from unseen.core.errors import UserError, unknown
from unseen.runs.progress import Silent
from unseen.runs.results import RoundLine, RunResult
from unseen.runs.settings import Settings


class Recorder(Silent):
    """Numbers by name and round. A new one is `write` and `end`, and a line in `RECORDERS`."""

    failed = False

    @abstractmethod
    def write(self, values: Mapping[str, float], round: int) -> None: ...

    def end(self) -> None:
        pass

    def round(self, line: RoundLine) -> None:
        for number, values in numbers(line).items():
            self._try(self.write, values, number)

    def finished(self, result: RunResult) -> None:
        """The result of the selected model, at its round; and validation of the last round, which no later line has."""
        if (last := result.validation_last) and last.accuracy is not None:
            self._try(self.write, {"validation accuracy": last.accuracy}, last.round)
        found = {
            "result/unseen accuracy": result.accuracy,
            "result/in-domain accuracy": result.in_domain_accuracy,
        }
        values = {name: value for name, value in found.items() if value is not None}
        if values:
            self._try(self.write, values, result.selected_round)

    def close(self) -> None:
        self._try(self.end)

    def _try(self, do: Callable[..., None], *what: Any) -> None:
        """A server that is away must not cost a night of training."""
        if self.failed:
            return
        try:
            do(*what)
        except Exception as error:
            self.failed = True
            print(f"{type(self).__name__} failed; the run goes on without it: {error}", file=sys.stderr, flush=True)


def numbers(line: RoundLine) -> dict[int, dict[str, float]]:
    """Round -> name -> value, of a line of results.jsonl; validation is of the round that it names."""
    found: dict[int, dict[str, float]] = {}
    own = found.setdefault(line.round, {})
    if line.loss is not None:
        own["loss"] = line.loss
    for client, metrics in line.clients.items():
        own |= {f"{client}/{name}": value for name, value in metrics.items()}
    for name, measured in (("validation", line.validation), ("unseen", line.unseen)):
        if measured is not None and measured.accuracy is not None:
            found.setdefault(measured.round, {})[f"{name} accuracy"] = measured.accuracy
    return {number: values for number, values in found.items() if values}


class TensorBoard(Recorder):
    def __init__(self, directory: Path, settings: Settings) -> None:
        tensorboard: Any = importlib.import_module("torch.utils.tensorboard")
        self.writer = tensorboard.SummaryWriter(str(directory / "tensorboard"))

    def write(self, values: Mapping[str, float], round: int) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, round)
        self.writer.flush()  # else a short run is seen only at its end

    def end(self) -> None:
        self.writer.close()


class MLflow(Recorder):
    def __init__(self, directory: Path, settings: Settings) -> None:
        self.mlflow: Any = importlib.import_module("mlflow")
        self.mlflow.set_experiment("unseen")
        # The directory's name is the run's identity: a resumed run goes on in the same curve.
        begun = self.mlflow.search_runs(
            filter_string=f"attributes.run_name = '{directory.name}'", max_results=1, output_format="list"
        )
        self.mlflow.start_run(run_id=begun[0].info.run_id if begun else None, run_name=directory.name)
        self.mlflow.log_params(
            {"method": settings.method, "data": settings.data.name, "target": settings.target, "seed": settings.seed}
        )

    def write(self, values: Mapping[str, float], round: int) -> None:
        self.mlflow.log_metrics({_mlflow_name(name): value for name, value in values.items()}, step=round)

    def end(self) -> None:
        self.mlflow.end_run()


def _mlflow_name(name: str) -> str:
    """MLflow refuses names with other signs: `lambda2 * cafl` is `lambda2_cafl` there."""
    return re.sub(r"\s*[^\w\-. :/]+\s*", "_", name)


class WandB(Recorder):
    def __init__(self, directory: Path, settings: Settings) -> None:
        wandb: Any = importlib.import_module("wandb")
        directory.mkdir(parents=True, exist_ok=True)  # else its files go to the system's temporary folder
        # The directory's name is the run's identity: a resumed run goes on in the same curve.
        self.run = wandb.init(
            project="unseen",
            id=directory.name,
            name=directory.name,
            resume="allow",
            dir=str(directory),
            config=settings.to_json(),
        )
        self.run.define_metric("*", step_metric="round")

    def write(self, values: Mapping[str, float], round: int) -> None:
        self.run.log({**values, "round": round})

    def end(self) -> None:
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
    found: list[Recorder] = []
    for name in names:
        try:
            found.append(RECORDERS[name][1](directory, settings))
        except Exception as error:  # before the first round: no key, no server, a version that is too old
            raise UserError(f"--log {name} could not begin: {error}") from None
    return found
