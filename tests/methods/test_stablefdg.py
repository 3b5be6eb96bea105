from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.tiny_work import TensorImages, batch, make_work, random_images, tiny_net
from unseen.core.errors import UserError
from unseen.core.types import Batch, Server, Site, Work
from unseen.methods.stablefdg import StableFDG, around, farthest, ring
from unseen.nets.backbones import create_net
from unseen.nets.parts.styles import Style
from unseen.registry import parse


def survey(work: Work) -> Tensor:
    work.net.eval()
    with torch.no_grad():
        statistics = work.method.survey(work)["style"]
    work.net.train()
    return statistics


def briefed(method: StableFDG, **changes: Any) -> Work:
    """Work that received another client's style."""
    work = make_work(method, **changes)
    style = survey(work)
    work.brief = {"styles": style[None] * 1.5, "own": style}
    return work


class Listener(StableFDG):
    """Remembers the batch and the features that penalties are given."""

    def penalty(self, work: Work, batch: Batch, features: Tensor) -> Tensor:
        work.scratch["batch"], work.scratch["features"] = batch, features
        return features.new_zeros(())


# --- step 1 ----------------------------------------------------------------------------------------------------------
def test_survey_is_the_style_after_the_first_stage_of_all_training_images() -> None:
    method = StableFDG()
    work = make_work(method)
    statistics = survey(work)
    with torch.no_grad():
        work.net.eval()
        maps = work.net.run_stage(0, work.site.train.batch(torch.arange(len(work.site.train))).x).double().numpy()
    mean, std = maps.mean((2, 3)), np.sqrt(maps.var((2, 3)) + 1e-6)
    expected = np.stack([mean.mean(0), std.mean(0), mean.var(0), std.var(0)])
    np.testing.assert_allclose(statistics.numpy(), expected, rtol=1e-4, atol=1e-6)
    assert statistics.shape == (4, work.net.stage_channels[0])


@pytest.mark.parametrize("clients", [2, 3, 10])
@pytest.mark.parametrize("styles", [1, 3])
def test_permutation_is_one_to_one_without_fixed_points(clients: int, styles: int) -> None:
    names = [f"c{i}" for i in range(clients)]
    for seed in range(20):
        givers = ring(names, styles, np.random.default_rng(seed))
        reach = min(styles, clients - 1)
        for k in range(reach):
            assert sorted(givers[name][k] for name in names) == sorted(names)
        assert all(name not in given and len(set(given)) == reach for name, given in givers.items())


def test_brief_depends_on_seed_and_round_and_not_on_the_order_of_clients() -> None:
    statistics = {f"c{i}": {"style": torch.full((4, 2), float(i))} for i in range(8)}
    method = StableFDG()

    def given(seed: int, round: int, chosen: list[str]) -> dict[str, float]:
        notes = method.brief(Server({}, seed=seed, round=round), statistics, chosen)
        return {client: float(note["styles"][0, 0, 0]) for client, note in notes.items()}

    first = given(0, 0, list(statistics))
    assert all(f"c{int(v)}" != client for client, v in first.items()) and len(set(first.values())) == 8
    assert first == given(0, 0, list(statistics)[::-1])
    assert first != given(0, 1, list(statistics)) and first != given(1, 0, list(statistics))
    assert set(given(0, 0, ["c1", "c2"])) == {"c1", "c2"}


def test_the_largest_distance_gives_the_farthest_style() -> None:
    statistics = {"a": torch.zeros(4, 2), "b": torch.ones(4, 2), "c": torch.full((4, 2), 5.0)}
    assert farthest(statistics, 1) == {"a": ["c"], "b": ["c"], "c": ["a"]}
    assert farthest(statistics, 5) == {"a": ["c", "b"], "b": ["c", "a"], "c": ["a", "b"]}
    notes = StableFDG(sharing="distance").brief(
        Server({}), {k: {"style": v} for k, v in statistics.items()}, ["a", "b", "c"]
    )
    assert torch.equal(notes["c"]["styles"], statistics["a"][None])


def test_a_single_client_has_no_one_to_exchange_with() -> None:
    method = StableFDG()
    assert method.brief(Server({}), {"a": {"style": torch.zeros(4, 2)}}, ["a"]) == {}
    work = make_work(method)  # no brief: no shift, and the step runs
    method.step(work, batch())
    assert np.isfinite(work.notes["loss"][0])


