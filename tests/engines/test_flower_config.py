"""A deployment as flat keys, and what `unseen flower init` and `keys` write."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import stat
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.engines.sites import SITES, small
from unseen.cli import app
from unseen.core.errors import UserError
from unseen.engines.flower.config import Deployment
from unseen.engines.flower.processes import Processes
from unseen.engines.flower.scaffold import write_app, write_keys
from unseen.engines.flower.site_file import SiteFile
from unseen.registry import parse
from unseen.runs.directory import directory_for
from unseen.runs.run import PlannedRun, RunData, assemble

SMALL = ("--protocol", "digits")  # a net without weights from elsewhere


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
    for path in write_keys(tmp_path, ["east"]):
        secret = path.name in ("site.key", "site.pem", "server.key")
        assert stat.S_IMODE(path.stat().st_mode) == (0o600 if secret else 0o644), path.name
    own = tmp_path / "sites" / "east"
    assert (own / "site.key").read_text().startswith("-----BEGIN OPENSSH PRIVATE KEY")
    assert (own / "ca.crt").read_bytes() == (tmp_path / "keys" / "ca.crt").read_bytes()
    assert (tmp_path / "keys" / "east.pub").read_text().startswith("ecdsa-sha2-nistp384 ")
    assert not (tmp_path / "keys" / "site.key").exists()  # a site's key is in its package only
    with pytest.raises(UserError, match="has keys already"):
        write_keys(tmp_path, ["east"])


def test_a_site_makes_its_own_key(tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="cryptography is not installed: pip install unseen[flower]")
    write_app(tmp_path / "app", deployment())
    place = tmp_path / "app" / "sites" / "east"
    done = CliRunner().invoke(app, ["flower", "key", str(place)])
    assert done.exit_code == 0, done.output
    assert done.stdout.strip() == (place / "site.pub").read_text().strip()
    assert stat.S_IMODE((place / "site.key").stat().st_mode) == 0o600
    again = CliRunner().invoke(app, ["flower", "key", str(place)])
    assert again.exit_code == 2 and "exists already" in again.output


def test_init_writes_an_app_that_names_every_command(tmp_path: Path) -> None:
    folder = tmp_path / "app"
    done = CliRunner().invoke(
        app, ["flower", "init", str(folder), "--sites", "a,b", "--method", "fedfd-a", "--host", "fl.org", *SMALL]
    )
    assert done.exit_code == 0, done.output
    readme = (folder / "README.md").read_text()
    for command in ("superlink.sh", "proxy.sh", "unseen flower node", "unseen flower register", "flwr run", "flwr stop",
                    "## 6. Upgrade", "systemctl", "docker compose"):  # fmt: skip
        assert command in readme, command
    link = (folder / "superlink.sh").read_text()
    assert "flower-superlink --host 127.0.0.1" in link and "--enable-supernode-auth" in link
    assert "location /v1/fleet/" in (nginx := (folder / "nginx.conf").read_text())
    assert "return 403" in nginx and "$host" in nginx and "proxy_request_buffering on" in nginx
    assert "ssl_verify_client" not in nginx and "deny all" not in nginx
    for site in ("a", "b"):
        place = folder / "sites" / site
        own = SiteFile.read(place)
        assert (own.superlink, own.node["site"], own.key) == ("fl.org:8443", site, place / "site.key")
        assert {path.name for path in place.iterdir()} == {
            "site.toml", "README.md", "unseen-site.service", "compose.yaml", "Dockerfile"
        }  # fmt: skip
    again = CliRunner().invoke(app, ["flower", "init", str(folder), "--sites", "a,b", *SMALL])
    assert again.exit_code == 2 and "not empty" in again.output


def test_the_written_commands_are_whole(tmp_path: Path) -> None:
    """Every code block is a piece of shell that can be pasted, and every `unseen` command in it is one."""
    write_app(tmp_path / "app", deployment(), allow=["192.0.2.0/24"], client_certificates=True)
    texts = [path.read_text() for path in sorted((tmp_path / "app").rglob("README.md"))]
    assert len(texts) == 1 + len(SITES)
    blocks = [block for text in texts for block in re.findall(r"```sh\n(.*?)```", text, re.S)]
    blocks += [(tmp_path / "app" / name).read_text() for name in ("superlink.sh", "proxy.sh", "environment.sh")]
    assert len(blocks) > 15
    for block in blocks:
        done = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), block
        for line in block.splitlines():
            if line.startswith("unseen "):
                shown = CliRunner().invoke(app, [*shlex.split(line)[1:3], "--help"])
                assert shown.exit_code == 0, line
    nginx = (tmp_path / "app" / "nginx.conf").read_text()
    assert "allow 192.0.2.0/24;\n        deny all;" in nginx and "ssl_verify_client on;" in nginx
    place = tmp_path / "app" / "sites" / SITES[0]
    assert SiteFile.read(place).certificate == place / "site.pem"


def test_the_services_are_sound(tmp_path: Path) -> None:
    write_app(tmp_path / "app", deployment())
    units = sorted((tmp_path / "app").rglob("*.service"))
    assert len(units) == 2 + len(SITES)
    for unit in units:
        read = configparser.ConfigParser(strict=False, interpolation=None)
        read.read(unit)
        assert read["Service"]["Restart"] == "always", unit
        assert read["Service"]["ExecStart"].startswith("/usr/bin/env "), unit
    if shutil.which("systemd-analyze"):
        done = subprocess.run(["systemd-analyze", "verify", *map(str, units)], capture_output=True, text=True)
        ours = [line for line in done.stderr.splitlines() if "unseen-" in line and "Unknown" in line]
        assert ours == []


def test_the_containers_name_what_is_there(tmp_path: Path) -> None:
    """Without an engine: every service, volume, script and Dockerfile that a compose file names exists."""
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    write_app(tmp_path / "app", deployment())
    files = sorted((tmp_path / "app").rglob("compose.yaml"))
    assert len(files) == 1 + len(SITES)
    for file in files:
        composed = yaml.safe_load(file.read_text())
        services = composed["services"]
        for name, service in services.items():
            assert service["build"] == "." and (file.parent / "Dockerfile").exists(), (file, name)
            assert set(service.get("depends_on", [])) <= services.keys()
            if (shared := service.get("network_mode", "")).startswith("service:"):
                assert shared.removeprefix("service:") in services
            mounted = {}
            for volume in service["volumes"]:
                source, place = volume.split(":")[:2]
                mounted[place] = file.parent / source if source.startswith(".") else Path(source)
                known = source in composed.get("volumes", {}) or mounted[place].exists() or source == "/data/images"
                assert known, (file, volume)
            for word in service["command"]:  # a path in the container lies in a mount, and is there on the host
                for place, source in mounted.items():
                    if word.startswith(f"{place}/"):
                        assert (source / word.removeprefix(f"{place}/")).exists(), (file, word)
    site, coordinator = yaml.safe_load(files[-1].read_text()), yaml.safe_load(files[0].read_text())
    assert "ports" not in site["services"]["site"]  # nothing listens at a site
    assert coordinator["services"]["proxy"]["network_mode"] == "service:superlink"
    assert coordinator["services"]["superlink"]["ports"] == ["8443:8443"]  # the proxy's port, not the SuperLink's


def test_a_path_that_nginx_would_read_as_its_own_is_refused(tmp_path: Path) -> None:
    for name in ("my app", "app;", "app$(x)", "app{"):
        done = CliRunner().invoke(app, ["flower", "init", str(tmp_path / name), "--sites", "a,b", *SMALL])
        assert done.exit_code == 2 and "give another folder" in done.output
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("host", ["a b", "a\nb", "", "ü.example", "x" * 300])
def test_a_host_that_is_none_gets_no_certificate(host: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--host"):
        write_keys(tmp_path, ["a"], ["localhost", host])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('key = "k"\nsite = "a"\nfolder = "f"\n', 'no "superlink"'),
        ('superlink = "h:1"\nkey = "k"\nsite = "a"\nfolder = "f"\nepsilno = 1\n', "epsilon"),
        ("superlink = ", "not valid TOML"),
        ("superlink = " + "[" * 100_000, "nested too deeply"),
        ("threads = " + "9" * 5000, "not valid TOML"),
        ('superlink = "h:1"\nkey = true\nsite = "a"\nfolder = "f"\n', '"key"'),
        ('superlink = "h:1"\nkey = "k"\nsite = ["a"]\nfolder = "f"\n', '"site"'),
    ],
)
def test_a_site_file_says_what_is_wrong(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "site.toml").write_text(text)
    done = CliRunner().invoke(app, ["flower", "node", str(tmp_path)])
    assert done.exit_code == 2
    assert said in done.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sites", "a b,c"], "--sites"),
        (["--sites", "a,b,a"], 'names "a" twice'),
        (["--sites", "a,b", "--minimum-clients", "3"], "--minimum-clients"),
        (["--sites", "a,b", "--data", "pacs"], "--data folder"),
        (["--sites", "a,b", "--method", "fedavgg"], "fedavg"),
        (["--sites", "a,b", "--target", "none", "--target-folder", "x"], "--target none leaves no site out"),
        (["--sites", "a,b", "--target", "none", "--server-selection", "oracle"], "oracle needs an unseen domain"),
        (["--sites", "a,b", "--method", "doprompt", *SMALL], "transformer"),
        (["--sites", "a,b", *SMALL, "--weights", "nowhere.safetensors"], "nowhere.safetensors"),
        (["--sites", "a,b", *SMALL, "--allow-network", "everyone"], "--allow-network"),
        (["--sites", "a,b", *SMALL, "--host", "fl.example.org\nallow all;"], "--host"),
        (["--sites", "a,b", *SMALL, "--host", ""], "--host"),
        (["--sites", "a,b", *SMALL, "--port", "99999999"], "--port"),
        (["--sites", "a,b", *SMALL, "--link-port", "0"], "--link-port"),
        (["--sites", "a,b", *SMALL, "--timeout", "nan"], "--timeout"),
        (["--sites", "a,b", *SMALL, "--timeout", "inf"], "--timeout"),
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
    from unseen.engines.flower.coordinator import _target

    words = ["--sites", "a,b", "--target", "none", "--backbone", "convnet", "--image-size", "32", "--weights", "none"]
    done = CliRunner().invoke(app, ["flower", "init", str(tmp_path / "app"), *words, "--test-every", "1"])
    assert done.exit_code == 0, done.output
    config = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    made = Deployment.from_config(config)
    settings = made.fitting()
    assert settings.target == "none" and settings.left_out == "no domain left out" and settings.plan.test_every == 0
    assert _target(made, ("x", "y")) is None
    assembly = assemble(PlannedRun(settings, parse(settings.method), None), RunData(("x", "y"), {}, None))
    assert assembly.net.classes == 2 and assembly.data.target is None
    assert Path(made.out, directory_for(settings, Path()).name).name.startswith("folder-none-fedavg-s0-")


def test_a_trial_whose_run_is_stopped_says_so_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`flwr stop` ends the ServerApp, which then writes no status any more."""
    pytest.importorskip("flwr", reason="Flower is not installed: pip install unseen[flower]")
    from unseen.engines.flower import control, poc

    said: list[str] = ["", "", "stopped"]
    monkeypatch.setattr(control, "how_it_ended", lambda app, run: said.pop(0))
    monkeypatch.setattr(poc, "ASK", 0.0)
    monkeypatch.setattr(poc, "LOOK", 0.0)
    trial = poc.Poc(tmp_path, deployment(out=str(tmp_path)), Processes(tmp_path, {}), 1, 2, False, print)
    with pytest.raises(UserError, match=r"ended without a result \(stopped\); the same command again goes on"):
        trial.follow(lambda status: None)
    assert said == []
