"""`unseen bench` and `unseen report` from end to end, and how a bench is spelled."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.reports.runs import ROUNDS, invent
from unseen.api import bench
from unseen.cli import app
from unseen.core.errors import UserError
from unseen.experiments.collect import collect
from unseen.experiments.grid import leave_out_known, plan_bench, read_file
from unseen.registry import registered
from unseen.runs.directory import RunDirectory
from unseen.runs.results import label_of


def test_runs_go_seed_by_seed_over_targets_and_methods() -> None:
    plan = plan_bench({"data": "digits", "methods": "fedavg,fedprox:mu=0.5", "targets": "street,ink", "seeds": "0-1"})
    todo, labels, domains = [run.settings for run in plan.runs], plan.labels, plan.domains
    assert [(s.seed, s.target, label_of(s)) for s in todo[:3]] == [
        (0, "street", "fedavg"), (0, "street", "fedprox (mu=0.5)"), (0, "ink", "fedavg")
    ]  # fmt: skip
    assert len(todo) == 8 and {s.plan.seed for s in todo} == {0, 1}
    assert all(s.plan.seed == s.seed for s in todo)
    assert list(labels) == ["fedavg", "fedprox (mu=0.5)"] and set(domains) == {"ink", "colour", "outline", "street"}


def test_a_bench_takes_every_setting_of_a_run(tmp_path: Path) -> None:
    """By the same names: the options are made of the settings' own fields."""
    words = ["--data", "digits", "--methods", "fedavg", "--seed", "3"]
    found = CliRunner().invoke(app, ["bench", *words])
    assert found.exit_code == 2 and "--seed" in found.stderr
    plan = plan_bench(
        {"methods": "fedavg", "momentum": "0.5", "optimizer": "adamw", "clip_norm": "2", "targets": "ink"}
    )
    optimizer = plan.runs[0].settings.plan.optimizer
    assert (optimizer.momentum, optimizer.name, optimizer.clip_norm) == (0.5, "adamw", 2.0)


def test_a_set_field_is_for_the_methods_that_have_it() -> None:
    todo = [run.settings for run in plan_bench({"methods": "fedavg,fedprox", "targets": "ink", "set": ["mu=0.2"]}).runs]
    assert [s.fields for s in todo] == [{}, {"mu": 0.2}]
    with pytest.raises(UserError, match='"nu"'):
        plan_bench({"methods": "fedavg,fedprox", "targets": "ink", "set": ["nu=0.2"]})
    with pytest.raises(UserError, match="same"):
        plan_bench({"methods": "fedavg,fedavg", "targets": "ink"})
    with pytest.raises(UserError, match="--methods"):
        plan_bench({"targets": "ink"})


def test_all_is_every_method_that_fits_the_net() -> None:
    plan = plan_bench({"methods": "fedbn+ga,all,fedprox:mu=0.5", "targets": "ink", "set": ["lambda1=0.2"]})
    todo, labels = [run.settings for run in plan.runs], plan.labels
    need_tokens = {"doprompt", "fedclip", "feddgmoe", "fedins", "promptfl"}
    assert {s.method for s in todo} == {*registered(), "fedbn+ga"} - need_tokens
    assert set(plan.left_out) == need_tokens and plan.left_out["doprompt"].startswith("A prompt needs the tokens")
    assert labels["fedprox"] == "fedprox" and labels["fedprox (mu=0.5)"]
    assert [s.fields for s in todo if s.method == "fedfd"] == [{"lambda1": 0.2}]
    with pytest.raises(UserError, match="same"):
        plan_bench({"methods": "all,all", "targets": "ink"})


def test_a_bench_as_a_file(tmp_path: Path) -> None:
    path = tmp_path / "bench.toml"
    path.write_text(
        'about = "a test"\ndata = "digits"\ntargets = ["ink"]\nseeds = [0, 3]\nlocal-steps = 2\n'
        'methods = ["fedavg", {name = "fedfd", label = "u = 0", set = {u = [0.0, 0.0]}}]\n'
    )
    plan = plan_bench(read_file(path))
    todo, labels = [run.settings for run in plan.runs], plan.labels
    assert [(s.method, s.seed, s.plan.local_steps) for s in todo] == [
        ("fedavg", 0, 2), ("fedfd", 0, 2), ("fedavg", 3, 2), ("fedfd", 3, 2)
    ]  # fmt: skip
    assert todo[1].fields == {"u": [0.0, 0.0]} and "u = 0" in labels.values()
    path.write_text("data = ")
    with pytest.raises(UserError, match="TOML"):
        read_file(path)


def test_a_bench_and_its_report_from_end_to_end(tmp_path: Path) -> None:
    words = ["bench", "--methods", "fedavg,silobn", "--targets", "street", "--workers", "2", "--out", str(tmp_path)]
    tiny = ["--rounds", "1", "--local-steps", "1", "--batch-size", "16", "--image-size", "16", "--test-every", "0"]
    done = CliRunner().invoke(app, [*words, *tiny])
    assert done.exit_code == 0, done.output
    assert "2 runs, 0 of them finished before" in done.output and "[2/2]" in done.output
    assert done.stdout.startswith("Method\tstreet\tAvg")  # in a pipe, tables are their cells alone
    assert (tmp_path / "tables" / "accuracy-digits-digits.tex").exists()
    again = CliRunner().invoke(app, [*words, *tiny])
    assert again.exit_code == 0 and "2 of them finished before" in again.output
    reported = CliRunner().invoke(app, ["report", str(tmp_path), "--no-insight"])
    assert reported.exit_code == 0 and str(tmp_path / "report.html") in reported.output.replace("\n", "")
    assert "silobn" in (tmp_path / "report.html").read_text()