# --- step 2 ----------------------------------------------------------------------------------------------------------
def test_noise_around_a_received_style_against_numpy() -> None:
    rng = np.random.default_rng(0)
    received, own = rng.random((3, 4, 5)).astype(np.float32), rng.random((4, 5)).astype(np.float32)
    received[0, 1] = -10  # so far below zero that only the clamp can help
    drawn = rng.standard_normal((2, 3, 5)).astype(np.float32)
    code = around(torch.from_numpy(received), torch.from_numpy(drawn))
    paper = around(torch.from_numpy(received), torch.from_numpy(drawn), torch.from_numpy(own))
    for n in range(3):
        mu, sigma, var_mu, var_sigma = received[n]
        np.testing.assert_allclose(code[0][n], mu + drawn[0, n] * np.sqrt(var_mu), rtol=1e-5)
        np.testing.assert_allclose(code[1][n], np.maximum(sigma + drawn[1, n] * np.sqrt(var_sigma), 0), rtol=1e-5)
        epsilon_mu, epsilon_sigma = drawn[0, n] * np.sqrt(own[2]), drawn[1, n] * np.sqrt(own[3])
        np.testing.assert_allclose(paper[0][n], mu + epsilon_mu * var_mu, rtol=1e-5)
        np.testing.assert_allclose(paper[1][n], np.maximum(sigma + epsilon_sigma * var_sigma, 0), rtol=1e-5)


@pytest.mark.parametrize("keeping", ["kmeans", "random"])
@pytest.mark.parametrize(("size", "shifted"), [(1, 0), (7, 3), (8, 4)])
def test_half_of_the_batch_takes_the_received_style(keeping: Any, size: int, shifted: int) -> None:
    method = StableFDG(keeping=keeping)
    style = Style(torch.rand(size, 3), torch.rand(size, 3) + 0.1)
    received = torch.full((1, 4, 3), 50.0)
    received[:, 2:] = 0  # no spread: the new style is known exactly
    new = method._shift(style, {"styles": received}, np.random.default_rng(0))
    moved = (new.mean == 50).all(1)
    assert int(moved.sum()) == shifted and torch.equal(moved, (new.std == 50).all(1))
    assert torch.equal(new.mean[~moved], style.mean[~moved]) and torch.equal(new.std[~moved], style.std[~moved])


def test_the_image_between_its_likes_keeps_its_style_for_them() -> None:
    """Three alike and one apart, two kept: the one apart, and the middle of the three."""
    style = Style(torch.tensor([[0.0], [0.2], [0.1], [9.0]]), torch.ones(4, 1))
    received = torch.full((1, 4, 1), 50.0)
    received[:, 2:] = 0
    new = StableFDG()._shift(style, {"styles": received}, np.random.default_rng(0))
    np.testing.assert_allclose(new.mean[:, 0].numpy(), [50.0, 50.0, 0.1, 9.0], rtol=1e-6)


def test_official_centroids_overwrite_the_first_rows() -> None:
    places = torch.tensor([[9.0], [0.0], [0.2], [9.4]])
    style = Style(places, torch.ones(4, 1))
    received = torch.full((1, 4, 1), 50.0)
    received[:, 2:] = 0
    new = StableFDG(variant="official")._shift(style, {"styles": received}, np.random.default_rng(0))
    np.testing.assert_allclose(sorted(new.mean[:2, 0].tolist()), [0.1, 9.2], rtol=1e-5)
    assert new.mean[2:, 0].tolist() == [50.0, 50.0]


def test_several_received_styles_are_all_used() -> None:
    received = torch.zeros(3, 4, 2)
    received[:, 0] = torch.tensor([100.0, 200.0, 300.0])[:, None]
    style = Style(torch.rand(40, 2), torch.rand(40, 2))
    new = StableFDG(styles=3)._shift(style, {"styles": received}, np.random.default_rng(0))
    assert {100.0, 200.0, 300.0} <= set(new.mean[:, 0].tolist())


# --- steps 3 to 5 ----------------------------------------------------------------------------------------------------
def sizes(method: StableFDG, steps: int = 12, brief: bool = True, labels: Tensor | None = None) -> list[int]:
    work = briefed(method) if brief else make_work(method)
    images = batch()
    if labels is not None:
        images = Batch(images.x, labels, images.domain)
    with torch.no_grad():
        for _ in range(steps):
            method.loss(work, images)
    return [int(n) for n in work.notes["batch"]]


def test_batches_grow_once_or_at_every_stage_or_not_at_all() -> None:
    assert set(sizes(StableFDG(probability=1.0), 3)) == {16}
    assert set(sizes(StableFDG(probability=1.0, exploring="every"), 3)) == {32}
    assert set(sizes(StableFDG(probability=1.0, variant="paper"), 3)) == {32}
    assert set(sizes(StableFDG(probability=1.0, oversample=3), 3)) == {11}
    assert set(sizes(StableFDG(probability=1.0, oversample=0), 3)) == {8}
    assert set(sizes(StableFDG(probability=0.0), 3)) == {8}
    assert set(sizes(StableFDG(attention_only=True), 3)) == {8}
    assert set(sizes(StableFDG(), 24)) == {8, 16}  # 7 of 8 steps grow: (1/2)^3 do not


