from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from unseen.core.errors import UserError
from unseen.nets.backbones import create_net
from unseen.nets.weights import load_weights

SHARED = Path(__file__).parents[3] / "shared" / "weights" / "mobilenetv2_100.imagenet.safetensors"


def backbone_state(name: str, size: int) -> dict[str, torch.Tensor]:
    net = create_net(name, 3, image_size=size, seed=1)
    return {key: value.clone() for key, value in net.backbone.state_dict().items()}


def tiny_clip() -> nn.Module:
    """A transformer of few numbers as CLIP has it: with a norm in front of the blocks, and QuickGELU."""
    from unseen.nets.timm_backbones import timm  # not by itself: see torchvision_ops

    made: nn.Module = timm.create_model("test_vit", num_classes=0, img_size=32, pre_norm=True, act_layer="quick_gelu")
    return made


def named_by_openai(state: dict[str, Tensor], projection: Tensor) -> dict[str, Tensor]:
    """timm's tensors of a CLIP tower as OpenAI's and open_clip's files have them, D x E projection and all."""
    swaps = {
        "patch_embed.proj.": "conv1.", "norm_pre.": "ln_pre.", "blocks.": "transformer.resblocks.", "norm1.": "ln_1.",
        "norm2.": "ln_2.", "attn.qkv.": "attn.in_proj_", "attn.proj.": "attn.out_proj.", "mlp.fc1.": "mlp.c_fc.",
        "mlp.fc2.": "mlp.c_proj.", "cls_token": "class_embedding", "pos_embed": "positional_embedding",
    }  # fmt: skip
    found = {"visual.proj": projection}
    for name, value in state.items():
        for ours, theirs in swaps.items():
            name = name.replace(ours, theirs)
        name = re.sub(r"^norm\.", "ln_post.", name)
        value = value.flatten() if name == "class_embedding" else value[0] if name == "positional_embedding" else value
        found[f"visual.{name}"] = value.clone()
    return found


def test_a_file_is_loaded_and_its_classifier_ignored(tmp_path: Path) -> None:
    state = backbone_state("convnet", 32)
    content = {**state, "fc.weight": torch.zeros(1000, 64), "fc.bias": torch.zeros(1000)}
    path = tmp_path / "weights.safetensors"
    save_file(content, path)
    net = create_net("convnet", 3, image_size=32, seed=2, weights=str(path))
    assert all(torch.equal(value, state[key]) for key, value in net.backbone.state_dict().items())


def test_alexnet_takes_torchvisions_names(tmp_path: Path) -> None:
    state = backbone_state("alexnet", 64)
    assert {"features.0.weight", "features.10.bias", "classifier.1.weight", "classifier.4.weight"} <= state.keys()
    save_file({**state, "classifier.6.weight": torch.zeros(1000, 4096)}, tmp_path / "a.safetensors")
    net = create_net("alexnet", 3, image_size=64, weights=str(tmp_path / "a.safetensors"))
    assert torch.equal(net.backbone.state_dict()["features.3.weight"], state["features.3.weight"])


def test_a_transformer_takes_another_image_size(tmp_path: Path) -> None:
    save_file(backbone_state("vit_tiny_patch16_224", 64), tmp_path / "vit.safetensors")
    net = create_net("vit_tiny_patch16_224", 3, image_size=96, weights=str(tmp_path / "vit.safetensors"))
    assert net.backbone.state_dict()["pos_embed"].shape == (1, 37, 192)
    assert net(torch.rand(1, 3, 96, 96)).shape == (1, 3)


def test_a_tower_by_clips_own_names(tmp_path: Path) -> None:
    """Its projection is no part of the tower, though timm makes a classifier of it; the text tower is none either."""
    from unseen.nets.timm_backbones import VisionTransformerAnatomy

    torch.manual_seed(1)
    state, path = tiny_clip().state_dict(), tmp_path / "clip.safetensors"
    content = named_by_openai(state, torch.rand(64, 10))
    assert {"visual.conv1.weight", "visual.transformer.resblocks.0.attn.in_proj_weight", "visual.ln_pre.weight"} <= {
        *content
    }
    save_file({**content, "logit_scale": torch.tensor(4.6), "transformer.resblocks.0.ln_1.weight": torch.ones(8)}, path)
    torch.manual_seed(2)
    tower = tiny_clip()
    assert not torch.equal(tower.state_dict()["cls_token"], state["cls_token"])
    load_weights(tower, path, VisionTransformerAnatomy())
    assert all(torch.equal(value, state[key]) for key, value in tower.state_dict().items())


