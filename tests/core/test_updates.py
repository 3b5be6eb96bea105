from __future__ import annotations

import torch

from tests.tiny_work import tiny_net
from unseen.core.types import Reply, Server
from unseen.core.updates import advanced, dot, split, stepped_state
from unseen.methods.fedbn import FedBN


def test_what_has_an_update_is_what_clients_load_train_and_send() -> None:
    net = tiny_net(FedBN())
    everything = stepped_state(net, net.share_all())
    assert everything == {name for name, _ in net.named_parameters()}
    # A client under FedBN does not start from the server's BatchNorm, so what it sends of it is no update.
    own = stepped_state(net, FedBN().share(net))
    assert own < everything and not any(key in own for key in net.state_of(torch.nn.BatchNorm2d))
    next(net.parameters()).requires_grad_(False)
    assert len(stepped_state(net, net.share_all())) == len(everything) - 1


def test_split_and_advanced_are_each_others_inverse_for_one_client() -> None:
    server = Server({"w": torch.tensor([1.0, 2.0]), "running": torch.ones(1)}, stepped=frozenset({"w"}))
    state = {"w": torch.tensor([1.5, 1.0]), "running": torch.zeros(1)}
    update, rest = split(server, Reply("a", "train", 1, 1, state=state))
    assert update["w"].dtype == torch.float64 and update["w"].tolist() == [0.5, -1.0]
    assert rest.keys() == {"running"}
    assert float(dot(update, update)) == 1.25
    after = advanced(server, update, rest)
    assert torch.equal(after["w"], state["w"]) and after["w"].dtype == torch.float32
    assert torch.equal(after["running"], state["running"])
    assert server.state["w"].tolist() == [1.0, 2.0]
