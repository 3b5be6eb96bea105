"""Sentences that say what the numbers say and no more; folders side by side; the live page."""

from __future__ import annotations

import shutil
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.reports.runs import invent
from unseen.experiments.collect import collect, collect_beside
from unseen.experiments.sweep import make_jobs
from unseen.reports.findings import findings
from unseen.reports.live import live_page, serving
from unseen.reports.names import TITLES, colour_of, titled
from unseen.reports.page import write_page
from unseen.reports.tables import accuracy_grid, folders_grid, latex, markdown, statistics_grid, telling
from unseen.runs.directory import find_runs


def test_each_finding_is_a_sentence(tmp_path: Path) -> None:
    invent(tmp_path, {"fedavg": 0.50, "stablefdg": 0.60, "moon": 0.45})
    (group,) = collect(tmp_path).groups
    assert findings(group) == [
        "StableFDG has the best mean over unseen domains, 60.6 %; FedAvg follows 10.0 points behind.",
        "StableFDG is ahead of FedAvg by 10.0 points, in 6 of 6 pairs (95 %: +10.0 to +10.0; p = 0.062 after Holm's "
        "correction).",
        "MOON is behind FedAvg by 5.0 points, ahead in 0 of 6 pairs (95 %: -5.0 to -5.0; p = 0.062 after Holm's correction).",
        # seeds are 0.1 points apart: standard deviation 0.1, times the root of 2
        "FedAvg against itself: two seeds are 0.1 points apart on the mean over unseen domains (root mean square). A "
        "smaller difference between two single runs means nothing.",
        "On its sources StableFDG reaches 70.60 %: unseen domains cost 10.0 points.",
        "StableFDG sends more than the model's weights.",
    ]


def test_two_seeds_have_no_interval_and_one_pair_no_p(tmp_path: Path) -> None:
    invent(tmp_path, {"fedavg": 0.50, "moon": 0.45}, seeds=[0, 1])
    (group,) = collect(tmp_path).groups
    rows = {
        row[0].text: dict(zip(statistics_grid(group).columns, row, strict=True)) for row in statistics_grid(group).rows
    }
    assert rows["moon"]["95 % interval"].text == rows["moon"]["95 % of Δ"].text == "too few seeds"
    assert "too few to say what is chance" in " ".join(findings(group))
    invent(tmp_path / "one", {"fedavg": 0.50, "moon": 0.45}, seeds=[0], targets=["ink"])
    (group,) = collect(tmp_path / "one").groups
    (moon,) = (row for row in statistics_grid(group).rows if row[0].text == "moon")
    assert [cell.text for cell in moon[-2:]] == ["-", "-"]
    assert "ahead in 0 of 1 pair (too few seeds for an interval)" in " ".join(findings(group))


def test_a_table_with_holes_has_no_winner(tmp_path: Path) -> None:
    invent(tmp_path, {"fedavg": 0.50, "moon": 0.45})
    (group,) = collect(tmp_path).groups
    assert "**50.10" in markdown(accuracy_grid(group))
    shutil.rmtree(next(run.path for run in find_runs(tmp_path) if run.settings().method == "moon"))
    (group,) = collect(tmp_path).groups
    for grid in (accuracy_grid(group), statistics_grid(group)):
        assert not any(cell.place for row in grid.rows for cell in row)
    assert any("MOON has 5 of 6. No winner" in note for note in accuracy_grid(group).notes)
    assert findings(group)[0] == "1 of 2 methods lack runs, so this page names no winner."


def test_names_and_colours_do_not_depend_on_the_report() -> None:
    assert titled("fedbn+ga (step=0.1) *") == "FedBN+GA (step=0.1) *"
    assert (
        titled("mine") == "mine"
        and titled("fedbn+mine") == "fedbn+mine"
        and titled("fedavg [after]") == "FedAvg [after]"
    )
    assert [colour_of(name) for name in ("fedavg", "fedfd-a", "fedfd", "gperxan")] == [7, 1, 0, 2]
    assert colour_of("mine") == colour_of("mine") and 10 <= colour_of("mine") < 46
    from unseen.methods import cards

    assert not set(TITLES) - set(cards()), "the table names no method that is gone"


