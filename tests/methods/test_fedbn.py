"""FedBN and SiloBN: which state a client never loads, and what the server has of it all the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.tiny_federation import federation, same
from tests.tiny_work import tiny_net
from unseen.core.tensors import snapshot
from unseen.core.types import Tensors, Work
from unseen.method import Method
from unseen.methods.fedbn import FedBN
from unseen.methods.silobn import SiloBN

OWN = {FedBN: ("weight", "bias", "running_mean", "running_var"), SiloBN: ("running_mean", "running_var")}


@pytest.mark.parametrize("kind", [FedBN, SiloBN])
def test_what_is_kept_by_name(kind: type[Method]) -> None:
    net = tiny_net(kind())
    norms = [name for name, module in net.named_modules() if isinstance(module, nn.BatchNorm2d)]
    assert len(norms) == 4
    share = kind().share(net)
    kept = {key for key in share.up - share.down if not key.endswith("num_batches_tracked")}
    assert kept == {f"{name}.{part}" for name in norms for part in OWN[kind]}
    assert share.down < share.up  # all goes up: the unseen domain has no client whose norms it could take


@pytest.mark.parametrize("kind", [FedBN, SiloBN])
def test_a_client_goes_on_with_its_own_and_the_server_has_the_mean(kind: type[Method], tmp_path: Path) -> None:
    begun: dict[tuple[str, int], Tensors] = {}
    ended: dict[tuple[str, int], Tensors] = {}

    class Watched(kind):
        def prepare(self, work: Work) -> None:
            begun[work.client, work.round] = snapshot(work.net)

        def report(self, work: Work) -> Tensors:
            ended[work.client, work.round] = snapshot(work.net)
            return {}

    world = federation(Watched(), tmp_path, rounds=2)
    world.run()
    own, common = world.share.up - world.share.down, world.share.down
    for client in world.clients:
        before, now = ended[client, 1], begun[client, 2]
        assert all(torch.equal(before[key], now[key]) for key in own)
        assert same({key: now[key] for key in common}, {key: begun["a", 2][key] for key in common})
    sizes = {client: len(here.train) for client, here in world.sites.items()}
    for key in own:
        mean = sum(ended[client, 2][key].double() * size for client, size in sizes.items()) / sum(sizes.values())
        if ended["a", 2][key].is_floating_point():
            assert not torch.equal(ended["a", 2][key], ended["b", 2][key])
            torch.testing.assert_close(world.server.state[key].double(), mean, rtol=1e-5, atol=1e-6)
