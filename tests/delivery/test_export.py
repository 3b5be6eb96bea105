"""`unseen export`: the exported graph answers as the library does, for every method, and its script needs no torch."""

from __future__ import annotations

import csv
import functools
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from typer.testing import CliRunner

from tests.small_runs import run_local, settings
from tests.tiny_work import tiny_net
from unseen.cli import app
from unseen.core.errors import UserError
from unseen.core.look import NUMBERS, Look
from unseen.data.pictures import decode
from unseen.delivery import graph
from unseen.delivery.pack import ModelFile, Thresholds
from unseen.method import Method
from unseen.nets import timm_backbones
from unseen.nets.net import Net
from unseen.nets.parts.branches import Branches
from unseen.registry import parse, registered
from unseen.runs.images import store_of
from unseen.runs.model import load_trained, predict_files

onnxruntime = pytest.importorskip("onnxruntime", reason="the extra `export` is not installed")
pytest.importorskip("onnxscript", reason="the extra `export` is not installed")
CLOSE = 1e-5  # of probabilities


@pytest.fixture(scope="module", autouse=True)
def _quick_exports() -> Iterator[None]:
    """torch's exporter reads its operators anew at each call, which takes as long as the rest; one table serves all."""
    from torch.onnx._internal.exporter import _registration

    registry, patch = _registration.ONNXRegistry, pytest.MonkeyPatch()
    once = functools.cache(registry.from_torchlib)
    patch.setattr(registry, "from_torchlib", classmethod(lambda cls, *given, **words: once(*given, **words)))
    # Two blocks of a transformer are exported as six are.
    patch.setattr(timm_backbones.timm, "create_model", functools.partial(timm_backbones.timm.create_model, depth=2))
    yield
    patch.undo()


@functools.cache
def digits() -> Tensor:
    images = store_of(settings(), progress=False).domain("street")
    return images.batch(torch.arange(0, 480, 40)).x


def computation(method: Method, net: Net) -> tuple[str, ...]:
    """What a prediction is made of. Methods that differ in training only have the same, and share their graph."""
    rule = type(method).predict
    parts = (net.backbone, net.inserted, net.neck, net.head) if rule is Method.predict else (net,)
    shapes = (f"{key} {tuple(value.shape)}" for key, value in used(method, net).items())
    return (rule.__qualname__, *map(repr, parts), *shapes)


def used(method: Method, net: Net) -> dict[str, Tensor]:
    """State that a prediction reads: extras belong to methods that predict by a rule of their own."""
    plain = type(method).predict is Method.predict
    return {key: value for key, value in net.state_dict().items() if not (plain and key.startswith("extras."))}


def as_if_trained(method: Method) -> Net:
    """Running statistics of digits, no parameter that is still 0 or 1, and two clients' branches where there is room."""
    net = tiny_net(method)
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.momentum = 0.5
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=rng))
        net.train().maps(digits())
        net.eval()
        for room in net.norms(Branches):
            state = net.state_dict()
            own = room.flat(state) if state.keys() >= set(room.keys) else torch.ones(room.rows.shape[1])
            for seat in (0, 2):  # and none between them
                room.rows[seat] = own * (1 + 0.1 * torch.rand(own.shape, generator=rng))
                room.taken[seat] = 1
    return net


GRAPHS: dict[tuple[str, ...], tuple[Net, object]] = {}


