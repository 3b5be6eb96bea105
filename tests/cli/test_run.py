"""The command line and its Python twin, on tiny runs of the built-in digits."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import unseen
from unseen.cli import app
from unseen.cli.methods import explain, field_comments
from unseen.cli.screen import Pace, duration, percent
from unseen.cli.show import sparkline
from unseen.core.errors import UserError
from unseen.method import Method, Traits
from unseen.runs.planning import read_fields, read_seeds

TINY = ["--rounds", "1", "--local-steps", "1", "--image-size", "16", "--workers", "1", "--test-every", "0"]


def invoke(*words: object) -> str:
    """What a command that must succeed prints."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs."""
    out = tmp_path_factory.mktemp("runs")
    invoke("run", "--target", "street", *TINY, "--out", out)
    invoke("run", "--target", "ink", "--server-selection", "oracle", *TINY, "--out", out)
    return out


def only(out: Path, target: str) -> Path:
    (path,) = out.glob(f"digits-{target}-*")
    return path


def test_a_run_ends_with_its_accuracies_its_ledger_and_where_to_look(runs: Path) -> None:
    text = invoke("run", "--target", "S", *TINY, "--out", runs)  # the letter names the same run: it is not run again
    assert len(list(runs.iterdir())) == 2
    assert "finished before" in text
    assert "unseen accuracy" in text and "on street" in text
    assert "in-domain accuracy" in text
    assert "each client sent" in text and "per round: weights" in text
    assert f"unseen show {only(runs, 'street')}" in text
    assert "PEEKS" not in text


def test_the_oracle_is_marked_wherever_it_is_shown(runs: Path) -> None:
    assert "PEEKS" in invoke("run", "--resume", only(runs, "ink"))
    assert "PEEKS" in invoke("show", only(runs, "ink"))
    assert "PEEKS" in invoke("show", runs)
    assert "PEEKS" not in invoke("show", only(runs, "street"))


def test_what_is_sent_beyond_weights_is_marked_and_said(runs: Path, tmp_path: Path) -> None:
    said = "MORE THAN WEIGHTS was sent: each client's own classifier head, handed on to all clients; each client's validation"
    assert said in invoke("run", "--target", "street", "--method", "copa+ga", *TINY, "--out", tmp_path)
    invoke("run", "--target", "street", "--method", "fedadg", "--set", "reference=normal", *TINY, "--out", tmp_path)
    sending, silent = sorted(tmp_path.iterdir())
    assert said in invoke("show", sending)
    assert (
        json.loads((sending / "ledger.json").read_text())["beyond_weights"]
        in said + " scores before and after the aggregation"
    )
    assert "MORE THAN WEIGHTS" not in invoke("show", silent)  # without its generator it sends nothing
    table = invoke("show", tmp_path)
    assert table.count("MB *") == 1  # in a pipe the table alone: what the star means is said in a terminal
    assert "*" not in invoke("show", runs)


def test_several_targets_and_seeds_end_with_a_table(tmp_path: Path) -> None:
    text = invoke("run", "--data", "digits", "--target", "ink,street", "--seed", "3-4", *TINY, "--out", tmp_path)
    assert "run 4 of 4" in text
    assert len(list(tmp_path.iterdir())) == 4
    table = text[text.rindex("unseen domain") :]
    assert "ink" in table and "street" in table and "mean" in table
    assert "round 1/1  loss" in text and "left" in text


def test_settings_of_the_method_are_spelled_in_one_way(tmp_path: Path) -> None:
    common = ["run", "--target", "street", "--method", "fedprox", *TINY, "--out", tmp_path]
    invoke(*common, "--set", "mu=0.50")
    assert "finished before" in invoke(*common, "--set", "fedprox.mu=0.5")
    config = json.loads(next(tmp_path.glob("*/config.json")).read_text())
    assert config["fields"] == {"mu": 0.5}