def test_a_caption_has_one_line(tmp_path: Path) -> None:
    invent(tmp_path, {"fedavg": 0.50, "moon": 0.45})
    (group,) = collect(tmp_path).groups
    lines = latex(accuracy_grid(group)).splitlines()
    (caption,) = [line for line in lines if r"\caption" in line]
    assert caption.endswith("rounds 4.}") and len(caption) < 100
    assert lines[0].startswith("% Mean") and any(line.startswith("FedAvg &") for line in lines)


def test_a_column_that_says_nothing_is_left_out_for_people_and_kept_in_files(tmp_path: Path) -> None:
    invent(tmp_path, {"fedavg": 0.50, "moon": 0.6}, seeds=[0])
    grid = statistics_grid(collect(tmp_path).groups[0])
    shown = telling(grid)
    assert set(grid.columns) - set(shown.columns) == {"Std", "95 % interval", "95 % of Δ", "p", "p (Holm)"}
    assert all(len(row) == len(shown.columns) for row in shown.rows)
    assert shown.notes[0] == "There are too few seeds for intervals: they need 3."
    assert not [note for note in shown.notes if note.startswith("95 %")]
    invent(tmp_path, {"fedavg": 0.50, "moon": 0.6})
    whole = statistics_grid(collect(tmp_path).groups[0])
    assert telling(whole).columns == whole.columns


def test_two_folders_stand_in_one_table(tmp_path: Path) -> None:
    invent(tmp_path / "before", {"fedavg": 0.50})
    invent(tmp_path / "after", {"fedavg": 0.55, "moon": 0.45})
    found = collect_beside([tmp_path / "before", tmp_path / "after"])
    (group,) = found.groups
    assert [row.label for row in group.rows] == ["fedavg [before]", "fedavg [after]", "moon [after]"]
    assert group.baseline() == "fedavg [before]"
    said = findings(group)
    assert any(s.startswith("FedAvg [after] is ahead of FedAvg [before] by 5.0 points, in 6 of 6") for s in said)
    page = write_page(found, tmp_path / "both.html").read_text()
    assert "FedAvg [before]" in page and "MOON [after]" in page
    assert "<h1>unseen: before and after</h1>" in page and 'id="g0-folders"' in page
    grid = folders_grid(group, found.beside)
    assert grid is not None
    ((name, before, after, difference, _, pairs),) = grid.rows  # MOON is in one folder only
    words = [cell.words for cell in (name, before, after, difference, pairs)]
    assert words == ["FedAvg", "50.60 ± 0.10", "55.60 ± 0.10", "+5.00", "6/0/6"]


def test_the_live_page_is_for_this_machine_alone(tmp_path: Path) -> None:
    runs = invent(tmp_path, {"fedavg": 0.5}, seeds=[0])
    waiting = runs[0].settings().with_changes({"rounds": 9})
    jobs = make_jobs([run.settings() for run in runs], tmp_path) + make_jobs([waiting], tmp_path / "more")
    jobs[0].status = jobs[1].status = "finished"
    before = threading.active_count()
    with serving(jobs, tmp_path, 1) as address:
        assert address.startswith("http://127.0.0.1:")
        page = urllib.request.urlopen(address, timeout=20).read().decode()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(address + "etc/passwd", timeout=20)
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(urllib.request.Request(address, headers={"Host": "evil.example:80"}), timeout=20)
    assert "2 of 3 runs done" in page and 'http-equiv="refresh"' in page and "50.00 %" in page and "waiting" in page
    assert threading.active_count() == before
    jobs[2].status = "failed"
    jobs[2].reason = "no <images>"
    done = live_page(jobs, tmp_path, 1)
    assert "http-equiv" not in done and "no &lt;images&gt;" in done


def test_a_remark_is_no_part_of_the_name_and_changes_no_colour(tmp_path: Path) -> None:
    invent(tmp_path, {"fedavg": 0.50, "ccst": 0.5004})  # whose runs have a remark
    (group,) = collect(tmp_path).groups
    assert [row.label for row in group.rows] == ["fedavg", "ccst (weight-free, ours)"]
    assert "CCST and FedAvg are level over 6 pairs (less than 0.1 points apart)." in findings(group)
    page = write_page(collect(tmp_path), tmp_path / "report.html").read_text()
    own = f"h{colour_of('ccst') - 10}"
    assert f'value="ccst (weight-free, ours)"><i class="{own}"></i>CCST (weight-free, ours)' in page
