"""What commands print: tables that fit 80 columns, tabs in a pipe, JSON, no markup under NO_COLOR, completion."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer import Typer
from typer.testing import CliRunner

from tests.reports.runs import invent
from unseen.api import Evaluated, Evaluations
from unseen.cli import app
from unseen.cli import bench as bench_command
from unseen.cli import evaluate as evaluate_command
from unseen.cli import run as run_command
from unseen.cli.screen import constant_apart, print_table
from unseen.experiments.collect import collect
from unseen.experiments.cost import Cost
from unseen.experiments.inference import read_rules
from unseen.experiments.tune import Choice, Choices, Scored, Trial
from unseen.registry import registered
from unseen.runs.directory import find_runs
from unseen.runs.results import EvaluationLine
from unseen.runs.run import Result

SCREEN = {"FORCE_COLOR": "1", "COLUMNS": "80", "TERM": "xterm-256color", "NO_COLOR": ""}
MARKUP = re.compile(r"\x1b\[[0-9;]*m")
LONG = {"fedavg": 0.50, "fedbn+fedprox": 0.52, "stablefdg": 0.60, "ccst": 0.4}
TARGETS = ("ink", "colour", "outline", "street")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    invent(out, LONG, targets=TARGETS)
    for run in find_runs(out):
        for rule in ("iabn", "tbn (batch=1)"):
            run.append_evaluation(EvaluationLine(rule, 0.5, 1.0, 100))
    return out


@pytest.fixture
def on_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SCREEN.items():
        monkeypatch.setenv(name, value)


def said(*words: object, env: dict[str, str] | None = None) -> str:
    found = CliRunner().invoke(app, [str(word) for word in words], env=env or {"FORCE_COLOR": None, "NO_COLOR": None})
    assert found.exit_code == 0, found.output
    return found.stdout


def too_wide(text: str) -> list[str]:
    return [line for line in MARKUP.sub("", text).splitlines() if len(line.rstrip()) > 80]


@pytest.mark.parametrize(
    "words",
    [
        ["methods"],
        ["methods", "qfedavg"],
        ["methods", "fedfd-a"],
        ["protocols"],
        ["protocols", "pacs-quick"],
        ["data", "list"],
    ],
)
def test_lists_fit_80_columns(words: list[str]) -> None:
    text = said(*words, env=SCREEN)
    assert not too_wide(text) and len(text.splitlines()) > 5


def test_a_docstring_is_broken_anew_and_formulas_keep_their_lines() -> None:
    text = MARKUP.sub("", said("methods", "qfedavg", env=SCREEN))
    assert "w_k the client's after its training" in text, "no break where the source has one"
    assert "\n    w <- w - sum_k p_k F_k^q d_k" in text and "\nWith q = 0 this is FedAvg.\n" in text
    assert "\n" not in said("methods", "qfedavg").split("Does not compose with")[1].strip(), "whole in a pipe"


def test_a_publications_name_leads_to_what_it_is_here() -> None:
    """One line, then the cards of its methods; a rule for test time has none."""
    assert said("methods", "PARDON") == "PARDON is here as fisc:\n\n" + said("methods", "fisc")
    both = said("methods", "fedgamma")
    assert both.startswith("FedGAMMA is here as fedsam+scaffold:\n\nfedsam\n") and "\nscaffold\n" in both
    assert said("methods", "tent") == "TENT is here as a rule for test time: unseen evaluate --inference tent.\n"
    assert [one["name"] for one in json.loads(said("methods", "fedopt", "--json"))] == [
        "fedadam", "fedyogi", "fedadagrad", "fedavgm",
    ]  # fmt: skip
    lost = CliRunner().invoke(app, ["methods", "fedka"])
    assert lost.exit_code != 0
    foot = said("methods", env=SCREEN)
    assert "FedGAMMA is `fedsam+scaffold`." in foot and "`unseen evaluate --inference`" in foot


def test_show_says_what_is_the_same_once_and_puts_directories_below(folder: Path) -> None:
    text = MARKUP.sub("", said("show", folder, env=SCREEN))
    table = [line for line in text.splitlines() if str(folder) not in line]
    assert not too_wide("\n".join(table))
    assert "data digits; protocol digits" in " ".join(text.split())
    assert not re.search(r"^#.*protocol", text, re.MULTILINE)  # no column for it
    (one, *_) = find_runs(folder)
    assert re.search(rf"^1\s+{re.escape(str(one.path))}$", text, re.MULTILINE)


def test_what_differs_from_the_paper_stands_wherever_the_method_is_shown(folder: Path) -> None:
    """In lists and records of runs, at a run's end, in Python, in costs; and with the method itself before any run."""
    remark = "weight-free, ours"
    run = next(run for run in find_runs(folder) if run.settings().method == "ccst")
    record = run.result()
    assert record is not None
    result = Result(record, run.rounds(), run.settings(), run.path)
    listed = [line for line in said("show", folder).splitlines() if "ccst" in line]
    assert len(listed) == 12 and all(f"\tccst ({remark})\t" in line for line in listed)
    assert f"the method as it was run: {remark}\n" in said("show", run.path)
    assert repr(result).startswith(f"ccst ({remark}) on digits") and remark in result._repr_html_()
    ended = CliRunner().invoke(ended_with(result), env=SCREEN)
    text = " ".join(MARKUP.sub("", ended.stdout).split())
    assert f"the method as it was run: {remark} " in text and f"ccst ({remark}) on digits" in text
    (one,) = Evaluations([Evaluated(run, *read_rules("iabn", None), run.evaluations()["iabn"])]).rows()
    assert one["remark"] == remark
    for name, kind in registered().items():
        if remark := kind().about.remark:
            assert f"how its default differs from the paper: {remark}.\n" in said("methods", name)
            assert json.loads(said("methods", name, "--json"))[0]["remark"] == remark