def test_a_file_that_does_not_fit_says_which_tensors(tmp_path: Path) -> None:
    state = backbone_state("convnet", 32)
    del state["blocks.0.1.weight"]
    state["blocks.1.0.weight"] = torch.zeros(2, 2)
    state["stranger"] = torch.zeros(1)
    save_file(state, tmp_path / "bad.safetensors")
    with pytest.raises(UserError) as error:
        create_net("convnet", 3, image_size=32, weights=str(tmp_path / "bad.safetensors"))
    text = str(error.value)
    assert "1 missing (blocks.0.1.weight)" in text
    assert "1 unexpected (stranger)" in text
    assert "1 of another shape (blocks.1.0.weight (2, 2) for (64, 32, 3, 3))" in text


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no weights file"):
        create_net("convnet", 3, image_size=32, weights=str(tmp_path / "absent.safetensors"))
    (tmp_path / "bad.safetensors").write_bytes(b"not weights")
    with pytest.raises(UserError, match="cut off"):
        create_net("convnet", 3, image_size=32, weights=str(tmp_path / "bad.safetensors"))


def test_a_pickled_file_is_not_opened_and_the_docs_line_converts_it(tmp_path: Path) -> None:
    state = backbone_state("convnet", 32)
    torch.save(state, tmp_path / "weights.pth")
    with pytest.raises(UserError, match=r"is not a \.safetensors file: docs/cli\.md has the line"):
        create_net("convnet", 3, image_size=32, weights=str(tmp_path / "weights.pth"))
    docs = Path(__file__).parents[2] / "docs" / "cli.md"
    (code,) = [
        block for block in re.findall(r"```python\n(.*?)```", docs.read_text(), re.DOTALL) if "save_file" in block
    ]
    files = [str(tmp_path / "weights.pth"), str(tmp_path / "w.safetensors")]
    subprocess.run([sys.executable, "-c", code, *files], check=True)
    net = create_net("convnet", 3, image_size=32, seed=2, weights=str(tmp_path / "w.safetensors"))
    assert all(torch.equal(value, state[key]) for key, value in net.backbone.state_dict().items())


def test_the_hub_out_of_reach_says_to_give_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    from unseen.nets.timm_backbones import timm  # not by itself: see torchvision_ops

    create = timm.create_model

    def offline(name: str, pretrained: bool = False, **arguments: object) -> object:
        if pretrained:
            raise ConnectionError("no network")
        return create(name, **arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(timm, "create_model", offline)
    monkeypatch.setattr("unseen.nets.timm_backbones.hub_is_there", lambda: True)
    with pytest.raises(UserError, match=r"ConnectionError.*--weights none or --weights FILE"):
        create_net("resnet18", 3, image_size=32, weights="imagenet")
    with pytest.raises(UserError, match="give a file to --weights"):
        create_net("convnet", 3, image_size=32, weights="imagenet")


def test_without_a_network_the_hub_is_asked_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The hub's library would try for more than a minute. Here every connection is refused and counted."""
    import socket

    from huggingface_hub import constants

    asked: list[object] = []

    def refused(place: object, *more: object, **named: object) -> None:
        asked.append(place)
        raise ConnectionRefusedError("no network")

    def refused_socket(self: socket.socket, place: object) -> None:
        refused(place)

    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(socket, "create_connection", refused)
    monkeypatch.setattr(socket.socket, "connect", refused_socket)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    before = constants.HF_HUB_OFFLINE
    with pytest.raises(UserError, match=r"resnet18.*no connection.*--weights none or --weights FILE"):
        create_net("resnet18", 3, image_size=32, weights="imagenet")
    assert asked == [("huggingface.co", 443)] and before == constants.HF_HUB_OFFLINE


@pytest.mark.skipif(not SHARED.is_file(), reason="needs ../shared/weights")
def test_the_shared_imagenet_weights() -> None:
    net = create_net("mobilenetv2_100", 7, image_size=96, weights=str(SHARED))
    state = load_file(SHARED)
    assert torch.equal(net.backbone.state_dict()["conv_stem.weight"], state["conv_stem.weight"])
    assert net.backbone.state_dict().keys() == {key for key in state if not key.startswith("classifier.")}
