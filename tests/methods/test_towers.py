"""FedCLIP, PromptFL and FedIns on small random towers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from tests.methods.test_fediir import softmax
from tests.tiny_federation import federation
from tests.tiny_work import batch, make_work, tiny_net
from unseen.core.errors import UserError
from unseen.method import Method
from unseen.methods.fedclip import FedCLIP
from unseen.methods.fedins import FedIns
from unseen.methods.promptfl import PromptFL
from unseen.nets.backbones import create_net
from unseen.nets.parts.pools import Keys, Scaled
from unseen.nets.parts.prompts import prompt_of

SIZE = 64  # features of test_vit


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