def test_show_has_settings_curves_accuracies_and_ledger(runs: Path) -> None:
    text = invoke("show", only(runs, "street"))
    assert "fedavg on digits, unseen street, seed 0, protocol digits" in text
    assert "1 rounds of 1 step of 16" in text
    for word in ("loss", "validation", "unseen accuracy", "up", "down", "unseen predict"):
        assert word in text
    both = invoke("show", runs)
    assert (
        len(both.splitlines()) == 3 and "street" in both and "ink" in both
    )  # in a pipe: a line of names, a line per run


def test_predict_writes_a_row_per_image(runs: Path, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    (photos / "deep").mkdir(parents=True)
    for name, grey in (("a.png", 10), ("deep/b.jpg", 200)):
        Image.new("RGB", (50, 40), (grey, grey, grey)).save(photos / name)
    (photos / "notes.txt").write_text("not an image")
    out = tmp_path / "new" / "predictions.csv"
    said = invoke("predict", only(runs, "street"), photos, "--out", out)
    assert re.search(r"looks stranger than \d+ % of the images of the known sites", said)
    rows = list(csv.reader(out.open()))
    digits = [f"p({digit})" for digit in range(10)]
    assert rows[0] == ["image", "class", "probability", "set", "unlike training", "unlike in", *digits]
    assert [row[0] for row in rows[1:]] == ["a.png", "deep/b.jpg"]
    trained = unseen.load_trained(only(runs, "street"))
    for _, label, probability, chosen, unlike, why, *all_ten in rows[1:]:
        assert label in trained.classes
        assert float(probability) == max(map(float, all_ten)) >= 0.1
        assert sum(map(float, all_ten)) == pytest.approx(1, abs=1e-5)
        assert label in chosen.split("|") and unlike == ("yes" if why else "no")
        assert set(why.split("|")) <= {"", "look", "content"}
    invoke("predict", only(runs, "street"), photos / "a.png", "--out", out)
    assert [row[1:] for row in csv.reader(out.open())][1] == rows[1][1:]


def test_broken_images_are_listed_at_the_end_and_the_exit_code_says_so(runs: Path, tmp_path: Path) -> None:
    Image.new("RGB", (9, 9)).save(tmp_path / "good.png")
    (tmp_path / "bad.png").write_bytes(b"no image")
    words = ["predict", str(only(runs, "street")), str(tmp_path), "--out", str(tmp_path / "p.csv")]
    found = CliRunner().invoke(app, words)
    assert found.exit_code == 3 and "1 files could not be read" in found.stderr and "bad.png" in found.stderr
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 2
    assert "bad.png" in invoke(*words, "--skip-broken")
    (tmp_path / "good.png").unlink()
    nothing = CliRunner().invoke(app, words)
    assert nothing.exit_code == 2 and "None of the 1 files" in nothing.stderr


def test_predict_as_json_and_without_a_calibration(runs: Path, tmp_path: Path) -> None:
    Image.fromarray(np.full((9, 9), 40000, dtype=np.uint16)).save(tmp_path / "deep.png")
    run = only(runs, "street")

    def predicted(directory: Path) -> tuple[dict[str, Any], str]:
        words = ["predict", str(directory), str(tmp_path / "deep.png"), "--json", "--coverage", "0.8"]
        found = CliRunner().invoke(app, words)
        assert found.exit_code == 0, found.output
        (one,) = json.loads(found.stdout)["images"]
        return one, found.stderr

    one, said = predicted(run)
    assert "1 images were converted: 16-bit grey" in said
    assert one["class"] in one["set"] and sum(one["probabilities"]) == pytest.approx(1)
    assert one["unlike_training"] == bool(one["unlike_in"])
    old = shutil.copytree(run, tmp_path / "old")
    (old / "calibration.json").unlink()
    one, said = predicted(old)
    assert "earlier version" in said
    assert one["set"] is None and one["unlike_training"] is None and one["unlike_in"] is None
    assert "temperature" in invoke("calibrate", old, "--workers", "1")
    assert (old / "calibration.json").read_bytes() == (run / "calibration.json").read_bytes()
    wrong = CliRunner().invoke(app, ["predict", str(run), str(tmp_path / "deep.png"), "--coverage", "90"])
    assert wrong.exit_code == 2 and "between 0 and 1" in wrong.stderr


def test_check_tells_a_new_site_what_it_has(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, site, out = only(runs, "street"), tmp_path / "site", tmp_path / "out"
    rng = np.random.default_rng(0)
    for place, name in enumerate(["0", "1", "1", "7", "unlabelled", "unlabelled", "unlabelled"]):
        (site / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(site / name / f"{place}.png")
    (site / "7" / "secret-name.png").write_bytes(b"no image")
    few = unseen.check(run, site)
    assert few.prediction_powered is None, "four labels are too few"
    monkeypatch.setattr("unseen.experiments.check.FEWEST_LABELS", 2)
    found = CliRunner().invoke(app, ["check", str(run), str(site), "--out", str(out)])
    assert found.exit_code == 3 and "secret-name.png" in found.stderr
    assert "measure\tvalue\naccuracy\t" in found.stdout and "accuracy, also by images without labels\t" in found.stdout
    numbers = json.loads((out / "metrics.json").read_text())
    assert not _words(numbers), "nothing but numbers leaves the site"
    assert numbers["unlike_training"] >= max(numbers["unlike_look"], numbers["unlike_content"])
    assert 0 <= numbers["typical_look"] <= 0.99
    assert (numbers["images"], numbers["unreadable"], numbers["prediction_powered"]["unlabelled"]) == (4, 1, 3)
    confusion = np.array(numbers["measured"]["confusion"])
    assert confusion.sum(axis=1).tolist() == [1, 2, 0, 0, 0, 0, 0, 1, 0, 0]
    assert numbers["accuracy"]["value"] == np.trace(confusion) / 4
    assert numbers["coverage"]["value"] * 4 in range(5) and numbers["covers"] == 0.9
    page = (out / "check.html").read_text()
    assert "http" not in page.replace("http://www.w3.org", "") and "secret-name" not in page
    same = unseen.check(run, site, out=tmp_path / "again")
    assert json.loads(json.dumps(same.to_json())) == numbers
    (site / "eleven").mkdir()
    Image.new("RGB", (9, 9)).save(site / "eleven" / "a.png")
    refused = CliRunner().invoke(app, ["check", str(run), str(site), "--out", str(out)])
    assert refused.exit_code == 2 and '"eleven"' in refused.stderr


def _words(value: object) -> list[str]:
    """All strings that are values somewhere inside."""
    if isinstance(value, str):
        return [value]
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return [word for item in inside for word in _words(item)]


def test_a_model_takes_images_in_every_form(runs: Path, tmp_path: Path) -> None:
    model = unseen.load(only(runs, "street"))
    pixels = np.random.default_rng(0).integers(0, 256, (5, 16, 16, 3), dtype=np.uint8)
    files = [tmp_path / f"{place}.png" for place in range(5)]
    for file, picture in zip(files, pixels, strict=True):
        Image.fromarray(picture).save(file)
    p = model.predict_proba(files)
    assert p.shape == (5, 10) and p.sum(axis=1) == pytest.approx(np.ones(5))
    tensor = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
    for given in ([str(file) for file in files], [Image.open(file) for file in files], pixels, list(pixels), tensor):
        assert np.array_equal(model.predict_proba(given), p)
    assert np.array_equal(model.predict_proba(files[2]), p[2:3]) or np.allclose(model.predict_proba(files[2]), p[2:3])
    assert model.predict(files).tolist() == [model.classes[k] for k in p.argmax(axis=1)]
    sets = model.predict_set(files, coverage=0.95)
    assert all(label in chosen for label, chosen in zip(model.predict(files), sets, strict=True))
    assert all(set(few) <= set(many) for few, many in zip(model.predict_set(files, 0.8), sets, strict=True))
    assert model.familiar(files).shape == (5,) and model.familiar(files).dtype == bool
    for wrong in ([], ["nowhere.png"], [3], torch.zeros(2, 1, 4, 4)):
        with pytest.raises(UserError):
            model.predict(wrong)


def test_methods_are_listed_and_explained() -> None:
    table = invoke("methods")
    head, *rows = [line.split("\t") for line in table.splitlines()]
    listed = {row[0]: dict(zip(head, row, strict=True)) for row in rows}
    assert listed["fedprox"]["passes"] == "1" and listed["fedsam"]["passes"] == "2"
    assert listed["fedsam"]["idea"] == "Flat minima" and listed["fedsam"]["owns"] == "step"
    assert listed["scaffold"]["sends beyond weights"] == "control variates"
    text = invoke("methods", "fedprox")
    assert "MLSys 2020" in text
    assert "mu = 0.1 (float): weight of the proximal term" in text
    assert "Differs from FedAvg in: penalty." in text and "A step costs 1 of FedAvg's" in text
    both = invoke("methods", "fedbn+fedprox")
    assert "Differs from FedAvg in: share." in both and "proximal" in both


@dataclass(frozen=True)
class Parent(Method):
    shape: Literal["round", "square"] = "round"  # of the thing


@dataclass(frozen=True)
class Child(Parent):
    """A method of the tests.

    With a second paragraph.
    """

    name: ClassVar[str] = "child-of-tests"
    traits: ClassVar[Traits] = Traits(sends="a number")
    long: tuple[float, ...] = (
        1.0,  # first
        2.0,  # second
    )


def test_a_field_means_what_its_comment_says() -> None:
    comments = field_comments(Child)
    assert comments["shape"] == "of the thing"
    assert comments["long"] == "first second"
    text = explain(Child)
    assert "shape = round (round | square): of the thing" in text
    assert "A method of the tests." in text and "Sends beyond the model's weights: a number." in text


def test_protocols_are_listed_with_their_numbers() -> None:
    table = invoke("protocols")
    assert "pacs-quick" in table and "40 rounds of 200 steps of 64" in table
    one = invoke("protocols", "gperxan")
    assert "0.002" in one and "resnet50" in one


def test_data_is_listed_checked_and_drawn(tmp_path: Path) -> None:
    table = invoke("data", "list")
    assert "digits" in table and "pacs" in table and "folder" in table
    assert "complete" in invoke("data", "check", "digits")
    (tmp_path / "photo" / "dog").mkdir(parents=True)
    Image.new("RGB", (9, 9)).save(tmp_path / "photo" / "dog" / "1.png")
    lacking = CliRunner().invoke(app, ["data", "check", "pacs", "--root", str(tmp_path)])
    assert lacking.exit_code == 1 and "sketch" in lacking.output and "not complete" in lacking.output
    out = tmp_path / "digits.png"
    invoke("data", "show", "digits", "--target", "street", "--partition", "iid:2", "--out", out)
    for path in (out, tmp_path / "digits-partition.png"):
        with Image.open(path) as picture:
            assert picture.format == "PNG"


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["run"],
        ["show"],
        ["predict"],
        ["check"],
        ["calibrate"],
        ["methods"],
        ["protocols"],
        ["data", "list"],
        ["data", "check"],
        ["data", "show"],
    ],
)
def test_every_command_has_help_with_an_example(words: list[str]) -> None:
    assert f"Example: unseen {' '.join(words)}" in " ".join(invoke(*words, "--help").split())


def test_words_for_numbers() -> None:
    assert percent(0.12345) == "12.35 %" and percent(None) == "-" and percent(float("nan")) == "-"
    assert [duration(s) for s in (7.4, 125, 3725)] == ["7 s", "2 min 05 s", "1 h 02 min"]
    assert sparkline([0.0, 0.5, None, 1.0]) == "▁▅ █" and sparkline([]) == "" and sparkline([2.0, 2.0]) == "▁▁"


def test_time_left_counts_the_rounds_of_this_start_only(monkeypatch: pytest.MonkeyPatch) -> None:
    pace = Pace(first=11, last=20)
    pace.started = 100.0
    monkeypatch.setattr("unseen.core.terminal.time.monotonic", lambda: 106.0)
    assert pace.left(12) == "24 s left"  # two rounds in six seconds, eight to come


def test_seeds_and_fields_are_read() -> None:
    assert read_seeds(None, (5, 6)) == [5] and read_seeds("all", (5, 6)) == [5, 6]
    assert read_seeds("3", ()) == [3] and read_seeds("0-2,7", ()) == [0, 1, 2, 7] and read_seeds("1,1", ()) == [1]
    assert read_fields(["a=1", " b = x=y "]) == {"a": "1", "b": "x=y"}
    for text in ("", "x", "2-1", "-1", "1-", "1-2-3"):
        with pytest.raises(UserError, match="not understood as seeds"):
            read_seeds(text, (0,))


def test_resume_goes_on_after_the_last_round_with_the_runs_own_settings(tmp_path: Path) -> None:
    class Enough(Exception):
        pass

    class Impatient:
        """Ends the run after its first round."""

        def began(self, *_: object) -> None: ...

        def testing(self, *_: object) -> None: ...

        def said(self, *_: object) -> None: ...

        def round(self, line: object) -> None:
            raise Enough

    tiny = {"target": "street", "rounds": 2, "local_steps": 1, "workers": 1, "test_every": 0}
    with pytest.raises(Enough):
        unseen.run(**tiny, out=tmp_path, watcher=Impatient())
    path = only(tmp_path, "street")
    assert "not finished: 1 of 2 rounds done" in invoke("show", path)
    text = invoke("run", "--resume", path, "--workers", "1")
    assert "going on after round 1" in text and "round 2/2" in text and "round 1/2" not in text
    unbroken = unseen.run(**tiny)
    again = unseen.load_trained(path)
    for name, value in unbroken.model.net.state_dict().items():
        assert value.equal(again.net.state_dict()[name]), name


def test_ctrl_c_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("unseen.api.carry_out", interrupted)
    result = CliRunner().invoke(app, ["run", "--target", "street", *TINY, "--out", str(tmp_path)])
    assert result.exit_code == 130
    assert f"unseen run --resume {tmp_path}" in result.stderr


def test_python_runs_an_own_method_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Halved(Method):
        name: ClassVar[str] = "halved-in-tests"
        by: float = 2.0  # the loss is divided by this

        def loss(self, work, batch):  # type: ignore[no-untyped-def]
            return super().loss(work, batch) / self.by

    monkeypatch.chdir(tmp_path)
    result = unseen.run(data="digits", target="street", method=Halved(by=4.0), rounds=1, local_steps=1, workers=1)
    assert result.settings.method == "halved-in-tests" and result.settings.fields == {"by": 4.0}
    assert result.accuracy is not None and 0 <= result.accuracy <= 1
    assert result.in_domain_accuracy is not None and [line.round for line in result.rounds] == [1]
    assert result.model.classes == tuple("0123456789")
    assert list(tmp_path.iterdir()) == []


def test_import_unseen_does_not_load_torch() -> None:
    code = "import sys, unseen, unseen.cli; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    assert set(unseen.__all__) <= set(dir(unseen))
    with pytest.raises(AttributeError):
        unseen.nothing  # noqa: B018


def test_a_real_process(tmp_path: Path) -> None:
    words = [
        sys.executable,
        "-m",
        "unseen",
        "run",
        "--target",
        "street",
        *TINY,
        "--workers",
        "2",
        "--out",
        str(tmp_path),
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "unseen accuracy" in done.stdout and "round 1/1" in done.stderr and "\x1b" not in done.stderr
