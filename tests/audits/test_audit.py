"""`unseen audit` from a run's directory to its table: it goes on where it was stopped, and says what it could not do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

import unseen
from tests.reports.runs import invent
from tests.small_runs import run_local, settings
from unseen.audits.audit import audit_run
from unseen.audits.findings import AuditResult, Finding, Score, find_audits, read_audit
from unseen.core.errors import UserError
from unseen.experiments.collect import collect
from unseen.reports.audit import audit_grids, audit_section
from unseen.reports.page import write_page
from unseen.runs.directory import RunDirectory
from unseen.runs.progress import Silent


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    out = tmp_path_factory.mktemp("audited")
    chosen = settings(rounds=2, local_steps=1, batch_size=4, image_size=16, test_every=0)
    run_local(chosen, out=out)
    return RunDirectory.of(chosen, out)


def test_an_audit_of_a_run(run: RunDirectory, tmp_path: Path) -> None:
    (found,) = unseen.audit(run.path, out=tmp_path, effort=0.01, attacks="features,labels,domain")
    assert found.same_bits is True and found.rounds == (1, 2) and found.budget == "2 rounds of 1 steps of 4"
    assert not [finding.failed for finding in found.findings if finding.failed]
    assert {finding.attack for finding in found.findings} == {
        "features from the head", "class counts from the head", "kind of images from updates",
    }  # fmt: skip
    folder = tmp_path / run.path.name
    assert read_audit(folder) == found and not (folder / "recorded").exists()
    # More attacks: those that were made are not made again, and the record has all.
    before = (folder / "findings.jsonl").read_text()
    again = audit_run(run, folder, effort=0.01, attacks=["features", "styles"])
    assert (folder / "findings.jsonl").read_text() == before  # no styles crossed
    assert {finding.attack for finding in again.findings} == {finding.attack for finding in found.findings}


def test_wrong_words_are_said(run: RunDirectory, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="The attacks are features"):
        unseen.audit(run.path, out=tmp_path, attacks="feature")
    with pytest.raises(UserError, match="--methods and --data"):
        unseen.audit()
    with pytest.raises(UserError, match="its own settings"):
        unseen.audit(run.path, rounds=3)
    with pytest.raises(UserError, match="--secure"):
        unseen.audit(methods="fedavg", data="digits", secure=True, out=tmp_path)
    with pytest.raises(UserError, match="above 0"):
        unseen.audit(run.path, out=tmp_path, effort=0.0)


def test_a_method_that_does_not_fit_the_net_is_left_out_with_a_sentence(tmp_path: Path) -> None:
    """A prompt needs a transformer's tokens: the table has the others, and the sentence is said."""
    small = {"data": "digits", "rounds": 1, "local_steps": 1, "batch_size": 4, "image_size": 16, "test_every": 0}
    heard = Heard()
    found = unseen.audit(
        methods="promptfl,fedavg", out=tmp_path, effort=0.01, attacks="labels", workers=1, watcher=heard, **small
    )
    assert [audit.method for audit in found] == ["fedavg"]
    assert any("left out: " in said and "promptfl" in said and "tokens" in said for said in heard.sentences)
    assert (tmp_path / "audit-scores.md").exists()
    with pytest.raises(UserError, match="tokens"):  # alone, it is an error
        unseen.audit(methods="promptfl", out=tmp_path, effort=0.01, attacks="labels", workers=1, **small)


class Heard(Silent):
    def __init__(self) -> None:
        self.sentences: list[str] = []

    def said(self, sentence: str) -> None:
        self.sentences.append(sentence)


def made(label: str, value: float, beyond: str = "") -> AuditResult:
    named = Finding(
        "features from the head", "coordinator", "the update of head after one step of 1", False,
        identified_of_100=Score(value, value - 1, value + 1, 1.0), files=("a.png",),
    )  # fmt: skip
    other = Finding(
        "features from the head", "coordinator", "the update of head after one step of 16", False,
        identified_of_100=Score(100.0, 99.0, 100.0, 1.0),
    )  # fmt: skip
    return AuditResult(
        "r", label, label, "digits", "street", 0, "digits", 0.5, beyond, (1,), None, findings=(named, other)
    )


def test_the_table_has_a_row_per_audit_and_marks_what_leaks(tmp_path: Path) -> None:
    for number, audit in enumerate((made("b", 1.0, "styles"), made("c", 40.0))):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "audit.json").write_text(json.dumps(audit.to_json()))
        Image.new("RGB", (4, 4)).save(tmp_path / str(number) / "a.png")
    audits = find_audits(tmp_path)
    assert [audit.label for audit in audits] == ["c", "b"]  # weights only first
    (identified,) = audit_grids(audits)  # nothing was sent beyond weights, and nothing else was asked
    assert identified.columns == ["method", "accuracy", "epsilon", "features, 1 step of 1", "features, 1 step of 16"]
    rows = [[cell.text for cell in row] for row in identified.rows]
    assert rows == [
        ["chance", "-", "-", "1", "1"],
        ["c", "50.0", "-", "40 (39..41)", "100 (99..100)"],
        ["b *", "50.0", "-", "1 (0..2)", "100 (99..100)"],
    ]
    assert [row[3].place for row in identified.rows] == [0, 1, 0]
    page = audit_section(tmp_path)
    assert page.count("data:image/png;base64,") == 2 and "What leaks" in page
    assert audit_section(tmp_path / "0" / "nothing") == ""


def test_the_report_of_a_folder_has_its_audits(tmp_path: Path) -> None:
    (run, *_) = invent(tmp_path, {"fedavg": 0.5}, seeds=(0,))
    page = write_page(collect(tmp_path), tmp_path / "report.html")
    assert "What leaks" not in page.read_text()
    (run.path / "audit").mkdir()
    (run.path / "audit" / "audit.json").write_text(json.dumps(made("fedavg", 40.0).to_json()))
    assert "What leaks" in write_page(collect(tmp_path), page).read_text()
