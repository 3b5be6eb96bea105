from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.tiny_work import random_images, tiny_net
from unseen.core.errors import UserError
from unseen.methods.fedavg import FedAvg
from unseen.methods.stablefdg import StableFDG
from unseen.nets.parts.attention import Highlighter, attention_maps


def numpy_scores(layer: Highlighter, key_image: np.ndarray, query_images: list[np.ndarray], cosine: bool) -> np.ndarray:
    """Eq. 6 or 8 with the full HW x HW matrix: (mean of the queries)^T keys, mean over query positions, softmax."""
    theta_q, bias_q = layer.query.weight.detach().numpy(), layer.query.bias.detach().numpy()[:, None]
    theta_k, bias_k = layer.key.weight.detach().numpy(), layer.key.bias.detach().numpy()[:, None]
    channels = key_image.shape[0]

    def normal(embedded: np.ndarray) -> np.ndarray:
        return embedded / np.sqrt((embedded**2).sum(0, keepdims=True)) if cosine else embedded

    queries = [normal(theta_q @ image.reshape(channels, -1) + bias_q) for image in query_images]
    keys = normal(theta_k @ key_image.reshape(channels, -1) + bias_k)
    similarity = (sum(queries) / len(queries)).T @ keys  # HW of the query x HW of the key
    score = np.zeros(keys.shape[1])
    for position in range(keys.shape[1]):
        score[position] = similarity[:, position].mean()
    weights = np.exp(score) / np.exp(score).sum()
    return weights.reshape(key_image.shape[1:])


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("attention", ["both", "cross", "self"])
def test_attention_scores_and_weighted_mean_against_numpy(attention: str, similarity: str) -> None:
    torch.manual_seed(0)
    layer = Highlighter(6, 4, attention, similarity)  # type: ignore[arg-type]
    maps = torch.randn(4, 6, 3, 2)
    partners = torch.tensor([1, 0, 3, 3])  # the last one is alone in its class: its own partner
    x = maps.numpy()
    asked = {
        "both": [[x[1], x[0]], [x[0], x[1]], [x[3], x[2]], [x[3]]],
        "cross": [[x[1]], [x[0]], [x[3]], [x[3]]],
        "self": [[x[0]], [x[1]], [x[2]], [x[3]]],
    }[attention]
    expected = [numpy_scores(layer, x[i], asked[i], similarity == "cosine") for i in range(4)]
    np.testing.assert_allclose(layer.scores(maps, partners).detach().numpy(), np.stack(expected), rtol=1e-4, atol=1e-6)
    weighted = [(expected[i][None] * x[i]).sum((1, 2)) for i in range(4)]
    np.testing.assert_allclose(layer(maps, partners).detach().numpy(), np.stack(weighted), rtol=1e-4, atol=1e-5)
    # without partners, as at test time, an image attends to itself
    alone = [numpy_scores(layer, x[i], [x[i]], similarity == "cosine") for i in range(4)]
    np.testing.assert_allclose(layer.scores(maps).detach().numpy(), np.stack(alone), rtol=1e-4, atol=1e-6)


def test_convolution_scores_against_numpy() -> None:
    torch.manual_seed(0)
    layer = Highlighter(6, 4, "convolution")
    x = torch.randn(1, 6, 3, 2)
    places = x.numpy()[0].reshape(6, -1)
    energy = np.zeros(6)
    for part in (layer.query, layer.key):
        energy += np.maximum(part.weight.detach().numpy() @ places + part.bias.detach().numpy()[:, None], 0).mean(0)
    expected = (np.exp(energy) / np.exp(energy).sum()).reshape(3, 2)
    np.testing.assert_allclose(layer.scores(x).detach().numpy()[0], expected, rtol=1e-4, atol=1e-6)


def test_convolution_scores_need_no_partner_and_sum_to_one() -> None:
    torch.manual_seed(0)
    layer = Highlighter(6, 4, "convolution")
    maps = torch.randn(3, 6, 3, 2)
    assert torch.equal(layer.scores(maps), layer.scores(maps, torch.tensor([1, 2, 0])))
    torch.testing.assert_close(layer.scores(maps).sum((1, 2)), torch.ones(3))


def test_attention_maps_have_the_images_size_and_range() -> None:
    net = tiny_net(StableFDG())
    images = random_images(3).x
    net.train()
    maps = attention_maps(net, images)
    assert maps.shape == (3, 32, 32) and net.training
    torch.testing.assert_close(maps.amin((1, 2)), torch.zeros(3))
    torch.testing.assert_close(maps.amax((1, 2)), torch.ones(3))
    torch.testing.assert_close(attention_maps(net, images[:1])[0], maps[0], rtol=1e-3, atol=1e-3)


def test_a_net_without_highlighter_says_so() -> None:
    with pytest.raises(UserError, match="no attention highlighter"):
        attention_maps(tiny_net(FedAvg()), random_images(1).x)
