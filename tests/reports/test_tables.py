"""Tables from run directories with known numbers."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest

from tests.reports.runs import invent
from unseen.core.files import write_json
from unseen.core.metrics import Measured
from unseen.experiments.collect import collect
from unseen.reports.tables import (
    accuracy_grid,
    comma_separated,
    cost_grid,
    inference_grid,
    latex,
    markdown,
    measures_grid,
    statistics_grid,
    write_tables,
)
from unseen.runs.directory import find_runs
from unseen.runs.results import EvaluationLine


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    invent(tmp_path, {"fedavg": 0.50, "fedbn": 0.52, "stablefdg": 0.60})
    return tmp_path


def test_rows_are_methods_and_columns_targets_with_in_domain(bench: Path) -> None:
    (group,) = collect(bench).groups
    grid = accuracy_grid(group)
    assert grid.columns == ["Method", "ink", "street", "Avg", "Worst", "In-domain"]  # nobody published this dataset
    assert [row[0].text for row in grid.rows] == ["fedavg", "fedbn", "stablefdg *"]
    # ink: 50.0, 50.1, 50.2 over seeds
    numbers = ["50.10 ± 0.10", "51.10 ± 0.10", "50.60 ± 0.10", "50.10 ± 0.10", "60.60 ± 0.10"]
    assert [cell.text for cell in grid.rows[0][1:]] == numbers
    assert [row[3].place for row in grid.rows] == [0, 2, 1]
    assert any("sends more" in note for note in grid.notes)


def test_more_measures_are_means_over_targets_and_old_records_have_none(bench: Path) -> None:
    for run in find_runs(bench):
        result = run.result()
        assert result is not None
        if result.method != "fedbn":  # a record of an earlier version
            shift = 0.02 * (result.target == "street") + 0.1 * (result.method == "stablefdg")
            found = Measured(0.4 + shift, 0.5 + shift, None if shift else 0.9, 0.1 + shift, [[1, 0], [1, 2]])
            write_json(run.path / "result.json", replace(result, measured=found).to_json())
    (group,) = collect(bench).groups
    grid = measures_grid(group)
    assert grid.columns == ["Method", "Macro F1", "Balanced acc.", "AUROC", "ECE", "Worst target", "Worst client"]
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in grid.rows}
    # ink 40 and street 42; no AUROC for street, so no mean over targets
    assert rows["fedavg"][:5] == ["41.00 ± 0.00", "51.00 ± 0.00", "-", "11.00 ± 0.00", "50.10 ± 0.10"]
    assert rows["fedavg"][5] == "60.60 ± 0.10"
    assert rows["fedbn"][:5] == ["-", "-", "-", "-", "52.10 ± 0.10"]
    places = {row[0].text: [cell.place for cell in row[1:]] for row in grid.rows}
    assert places["fedavg"][0] == 2 and places["fedavg"][3] == 1  # a low calibration error is good
    assert "11,0," in comma_separated(grid) and "Worst target" in latex(grid)
    assert (write_tables(collect(bench), bench / "tables")) and (
        bench / "tables" / "measures-digits-digits.csv"
    ).exists()


def test_statistics_beside_the_baseline(bench: Path) -> None:
    (group,) = collect(bench).groups
    grid = statistics_grid(group)
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in grid.rows}
    assert rows["fedavg"][4:] == ["3.00", "-", "-", "-", "-", "-"]
    assert rows["stablefdg *"][4:6] == ["1.00", "+10.00"]
    assert rows["fedbn"][6] == "+2.00 to +2.00" and rows["fedbn"][7] == "6/0/6"
    assert rows["fedbn"][8:] == ["0.031", "0.062"]  # 2 / 2^6, and twice that
    assert any("Wilcoxon" in note and "Holm" in note for note in grid.notes)


def test_protocols_and_changed_budgets_are_never_in_one_table(bench: Path) -> None:
    invent(bench, {"fedavg": 0.7}, seeds=[0], lr=0.001)
    invent(bench, {"fedavg": 0.8}, seeds=[0], data="pacs", protocol="pacs-quick", targets=["sketch"])
    invent(bench, {"fedavg": 0.9}, seeds=[0], server_selection="oracle")
    groups = collect(bench).groups
    assert len(groups) == 4
    assert sum("PEEKS" in group.title for group in groups) == 1
    assert any("lr 0.001" in group.title for group in groups)
    assert sorted(len(group.rows) for group in groups) == [1, 1, 1, 3]


def test_the_same_run_made_elsewhere_is_in_the_same_table(tmp_path: Path) -> None:
    invent(tmp_path, {"fedavg": 0.5}, root="/here")
    invent(tmp_path, {"fedbn": 0.5}, root="/there", device="cpu", test_every=0)
    assert len(collect(tmp_path).groups) == 1


def test_published_numbers_stand_beside_ours(tmp_path: Path) -> None:
    invent(
        tmp_path,
        {"fedavg": 0.5, "silobn": 0.6, "moon": 0.55},
        data="pacs",
        protocol="pacs-quick",
        targets=["photo", "sketch"],
    )
    (group,) = collect(tmp_path).groups
    grid = accuracy_grid(group)
    assert grid.columns[-1] == "Published"
    cells = {row[0].text: row[-1].text for row in grid.rows}
    assert (
        cells["fedavg"] == "77.35 [FedFD-A Table 5]"
        and cells["silobn"] == "80.79 [FedFD-A Table 5]"
        and cells["moon"] == "-"
    )
    assert any("not to be compared" in note for note in grid.notes)


def test_a_field_makes_a_row_of_its_own_without_a_published_number(tmp_path: Path) -> None:
    invent(tmp_path, {"fedprox": 0.5}, data="pacs", protocol="pacs-quick", targets=["photo"])
    invent(tmp_path, {"fedprox": 0.6}, data="pacs", protocol="pacs-quick", targets=["photo"], fields={"mu": 0.5})
    (group,) = collect(tmp_path).groups
    assert [(row[0].text, row[-1].text) for row in accuracy_grid(group).rows] == [
        ("fedprox", "77.23 [FedFD-A Table 5]"), ("fedprox (mu=0.5)", "-")
    ]  # fmt: skip


def test_the_papers_variant_has_the_papers_number(tmp_path: Path) -> None:
    invent(tmp_path, {"fedfd": 0.5}, data="pacs", protocol="fedfd", targets=["photo"], fields={"variant": "paper"})
    invent(tmp_path, {"fedfd": 0.5}, data="pacs", protocol="fedfd", targets=["photo"], fields={"u": [0.0, 0.5]})
    (group,) = collect(tmp_path).groups
    assert {row[0].text: row[-1].text for row in accuracy_grid(group).rows} == {
        "fedfd (variant=paper)": "84.07 [FedFD-A Table 5]", "fedfd (u=0..0.5)": "-"
    }  # fmt: skip


def test_a_variant_of_ours_is_called_so_and_has_no_published_number(tmp_path: Path) -> None:
    invent(tmp_path, {"fedavg": 0.6, "ccst": 0.7}, data="pacs", protocol="gperxan", targets=["sketch"])
    (group,) = collect(tmp_path).groups
    grid = accuracy_grid(group)
    assert [row[0].text for row in grid.rows] == ["fedavg", "ccst (weight-free, ours) *"]
    assert "Table" in grid.rows[0][-1].text
    assert grid.rows[1][-1].text == "-"


def test_missing_runs_are_said(tmp_path: Path) -> None:
    invent(tmp_path, {"fedavg": 0.5})
    invent(tmp_path, {"fedbn": 0.6}, targets=["ink"])
    (group,) = collect(tmp_path).groups
    grid = accuracy_grid(group)
    assert [cell.text for cell in grid.rows[1]][2:4] == ["-", "-"]
    assert any(note.startswith("Not all runs are there yet: FedBN has ") for note in grid.notes)


def test_markdown(bench: Path) -> None:
    (group,) = collect(bench).groups
    lines = markdown(accuracy_grid(group)).splitlines()
    assert lines[2] == "| Method | ink | street | Avg | Worst | In-domain |"
    assert lines[3] == "|---|---:|---:|---:|---:|---:|"
    assert lines[5].count("<u>") == 5 and lines[6].count("**") == 10 and r"StableFDG \*" in lines[6]


def test_csv_has_plain_numbers(bench: Path) -> None:
    (group,) = collect(bench).groups
    rows = list(csv.DictReader(io.StringIO(comma_separated(accuracy_grid(group)))))
    assert rows[1]["Method"] == "fedbn" and float(rows[1]["ink"]) == pytest.approx(52.1)
    assert float(rows[1]["ink std"]) == pytest.approx(0.1)


def test_latex_is_booktabs_with_best_bold_and_second_underlined(bench: Path) -> None:
    (group,) = collect(bench).groups
    text = latex(accuracy_grid(group))
    assert r"\toprule" in text and r"\midrule" in text and r"\bottomrule" in text
    assert r"\textbf{60.10 $\pm$ 0.10}" in text and r"\underline{52.10 $\pm$ 0.10}" in text
    assert text.count(r"\begin") == text.count(r"\end") and r"accuracy (\%)" in text


def test_cost_has_bytes_as_people_read_them(bench: Path) -> None:
    (group,) = collect(bench).groups
    cells = [cell.text for row in cost_grid(group).rows for cell in row]
    assert "0.38 MB" in cells and "0.51 kB" in cells


def test_all_forms_are_written(bench: Path) -> None:
    names = {path.name for path in write_tables(collect(bench), bench / "tables")}
    assert names == {
        f"{kind}-digits-digits.{ending}"
        for kind in ("accuracy", "measures", "statistics", "cost")
        for ending in ("md", "csv", "tex")
    }
    assert len(list((bench / "tables").iterdir())) == 12


def test_inference_rules_stand_below_the_methods_own(bench: Path) -> None:
    (group,) = collect(bench).groups
    assert inference_grid(group) is None
    for (target, seed), run in group.rows[1].runs.items():
        if (target, seed) != ("street", 2):
            accuracy = run.result().accuracy + (0.1 if target == "ink" else 0.04)
            run.append_evaluation(EvaluationLine("iabn", 0.0, None, 9))  # tested again since
            run.append_evaluation(EvaluationLine("iabn", accuracy, None, 9))
    grid = inference_grid(group)
    assert grid is not None and grid.columns == ["Method", "Rule", "ink", "street", "Avg", "Runs", "Δ to own"]
    own, iabn = [[cell.text for cell in row] for row in grid.rows]
    assert own == ["fedbn", "own", "52.10 ± 0.10", "53.10 ± 0.10", "52.60 ± 0.10", "6", "-"]
    # Two seeds have both targets: (62.0 + 57.0) / 2 and (62.1 + 57.1) / 2; the gain is (3 * 10 + 2 * 4) / 5.
    assert iabn == ["fedbn", "iabn", "62.10 ± 0.10", "57.05 ± 0.07", "59.55 ± 0.07", "5", "+7.60"]
    assert (bench / "tables" / "inference-digits-digits.csv") in write_tables(collect(bench), bench / "tables")
    some = next(iter(group.rows[1].runs.values()))
    some.append_evaluation(EvaluationLine("tent", 0.5, None, 9, depends="those before"))
    some.append_evaluation(EvaluationLine("tbn (batch=8)", 0.5, None, 9))  # of a version that did not say so
    marked = inference_grid(group)
    assert marked is not None and [row[1].text for row in marked.rows] == ["own", "iabn", "tbn (batch=8)†", "tent†"]