def ended_with(result: Result) -> Typer:
    """A command that ends as `unseen run` does after this run, and after several like it."""
    command = Typer()

    @command.command()
    def end() -> None:
        run_command.report(result)
        run_command.table([result, result])

    return command


def test_one_run_fits_but_for_commands(folder: Path) -> None:
    text = MARKUP.sub("", said("show", find_runs(folder)[0].path, env=SCREEN))
    assert [line for line in too_wide(text) if not line.startswith("next: ")] == []
    assert "best mean validation accuracy of the" in " ".join(text.split()), "broken between words"
    rows = [line for line in text.splitlines() if re.match(r"(curve|loss|validation|unseen  |way|up|down) ", line)]
    assert len(rows) >= 5 and not too_wide("\n".join(rows))


def test_tables_of_bench_and_evaluate_fit(folder: Path, on_screen: None, capsys: pytest.CaptureFixture[str]) -> None:
    planned: Any = SimpleNamespace(runs=[SimpleNamespace(settings=find_runs(folder)[0].settings())])
    bench_command._print_tables(planned, folder, None)
    evaluate_command._print_tables(folder)
    text = capsys.readouterr().out
    lines = [line for line in MARKUP.sub("", text).splitlines() if str(folder) not in line]
    assert not too_wide("\n".join(lines))
    heads = [line for line in lines if re.match(r"Method ", line)]
    assert len(heads) > 4, "tables with many columns become several"
    assert "In-domain" in " ".join(heads) and "p (Holm)" in " ".join(heads) and "60.10 ± 0.10" in text


def test_cost_and_tune_fit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = [
        Cost(name, 1_234_567, 1.5, 0.02, 2.5, 0.01, 381_000, 512, 381_000, passes=1.0, remark=remark)
        for name, remark in (("fedavg", ""), ("fedbn+fedprox", "proximal term ours"))
    ]
    monkeypatch.setattr("unseen.experiments.cost.measure_costs", lambda *words, **more: found)
    text = said("cost", "--methods", "fedavg", env=SCREEN)
    assert not too_wide(text) and "fedbn+fedprox: proximal term ours" in text
    assert json.loads(said("cost", "--methods", "fedavg", "--json"))[1]["method"] == "fedbn+fedprox"
    trial = Trial({"mu": 0.1234, "temperature": 0.5}, 3.162)
    chosen = [Choice("fedprox", t, trial, [Scored(trial, 0.9, 4), Scored(Trial(), 0.8, 4)]) for t in TARGETS]
    monkeypatch.setattr("unseen.experiments.tune.tune", lambda *words, **more: Choices({}, chosen))
    text = said("tune", "--data", "digits", "--methods", "fedprox", "--out", tmp_path, env=SCREEN)
    assert not too_wide("\n".join(line for line in text.splitlines() if str(tmp_path) not in line))
    assert "mu=0.1234" in text and "90.00 %" in text


