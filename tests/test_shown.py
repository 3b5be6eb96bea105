"""Results in Python: five lines, a table in a notebook, a frame, a picture; and progress where somebody is looking."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import pytest

from tests.reports.runs import ROUNDS, invent
from unseen.api import Evaluated, Evaluations
from unseen.core.errors import UserError
from unseen.core.metrics import Measured
from unseen.core.shown import Shown
from unseen.core.terminal import place_of, steps
from unseen.experiments.collect import collect
from unseen.experiments.inference import read_rules
from unseen.experiments.tune import Choice, Choices, Scored, Trial
from unseen.runs.results import EvaluationLine
from unseen.runs.run import Result


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bench")
    invent(out, {"fedavg": 0.50, "stablefdg": 0.60})
    return out


def result_of(folder: Path) -> Result:
    row = collect(folder).groups[0].rows[0]
    run, record = row.runs["ink", 0], row.results["ink", 0]
    return Result(record, run.rounds(), run.settings(), run.path)


def everything(folder: Path) -> list[Shown]:
    run = collect(folder).groups[0].rows[0].runs["ink", 0]
    (rule,) = read_rules("iabn", None)
    line = EvaluationLine("iabn", 0.7, 1.0, 100)
    chosen = Choice("fedprox", "ink", Trial({"mu": 0.1}), [Scored(Trial({"mu": 0.1}), 0.9, 4), Scored(Trial(), 0.8, 4)])
    choices = Choices({"data": "digits", "trials": 2}, [chosen])
    return [result_of(folder), collect(folder), Evaluations([Evaluated(run, rule, line)]), choices]


def test_all_show_themselves_in_five_lines_a_table_and_a_picture(folder: Path) -> None:
    for one in everything(folder):
        lines = repr(one).splitlines()
        assert 1 <= len(lines) <= 5 and all(lines), type(one)
        html = one._repr_html_()
        assert html.count("<tr>") == min(20, len(one.rows())) + 1, type(one)
        axes = one.plot()
        assert axes.has_data() and axes.get_xlabel()
        matplotlib.pyplot.close(axes.figure)


def test_a_result_says_what_it_is(folder: Path) -> None:
    result = result_of(folder)
    assert repr(result).splitlines()[:2] == [
        "fedavg on digits, unseen ink, seed 0, protocol digits",
        f"unseen accuracy 50.00 %, in-domain 60.00 %; round {ROUNDS} of {ROUNDS}, chosen by validation",
    ]
    rows = result.rows()
    assert [row["round"] for row in rows] == [1, 2, 3, 4] and rows[1]["unseen"] == pytest.approx(0.25)
    assert rows[-1]["validation"] == 0.92, "of the last round, which no next round's line has"
    (line, *_) = result.plot().lines
    assert line.get_ydata()[-1] == pytest.approx(92.0)


def test_classes_come_from_the_confusion(folder: Path) -> None:
    result = result_of(folder)
    assert result.confusion is None and result.per_class() == {}
    record = replace(result.record, measured=Measured(0.5, 0.5, 0.5, 0.1, [[3, 1, 0], [0, 2, 0], [0, 0, 0]]))

    class Model:
        classes = ("dog", "cat", "owl")

    known = Result(record, result.rounds, result.settings, None, Model())  # type: ignore[arg-type]
    assert known.per_class() == {"dog": 0.75, "cat": 1.0, "owl": None}


def test_a_frame_needs_pandas_and_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collection = collect(folder)
    if importlib.util.find_spec("pandas") is not None:
        frame = collection.frame()
        assert len(frame) == 12 and frame.loc[frame.method == "stablefdg", "accuracy"].max() == pytest.approx(0.612)
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: None if name == "pandas" else find(name, *rest))
    with pytest.raises(UserError, match=r"pip install pandas.*rows"):
        collection.frame()


def test_progress_is_silent_where_nobody_looks(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert (place_of(None), place_of(True), place_of(False)) == ("nowhere", "plain", "nowhere")
    with steps(2, None) as shown:
        shown.said("one")
        shown.advance()
    assert capfd.readouterr() == ("", "")
    with steps(2, True) as shown:
        shown.said("one")
    assert capfd.readouterr().err == "one\n"
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert place_of(None) == "terminal" and place_of(False) == "nowhere"


def test_in_a_notebook_one_line_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    from types import ModuleType, SimpleNamespace

    written: list[str] = []

    class ZMQInteractiveShell:
        pass

    handle = SimpleNamespace(update=written.append)
    python = ModuleType("IPython")
    python.get_ipython = ZMQInteractiveShell  # type: ignore[attr-defined]
    display = ModuleType("IPython.display")
    display.HTML = str  # type: ignore[attr-defined]
    display.display = lambda html, display_id: (written.append(html), handle)[1]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", python)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    with steps(3, None) as shown:
        assert shown.place == "notebook"
        shown.said("a < b")
        shown.advance()
    assert written[0] == '<progress value="0" max="3"></progress> 0/3 a &lt; b'
    assert written[1].startswith('<progress value="1" max="3"></progress> 1/3 ') and written[1].endswith("left")
