from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from tests.tiny_work import batch, make_work, tiny_net
from unseen.core.tensors import snapshot
from unseen.methods.l2d import L2D
from unseen.nets.parts.complement import (
    StyleComplement,
    class_discrepancy,
    club,
    convolved,
    convolved_back,
    discrepancy,
    log_likelihood,
    supervised_contrast,
)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def test_supervised_contrast_by_hand() -> None:
    z, labels = normal(6, 3), np.array([0, 1, 0, 1, 2, 2])
    unit = z / np.linalg.norm(z, axis=1, keepdims=True)
    terms = []
    for i in range(6):
        others = [j for j in range(6) if j != i]
        total = sum(np.exp(unit[i] @ unit[j] / 0.07) for j in others)
        same = [j for j in others if labels[j] == labels[i]]
        terms.append(-np.mean([np.log(np.exp(unit[i] @ unit[j] / 0.07) / total) for j in same]))
    got = supervised_contrast(torch.from_numpy(z), torch.from_numpy(labels), 0.07)
    np.testing.assert_allclose(got.item(), np.mean(terms), rtol=1e-8)


def test_likelihood_and_club_by_hand() -> None:
    mean, log_variance, y = normal(4, 3), normal(4, 3, seed=1), normal(4, 3, seed=2)
    tensors = [torch.from_numpy(t) for t in (mean, log_variance, y)]
    likelihood = (-((mean - y) ** 2) / np.exp(log_variance) - log_variance).mean()
    np.testing.assert_allclose(log_likelihood(*tensors).item(), likelihood, rtol=1e-10)
    other = [2, 0, 3, 1]
    bound = [
        ((-((mean[i] - y[i]) ** 2) + (mean[i] - y[other[i]]) ** 2) / np.exp(log_variance[i])).sum() / 2
        for i in range(4)
    ]
    np.testing.assert_allclose(club(*tensors, torch.tensor(other)).item(), np.mean(bound), rtol=1e-10)


def test_discrepancy_by_hand() -> None:
    a, b = normal(3, 2), normal(3, 2, seed=1)
    rows = np.concatenate([a, b])
    squared = ((rows[:, None] - rows[None]) ** 2).sum(2)
    width = squared.sum() / 30
    kernel = sum(np.exp(-squared / (width * 2.0**k)) for k in (-2, -1, 0, 1, 2))
    expected = (kernel[:3, :3] + kernel[3:, 3:] - kernel[:3, 3:] - kernel[3:, :3]).mean()
    one, two = torch.from_numpy(a), torch.from_numpy(b)
    np.testing.assert_allclose(discrepancy(one, two).item(), expected, rtol=1e-10)
    by_class = class_discrepancy(one, two, torch.tensor([4, 4, 1]))  # classes that are not there do not count
    np.testing.assert_allclose(
        by_class.item(), (discrepancy(one[:2], two[:2]) + discrepancy(one[2:], two[2:])).item() / 2, rtol=1e-10
    )
    assert discrepancy(one[:1], one[:1]).item() == 0  # no width, no nan


def test_convolutions_by_fourier_transforms() -> None:
    torch.manual_seed(0)
    x, bias = torch.randn(2, 3, 11, 12), torch.randn(3)
    for size in (1, 4, 9):
        weight = torch.randn(3, 3, size, size)
        torch.testing.assert_close(convolved(x, weight, bias), F.conv2d(x, weight, bias), rtol=1e-4, atol=1e-4)
        back = F.conv_transpose2d(x, weight, bias)
        torch.testing.assert_close(convolved_back(x, weight, bias), back, rtol=1e-4, atol=1e-4)


def test_the_complement_by_hand() -> None:
    torch.manual_seed(0)
    styles, x = StyleComplement(12, scales=(5,)), torch.randn(2, 3, 12, 12)
    (colour, down, up), noise = styles.fixed(), torch.randn(2, 3, 12, 12)
    with torch.no_grad():
        styles.noise.fill_(2.0)
        got = styles(x, styles.fixed(), torch.tensor([1.0, 3.0]), noise)
        noisy = x + 0.02 * noise
        maps = F.conv2d(noisy, *down)
        maps = (maps - maps.mean((2, 3), keepdim=True)) / (maps.var((2, 3), correction=0, keepdim=True) + 1e-5).sqrt()
        back = torch.tanh(F.conv_transpose2d(styles.stretch[0] * maps + styles.shift[0], *up))
        expected = (torch.tanh(F.conv2d(noisy, *colour)) + 3 * back) / 4
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    new = styles.diversify(x, torch.Generator().manual_seed(1))
    assert new.shape == x.shape and bool((new > 0).all()) and bool((new < 1).all())
    assert StyleComplement(12).scales == [5, 9]  # kernels that do not fit are left out


