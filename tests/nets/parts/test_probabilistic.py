from __future__ import annotations

import numpy as np
import torch

from unseen.nets.parts.probabilistic import SMALLEST, ClassGaussians, GaussianHead, draw, gaussian, kl_divergence


def test_means_and_deviations_by_hand() -> None:
    features = torch.tensor([[1.0, -2.0, 0.0, 3.0]])
    mean, deviation = gaussian(features)
    assert mean.tolist() == [[1.0, -2.0]]
    by_hand = np.array([[np.log(2), np.log1p(np.exp(3))]]) + SMALLEST
    np.testing.assert_allclose(deviation.numpy(), by_hand, rtol=1e-6)
    _, least = gaussian(torch.full((1, 2), -500.0))
    assert bool(least.log().isfinite().all())


def test_kl_by_hand() -> None:
    m, s = np.array([[0.5, -1.0]]), np.array([[0.8, 2.0]])
    n, t = np.array([[0.0, 1.0]]), np.array([[1.5, 0.7]])
    by_hand = sum(
        np.log(t[0, i] / s[0, i]) + (s[0, i] ** 2 + (m[0, i] - n[0, i]) ** 2) / (2 * t[0, i] ** 2) - 0.5
        for i in range(2)
    )
    got = kl_divergence(*(torch.from_numpy(a) for a in (m, s, n, t)))
    np.testing.assert_allclose(got.numpy(), [by_hand], rtol=1e-10)
    assert kl_divergence(*(torch.from_numpy(a) for a in (m, s, m, s))).item() == 0


def test_class_gaussians_start_at_softplus_of_one_and_scale_what_they_compare() -> None:
    reference = ClassGaussians(classes=3, size=2)
    with torch.no_grad():
        reference.mean[1] = torch.tensor([0.5, -0.5])
        reference.scale.fill_(2.0)
    mean, deviation = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.4, 0.3]])
    t = np.log1p(np.e)
    by_hand = sum(
        np.log(t / (2 * s)) + ((2 * s) ** 2 + (2 * m - n) ** 2) / (2 * t**2) - 0.5
        for m, s, n in [(1.0, 0.4, 0.5), (0.0, 0.3, -0.5)]
    )
    np.testing.assert_allclose(reference.divergence(mean, deviation, torch.tensor([1])).item(), by_hand, rtol=1e-4)


def test_a_negative_scale_has_a_divergence_too() -> None:
    reference = ClassGaussians(classes=1, size=2)
    with torch.no_grad():
        reference.scale.fill_(-1.0)
    assert reference.divergence(torch.ones(1, 2), torch.ones(1, 2), torch.tensor([0])).isfinite().all()


def test_samples_have_the_mean_and_deviation_asked_for() -> None:
    torch.manual_seed(0)
    z = draw(torch.full((20000, 1), 3.0), torch.full((20000, 1), 0.5))
    assert abs(float(z.mean()) - 3) < 0.02 and abs(float(z.std()) - 0.5) < 0.02


def test_prediction_is_the_log_of_the_mean_softmax_over_fixed_samples() -> None:
    torch.manual_seed(0)
    head = GaussianHead(size=2, classes=3, samples=4).eval()
    features = torch.tensor([[0.3, -0.2, 0.1, 0.9]])
    mean = features[0, :2].numpy()
    deviation = np.log1p(np.exp(features[0, 2:].numpy())) + SMALLEST
    weight, bias = head.classify.weight.detach().numpy(), head.classify.bias.detach().numpy()
    chances = []
    for noise in head.noise[:, 0].numpy():
        logits = weight @ (mean + deviation * noise) + bias
        chances.append(np.exp(logits) / np.exp(logits).sum())
    with torch.no_grad():
        np.testing.assert_allclose(head(features)[0].numpy(), np.log(np.mean(chances, axis=0)), rtol=1e-5)
        assert torch.equal(head(features), head(features))


def test_without_samples_the_mean_is_classified() -> None:
    head = GaussianHead(size=2, classes=3, samples=0).eval()
    features = torch.tensor([[0.3, -0.2, 0.1, 0.9]])
    with torch.no_grad():
        assert torch.equal(head(features), head.classify(features[:, :2]))


def test_the_fixed_samples_are_no_state() -> None:
    assert set(GaussianHead(2, 3, 4).state_dict()) == {"classify.weight", "classify.bias"}
    assert torch.equal(GaussianHead(2, 3, 4).noise, GaussianHead(2, 3, 4).noise)
