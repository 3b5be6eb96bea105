"""What a site decides alone."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install unseen[flower]")

from unseen.core.errors import UserError
from unseen.engines.flower.site import SiteConfig, check_files
from unseen.method import files_of
from unseen.registry import parse, registered


def test_a_server_cannot_make_a_site_open_a_file(tmp_path: Path) -> None:
    """`/etc/shadow` and a file that is not there give the same sentence: nothing is opened to find out."""
    own = {"site": "east", "folder": str(tmp_path)}
    sentences = []
    for name in ("/etc/shadow", "/nowhere/at/all"):
        method = parse("fedavg+ccst", {"encoder": name, "decoder": name})
        assert files_of(method) == {"ccst.encoder": name, "ccst.decoder": name}
        with pytest.raises(UserError, match=r"ccst\.encoder.*files=") as caught:
            check_files(method, SiteConfig.read(own))
        sentences.append(str(caught.value))
    assert sentences[0] == sentences[1]


def test_a_site_allows_files_one_by_one(tmp_path: Path) -> None:
    one, two = tmp_path / "vgg.safetensors", tmp_path / "decoder.safetensors"
    config = {"site": "east", "folder": str(tmp_path), "files": f"{one}, {two}"}
    method = parse("ccst", {"encoder": str(one), "decoder": str(tmp_path / "x" / ".." / two.name)})
    check_files(method, SiteConfig.read(config))
    with pytest.raises(UserError, match=r"ccst\.decoder"):
        check_files(method, SiteConfig.read({**config, "files": str(one)}))
    check_files(parse("ccst"), SiteConfig.read({"site": "east", "folder": str(tmp_path)}))


def test_no_field_that_names_a_file_is_a_plain_string() -> None:
    """A new method with a file of its own must say so, or a site would open whatever a server names."""
    named = {f"{name}.{field}" for name, kind in registered().items() for field in vars(kind()) if "coder" in field}
    assert named == {"ccst.encoder", "ccst.decoder"}
    plain = [
        f"{name}.{field}"
        for name, kind in registered().items()
        for field, value in vars(kind()).items()
        if value == "" and f"{name}.{field}" not in named
    ]
    assert plain == []