def test_penalties_see_the_enlarged_batch_and_what_the_head_sees() -> None:
    method = Listener(probability=1.0)
    work = briefed(method)
    images = Batch(batch().x, torch.tensor([0, 0, 0, 0, 0, 1, 1, 2]), torch.arange(8))
    method.loss(work, images)
    seen, features = work.scratch["batch"], work.scratch["features"]
    assert isinstance(seen, Batch) and isinstance(features, Tensor)
    assert features.shape == (16, work.net.feature_size) == (16, work.net.head.in_features)
    assert torch.bincount(seen.y).tolist() in ([6, 5, 5], [5, 6, 5], [5, 5, 6])
    for row in range(16):  # images, labels and domains stay together
        origin = int(seen.domain[row])
        assert torch.equal(seen.x[row], images.x[origin]) and seen.y[row] == images.y[origin]
    assert seen.domain[:8].tolist() == list(range(8))


def test_one_step_against_numpy_without_attention() -> None:
    """Shift off, explore after stage 0 with known rows, no mixing: the maps that enter stage 1, by hand."""
    method = StableFDG(style_only=True, probability=1.0, stages=(0,), mixing=0.0, alpha=2.0, sharing="none")
    work = make_work(method)
    images = batch()
    entered: list[np.ndarray] = []
    run = work.net.run_stage

    def spy(stage: int, x: Tensor) -> Tensor:
        if stage == 1:
            entered.append(x.detach().numpy())
        return run(stage, x)

    work.net.run_stage = spy  # type: ignore[method-assign]
    trip = method._plan(work, images, np.random.default_rng(0))
    method._travel(work, images, trip, np.random.default_rng(1))
    maps = run(0, images.x).detach().numpy().astype(np.float64)
    mean, std = maps.mean((2, 3), keepdims=True), np.sqrt(maps.var((2, 3), keepdims=True) + 1e-6)
    rows = trip.added[0]
    new_mean = mean[rows] + 2.0 * (mean[rows] - mean.mean(0))
    new_std = std[rows] + 2.0 * (std[rows] - std.mean(0))
    explored = new_std * (maps[rows] - mean[rows]) / std[rows] + new_mean
    assert entered[0].shape[0] == 16
    np.testing.assert_allclose(entered[0], np.concatenate([maps, explored]), rtol=1e-3, atol=1e-3)


# --- attention -------------------------------------------------------------------------------------------------------
def test_head_and_highlighter_have_the_sizes_of_the_paper() -> None:
    plain = create_net("resnet18", 7, image_size=64)
    count = sum(p.numel() for p in plain.parameters())
    assert count == 11_180_103
    official = StableFDG(variant="official").build(plain)
    assert sum(p.numel() for p in official.parameters()) == 11_229_859  # +0.445 %, what the paper calls 0.44 %
    ours = StableFDG().build(create_net("resnet18", 7, image_size=64))
    assert sum(p.numel() for p in ours.parameters()) == count + 2 * (512 * 30 + 30) + 512 * 7
    assert official.extras["highlighter"].value.weight.requires_grad is False  # type: ignore[union-attr]


def test_an_extra_image_is_fetched_only_for_a_class_that_is_alone() -> None:
    calls: list[list[int]] = []

    def fetching(method: StableFDG, labels: list[int]) -> list[list[int]]:
        calls.clear()
        work = make_work(method)
        train = work.site.train

        def fetch(rows: Tensor) -> Batch:
            calls.append(train.labels[rows].tolist())
            return train.batch(rows)

        work.fetch = fetch
        method.loss(work, Batch(batch().x, torch.tensor(labels), batch().domain))
        assert work.notes["batch"][0] in (8, 16)  # guests are not learnt from
        return list(calls)

    alone, pairs = [0, 0, 0, 0, 0, 0, 1, 2], [0, 0, 0, 0, 1, 1, 2, 2]
    quiet = StableFDG(probability=0.0)
    assert fetching(quiet, alone) == [[1, 2]]
    assert fetching(quiet, pairs) == []
    assert fetching(StableFDG(probability=1.0), alone) == []  # oversampling has given them a partner
    assert fetching(StableFDG(probability=0.0, attention="self"), alone) == []
    assert fetching(StableFDG(probability=0.0, style_only=True), alone) == []


def test_guests_do_not_change_style_and_are_not_in_the_loss() -> None:
    method = StableFDG(probability=1.0, oversample=0)
    work = briefed(method)
    images = Batch(batch().x, torch.tensor([0, 0, 0, 0, 0, 0, 0, 2]), batch().domain)
    trip = method._plan(work, images, np.random.default_rng(0))
    assert len(trip.guests) == 1
    work.net.eval()  # so that batch statistics do not tie the guest to the others
    maps, labels = method._travel(work, images, trip, np.random.default_rng(0))
    assert len(maps) == 9 and labels.tolist() == [2]
    torch.testing.assert_close(maps[8:], work.net.maps(work.site.train.batch(trip.guests).x), rtol=1e-3, atol=1e-4)
    assert not torch.allclose(maps[:8], work.net.maps(images.x), rtol=1e-3, atol=1e-4)