def test_runs_with_a_result_elsewhere_are_left_out(tmp_path: Path) -> None:
    """A result alone is enough: models stay on the machine that trained them."""
    [invented] = invent(tmp_path / "invented", {"fedavg": 0.5}, targets=("street",), seeds=(0,))
    known = plan_bench({"data": "digits", "methods": "fedavg,silobn", "targets": "street", "rounds": ROUNDS})
    for run in known.runs:
        directory = RunDirectory.of(run.settings, tmp_path / "kept").begin(run.settings)
        shutil.copy(invented.path / "result.json", directory.path)
    words = ["bench", "--data", "digits", "--methods", "fedavg,silobn", "--targets", "street", "--known"]
    short = ["--rounds", str(ROUNDS), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, [*words, str(tmp_path / "kept"), *short])
    assert done.exit_code == 0 and "2 runs have a result in" in done.output and not (tmp_path / "out").exists()
    as_json = CliRunner().invoke(app, [*words, str(tmp_path / "kept"), *short, "--json"])
    assert {run["method"] for run in json.loads(as_json.stdout)} == {"fedavg", "silobn"}
    found = bench(
        data="digits", methods="fedavg", targets="street", rounds=ROUNDS, known=tmp_path / "kept", out=tmp_path / "out"
    )
    assert {run["method"] for run in found.rows()} == {"fedavg"}, "of what is known, what was asked for"
    plan = plan_bench({"data": "digits", "methods": "fedavg,fedprox", "targets": "street,ink", "rounds": ROUNDS})
    assert {name.split("-s0")[0] for name in leave_out_known(plan, tmp_path / "kept")} == {"digits-street-fedavg"}
    left = [(run.settings.method, run.settings.target) for run in plan.runs]
    assert left == [("fedprox", "street"), ("fedavg", "ink"), ("fedprox", "ink")]
    missing = CliRunner().invoke(app, [*words, str(tmp_path / "no"), *short])
    assert missing.exit_code == 2 and "There is no folder" in missing.output


def test_a_method_that_cannot_hear_what_it_reads_is_refused_before_anything_is_trained() -> None:
    asked = {"data": "digits", "targets": "street", "server_selection": "last"}
    with pytest.raises(UserError, match=r'"silobn\+ga" reads .* use --server-selection validation'):
        plan_bench({**asked, "methods": "fedavg,silobn+ga"})
    plan = plan_bench({**asked, "methods": "all"})
    assert "server-selection" in plan.left_out["ga"] and "fedavg" not in plan.left_out
    with pytest.raises(UserError, match=r"No method fits these settings\. --server-selection oracle needs"):
        plan_bench({**asked, "methods": "all", "targets": "none", "server_selection": "oracle"})


@pytest.mark.usefixtures("runs_here")
def test_a_folder_is_evaluated_by_several_rules_and_the_report_has_them(tmp_path: Path) -> None:
    words = ["bench", "--methods", "fedavg,bin", "--targets", "street,ink", "--workers", "2", "--out", str(tmp_path)]
    tiny = ["--rounds", "1", "--local-steps", "1", "--batch-size", "16", "--image-size", "16", "--test-every", "0"]
    assert CliRunner().invoke(app, [*words, *tiny]).exit_code == 0
    evaluate = ["evaluate", str(tmp_path), "--inference", "iabn,tbn:batch=32,fixed-alpha", "--set", "alpha=0"]
    found = CliRunner().invoke(app, evaluate)
    assert found.exit_code == 0, found.output
    assert found.output.count("left out") == 1 and '"bin" has normalisation layers of its own' in found.output
    assert "12 tests; 0 more" in found.output and "tbn (batch=32)" in found.output
    (group,) = collect(tmp_path).groups
    ours = {row.label: row for row in group.rows}["fedavg"].by_rule()
    assert list(ours) == ["own", "fixed-alpha (alpha=0)", "iabn", "tbn (batch=32)"]
    assert ours["fixed-alpha (alpha=0)"] == pytest.approx(ours["own"])  # alpha 0 leaves the running statistics
    again = CliRunner().invoke(app, [*evaluate, "--methods", "fedavg"])
    assert again.exit_code == 0 and "0 tests; 6 more" in again.output
    for wrong, said in ((["--methods", "fedfd"], '"fedfd"'), (["--inference", "iabn", "--set", "q=1"], '"q"')):
        done = CliRunner().invoke(app, [*evaluate[:4], *wrong])
        assert done.exit_code == 2 and said in done.output and "Traceback" not in done.output, done.output
    none = CliRunner().invoke(app, [*evaluate, "--methods", "bin"])
    assert none.exit_code == 2 and "No run" in none.output
    assert CliRunner().invoke(app, ["report", str(tmp_path), "--no-insight"]).exit_code == 0
    assert "Other statistics at test time" in (tmp_path / "report.html").read_text()


def test_errors_for_people(tmp_path: Path) -> None:
    for words in (
        ["report", str(tmp_path)],
        ["report", str(tmp_path / "no")],
        ["bench", "--methods", "fedawg"],
        ["bench", "--methods", "fedavg", "--log", "tb"],
    ):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 2 and done.output.count("Error:") == 1 and "Traceback" not in done.output, done.output


def test_centralized_pools_the_source_domains_in_a_bench_too() -> None:
    plan = {"data": "digits", "methods": "erm", "targets": "street", "seeds": "0", "centralized": True}
    todo = [run.settings for run in plan_bench(plan).runs]
    assert [s.data.partition for s in todo] == ["pooled"]
    with pytest.raises(UserError, match="leave out --partition"):
        plan_bench({**plan, "partition": "iid:2"})
