from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.tiny_work import batch, make_work, tiny_net
from unseen.core.types import Reply, Server
from unseen.methods.fedproto import FedProto

SIZE = tiny_net(FedProto()).feature_size


def test_the_server_takes_the_mean_by_images_and_knows_what_nobody_has() -> None:
    method, server = FedProto(), Server({})
    assert method.brief(server, {}, ["a"]) == {}
    means = {"a": [[1.0, 2.0], [4.0, 4.0], [0.0, 0.0]], "b": [[3.0, 6.0], [0.0, 0.0], [0.0, 0.0]]}
    counts = {"a": [1.0, 5.0, 0.0], "b": [3.0, 0.0, 0.0]}
    for client in "ab":
        report = {"means": torch.tensor(means[client]), "counts": torch.tensor(counts[client])}
        method.hear(server, Reply(client, "train", 1, 9, report=report))
    note = method.brief(server, {}, ["b"])["b"]
    assert note["prototypes"][:2].tolist() == [[2.5, 5.0], [4.0, 4.0]]
    assert note["known"].tolist() == [1, 1, 0]


def test_the_penalty_by_hand() -> None:
    prototypes = torch.randn(3, SIZE, generator=torch.Generator().manual_seed(3))
    brief = {"prototypes": prototypes, "known": torch.tensor([1.0, 0.0, 1.0])}
    work, images = make_work(FedProto(weight=0.5), brief=brief), batch()
    features = work.net.features(images.x)
    rows, labels = features.detach().numpy(), images.y.numpy()
    parts = [((rows[i] - prototypes.numpy()[labels[i]]) ** 2).mean() * (labels[i] != 1) for i in range(8)]
    assert work.method.penalty(work, images, features).item() == pytest.approx(0.5 * np.mean(parts), rel=1e-5)
    assert make_work(FedProto()).method.penalty(make_work(FedProto()), images, features).item() == 0