def test_predict_attends_to_itself_and_not_to_the_batch() -> None:
    method = StableFDG()
    net = tiny_net(method).eval()
    images = random_images(5).x
    with torch.no_grad():
        together = method.predict(net, images)
        alone = torch.cat([method.predict(net, images[i : i + 1]) for i in range(5)])
        maps = net.maps(images)
        by_hand = net.head(torch.cat([net.pool(maps), net.extras["highlighter"](maps)], dim=1))
    torch.testing.assert_close(together, alone)
    torch.testing.assert_close(together, by_hand)


# --- the whole step --------------------------------------------------------------------------------------------------
VARIANTS: list[dict[str, Any]] = [
    {},
    {"variant": "paper"},
    {"variant": "official"},
    {"style_only": True},
    {"attention_only": True},
    {"attention": "cross"},
    {"attention": "self"},
    {"attention": "convolution"},
    {"similarity": "dot"},
    {"oversampling": "random"},
    {"oversample": 5, "exploring": "every"},
    {"stages": (0, 1, 2, 3)},
    {"sharing": "none", "mixing": 0.0},
    {"shift_stage": 1},
]


@pytest.mark.parametrize("fields", VARIANTS, ids=str)
def test_every_variant_trains_and_reaches_every_trainable_tensor(fields: dict[str, Any]) -> None:
    method = StableFDG(**fields)
    work = briefed(method)
    reached: set[str] = set()
    images = TensorImages(batch(16).x, batch(16).y)
    for step in range(6):
        method.step(work, images.batch(torch.randperm(16, generator=work.rng)[: 7 + step % 2]))
        reached |= {n for n, p in work.net.named_parameters() if p.grad is not None and bool(p.grad.abs().sum() > 0)}
    assert reached == {n for n, p in work.net.named_parameters() if p.requires_grad}
    assert all(np.isfinite(value) for value in work.notes["loss"])


def test_the_same_generator_gives_the_same_bits() -> None:
    torch.set_num_threads(1)  # as in every run: two threads may sum in another order each time

    def trained() -> dict[str, Tensor]:
        work = briefed(StableFDG())
        for _ in range(3):
            work.method.step(work, batch())
            torch.rand(3)  # another draw from the global generator changes nothing
        return {k: v.clone() for k, v in work.net.state_dict().items()}

    first, second = trained(), trained()
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_surveys_are_held_only_when_styles_travel() -> None:
    assert StableFDG().surveys(1) and StableFDG(style_only=True).surveys(2)
    assert not StableFDG(attention_only=True).surveys(1)
    assert not StableFDG(sharing="none").surveys(1)
    assert not StableFDG(variant="official").surveys(1) and StableFDG(variant="official").surveys(2)


def test_it_composes_with_guidance_and_local_batch_norm() -> None:
    method = parse("fedbn+stablefdg+guide", {"alpha": "2"})
    work = make_work(method)
    method.step(work, batch())
    assert np.isfinite(work.notes["loss"][0])
    share = method.share(work.net)
    assert "extras.highlighter.query.weight" in share.down and len(share.down) < len(share.up)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"style_only": True, "attention_only": True}, "leave nothing"),
        ({"probability": 1.5}, "from 0 to 1"),
        ({"styles": 0}, "1 or more"),
        ({"oversample": -1}, "0 or more"),
        ({"mixing": -0.1}, "0 or more"),
    ],
)
def test_bad_fields_say_what_to_do(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        StableFDG(**fields)


def test_a_stage_that_the_backbone_does_not_have_is_named() -> None:
    with pytest.raises(UserError, match="no stage 7 in convnet"):
        tiny_net(StableFDG(stages=(0, 7)))


def test_a_site_may_hold_a_class_once() -> None:
    """The only image of its class is its own partner, in another augmentation."""
    images = random_images(8)
    lonely = TensorImages(images.x, torch.tensor([0, 0, 0, 0, 1, 1, 1, 2]))
    work = make_work(StableFDG(attention="cross", probability=0.0), site=Site("a", lonely, lonely))
    work.method.step(work, lonely.batch(torch.arange(8)))
    assert np.isfinite(work.notes["loss"][0])


def test_what_it_sends_follows_its_fields() -> None:
    assert StableFDG().about.sends == StableFDG.traits.sends != ""
    for silent in (StableFDG(attention_only=True), StableFDG(sharing="none"), StableFDG(probability=0.0)):
        assert silent.about.sends == "" and not any(silent.surveys(round) for round in (1, 2))
