"""Recorders get every number once, at its own round; what is not installed is said in one sentence."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from unseen.bench.protocol import settings
from unseen.bench.recorders import RECORDERS, Fan, Recorder, TensorBoard, check_recorders, record
from unseen.bench.run import Silent
from unseen.errors import UserError

LINE = {
    "round": 3,
    "loss": 0.5,
    "clients": {"ink": {"loss": 0.4}},
    "validation": {"round": 2, "accuracy": 0.8, "clients": {}},
    "unseen": {"round": 3, "accuracy": None},
}


class Listening(Recorder):
    def __init__(self) -> None:
        self.heard: list[tuple[str, float, int]] = []

    def write(self, name: str, value: float, round: int) -> None:
        self.heard.append((name, value, round))


def test_numbers_stand_at_their_own_round() -> None:
    one = Listening()
    Fan(Silent(), one).round(LINE)
    assert one.heard == [("loss", 0.5, 3), ("validation accuracy", 0.8, 2), ("ink/loss", 0.4, 3)]
    one.finished({"accuracy": 0.7, "in_domain_accuracy": None, "selected_round": 9})
    assert one.heard[-1] == ("result/unseen accuracy", 0.7, 9)


def test_tensorboard_writes_into_the_run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Any] = []

    class SummaryWriter:
        def __init__(self, folder: str) -> None:
            written.append(folder)

        def add_scalar(self, *what: Any) -> None:
            written.append(what)

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
