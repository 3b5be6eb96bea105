"""Recorders get every number once, at its own round; what is not installed is said in one sentence."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.small_runs import settings
from unseen.core.errors import UserError
from unseen.runs.progress import Silent, Watchers
from unseen.runs.recorders import RECORDERS, Recorder, TensorBoard, _mlflow_name, check_recorders, record
from unseen.runs.results import RoundLine, RunResult, UnseenScore, Validation
from unseen.runs.settings import Settings

LINE = RoundLine(
    round=3,
    loss=0.5,
    clients={"ink": {"loss": 0.4}},
    validation=Validation(2, 0.8),
    unseen=UnseenScore(3, None),
)
RESULT = RunResult(
    "fedavg", "digits", "ink", 0, "digits", 0.7, None, 9, 12, "validation", validation_last=Validation(12, 0.9)
)


class Listening(Recorder):
    def __init__(self) -> None:
        self.heard: list[tuple[dict[str, float], int]] = []

    def write(self, values: Mapping[str, float], round: int) -> None:
        self.heard.append((dict(values), round))


def test_numbers_stand_at_their_own_round() -> None:
    one = Listening()
    Watchers(Silent(), one).round(LINE)
    assert one.heard == [({"loss": 0.5, "ink/loss": 0.4}, 3), ({"validation accuracy": 0.8}, 2)]
    one.finished(RESULT)
    assert one.heard[2:] == [({"validation accuracy": 0.9}, 12), ({"result/unseen accuracy": 0.7}, 9)]


def test_a_recorder_that_fails_is_left_and_the_run_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    class Away(Recorder):
        calls = 0

        def write(self, values: Mapping[str, float], round: int) -> None:
            self.calls += 1
            raise ConnectionError("no route to the server")

    away, other = Away(), Listening()
    watching = Watchers(away, other)
    watching.round(LINE)
    watching.round(LINE)
    away.close()
    assert away.calls == 1 and len(other.heard) == 4
    said = capsys.readouterr().err
    assert said == "Away failed; the run goes on without it: no route to the server\n"


def test_one_that_cannot_begin_is_said_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def keyless(directory: Path, chosen: Settings) -> Recorder:
        raise RuntimeError("no API key")

    monkeypatch.setitem(RECORDERS, "keyless", ("json", keyless))
    with pytest.raises(UserError, match="--log keyless could not begin: no API key"):
        record(["keyless"], Path(), settings(method="fedavg", target="ink"))


def test_mlflow_gets_names_that_it_takes() -> None:
    assert _mlflow_name("ink/lambda2 * cafl") == "ink/lambda2_cafl"
    assert _mlflow_name("result/unseen accuracy") == "result/unseen accuracy"


def test_tensorboard_writes_into_the_run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Any] = []

    class SummaryWriter:
        def __init__(self, folder: str) -> None:
            written.append(folder)

        def add_scalar(self, *what: Any) -> None:
            written.append(what)

        def flush(self) -> None:
            pass

        def close(self) -> None:
            written.append("closed")

    module = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = SummaryWriter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    one = TensorBoard(tmp_path, settings(method="fedavg", target="ink"))
    one.round(LINE)
    one.close()
    assert written[0] == str(tmp_path / "tensorboard") and written[1] == ("loss", 0.5, 3) and written[-1] == "closed"


def test_what_is_unknown_or_not_installed_is_said() -> None:
    with pytest.raises(UserError, match="tensorboard"):
        check_recorders(["tensorbord"])
    for name, (package, _) in RECORDERS.items():
        if importlib.util.find_spec(package) is None:
            with pytest.raises(UserError, match=f"pip install {package}"):
                record([name], Path(), settings(method="fedavg", target="ink"))
