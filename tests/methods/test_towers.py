"""FedCLIP, PromptFL and FedIns on small random towers; all methods of towers on one from a file."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import unseen
from tests.data.trees import paint_tree
from tests.methods.test_fediir import softmax
from tests.nets.test_weights import named_by_openai, tiny_clip
from tests.tiny_federation import federation
from tests.tiny_work import batch, make_work, tiny_net
from unseen.core.errors import UserError
from unseen.method import Method
from unseen.methods.doprompt import DoPrompt
from unseen.methods.fedclip import FedCLIP
from unseen.methods.feddgmoe import FedDGMoE
from unseen.methods.fedins import FedIns
from unseen.methods.promptfl import PromptFL
from unseen.nets.backbones import create_net
from unseen.nets.net import Net
from unseen.nets.parts.pools import Keys, Scaled
from unseen.nets.parts.prompts import prompt_of
from unseen.nets.weights import load_weights

SIZE = 64  # features of test_vit
TOWERS = (DoPrompt(), FedCLIP(), PromptFL(), FedIns(), FedDGMoE())


def tower_features() -> np.ndarray:
    with torch.no_grad():
        found: np.ndarray = create_net("test_vit", 3, image_size=32).eval().features(batch().x).numpy()
    return found


@pytest.mark.parametrize("method", [FedCLIP(), PromptFL(), FedIns()], ids=lambda m: m.name)
def test_the_tower_stays_and_does_not_travel(method: Method, tmp_path: Path) -> None:
    fed = federation(method, tmp_path, rounds=1, local_steps=2)
    before = {key: value.clone() for key, value in fed.net.state_dict().items()}
    still = {key for key, p in fed.net.named_parameters() if not p.requires_grad}
    fed.run()
    assert still and not still & (fed.share.up | fed.share.down)
    assert all(torch.equal(before[key], fed.net.state_dict()[key]) for key in still)
    trained = sum(p.numel() for p in fed.net.parameters() if p.requires_grad)
    up = [entry for key, entry in fed.ledger.entries.items() if key.startswith("up/model/")]
    assert sum(int(np.prod(entry.shape)) for entry in up) == trained
    with pytest.raises(UserError, match="convnet"):
        method.build(create_net("convnet", 3, image_size=32))


def tower_in(state: dict[str, Tensor], known: dict[str, Tensor]) -> dict[str, Tensor]:
    """The backbone's tensors as they are called without what methods put around its modules."""
    plain = {re.sub(r"\.(inner|before)\b", "", key.removeprefix("backbone.")): value for key, value in state.items()}
    return {key: value for key, value in plain.items() if key in known}


@pytest.mark.parametrize("method", TOWERS, ids=lambda m: m.name)
def test_a_run_on_a_file_keeps_the_frozen_tower(method: Method, tmp_path: Path) -> None:
    paint_tree(tmp_path / "sites", domains=3, classes=2, each=8)
    file = tmp_path / "tower.safetensors"
    save_file(
        {key: v.clone() for key, v in create_net("test_vit", 2, image_size=32, seed=9).backbone.state_dict().items()},
        file,
    )
    tiny: dict[str, Any] = {"rounds": 1, "local_steps": 1, "batch_size": 4, "image_size": 32, "test_every": 0}
    result = unseen.run(
        target="d0", method=method.name, protocol="digits-vit", data="folder", root=tmp_path / "sites", weights=file,
        out=tmp_path / "out", workers=1, **tiny,
    )  # fmt: skip
    assert result.directory is not None
    known = load_file(file)
    found = tower_in(load_file(result.directory / "model.safetensors"), known)
    assert found.keys() == known.keys()
    away = max(float((found[key] - known[key]).abs().max()) for key in known)
    # DoPrompt trains its transformer: one step of AdamW away from the file, not from a random start.
    assert 0 < away < 0.01 if method.name == "doprompt" else away == 0