def test_a_pipe_gets_tabs(folder: Path) -> None:
    lines = [line.split("\t") for line in said("show", folder).splitlines()]
    assert lines[0][0] == "data" and lines[0][-1] == "directory" and {len(line) for line in lines} == {len(lines[0])}
    assert len(lines) == 1 + len(LONG) * len(TARGETS) * 3
    methods = [line.split("\t") for line in said("methods").splitlines()]
    assert methods[0][0] == "method" and {len(line) for line in methods} == {len(methods[0])}
    assert "fedavg" in [line[0] for line in methods]


def test_json_is_what_the_records_say(folder: Path) -> None:
    every = json.loads(said("show", folder, "--json"))
    assert len(every) == 48 and every[0]["result"]["accuracy"] == pytest.approx(0.4 + 0.01)  # ccst on colour
    one = json.loads(said("show", find_runs(folder)[0].path, "--json"))
    assert [line["round"] for line in one["rounds"]] == [1, 2, 3, 4] and len(one["evaluations"]) == 2
    (method,) = json.loads(said("methods", "fedprox", "--json"))
    assert method["name"] == "fedprox" and [field["name"] for field in method["fields"]] == ["mu"]
    assert {"name", "headline", "sends"} <= set(json.loads(said("methods", "--json"))[0])
    assert len(collect(folder).rows()) == 48  # what `bench --json` prints


def test_no_color_means_no_bold_either(folder: Path, capsys: pytest.CaptureFixture[str], on_screen: None) -> None:
    planned: Any = SimpleNamespace(runs=[SimpleNamespace(settings=find_runs(folder)[0].settings())])
    bench_command._print_tables(planned, folder, None)
    assert "\x1b[1m" in capsys.readouterr().out
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_COLOR", "1")
        bench_command._print_tables(planned, folder, None)
    assert "\x1b[" not in capsys.readouterr().out


def test_help_has_no_markup_under_no_color() -> None:
    words = [sys.executable, "-m", "unseen", "--help"]
    coloured = {**os.environ, "FORCE_COLOR": "1", "TERM": "xterm-256color"} | {"NO_COLOR": ""}
    plain = coloured | {"NO_COLOR": "1"}
    first, second = (
        subprocess.run(words, env=env, capture_output=True, text=True, check=True).stdout for env in (coloured, plain)
    )
    assert "\x1b[1m" in first and "\x1b[" not in second and "Train on all domains but one" in second


def test_a_table_never_loses_a_cell(on_screen: None, capsys: pytest.CaptureFixture[str]) -> None:
    columns = [f"column {c}" for c in range(12)]
    rows = [[f"r{r}c{c}" for c in range(12)] for r in range(3)]
    print_table(columns, rows)
    text = capsys.readouterr().out
    assert not too_wide(text)
    assert all(text.count(cell) >= 1 for row in rows for cell in row) and text.count("r1c0") > 1


@pytest.mark.parametrize("width", range(30, 90, 3))
def test_cells_and_headings_stay_whole_at_any_width(
    width: int, on_screen: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    columns = ["name", "a", "95 % interval", "Δ to FedAvg", "wins", "p (Holm)"]
    rows = [
        ["fedavg", "1", "50.35 to 50.85", "-", "6/0/6", "0.094"],
        ["x", "22.22", "too few seeds", "+5.00", "-", "-"],
    ]
    print_table(columns, rows, right=columns[1:])
    text = MARKUP.sub("", capsys.readouterr().out)
    assert all(cell in text for row in [columns, *rows] for cell in row)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width


def test_what_is_constant_is_set_apart() -> None:
    columns, rows, same = constant_apart(["a", "b"], [["1", "x"], ["2", "x"]])
    assert (columns, rows, dict(same)) == (["a"], [["1"], ["2"]], {"b": "x"})
    assert constant_apart(["a"], [["1"]])[2] == {}  # one row has no constant columns


@pytest.mark.parametrize(
    ("line", "word"), [("unseen rep", "report"), ("unseen bench --targ", "--targets"), ("unseen data ch", "check")]
)
def test_the_shell_completes(line: str, word: str) -> None:
    env = {"_UNSEEN_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    found = CliRunner().invoke(app, [], prog_name="unseen", env=env)
    assert word in found.stdout.split(), found.output