@pytest.mark.parametrize("name", list(registered()))
def test_the_graph_answers_as_the_library_does(name: str) -> None:
    method = parse(name)
    key = computation(method, tiny_net(method))
    if key not in GRAPHS:
        made = as_if_trained(method)
        before = {k: v.clone() for k, v in made.state_dict().items()}
        session = onnxruntime.InferenceSession(graph.to_onnx(method, made), providers=["CPUExecutionProvider"])
        after = made.state_dict()
        assert before.keys() == after.keys() and all(torch.equal(v, after[k]) for k, v in before.items())
        GRAPHS[key] = made, session
        net = made
    else:
        first, session = GRAPHS[key]
        net = tiny_net(method).eval()
        assert used(method, net).keys() == used(method, first).keys()
        net.load_state_dict(used(method, first), strict=False)
    assert [i.name for i in session.get_inputs()] == ["images"] and session.get_inputs()[0].shape[1:] == [3, 32, 32]
    for count in (1, 5):
        x = digits()[:count]
        with torch.no_grad():
            ours = method.predict(net, x).softmax(1)
        (theirs,) = session.run(["logits"], {"images": x.contiguous().numpy()})
        assert theirs.shape == (count, 3) and theirs.dtype == np.float32
        assert float((torch.from_numpy(theirs).softmax(1) - ours).abs().max()) <= CLOSE
    assert float(ours.std(0).max()) > 1e-3, "the images get different answers"


# --- the folder ------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run")
    chosen = settings(
        method="stablefdg", target="street", rounds=1, local_steps=2, batch_size=8, image_size=16, test_every=0
    )
    result = run_local(chosen, out=out)
    assert result.directory is not None
    return result.directory


@pytest.fixture(scope="module")
def packed(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("packed") / "model"
    done = CliRunner().invoke(app, ["export", str(run), "--out", str(out), "--coverage", "0.8"])
    assert done.exit_code == 0, done.output
    assert "predict.py" in done.output
    return out


KINDS = ("large.jpg", "grey.png", "alpha.png", "palette.gif", "deep.png", "print.tif")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files as sites have them, and a broken one."""
    folder = tmp_path_factory.mktemp("images")
    pixels = store_of(settings(), progress=False).domain("street").pixels(torch.arange(0, 600, 100))
    Image.fromarray(pixels[0]).resize((300, 260)).save(folder / "large.jpg")
    Image.fromarray(pixels[1]).convert("L").save(folder / "grey.png")
    Image.fromarray(pixels[2]).convert("RGBA").resize((50, 40)).save(folder / "alpha.png")
    Image.fromarray(pixels[3]).convert("P").save(folder / "palette.gif")
    Image.fromarray(pixels[4][:, :, 0].astype(np.uint16) * 257).save(folder / "deep.png")
    Image.fromarray(pixels[5]).convert("CMYK").save(folder / "print.tif")
    (folder / "broken.png").write_bytes(b"no image")
    return folder


WITHOUT = """
import runpy, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "unseen", "timm", "torchvision"):
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def classify(packed: Path, images: Path, out: Path) -> tuple[list[dict[str, str]], subprocess.CompletedProcess[str]]:
    line = [sys.executable, "-c", WITHOUT, str(packed / "predict.py"), str(images), "--out", str(out)]
    home = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(line, capture_output=True, text=True, env=home, cwd=packed)
    with out.open() as file:
        return list(csv.DictReader(file)), done


def test_the_script_answers_as_unseen_predict_without_torch(
    run: Path, packed: Path, images: Path, tmp_path: Path
) -> None:
    rows, done = classify(packed, images, tmp_path / "p.csv")
    assert done.returncode == 3, done.stderr
    assert f"{len(KINDS)} images classified, 1 could not be read" in done.stdout and "broken.png" in done.stderr
    ours = {one.image: one for one in predict_files(load_trained(run, "cpu"), images, [], coverage=0.8)}
    assert len(rows) == len(ours) == len(KINDS)
    for row in rows:
        one = ours[row["image"]]
        assert row["class"] == one.label and one.set is not None and row["set"] == "|".join(one.set)
        assert row["unlike training"] == ("no" if one.familiar else "yes")
        assert one.unlike is not None and row["unlike in"] == "|".join(one.unlike)
        for name, p in one.probabilities.items():
            assert abs(float(row[f"p({name})"]) - p) <= CLOSE + 1e-6


