from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.tiny_work import random_images, tiny_net
from unseen.core.errors import UserError
from unseen.methods.dsu import DSU
from unseen.methods.fedavg import FedAvg
from unseen.nets.parts import styles


def test_resampling_against_numpy() -> None:
    torch.manual_seed(3)
    maps = torch.randn(4, 2, 5, 3) * 2 + 1
    torch.manual_seed(7)
    resampled = styles.DSU(p=1.0)(maps)
    # The same draws in the same order: the coin, one number per mean, one per standard deviation.
    torch.manual_seed(7)
    torch.rand(())
    of_mean, of_std = torch.randn(4, 2).numpy(), torch.randn(4, 2).numpy()
    x = maps.numpy().astype(np.float64)
    mean, std = x.mean((2, 3)), np.sqrt(x.var((2, 3)) + 1e-6)
    new_mean = mean + of_mean * np.sqrt(mean.var(0) + 1e-6)
    new_std = std + of_std * np.sqrt(std.var(0) + 1e-6)
    content = (x - mean[:, :, None, None]) / std[:, :, None, None]
    expected = content * new_std[:, :, None, None] + new_mean[:, :, None, None]
    np.testing.assert_allclose(resampled.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_off_at_test() -> None:
    images = random_images(4).x
    plain, net = tiny_net(FedAvg()), tiny_net(DSU(p=1.0))
    plain.eval(), net.eval()
    torch.testing.assert_close(net(images), plain(images), rtol=0, atol=0)
    plain.train(), net.train()
    assert not torch.equal(net(images), plain(images))


def test_stages() -> None:
    assert [len(after) for after in tiny_net(DSU()).inserted] == [1, 1, 1, 1]
    net = tiny_net(DSU(p=0.2, stages=(1,)))
    assert [len(after) for after in net.inserted] == [0, 1, 0, 0]
    assert net.norms(styles.DSU)[0].p == 0.2
    with pytest.raises(UserError, match="no stage -1"):
        tiny_net(DSU(stages=(-1,)))
