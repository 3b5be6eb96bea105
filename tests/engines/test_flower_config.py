"""A deployment as flat keys, and what `unseen flower init` and `keys` write."""

from __future__ import annotations

import stat
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.engines.sites import SITES, small
from unseen.cli import app
from unseen.core.errors import UserError
from unseen.engines.flower.config import Deployment
from unseen.engines.flower.scaffold import write_app, write_keys
from unseen.registry import parse
from unseen.runs.directory import directory_for
from unseen.runs.run import PlannedRun, RunData, assemble


def deployment(**changes: object) -> Deployment:
    chosen = small(Path("/data"), "fedprox", "flower", minimum_clients=2).with_changes({"root": None})
    chosen = replace(chosen, fields={"mu": "0.2"})
    return Deployment(**{"settings": chosen, "sites": SITES, "classes": ("a", "b"), **changes})  # type: ignore[arg-type]


def test_a_deployment_survives_its_keys() -> None:
    made = deployment(timeout=20.0, target_folder="/t", out="/o")
    assert Deployment.from_config(made.to_config()) == made


def test_a_deployment_survives_the_written_file(tmp_path: Path) -> None:
    made = deployment()
    write_app(tmp_path / "app", made)
    project = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())
    assert Deployment.from_config(project["tool"]["flwr"]["app"]["config"]) == made


def test_whole_numbers_are_fine_for_fractions_and_nothing_else_is_bent() -> None:
    config = deployment().to_config()
    assert Deployment.from_config({**config, "lr": 1}).settings.plan.optimizer.lr == 1.0
    for key, value in (("rounds", 2.5), ("lr", "much"), ("server-selection", "luck"), ("keep-optimizer", "perhaps")):
        with pytest.raises(UserError, match=key):
            Deployment.from_config({**config, key: value})
    for key in ("rounds", "method"):
        with pytest.raises(UserError, match=key):
            Deployment.from_config({k: v for k, v in config.items() if k != key})
    with pytest.raises(UserError, match="sites"):
        Deployment.from_config({**config, "sites": ""})


def test_keys_are_private_and_not_overwritten(tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="cryptography is not installed: pip install unseen[flower]")
    for path in write_keys(tmp_path / "keys", ["east"]):
        secret = path.name in ("east", "server.key")
        assert stat.S_IMODE(path.stat().st_mode) == (0o600 if secret else 0o644), path.name
    assert (tmp_path / "keys" / "east").read_text().startswith("-----BEGIN OPENSSH PRIVATE KEY")
    assert (tmp_path / "keys" / "east.pub").read_text().startswith("ecdsa-sha2-nistp384 ")
    with pytest.raises(UserError, match="has keys already"):
        write_keys(tmp_path / "keys", ["east"])


def test_init_writes_an_app_that_names_every_command(tmp_path: Path) -> None:
    folder = tmp_path / "app"
    done = CliRunner().invoke(
        app, ["flower", "init", str(folder), "--sites", "a,b", "--method", "fedfd-a", "--host", "fl.org"]
    )
    assert done.exit_code == 0, done.output
    readme = (folder / "README.md").read_text()
    for command in ("flower-superlink --host 127.0.0.1", "--enable-supernode-auth", "--isolation process",
                    "unseen flower node", "nginx -c", "flwr run", "--superlink fl.org:8443"):  # fmt: skip
        assert command in readme, command
    assert "location /v1/fleet/" in (nginx := (folder / "nginx.conf").read_text())
    assert "return 403" in nginx and "$host" in nginx
    again = CliRunner().invoke(app, ["flower", "init", str(folder), "--sites", "a,b"])
    assert again.exit_code == 2 and "not empty" in again.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sites", "a b,c"], "--sites"),
        (["--sites", "a,b", "--minimum-clients", "3"], "--minimum-clients"),
        (["--sites", "a,b", "--data", "pacs"], "--data folder"),
        (["--sites", "a,b", "--method", "fedavgg"], "fedavg"),
        (["--sites", "a,b", "--target", "none", "--target-folder", "x"], "--target none leaves no site out"),
        (["--sites", "a,b", "--target", "none", "--server-selection", "oracle"], "oracle needs an unseen domain"),
    ],
)
def test_init_says_what_is_wrong(tmp_path: Path, words: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["flower", "init", str(tmp_path / "app"), *words])
    assert done.exit_code == 2
    assert said in done.output
    assert not (tmp_path / "app").exists()


def test_no_site_need_be_left_out(tmp_path: Path) -> None:
    """`--target none` means in a deployment what it means in `unseen fit`: nothing is tested, the rest is the same."""
    pytest.importorskip("flwr", reason="Flower is not installed: pip install unseen[flower]")
    from unseen.engines.flower.coordinator import _fitting, _target

    words = ["--sites", "a,b", "--target", "none", "--backbone", "convnet", "--image-size", "32", "--weights", "none"]
    done = CliRunner().invoke(app, ["flower", "init", str(tmp_path / "app"), *words, "--test-every", "1"])
    assert done.exit_code == 0, done.output
    config = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    made = Deployment.from_config(config)
    settings = _fitting(made)
    assert settings.target == "none" and settings.left_out == "no domain left out" and settings.plan.test_every == 0
    assert _target(made, ("x", "y")) is None
    assembly = assemble(PlannedRun(settings, parse(settings.method), None), RunData(("x", "y"), {}, None))
    assert assembly.net.classes == 2 and assembly.data.target is None
    assert Path(made.out, directory_for(settings, Path()).name).name.startswith("folder-none-fedavg-s0-")