@pytest.mark.parametrize("method", TOWERS, ids=lambda m: m.name)
def test_a_round_on_a_tower_of_clip(method: Method, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a norm in front of the blocks, where prompts are put too, and by OpenAI's names."""
    from unseen.nets.timm_backbones import VisionTransformerAnatomy

    known, anatomy = tiny_clip().state_dict(), VisionTransformerAnatomy()
    save_file(named_by_openai(known, torch.rand(SIZE, 10)), tmp_path / "clip.safetensors")

    def from_file(method: Method) -> Net:
        backbone = tiny_clip()
        load_weights(backbone, tmp_path / "clip.safetensors", anatomy)
        return method.build(Net(backbone, anatomy, 3, image_size=32, backbone_name="clip"))

    monkeypatch.setattr("tests.tiny_federation.tiny_net", from_file)
    fed = federation(method, tmp_path, rounds=1, local_steps=1)
    assert all(torch.equal(value, known[key]) for key, value in tower_in(fed.net.state_dict(), known).items())
    fed.run()
    found = tower_in(fed.net.state_dict(), known)
    assert found.keys() == known.keys()
    assert all(torch.equal(value, known[key]) for key, value in found.items()) == (method.name != "doprompt")


def test_the_pages_recipe_makes_a_tower_and_a_text_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for open_clip, whose tower has the tensors of a small CLIP."""
    from unseen.nets.timm_backbones import VisionTransformerAnatomy

    known, projection, texts = tiny_clip().state_dict(), torch.rand(SIZE, 10), torch.rand(3, 10)
    named = named_by_openai(known, projection)
    visual = SimpleNamespace(
        proj=nn.Parameter(projection), state_dict=lambda: {key.removeprefix("visual."): v for key, v in named.items()}
    )
    asked: list[str] = []
    model = SimpleNamespace(visual=visual, encode_text=lambda tokens: texts)
    stand_in = SimpleNamespace(
        create_model_and_transforms=lambda name, **more: (model, None, None),
        get_tokenizer=lambda name: asked.extend,
    )
    page = Path(__file__).parents[2] / "docs" / "methods" / "fedclip.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    monkeypatch.setitem(sys.modules, "open_clip", stand_in)
    monkeypatch.setattr(sys, "argv", ["recipe.py", "dog,horse,house"])
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    assert asked == ["a photo of a dog", "a photo of a horse", "a photo of a house"]
    tower = tiny_clip()
    load_weights(tower, tmp_path / "tower.safetensors", VisionTransformerAnatomy())
    assert all(torch.equal(value, known[key]) for key, value in tower.state_dict().items())
    net = tiny_net(FedCLIP(text=str(tmp_path / "text.safetensors")))
    torch.testing.assert_close(net.head.weight, F.normalize(texts, dim=1))
    assert torch.equal(net.neck[1].weight, projection.T)  # type: ignore[index]
    # The plain model has another activation than OpenAI's towers were trained with.
    assert "vit_base_patch16_clip_quickgelu_224" in page.read_text() and "force_quick_gelu=True" in code


def test_fedclip_by_hand_with_text(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    projection, classes = rng.normal(size=(10, SIZE)).astype("f"), rng.normal(size=(3, 10)).astype("f")
    path = tmp_path / "text.safetensors"
    save_file({"projection": torch.tensor(projection), "classes": torch.tensor(classes)}, path)
    method = FedCLIP(text=str(path), scale=7.0)
    work, z = make_work(method), tower_features() @ projection.T
    work.net.eval()
    w1, b1, w2, b2 = (p.detach().numpy() for p in work.net.neck.parameters() if p.requires_grad)
    mixed = z * softmax(np.tanh(z @ w1.T + b1) @ w2.T + b2)
    unit = mixed / np.linalg.norm(mixed, axis=1, keepdims=True)
    expected = 7.0 * unit @ (classes / np.linalg.norm(classes, axis=1, keepdims=True)).T
    with torch.no_grad():
        np.testing.assert_allclose(work.net(batch().x).numpy(), expected, rtol=1e-3, atol=1e-3)
    assert {key.split(".")[0] for key in method.share(work.net).up} == {"neck"}  # the adapter alone
    assert not method.about.remark and FedCLIP().about.remark
    save_file({"projection": torch.tensor(projection[:, :5])}, path)
    with pytest.raises(UserError, match='"projection"'):
        tiny_net(method)


def test_promptfl_trains_the_prompt_and_the_head() -> None:
    net = tiny_net(PromptFL(length=2))
    name, prompt = prompt_of(net)
    assert prompt.tokens.shape == (2, SIZE)
    assert PromptFL().share(net).up == {name, "head.weight", "head.bias"}


def test_fedins_chooses_by_keys_and_takes_means() -> None:
    method = FedIns(pool=4, take=2, weight=0.3)
    work, images = make_work(method), batch()
    net = work.net.eval()
    keys = net.extras["pool_keys"]
    assert isinstance(keys, Keys)
    queries, known = tower_features(), keys.keys.detach().numpy()
    unit = queries / np.linalg.norm(queries, axis=1, keepdims=True)
    likeness = unit @ (known / np.linalg.norm(known, axis=1, keepdims=True)).T
    rows = np.argsort(-likeness, axis=1)[:, :2]
    with torch.no_grad():
        found, near = keys.choose(torch.tensor(queries))
    assert found.tolist() == rows.tolist()
    np.testing.assert_allclose(near.numpy(), np.sort(likeness, axis=1)[:, 2:].sum(1), rtol=1e-4, atol=1e-5)
    scaled = next(module for module in net.modules() if isinstance(module, Scaled))
    x = torch.randn(8, 5, SIZE, generator=torch.Generator().manual_seed(0))
    scaled.inner = torch.nn.Identity()
    with keys.taking(found):
        out = scaled(x)
    scale, shift = scaled.scale.detach().numpy(), scaled.shift.detach().numpy()
    for image in range(8):
        by_hand = x[image].numpy() * scale[rows[image]].mean(0) + shift[rows[image]].mean(0)
        np.testing.assert_allclose(out[image].detach().numpy(), by_hand, rtol=1e-4, atol=1e-5)
    assert torch.equal(scaled(x), x)  # outside, nothing is scaled
    assert images.y.shape == (8,)


def test_fedins_loss_and_answers_by_hand() -> None:
    method, images = FedIns(pool=4, take=2, weight=0.3), batch()
    work = make_work(method)
    work.net.eval()
    with torch.no_grad():
        features, logits, near = method.adapted(work.net, images.x)
        rows = work.net.extras["pool_keys"].choose(torch.tensor(tower_features()))[0]  # type: ignore[operator]
    weight, bias = (p.detach().numpy() for p in work.net.head.parameters())
    for image in range(8):
        head = weight[rows[image]].mean(0), bias[rows[image]].mean(0)
        np.testing.assert_allclose(
            logits[image].numpy(), head[0] @ features[image].numpy() + head[1], rtol=1e-3, atol=1e-3
        )
    expected = 0.7 * F.cross_entropy(logits, images.y) + 0.3 * (1 - near.mean())
    assert work.method.loss(work, images).item() == pytest.approx(expected.item(), rel=1e-4)
    with pytest.raises(UserError, match="take is 9"):
        tiny_net(FedIns(pool=4, take=9))