def script(packed: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The packed script, imported from where it lies."""
    monkeypatch.syspath_prepend(str(packed))
    for name in ("pictures", "look"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return runpy.run_path(str(packed / "predict.py"), run_name="packed")


def test_the_script_decodes_as_the_library(packed: Path, images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = script(packed, monkeypatch)["decode"]
    for name in KINDS:
        assert np.array_equal(theirs(images / name, 32), decode(images / name, 32)), name


def test_thresholds_make_sets_and_warnings(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = script(packed, monkeypatch)["Model"](packed)
    limits = Thresholds(temperature=2.0, coverage=0.9, log_odds=-1.0, largest_logit=3.0, looks=[], furthest_look=2.0)
    model.sites = [Look([0.0] * NUMBERS, np.eye(NUMBERS)[np.triu_indices(NUMBERS)].tolist())]
    model.about = asdict(ModelFile(["a", "b", "c"], 32, "x", limits))
    model.classes = ["a", "b", "c"]
    logits = np.array([[4.0, 1.0, 0.0], [2.0, 1.9, -3.0]])
    looks = np.array([[2.1] + [0.0] * (NUMBERS - 1), [1.9] + [0.0] * (NUMBERS - 1)])
    sure, unsure = model.answers(["1", "2"], logits, looks)
    # By hand: softmax of (2, 0.5, 0); log-odds of b are 1 - log(e^4 + e^0) = -3.02.
    e = np.exp([2.0, 0.5, 0.0])
    assert np.allclose(list(sure.probabilities.values()), e / e.sum()) and sure.set == ["a"] and sure.unlike == ["look"]
    assert unsure.set == ["a", "b"] and unsure.unlike == ["content"]
    model.about["thresholds"]["log_odds"] = None
    assert next(model.answers(["1"], logits, looks)).set == ["a", "b", "c"], "too few images to rule a class out"
    model.about["thresholds"] = None
    plain = next(model.answers(["1"], logits, looks))
    e = np.exp([4.0, 1.0, 0.0])
    assert np.allclose(list(plain.probabilities.values()), e / e.sum()) and plain.set is None and plain.unlike is None


def test_the_card_says_what_the_records_say(run: Path, packed: Path) -> None:
    from huggingface_hub import ModelCard

    result = json.loads((run / "result.json").read_text())
    card = ModelCard.load(packed / "README.md")
    assert card.data.pipeline_tag == "image-classification" and "federated-learning" in card.data.tags
    assert card.data.eval_results[0].metric_value == round(result["accuracy"], 4)
    for client, count in result["training_images"].items():
        assert f"| {client} | {count:,} | {100 * result['in_domain'][client]:.1f} % |" in card.text
    assert result["ledger"] in card.text and "MORE THAN WEIGHTS" in card.text
    assert f"{100 * result['accuracy']:.1f} % accuracy" in card.text and "Left out: street." in card.text
    about = json.loads((packed / "model.json").read_text())
    assert about["classes"] == [str(k) for k in range(10)] and about["image_size"] == 16
    limits, known = about["thresholds"], load_trained(run, "cpu").calibration
    assert known is not None and limits["temperature"] == known.temperature and limits["coverage"] == 0.8
    assert limits["log_odds"] == known.threshold(0.8) and limits["largest_logit"] == known.least_familiar
    assert limits["looks"] == [asdict(one) for one in known.looks] and len(known.looks) == 3
    assert limits["furthest_look"] == known.furthest_look
    assert f"Calibrated on {known.images:,} validation images of 3 sites" in card.text


def test_errors_are_sentences(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = CliRunner().invoke(app, ["export", str(tmp_path / "nothing"), "--out", str(tmp_path / "x")])
    assert done.exit_code == 2 and not (tmp_path / "x").exists()
    monkeypatch.setattr(graph.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install unseen\[export\]"):
        graph.to_onnx(parse("fedavg"), tiny_net(parse("fedavg")))
