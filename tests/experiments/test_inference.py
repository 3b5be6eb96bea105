"""Rules for statistics at test time, on nets that were never trained: what they do does not depend on that."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.small_runs import settings
from tests.tiny_work import batch, random_images, tiny_net
from unseen.core.errors import UserError
from unseen.core.seeding import torch_generator
from unseen.experiments.inference import Predictor, inference_of, score
from unseen.nets.norms.layers import StatNorm2d, make_pluggable
from unseen.nets.norms.rules import InstanceRule, Interpolated, ruled
from unseen.registry import parse
from unseen.runs.model import Trained


def trained(method: str = "fedavg", seed: int = 0) -> Trained:
    """A net with running statistics that are not the images' own."""
    net = tiny_net(parse(method))
    net.train()
    with torch.no_grad():
        for start in range(3):
            net.features(batch(8, seed=20 + start).x * 0.5 + 0.3)
    net.eval()
    chosen = settings(method=method, target="street", protocol="digits", seed=seed)
    return Trained(net, parse(method), ("a", "b", "c"), chosen, 1)


@torch.no_grad()
def logits(model: Trained, rule: str, x: Tensor, parts: int = 6, **fields: object) -> Tensor:
    """The logits of images that come `parts` at a time."""
    predictor = Predictor(model, inference_of(rule, fields))
    return torch.cat([predictor(model.net, some) for some in x.split(parts)])


def own(model: Trained, x: Tensor) -> Tensor:
    return logits(model, "own", x)


X = random_images(6, seed=5).x


def test_rules_that_come_down_to_the_running_statistics() -> None:
    expected = own(trained(), X)
    for rule, fields in (("iabn", {"k": "1e9"}), ("fixed-alpha", {"alpha": "0"}), ("mixnorm", {"share": "0"})):
        torch.testing.assert_close(logits(trained(), rule, X, **fields), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(logits(trained(), "random-alpha", X, high=0.0), expected, rtol=1e-4, atol=1e-5)


def test_rules_that_come_down_to_the_images_own_statistics() -> None:
    model = trained()
    make_pluggable(model.net)
    model.net.eval()
    with torch.no_grad(), ruled(model.net, InstanceRule()):
        expected = model.net(X)
    assert not torch.allclose(expected, own(trained(), X), atol=1e-2)
    for rule, fields in (
        ("tbn", {"batch": 1}),
        ("fixed-alpha", {"alpha": 1}),
        ("mixnorm", {"number": 1, "share": 1}),
        ("random-alpha", {"low": 1}),
    ):
        torch.testing.assert_close(logits(trained(), rule, X, **fields), expected, rtol=1e-4, atol=1e-5)


def test_batches_of_tbn_are_not_of_one_class_and_the_order_is_the_seeds() -> None:
    order = inference_of("tbn").order(100, seed=3)
    assert sorted(order.tolist()) == list(range(100)) != order.tolist()
    assert torch.equal(order, inference_of("tbn").order(100, seed=3))
    assert not torch.equal(order, inference_of("tbn").order(100, seed=4))
    assert inference_of("iabn").order(100, seed=3).tolist() == list(range(100))


def test_tbn_is_train_mode_without_tracking() -> None:
    model, plain = trained(), trained()
    before = {key: value.clone() for key, value in model.net.state_dict().items()}
    plain.net.train()
    with torch.no_grad():
        expected = torch.cat([plain.net(X[:4]), plain.net(X[4:])])
    torch.testing.assert_close(logits(model, "tbn", X, batch=4), expected, rtol=1e-4, atol=1e-5)
    assert all(torch.equal(before[key], value) for key, value in model.net.state_dict().items())


@pytest.mark.parametrize("rule", ["iabn", "mixnorm", "fixed-alpha", "random-alpha"])
def test_a_prediction_depends_on_its_image_and_place_alone(rule: str) -> None:
    fields = {"share": 0.5} if rule == "mixnorm" else {"k": 1} if rule == "iabn" else {}
    together = logits(trained(), rule, X, parts=6, **fields)
    assert together.shape == (6, 3)
    assert not torch.allclose(together, own(trained(), X), atol=1e-3)
    torch.testing.assert_close(logits(trained(), rule, X, parts=2, **fields), together, rtol=1e-4, atol=1e-5)


def test_random_alphas_are_drawn_by_image_norm_and_seed() -> None:
    model = trained(seed=3)
    predictor = Predictor(model, inference_of("random-alpha"))
    predictor.seen = 10
    with torch.no_grad():
        got = predictor(model.net, X[:1])
    draws = torch_generator(3, client="10", purpose="inference random-alpha")
    alphas = iter([float(torch.rand(1, generator=draws)) for _ in model.net.norms(StatNorm2d)])

    class ByHand(Interpolated):
        def alpha(self, *_: object) -> float:  # type: ignore[override]
            return next(alphas)

    with torch.no_grad(), ruled(model.net, ByHand()):
        torch.testing.assert_close(got, model.net(X[:1]), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(logits(trained(seed=3), "random-alpha", X), logits(trained(seed=4), "random-alpha", X))


def test_a_method_with_a_prediction_of_its_own_keeps_it_under_a_rule() -> None:
    model = trained("stablefdg")
    assert not torch.allclose(logits(model, "iabn", X, k=1), own(trained("stablefdg"), X), atol=1e-3)


@pytest.mark.parametrize("method", ["fedfd-a", "gperxan"])
def test_what_a_rule_cannot_reach_is_refused(method: str) -> None:
    with pytest.raises(UserError, match=f'"{method}"'):
        logits(trained(method), "iabn", X)


def test_fedfd_takes_rules_and_scores_are_those_of_its_predictions() -> None:
    images = random_images(6, seed=5)
    found, more = score(trained("fedfd"), inference_of("iabn", {"k": 1}), images)
    right = (logits(trained("fedfd"), "iabn", X, k=1).argmax(1) == images.y).float().mean()
    assert found.examples == 6 and found.accuracy == pytest.approx(float(right))
    assert more is not None and sum(map(sum, more.confusion)) == 6


def test_wrong_words_are_told_the_right_ones() -> None:
    with pytest.raises(UserError, match='Did you mean "iabn"'):
        inference_of("iabm")
    with pytest.raises(UserError, match="Its fields: k, smallest"):
        inference_of("iabn", {"kk": "1"})
    with pytest.raises(UserError, match="takes float"):
        inference_of("iabn", {"k": "four"})
    with pytest.raises(UserError, match="1 or more"):
        inference_of("tbn", {"batch": "0"})
