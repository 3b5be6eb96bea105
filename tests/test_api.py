"""From Python everything that the command line does, by the same words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import unseen
from tests.data.trees import paint_tree

TINY = {"rounds": 1, "local_steps": 1, "batch_size": 4, "image_size": 16, "test_every": 0, "backbone": "convnet"}


@pytest.mark.usefixtures("runs_here")
def test_bench_evaluate_report_and_predict(tmp_path: Path) -> None:
    paint_tree(tmp_path / "sites", domains=3, classes=2, each=8)
    given = {**TINY, "data": "folder", "root": tmp_path / "sites", "weights": "none", "bottleneck": "none"}
    out = tmp_path / "out"
    collection = unseen.bench(methods=["fedavg", "fedbn"], targets="d0", seeds=[0], out=out, workers=2, **given)
    (group,) = collection.groups
    assert [row.label for row in group.rows] == ["fedavg", "fedbn"] and group.targets == ["d0"]
    found = unseen.evaluate(out, "iabn", methods=["fedavg"])
    assert [(one.rule.label, one.found.examples) for one in found] == [("iabn", 16)]
    page = unseen.report(out, insight=False)
    assert page == out / "report.html" and "fedbn" in page.read_text()
    run = group.rows[0].runs["d0", 0]
    guesses = list(unseen.predict(run.path, tmp_path / "sites" / "d0"))
    assert len(guesses) == 16 and {guess.label for guess in guesses} <= {"c0", "c1"}
    assert all(0.5 <= guess.probability <= 1 for guess in guesses)


def test_functions_stay_functions_when_their_rooms_are_imported() -> None:
    import unseen.experiments.collect
    import unseen.reports.tables

    assert callable(unseen.bench) and callable(unseen.report)


def test_a_finished_run_of_another_folder_under_the_same_path_is_another_run(tmp_path: Path) -> None:
    paint_tree(tmp_path / "sites", domains=3, classes=2, each=8)
    given = {**TINY, "data": "folder", "root": tmp_path / "sites", "weights": "none", "out": tmp_path / "out"}
    first = unseen.run(target="d0", workers=1, **given)
    again = unseen.run(target="d0", workers=1, **given)
    assert first.directory == again.directory
    (tmp_path / "sites" / "d1" / "c0" / "0.png").unlink()
    other = unseen.run(target="d0", workers=1, **given)
    assert other.directory != first.directory


def test_what_a_run_says_of_itself_is_read_from_its_record(tmp_path: Path) -> None:
    """Not from today's registry: a record with other words is shown with its own."""
    from unseen.experiments.collect import collect

    result = unseen.run(target="ink", method="ccst", workers=1, out=tmp_path, **TINY)
    assert result.directory is not None
    path = result.directory / "result.json"
    record = json.loads(path.read_text())
    assert record["remark"] and record["beyond_weights"] and record["kernels"] and record["version"] == 2
    path.write_text(json.dumps({**record, "remark": "as of last year", "beyond_weights": "postcards"}))
    (group,) = collect(tmp_path).groups
    assert (group.rows[0].label, group.rows[0].sends) == ("ccst (as of last year)", "postcards")


def test_two_ways_to_name_a_methods_fields_are_not_mixed() -> None:
    with pytest.raises(unseen.UserError, match="not both"):
        unseen.run(target="ink", method=unseen.Method(), fields={"mu": 1})


def test_fit_trains_on_all_domains_and_leaves_a_model_for_the_next_site(tmp_path: Path) -> None:
    paint_tree(tmp_path / "sites", domains=3, classes=2, each=8)
    given = {**TINY, "data": "folder", "root": tmp_path / "sites", "weights": "none", "bottleneck": "none"}
    result = unseen.fit(method="fedbn", out=tmp_path / "models", workers=1, **given)
    assert result.accuracy is None and set(result.record.in_domain) == {"d0", "d1", "d2"}
    assert result.record.target == "none" and result.in_domain_accuracy is not None
    paint_tree(tmp_path / "next", domains=1, classes=2, each=2)
    found = list(unseen.predict(str(result.directory), tmp_path / "next"))
    assert len(found) == 4 and all(one.label in (one.set or ()) and one.familiar is not None for one in found)
    with pytest.raises(unseen.UserError, match="nothing to test"):
        unseen.evaluate(str(result.directory), "iabn")
    with pytest.raises(unseen.UserError, match="oracle needs an unseen domain"):
        unseen.fit(method="fedbn", server_selection="oracle", **given)


def test_the_command_line_fits_too(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from unseen.cli import app

    words = ["--rounds", "1", "--local-steps", "1", "--batch-size", "4", "--image-size", "16", "--workers", "1"]
    found = CliRunner().invoke(app, ["fit", "--data", "digits", "--out", str(tmp_path), *words])
    assert found.exit_code == 0 and "trained on all domains" in found.output, found.output
    (path,) = tmp_path.iterdir()
    shown = CliRunner().invoke(app, ["show", str(path)])
    assert shown.exit_code == 0 and "no domain left out" in shown.output and "outline" in shown.output
