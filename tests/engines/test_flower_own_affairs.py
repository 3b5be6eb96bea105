"""What a site does not let the server decide."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install unseen[flower]")

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from tests.attempts import attempt
from tests.engines.sites import CLASSES, small
from unseen.core.errors import UserError
from unseen.core.types import Order
from unseen.engines.flower import own_affairs, site
from unseen.engines.flower.own_affairs import check_own_files, check_room, own_digests, own_fields
from unseen.engines.flower.packing import Packer
from unseen.engines.flower.records import order_content
from unseen.methods import OWN_FILES

METHOD = '''
from dataclasses import dataclass
from typing import ClassVar

from unseen.method import Method


@dataclass(frozen=True)
class Mine(Method):
    """Mine, version {number}."""

    name: ClassVar[str] = "{name}"
'''


def test_a_server_cannot_name_a_file_of_a_site() -> None:
    asked = small(Path("/data"), "ccst", fields={"encoder": "/etc/shadow", "decoder": "/etc/shadow", "side": 16})
    with attempt("paths"), pytest.raises(UserError, match=r'does not let the server choose "encoder"'):
        own_fields(asked, {})
    # What the site itself says is taken instead of what the server said; other fields are the server's.
    assert own_fields(asked, {"encoder": "vgg", "decoder": "dec"}) == {"encoder": "vgg", "decoder": "dec", "side": 16}
    assert own_fields(asked, {"ccst.encoder": "vgg", "ccst.decoder": "dec"})["ccst.encoder"] == "vgg"
    assert own_fields(small(Path("/data"), "fedprox", fields={"mu": 0.5}), {}) == {"mu": 0.5}


def test_no_answer_of_a_site_depends_on_a_file_that_the_server_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An oracle would have two answers: one for a file that is there, one for a file that is not."""
    for name in ("run_id", "node_id", "task_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)
    answers: set[str] = set()
    there = tmp_path / "secret"
    there.write_text("hush")
    for path in (there, tmp_path / "nothing"):
        fields = {"encoder": str(path), "decoder": str(path)}
        settings = small(folder / "data", "ccst", "flower", fields=fields)
        about = {"settings": json.dumps(settings.to_json()), "classes": json.dumps(CLASSES), "own": "{}"}
        content = order_content(Order("train", 1, {}), about, Packer())
        config = {"site": "east", "folder": str(folder / "data" / "east"), "keep": str(tmp_path / "keep")}
        reply = site.app(Message(content, 1, "train"), Context(1, 1, config, RecordDict(), {}))
        record = reply.content["reply"]
        assert isinstance(record, ConfigRecord)
        answers.add(str(record["sentence"]))
    with attempt("paths", 2):
        assert len(answers) == 1
        assert "does not let the server choose" in answers.pop()


def test_a_run_may_not_fill_a_sites_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_affairs.shutil, "disk_usage", lambda _: SimpleNamespace(free=own_affairs.SPARE + 1000))
    check_room(tmp_path / "not" / "yet", 1000, "images")
    with attempt("paths"), pytest.raises(UserError, match=r"would need 1.00 kB for images.*disk has"):
        check_room(tmp_path / "not" / "yet", 1001, "images")


def test_a_method_of_an_own_file_travels_by_its_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"mine{os.getpid()}"
    file = tmp_path / "mine.py"
    file.write_text(METHOD.replace("{number}", "1").replace("{name}", name))
    monkeypatch.setenv(OWN_FILES, str(file))
    coordinator = own_digests(f"fedbn+{name}")
    assert set(coordinator) == {name}  # the methods of unseen itself need none: the version says them
    check_own_files(coordinator)
    file.write_text(file.read_text().replace("version 1", "version 2"))
    with pytest.raises(UserError, match=rf'another version of the method "{name}"'):
        check_own_files(coordinator)
    with pytest.raises(UserError, match=r'does not have the coordinator\'s own method "yours".*--with FILE'):
        check_own_files({"yours": "0"})
