from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch

from tests.methods.test_fediir import softmax
from tests.tiny_work import batch, make_work
from unseen.core.types import Server
from unseen.methods.fedccrl import FedCCRL, divergence
from unseen.nets.parts.contrast import supervised_contrast
from unseen.nets.parts.images import aug_mix
from unseen.nets.parts.styles import style_of
from unseen.registry import parse


def numpy_contrast(rows: np.ndarray, labels: np.ndarray, temperature: float, itself: bool) -> float:
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    likeness, terms = unit @ unit.T / temperature, []
    for i in range(len(rows)):
        others = [j for j in range(len(rows)) if j != i]
        total = np.log(np.exp(likeness[i, others]).sum())
        friends = [j for j in range(len(rows)) if labels[j] == labels[i] and (itself or j != i)]
        if friends:
            terms.append(-np.mean([likeness[i, j] - total for j in friends]))
    return float(np.mean(terms))


@pytest.mark.parametrize("itself", [False, True])
def test_contrast_by_hand(itself: bool) -> None:
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(7, 4)), np.array([0, 1, 0, 2, 1, 0, 1])  # 2 is alone in its class
    found = supervised_contrast(torch.tensor(rows), torch.tensor(labels), 0.3, itself)
    assert found.item() == pytest.approx(numpy_contrast(rows, labels, 0.3, itself), rel=1e-5)


def test_divergence_by_hand() -> None:
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(3, 5, 4))
    chances = np.stack([softmax(z) for z in logits])
    middle = chances.mean(0)
    by_hand = np.mean([(p * np.log(p / middle)).sum(1).mean() for p in chances])
    assert divergence([torch.tensor(z) for z in logits]).item() == pytest.approx(by_hand, rel=1e-5)
    assert divergence([torch.tensor(logits[0])] * 3).item() == pytest.approx(0, abs=1e-6)


def test_colours_travel_to_the_others_and_are_those_of_pixels() -> None:
    work = make_work(FedCCRL(fraction=0.5))
    told = work.method.survey(work)["colours"]
    assert told.shape == (16, 2, 3)
    everything = work.site.train.batch(torch.arange(32)).x.numpy()
    means, spreads = everything.mean(axis=(2, 3)), np.sqrt(everything.var(axis=(2, 3)) + 1e-6)
    for mean, std in told.numpy():
        row = int(np.abs(means - mean).sum(1).argmin())
        np.testing.assert_allclose(mean, means[row], atol=1e-5)
        np.testing.assert_allclose(std, spreads[row], atol=1e-4)
    notes = FedCCRL().brief(Server({}), {"a": {"colours": told}, "b": {"colours": told[:3]}}, ["a", "b"])
    assert len(notes["a"]["colours"]) == 3 and len(notes["b"]["colours"]) == 16
    assert FedCCRL().brief(Server({}), {"a": {"colours": told}}, ["a"]) == {}


def test_a_view_takes_foreign_colours_by_a_share() -> None:
    """AugMix left out: means and standard deviations lie between the own and the foreign ones."""
    colours = torch.tensor([[[0.5, 0.45, 0.4], [0.05, 0.04, 0.06]]])
    work, images = make_work(FedCCRL(alpha=2.0), brief={"colours": colours}), batch()
    import unseen.methods.fedccrl as module

    before, module.aug_mix = module.aug_mix, lambda x, rng: x  # type: ignore[assignment]
    try:
        view = FedCCRL(alpha=2.0).view(work, images.x, style_of(images.x))
    finally:
        module.aug_mix = before
    own, new, foreign = images.x.mean((2, 3)), view.mean((2, 3)), colours[0, 0]
    share = (new - foreign) / (own - foreign)
    assert torch.allclose(share, share[:, :1], atol=0.05)  # one share per image, the same for its channels
    assert bool(((share > 0) & (share < 1)).all()) and len(share[:, 0].unique()) == 8


@pytest.mark.parametrize(("views", "share"), [("sum", 1), ("mean", 1 / 3)])
def test_loss_by_hand(views: Literal["mean", "sum"], share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Views that are fixed changes of the image, each its own: every term, in full or a third of it."""
    changes = [lambda x: 1 - x, lambda x: x / 2]  # the first view's and the second's
    drawn = iter(changes)
    monkeypatch.setattr("unseen.methods.fedccrl.aug_mix", lambda x, rng: next(drawn)(x))
    work, images = make_work(FedCCRL(alignment=0.4, agreement=0.7, views=views)), batch()
    work.net.eval()
    found = work.method.loss(work, images).item()
    seen, labels = [images.x, *(change(images.x) for change in changes)], images.y.numpy()
    with torch.no_grad():
        rows, chances = [work.net.features(x).numpy() for x in seen], [softmax(work.net(x).numpy()) for x in seen]
    risk = sum(-np.log(p[np.arange(8), labels]).mean() for p in chances)
    twice = np.concatenate([labels, labels])
    contrast = np.mean([numpy_contrast(np.concatenate([view, rows[0]]), twice, 0.1, True) for view in rows[1:]])
    middle = np.mean(chances, axis=0)
    apart = np.mean([(p * np.log(p / middle)).sum(1).mean() for p in chances])
    assert found == pytest.approx(share * (risk + 0.4 * contrast + 0.7 * apart), rel=1e-4)


def test_another_parts_penalty_is_added_in_full_and_the_default_is_told() -> None:
    assert FedCCRL().about.remark == "mean over views, not sum" and FedCCRL(views="sum").about.remark == ""
    losses = []
    for name in ("fedccrl", "fedccrl+fedprox"):
        work = make_work(parse(name, {"mu": "0.5"} if "fedprox" in name else {}), brief={})
        work.method.prepare(work)
        with torch.no_grad():
            work.net.head.bias += 1.0
        losses.append(work.method.loss(work, batch()).item())
    assert losses[1] - losses[0] == pytest.approx(0.5 / 2 * 3, rel=1e-4)  # mu / 2 * the squared distance


def test_aug_mix_stays_in_range_and_follows_its_generator() -> None:
    x = batch(4).x
    one, two = (aug_mix(x, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(one, two) and not torch.equal(one, x)
    assert not torch.equal(one, aug_mix(x, torch.Generator().manual_seed(4)))
    assert float(one.min()) >= 0 and float(one.max()) <= 1
