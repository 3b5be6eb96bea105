"""Input that once gave a traceback, a hang or a silent wrong answer: one sentence and exit code 2, or it simply works."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from typer.testing import CliRunner

from tests.attempts import attempt
from tests.cli.test_bad_input import RUN, SMALL, own_folder, photos, refused  # noqa: F401
from unseen.cli import app
from unseen.nets.backbones import create_net
from unseen.runs.directory import RunDirectory, directory_for


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--participation", "inf"], ["--participation", "finite"]),
        (["--participation", "nan"], ["--participation", "finite"]),
        (["--participation", "1e308"], ["--participation", "at most"]),
        (["--image-size", "999999999"], ["--image-size", "at most 4096"]),
        (["--image-size", "9" * 5000], ["--image-size"]),
        (["--bottleneck", "999999999999"], ["--bottleneck", "at most 65536"]),
        (["--batch-size", "1" + "0" * 400], ["--batch-size", "at most"]),
        (["--rounds", "1" + "0" * 400], ["--rounds", "at most"]),
        (["--most-images", "-1"], ["--most-images", "at least 1"]),
        (["--seed", "99999999999999999999"], ["seed is a number from 0 to"]),
        (["--seed", "9" * 5000], ["seed"]),
        (["--seed", "0-99999999999"], ["seed"]),
        (["--seed", "0-2000000000"], ["2,000,000,001 seeds", "10,000 at most"]),
        (["--seed", "²"], ["seeds"]),
        (["--partition", "iid:99999999"], ["iid:99999999"]),
        (["--partition", "iid:1e300"], ["iid:1e300"]),
        (["--partition", "iid:1.5"], ["iid:1.5"]),
        (["--partition", "dirichlet:99999999:0.1"], ["dirichlet:99999999:0.1"]),
        (["--partition", "mixed:99999999:0.1"], ["mixed:99999999:0.1"]),
        (["--method", ""], ['no method ""']),  # as a script whose variable is empty gives it
        (["--method", "fedprox", "--set", "mu=nan"], ["mu of fedprox", "finite"]),
        (["--method", "fedprox", "--set", "mu=inf"], ["mu of fedprox", "finite"]),
        (["--out", "x" * 5000], ["could not be written"]),
    ],
)
def test_huge_and_odd_numbers(words: list[str], parts: list[str]) -> None:
    with attempt("words"):
        sentence = refused(*RUN, *words)
        for part in parts:
            assert part in sentence


@pytest.mark.parametrize(
    "toml",
    ["methods = 5\n", "methods = [5]\n", "methods = true\n", 'methods = "fedavg"\nseeds = {a = 1}\n',
     'methods = "fedavg"\ntargets = 3\n', 'methods = "fedavg"\nrounds = [1]\n', 'methods = {fedavg = 1}\n', "\x00\x01",
     "a = " + "[" * 100_000, 'methods = "fedavg"\nrounds = ' + "9" * 5000],
    ids=range(10),
)  # fmt: skip
def test_a_bench_file_with_wrong_types(toml: str, tmp_path: Path) -> None:
    (tmp_path / "bench.toml").write_text(toml)
    with attempt("words"):
        assert refused("bench", "--file", tmp_path / "bench.toml", "--data", "digits", "--out", tmp_path / "out")


def test_a_loop_of_links_among_the_images(tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", {"indoor": {"cat": 12, "dog": 12}, "outdoor": {"cat": 12, "dog": 12}})
    for place in (root, root / "indoor", root / "indoor" / "cat"):
        (place / "loop").symlink_to(place / "loop")  # to itself: nobody can open it
        (place / "loop.png").symlink_to(place / "loop.png")
    for words in (["data", "check"], ["run", "--target", "outdoor", *SMALL]):
        with attempt("words"):
            found = CliRunner().invoke(app, [*words, "--data", "folder", "--root", str(root)])
            assert found.exit_code in (0, 2), (words, found.output)
            assert not isinstance(found.exception, OSError), (words, found.exception)


def test_a_folder_that_changes_while_it_is_read(tmp_path: Path) -> None:
    with attempt("words"):
        assert "could not be read" in refused(
            "run", "--data", "folder", "--root", "/proc/self", "--target", "fd", *SMALL
        )


def test_names_of_250_letters_work(tmp_path: Path) -> None:
    names = ["a" * 250, "b" * 250, "ü" * 120]
    root = photos(tmp_path / "photos", {name: {"cat": 6, "dog": 6} for name in names})
    words = ["run", "--data", "folder", "--root", str(root), "--method", "fedbn", "--target", names[0], *SMALL]
    with attempt("words", len(names)):
        found = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "runs")])
        assert found.exit_code == 0, (found.output, found.exception)
        (run,) = (tmp_path / "runs").iterdir()
        assert RunDirectory(run).finished and directory_for(RunDirectory(run).settings(), tmp_path / "runs") == run


def test_a_file_name_that_is_no_text_is_predicted_on(tmp_path: Path) -> None:
    words = [*RUN, "--out", str(tmp_path / "runs"), "--image-size", "16", "--batch-size", "8"]
    assert CliRunner().invoke(app, words).exit_code == 0
    (run,) = (tmp_path / "runs").iterdir()
    folder = tmp_path / "pictures"
    folder.mkdir()
    try:
        Image.new("RGB", (16, 16)).save(Path(os.fsdecode(os.fsencode(str(folder)) + b"/\xff\xfe.png")), format="PNG")
    except OSError:
        pytest.skip("this file system takes only names that are text")
    for name in ("=cmd.png", "\x1b[31mred.png", "\u202egnp.exe.png", "line\nbreak.png"):
        Image.new("RGB", (16, 16)).save(folder / name, format="PNG")
    with attempt("words", 5):
        found = CliRunner().invoke(app, ["predict", str(run), str(folder), "--out", str(tmp_path / "p.csv")])
        assert found.exit_code == 0, (found.output, found.exception)
        lines = (tmp_path / "p.csv").read_text(encoding="utf-8").splitlines()
        assert [line.split(",")[0] for line in lines[1:]] == [
            "?[31mred.png", "'=cmd.png", "line?break.png", "?gnp.exe.png", "??.png",
        ]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.int8, torch.complex64, torch.bool])
def test_weights_that_are_no_weights(dtype: torch.dtype, tmp_path: Path) -> None:
    backbone = create_net("convnet", 3, image_size=32).backbone
    tensors = {name: torch.ones(value.shape, dtype=dtype) for name, value in backbone.state_dict().items()}
    save_file(tensors, tmp_path / "odd.safetensors")
    with attempt("words"):
        sentence = refused(*RUN, "--weights", tmp_path / "odd.safetensors")
        assert str(dtype).removeprefix("torch.") in sentence and "odd.safetensors" in sentence
