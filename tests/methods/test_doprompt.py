from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.tiny_work import batch, make_work, tiny_net
from unseen.core.errors import UserError
from unseen.methods.doprompt import DoPrompt
from unseen.methods.fedavg import FedAvg
from unseen.nets.backbones import create_net
from unseen.nets.parts.prompts import instead, prompt_of


def test_four_tokens_join_and_clients_keep_them() -> None:
    net = tiny_net(DoPrompt())
    plain = create_net("test_vit", 3, image_size=32)
    x = batch(2).x
    assert net.run_stage(0, x).shape[3] == plain.run_stage(0, x).shape[3] + 4
    name, prompt = prompt_of(net)
    assert prompt.tokens.shape == (4, 64)
    share = DoPrompt().share(net)
    assert share.up - share.down == {name}
    assert set(net.state_dict()) - set(plain.state_dict()) == {name}
    with pytest.raises(UserError, match="convnet"):
        DoPrompt().build(create_net("convnet", 3, image_size=32))


def test_the_prompt_is_read_by_the_blocks() -> None:
    net, x = tiny_net(DoPrompt()).eval(), batch(2).x
    _, prompt = prompt_of(net)
    with torch.no_grad():
        before = net(x)
        with instead(prompt, prompt.tokens + 1):
            assert not torch.allclose(net(x), before)
        assert torch.equal(net(x), before)


def test_fedfd_on_prompts_by_hand() -> None:
    method, images = DoPrompt(diversify=True, u=(0.2, 0.6)), batch(4)
    work = make_work(method)
    name, prompt = prompt_of(work.net)
    with torch.no_grad():
        prompt.tokens.add_(torch.randn(4, 64))  # the own prompt has left the received one
    u = 0.2 + 0.4 * torch.rand(1, 64, generator=torch.Generator().manual_seed(0))
    mixed = u * prompt.tokens + (1 - u) * work.received[name]
    net = work.net
    own = net.features(images.x)
    with instead(prompt, mixed):
        other = net.features(images.x)
    ce, second = (F.cross_entropy(net.head(f), images.y) for f in (own, other))
    got = method.loss(work, images)
    torch.testing.assert_close(got, 0.9 * ce + 0.1 * second + 4 * (own - other).square().mean())
    summed = make_work(DoPrompt(diversify=True, reduce="sum", u=(1.0, 1.0)), net=net)
    torch.testing.assert_close(summed.method.loss(summed, images), ce)  # the own prompt twice
    plain = make_work(DoPrompt(), net=net)
    torch.testing.assert_close(plain.method.loss(plain, images), FedAvg().loss(plain, images))