def test_the_style_network_stays_and_learns_apart_from_the_task() -> None:
    method = L2D(size=16)
    work, images = make_work(method), batch()
    share = method.share(work.net)
    styles = {key for key in work.net.state_dict() if key.startswith("extras.complement.")}
    assert styles and not styles & (share.up | share.down)
    method.prepare(work)
    learning = {id(p) for g in work.optimizers["main"].param_groups for p in g["params"]}
    own = {id(p) for g in work.optimizers["complement"].param_groups for p in g["params"]}
    assert not learning & own and len(learning | own) == len(list(work.net.parameters()))
    before = snapshot(work.net)
    method.step(work, images)
    after = snapshot(work.net)
    trained = {name for name, _ in work.net.named_parameters()}
    assert all(not torch.equal(before[name], after[name]) for name in trained if "weight" in name)
    assert not torch.equal(before["extras.complement.stretch.0"], after["extras.complement.stretch.0"])
    assert torch.equal(before["extras.complement.weight1"], after["extras.complement.weight1"])


def test_the_task_loss_by_hand() -> None:
    method = L2D(size=16, contrast=0.5, likelihood=0.25)
    work, images = make_work(method), batch()
    complement = work.net.extras["complement"]
    assert isinstance(complement, StyleComplement)
    rng = torch.Generator().manual_seed(0)
    torch.manual_seed(9)  # the colour map's dropout
    with torch.no_grad():
        new = complement.diversify((images.x - work.net.pixel_mean) / work.net.pixel_std, rng)
        both = work.net.features(torch.cat([images.x, 0.6 * new + 0.4 * images.x]))
        mean, log_variance = both.chunk(2, dim=1)
        z = mean + 0.2 * (log_variance / 2).exp() * torch.randn(16, 16, generator=rng)
        labels = images.y.repeat(2)
        expected = F.cross_entropy(work.net.head(z), labels) + 0.5 * supervised_contrast(z, labels, 0.07)
        expected -= 0.25 * log_likelihood(mean[:8], log_variance[:8], z[8:])
    torch.manual_seed(9)
    torch.testing.assert_close(method.loss(work, images).detach(), expected)


def test_the_style_networks_loss_by_hand() -> None:
    """MMD within classes plus beta times CLUB: both are lowered."""
    method = L2D(size=16, beta=0.5)
    work, images = make_work(method), batch()
    complement = work.net.extras["complement"]
    assert isinstance(complement, StyleComplement)
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        new = complement.estimate((images.x - work.net.pixel_mean) / work.net.pixel_std, rng)
        features = work.net.features(torch.cat([images.x, 0.6 * new + 0.4 * images.x])).numpy().astype(np.float64)
    mean, log_variance = features[:, :16], features[:, 16:]
    z = mean + 0.2 * np.exp(log_variance / 2) * torch.randn(16, 16, generator=rng).numpy()
    shuffled = torch.randperm(8, generator=rng).numpy()

    def kernels(rows: np.ndarray) -> np.ndarray:
        squared = ((rows[:, None] - rows[None]) ** 2).sum(2)
        width = squared.sum() / (len(rows) ** 2 - len(rows))
        return sum(np.exp(-squared / (width * 2.0**k)) for k in (-2, -1, 0, 1, 2))

    terms = []
    for label in np.unique(images.y.numpy()):
        own = images.y.numpy() == label
        k, n = kernels(np.concatenate([z[:8][own], z[8:][own]])), int(own.sum())
        terms.append((k[:n, :n] + k[n:, n:] - k[:n, n:] - k[n:, :n]).mean())
    pairs = (mean[:8] - z[8:]) ** 2, (mean[:8] - z[8:][shuffled]) ** 2
    bound = ((pairs[1] - pairs[0]) / np.exp(log_variance[:8])).sum(1).mean() / 2
    assert abs(0.5 * bound) > 1e-4  # or its sign would not be seen
    np.testing.assert_allclose(method.style_loss(work, images).item(), np.mean(terms) + 0.5 * bound, rtol=1e-3)


def test_the_style_networks_rate_is_the_authors_scripts() -> None:
    work = make_work(L2D(size=16))
    work.method.prepare(work)
    assert [group["lr"] for group in work.optimizers["complement"].param_groups] == [0.005]


def test_a_prediction_is_by_the_mean() -> None:
    net, x = tiny_net(L2D(size=16)).eval(), batch(2).x
    with torch.no_grad():
        assert torch.equal(net(x), net.head(net.features(x)[:, :16]))
        assert torch.equal(net(x), net(x))
