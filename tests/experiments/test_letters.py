"""benchmarks/letters.py: a short run writes a file that `digits-vit` starts from."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
import torch

from unseen.nets.backbones import create_net
from unseen.runs.protocols import PROTOCOLS

SCRIPT = Path(__file__).parent.parent.parent / "benchmarks" / "letters.py"


def test_a_short_run_writes_weights_that_fit_the_protocols_net(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    protocol = PROTOCOLS["digits-vit"]
    files = [tmp_path / "once.safetensors", tmp_path / "again.safetensors"]
    for file in files:
        monkeypatch.setattr(sys, "argv", ["letters.py", str(file), "--steps", "8"])
        runpy.run_path(str(SCRIPT), run_name="__main__")
        said = capsys.readouterr().out
        assert "step 8: " in said and str(file) in said
    assert files[0].read_bytes() == files[1].read_bytes()  # the same seed, the same bits
    trained = create_net(protocol.net.backbone, 10, image_size=protocol.data.image_size, weights=str(files[0]))
    drawn = create_net(protocol.net.backbone, 10, image_size=protocol.data.image_size)
    key = "backbone.patch_embed.proj.weight"
    assert not torch.equal(trained.state_dict()[key], drawn.state_dict()[key])
    assert torch.equal(trained.state_dict()["head.weight"], drawn.state_dict()["head.weight"])
