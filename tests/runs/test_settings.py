"""The settings tree: one field per setting, names that last, files of the version before."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, make_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.data.trees import paint, paint_tree
from tests.small_runs import settings
from unseen.cli import app
from unseen.core.errors import UserError
from unseen.core.options import option, options_of, value_of
from unseen.core.plan import Augmentation
from unseen.data.augment import PRESETS
from unseen.data.store import content_of
from unseen.runs.directory import RunDirectory
from unseen.runs.images import index_of
from unseen.runs.planning import Experiment
from unseen.runs.settings import Settings


def test_every_setting_is_an_option_of_run_and_bench() -> None:
    for command, without in (("run", set()), ("bench", {"engine", "client_gpus"})):
        text = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200", "TERMINAL_WIDTH": "200"}).output
        for name, setting in options_of(Settings).items():
            assert (setting.flag in text) == (name not in without), f"{command} {setting.flag}"


@pytest.mark.parametrize(
    ("name", "word", "value"),
    [
        ("optimizer", "adamw", "adamw"),
        ("momentum", "0.7", 0.7),
        ("weight_decay", "0.001", 0.001),
        ("schedule", "step", "step"),
        ("clip_norm", "2", 2.0),
        ("bottleneck", "none", None),
        ("keep_optimizer", "yes", True),
        ("rounds", "3", 3),
    ],
)
def test_words_and_values_are_read_alike(name: str, word: str, value: Any) -> None:
    by_word, by_value = (settings(protocol="fedfd", **{name: given}) for given in (word, value))
    assert by_word == by_value and value_of(by_word, options_of(Settings)[name]) == value
    assert by_word != settings(protocol="fedfd")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"lr": "-1"}, "--lr must be above 0"),
        ({"lr": "inf"}, "--lr must be a finite number"),
        ({"participation": "nan"}, "--participation must be a finite number"),
        ({"rounds": "0"}, "--rounds must be at least 1"),
        ({"rounds": "2.5"}, '"2.5" does not fit --rounds: it takes int'),
        ({"schedule": "cosin"}, 'Did you mean "cosine"'),
        ({"augmentation": "dasl"}, 'Did you mean "dassl"'),
        ({"image_size": "1000000"}, "--image-size must be at most 4096"),
        ({"momentun": "0.9"}, 'A run has no setting "momentun". Did you mean "momentum"'),
        ({"local_steps": "3", "local_epochs": "2"}, "not both"),
        ({"local_steps": "none", "local_epochs": "none"}, "--local-epochs or --local-steps"),
    ],
)
def test_what_does_not_fit_is_said_in_a_sentence(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(UserError) as error:
        settings(**given)
    assert sentence in str(error.value)


def test_the_augmentations_are_those_of_the_data_room() -> None:
    assert Augmentation.__args__ == tuple(PRESETS)  # type: ignore[attr-defined]


# --- a name that lasts -----------------------------------------------------------------------------------------------
def test_a_new_setting_with_a_default_leaves_old_runs_where_they_are(tmp_path: Path, monkeypatch: Any) -> None:
    """A later version of unseen has one more field; the run of the earlier one is found, and is the same run."""
    old = settings(method="fedprox", rounds=3)
    directory = RunDirectory.of(old, tmp_path).begin(old)

    @dataclass(frozen=True)
    class LaterPlan(type(old.plan)):  # type: ignore[misc]
        warmth: float = option(0.5, "A setting of the future.")

    later_settings = make_dataclass(
        "LaterSettings", [("plan", LaterPlan, field(default_factory=LaterPlan))], bases=(Settings,), frozen=True
    )
    monkeypatch.setattr("unseen.runs.directory.Settings", later_settings)
    given = {f: getattr(old, f) for f in ("method", "target", "protocol", "data", "net", "fields")}
    same = later_settings(**given, plan=LaterPlan(**vars(old.plan)))
    assert "warmth" in options_of(later_settings)
    assert RunDirectory.of(same, tmp_path).path == directory.path and RunDirectory.of(same, tmp_path).begun
    other = replace(same, plan=replace(same.plan, warmth=0.7))
    assert not RunDirectory.of(other, tmp_path).begun


def test_the_contents_of_weights_and_folder_count_and_their_places_do_not(tmp_path: Path) -> None:
    paint_tree(tmp_path / "one")
    weights = tmp_path / "w.safetensors"
    weights.write_bytes(b"first")
    given = {"data": "folder", "weights": str(weights), "backbone": "convnet", "image_size": 16}
    first = Experiment.of({**given, "root": tmp_path / "one"}).settings
    (tmp_path / "one").rename(tmp_path / "two")
    moved = Experiment.of({**given, "root": tmp_path / "two"}).settings
    assert first.data.root != moved.data.root and first.digest() == moved.digest()
    weights.write_bytes(b"other")
    assert Experiment.of({**given, "root": tmp_path / "two"}).settings.digest() != first.digest()
    weights.write_bytes(b"first")
    paint(tmp_path / "two" / "d0" / "c0" / "0.png", 200)
    changed_folder = Experiment.of({**given, "root": tmp_path / "two"}).settings
    assert changed_folder.digest() != first.digest()
    assert changed_folder.data.content == content_of(index_of(changed_folder))


VERSION_1 = {
    "method": "fedfd", "data": "pacs", "target": "sketch", "seed": 3, "protocol": "pacs-quick",
    "backbone": "mobilenetv2_100", "image_size": 112, "bottleneck": None, "weights": "/w.safetensors",
    "partition": "domain", "validation": 0.1, "test_every": 2, "fields": {"lambda1": 0.2}, "root": "/PACS",
    "skip_broken": False, "engine": "local",
    "plan": {
        "rounds": 5, "batch_size": 32, "seed": 3, "local_epochs": None, "local_steps": 20, "participation": 1.0,
        "client_selection": "last", "check_every": 20, "server_selection": "validation", "validation_mean": "clients",
        "precision": "float32", "device": "cpu", "augmentation": "domainbed", "minimum_clients": 1,
        "optimizer": {
            "name": "sgd", "lr": 0.01, "momentum": 0.9, "weight_decay": 0.0005, "schedule": "cosine", "step_every": 20,
            "step_factor": 0.1, "clip_norm": None, "persist": False,
        },
    },
}  # fmt: skip


def test_settings_of_the_version_before_are_read() -> None:
    read = Settings.from_json(json.loads(json.dumps(VERSION_1)))
    assert (read.data.name, read.data.root, read.data.image_size, read.seed) == ("pacs", "/PACS", 112, 3)
    assert (read.net.backbone, read.net.weights, read.plan.test_every) == ("mobilenetv2_100", "/w.safetensors", 2)
    assert read.plan.optimizer.momentum == 0.9 and read.fields == {"lambda1": 0.2}
    assert Settings.from_json(json.loads(json.dumps(read.to_json()))) == read
    with pytest.raises(UserError, match="newer unseen"):
        Settings.from_json({**read.to_json(), "version": 99})
