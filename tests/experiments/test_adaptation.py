"""Adapters at test time, by hand: on nets that were never trained, whose statistics are not the images'."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.experiments.test_inference import X, logits, own, trained
from tests.tiny_work import random_images
from unseen.core.errors import UserError
from unseen.experiments.adaptation import Affine, Tracked, corrected, entropy
from unseen.experiments.inference import Predictor, inference_of, read_rules, score
from unseen.experiments.teacher import Pupil, trusted
from unseen.nets.norms.layers import StatNorm2d, make_pluggable
from unseen.nets.norms.rules import BatchRule, ruled
from unseen.runs.model import Trained

ADAPTING = ("tsmobn", "tent", "sar", "t3a", "lame", "fedspl")


def pluggable() -> Trained:
    model = trained()
    make_pluggable(model.net)
    model.net.eval()
    return model


def test_entropy_by_hand() -> None:
    found = entropy(torch.log(torch.tensor([[0.5, 0.25, 0.25], [1.0, 1e-9, 1e-9]])))
    assert found.tolist() == pytest.approx([1.5 * math.log(2), 0.0], abs=1e-6)


def test_tracked_statistics_by_hand() -> None:
    rule, norm = Tracked(0.75), StatNorm2d(2)
    means = torch.tensor([[1.0, 0.0], [3.0, 0.0]]), torch.tensor([[6.0, 4.0]])
    variances = torch.tensor([[1.0, 1.0], [1.0, 1.0]]), torch.tensor([[2.0, 9.0]])
    first = rule.statistics(norm, means[0], variances[0], 16)
    assert first.mean.tolist() == [[2.0, 0.0]]
    np.testing.assert_allclose(
        first.std.detach().numpy() ** 2, [[2.0, 1.0]], atol=1e-4
    )  # (1 + 1) and 1: over the batch
    second = rule.statistics(norm, means[1], variances[1], 16)
    assert second.mean.tolist() == [[0.75 * 2 + 0.25 * 6, 0.25 * 4]]
    np.testing.assert_allclose(second.std.detach().numpy() ** 2, [[0.75 * 2 + 0.25 * 2, 0.75 + 0.25 * 9]], atol=1e-4)


def test_tsmobn_without_momentum_is_tbn() -> None:
    expected = logits(trained(), "tbn", X, batch=3)
    torch.testing.assert_close(logits(trained(), "tsmobn", X, batch=3, momentum=0), expected)
    assert not torch.allclose(logits(trained(), "tsmobn", X, batch=3, momentum=0.9)[3:], expected[3:], atol=1e-3)


def test_tent_answers_first_and_then_takes_adams_first_step_down_the_entropy() -> None:
    by_rule = logits(trained(), "tent", X, batch=3, rate=0.05)
    plain = pluggable()
    with ruled(plain.net, BatchRule()):
        first = plain.net(X[:3])
        parameters = [p for norm in plain.net.norms(StatNorm2d) for p in (norm.weight, norm.bias)]
        slopes = torch.autograd.grad(entropy(first).mean(), parameters)
        with torch.no_grad():  # Adam's first step is the rate times the sign, for gradients far above its epsilon
            for parameter, slope in zip(parameters, slopes, strict=True):
                parameter -= 0.05 * slope / (slope.abs() + 1e-8)
            second = plain.net(X[3:])
    torch.testing.assert_close(by_rule[:3], first.detach())
    torch.testing.assert_close(by_rule[3:], second, rtol=1e-3, atol=1e-4)


def sar_by_hand(rate: float, rho: float, margin: float) -> Tensor:
    """Logits of the second batch after one step on the first."""
    plain = pluggable()
    last = set(plain.net.stage_modules()[-1][0].modules())
    norms = [norm for norm in plain.net.norms(StatNorm2d) if norm not in last]
    parameters = [p for norm in norms for p in (norm.weight, norm.bias)]
    with ruled(plain.net, BatchRule()):
        doubts = entropy(plain.net(X[:3]))
        sure = doubts.detach() < margin
        slopes = torch.autograd.grad(doubts[sure].mean(), parameters)
        length = math.sqrt(sum(float((slope**2).sum()) for slope in slopes))
        here = [p.detach().clone() for p in parameters]
        with torch.no_grad():
            for p, slope in zip(parameters, slopes, strict=True):
                p += rho * slope / length
        doubts = entropy(plain.net(X[:3]))[sure]
        slopes = torch.autograd.grad(doubts[doubts.detach() < margin].mean(), parameters)
        with torch.no_grad():
            for p, start, slope in zip(parameters, here, slopes, strict=True):
                p.copy_(start - rate * slope)
            found: Tensor = plain.net(X[3:])
    return found


def test_sar_steps_by_the_gradient_near_by_on_sure_answers() -> None:
    fields = {"batch": 3, "rate": 5.0, "rho": 0.3, "margin": 0.99, "collapse": 0.0}
    expected = sar_by_hand(5.0, 0.3, 0.99 * math.log(3))
    torch.testing.assert_close(logits(trained(), "sar", X, **fields)[3:], expected, rtol=1e-3, atol=1e-3)
    still = logits(trained(), "tbn", X, batch=3)
    assert not torch.allclose(expected, still[3:], atol=1e-3)
    unsure = logits(trained(), "sar", X, **{**fields, "margin": 0.0})
    torch.testing.assert_close(unsure, still)  # no answer is sure enough: nothing is learnt
    reset = logits(trained(), "sar", X, **{**fields, "collapse": 10.0})
    torch.testing.assert_close(reset, still)  # below the limit after every step: back to the trained net


def test_t3a_by_hand() -> None:
    model = trained()
    head = model.net.head
    weight, bias = (p.detach().numpy() for p in head.parameters())
    with torch.no_grad():
        rows = model.net.features(X).numpy()

    def softmax(z: np.ndarray) -> np.ndarray:
        e: np.ndarray = np.exp(z - z.max(1, keepdims=True))
        return e / e.sum(1, keepdims=True)

    supports, out = weight, []
    chances = softmax(weight @ weight.T + bias)
    labels, doubts = chances.argmax(1), -(chances * np.log(chances)).sum(1)
    for some in (rows[:4], rows[4:]):
        chances = softmax(some @ weight.T + bias)
        supports = np.concatenate([supports, some])
        labels = np.concatenate([labels, chances.argmax(1)])
        doubts = np.concatenate([doubts, -(chances * np.log(chances)).sum(1)])
        kept = np.concatenate([np.nonzero(labels == k)[0][np.argsort(doubts[labels == k])[:2]] for k in range(3)])
        supports, labels, doubts = supports[kept], labels[kept], doubts[kept]
        unit = supports / np.linalg.norm(supports, axis=1, keepdims=True)
        centres = np.stack([unit[labels == k].sum(0) for k in range(3)])
        centres = centres / np.maximum(np.linalg.norm(centres, axis=1, keepdims=True), 1e-12)
        out.append(some @ centres.T)
    found = logits(trained(), "t3a", X, batch=4, keep=2)
    np.testing.assert_allclose(found.numpy(), np.concatenate(out), rtol=1e-3, atol=1e-4)


def test_lame_by_hand() -> None:
    rng = np.random.default_rng(0)
    scores, likeness = rng.normal(size=(5, 3)), rng.random((5, 5))
    chances = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    z = chances
    for _ in range(100):
        exponent = np.log(chances) + likeness @ z
        z = np.exp(exponent) / np.exp(exponent).sum(1, keepdims=True)
    found = corrected(torch.tensor(scores), torch.tensor(likeness), 100, 0.0)
    np.testing.assert_allclose(found.numpy(), z, rtol=1e-5)


def test_lame_knows_the_nearest_and_one_image_alone_keeps_its_answer() -> None:
    model = trained()
    adapter = Predictor(model, inference_of("lame", {"neighbours": 2})).adapter
    rows = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
    likeness = adapter.likeness(rows)  # type: ignore[union-attr]
    assert likeness[0].tolist() == [0, 1, 0, 1] and likeness[2].tolist() == [0, 1, 0, 1]
    alone = logits(trained(), "lame", X[:1], batch=1)
    torch.testing.assert_close(alone.softmax(1), own(trained(), X[:1]).softmax(1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rule", ADAPTING)
def test_the_net_is_as_before_and_answers_depend_on_other_images(rule: str) -> None:
    model, inference = trained(), inference_of(rule, {"batch": 3, **({"steps": 2} if rule == "fedspl" else {})})
    before = {key: value.clone() for key, value in model.net.state_dict().items()}
    found, _ = score(model, inference, random_images(6, seed=5))
    assert found.examples == 6
    assert all(torch.equal(before[key], value) for key, value in model.net.state_dict().items())
    assert inference.depends and inference.order(50, 1).tolist() != list(range(50))
    assert not inference_of("iabn").depends


def test_affine_values_stay_outside_of_the_net() -> None:
    norm = StatNorm2d(2)
    affine = Affine([norm])
    for expected in (2.0, 3.0):
        with affine.adapted(), torch.no_grad():
            norm.weight += 1
            assert norm.weight.tolist() == [expected, expected]
        assert norm.weight.tolist() == [1, 1]


def test_what_a_rule_needs_is_said() -> None:
    for rule, field in (("t3a", "keep"), ("lame", "neighbours"), ("tent", "batch"), ("fedspl", "batch")):
        with pytest.raises(UserError, match="1 or more"):
            inference_of(rule, {field: 0})
    assert {rule.name for rule in read_rules("all")} >= set(ADAPTING)
    for method, rule in (("fedfd-a", "tent"), ("gperxan", "sar"), ("gperxan", "tsmobn")):
        with pytest.raises(UserError, match=f'"{method}"'):
            logits(trained(method), rule, X)
    torch.testing.assert_close(logits(trained("gperxan"), "t3a", X).shape, torch.Size([6, 3]))  # needs no BatchNorm


def test_fedspl_trusts_those_that_lead_and_no_class_is_forgotten_by_hand() -> None:
    """Six images, two views alike, so that leads are those of the probabilities."""
    chances = np.array(
        [[0.9, 0.05, 0.05], [0.8, 0.1, 0.1], [0.1, 0.6, 0.3], [0.4, 0.35, 0.25], [0.34, 0.36, 0.3], [0.3, 0.25, 0.45]]
    )
    # Leads: 0.85, 0.7, 0.3, 0.05, 0.02, 0.15, in the mean 0.345: the first two are sure. Of the others' logits the leads
    # are log 2 = 0.69, 0.13, 0.06 and 0.41, in the mean 0.32: the third and the sixth come in. No class has none.
    views = torch.tensor(np.log(chances)).expand(2, -1, -1)
    kept, weights = trusted(views)
    assert kept.tolist() == [True, True, True, False, False, True]
    np.testing.assert_allclose(weights.numpy(), [0.5, 1.0, 1.0])
    # Without the third the second class has only the fifth image, which is unsure, and comes in: the fewest are one.
    kept, weights = trusted(views[:, [0, 1, 3, 4, 5]])
    assert kept.tolist() == [True, True, False, True, True] and weights.tolist() == [0.5, 1.0, 1.0]


def test_fedspl_lesson_by_hand() -> None:
    rng = np.random.default_rng(3)
    views, logits = rng.normal(size=(5, 8, 3)) * 3, rng.normal(size=(8, 3))
    rows, others = rng.normal(size=(8, 4)), rng.normal(size=(8, 4))
    model = trained()
    pupil = Pupil(model.method, model.net, rate=0.1, slowness=0.9, steps=1, seed=0)
    found = pupil.lesson(*(torch.tensor(part) for part in (views, logits, rows, others)))
    kept, weights = (part.numpy() for part in trusted(torch.tensor(views)))
    assert 0 < kept.sum() < 8
    mean, rest = views.mean(0), ~kept
    labels = mean.argmax(1)
    log_chances = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    own = weights[labels[kept]]
    sure = -(own * log_chances[kept, labels[kept]]).sum() / own.sum()
    unsure = np.square(mean[rest] - logits[rest]).mean()
    unit = np.concatenate([rows[rest], others[rest]])
    unit = unit / np.linalg.norm(unit, axis=1, keepdims=True)
    likeness, count = unit @ unit.T / 0.07, int(rest.sum())
    apart = 0.0
    for row in range(2 * count):
        every = np.exp(np.delete(likeness[row], row)).sum()
        apart -= (likeness[row, (row + count) % (2 * count)] - np.log(every)) / (2 * count)
    shares = np.exp(views) / np.exp(views).sum(2, keepdims=True)
    ordered = np.sort(shares, axis=2)
    trust = 1 - 0.001 * np.exp(-(ordered[..., 2] - ordered[..., 1]).mean())
    expected = trust * sure + (1 - trust) * unsure + 0.5 * np.exp(-1e-4) * apart
    assert float(found) == pytest.approx(expected, rel=1e-4)


def test_fedspl_steps_the_student_and_its_teacher_follows_slowly() -> None:
    model = trained()
    pupil = Pupil(model.method, model.net, rate=0.01, slowness=0.75, steps=1, seed=0)
    place = next(n for n, p in enumerate(model.net.parameters()) if p is model.net.head.weight)
    start = model.net.head.weight.detach().clone()
    pupil.learn(model.net, X)
    assert torch.equal(pupil.teacher.values[place], start)  # the student had not moved yet
    first = pupil.student.values[place]
    assert not torch.equal(first, start)
    pupil.learn(model.net, X)
    torch.testing.assert_close(pupil.teacher.values[place], 0.75 * start + 0.25 * first)
    assert torch.equal(model.net.head.weight, start)
    again = logits(trained(), "fedspl", X, batch=6, steps=1)
    torch.testing.assert_close(logits(trained(), "fedspl", X, batch=6, steps=1), again)  # draws are the run's seed's
