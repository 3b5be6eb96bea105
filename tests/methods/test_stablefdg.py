from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.tiny_federation import CLIENTS, federation
from tests.tiny_work import TensorImages, batch, make_work, random_images, tiny_net
from unseen.core.errors import UserError
from unseen.core.types import Batch, Server, Site, Work
from unseen.methods.fedavg import FedAvg
from unseen.methods.stablefdg import StableFDG, farthest, ring
from unseen.nets.backbones import create_net
from unseen.nets.parts.style_space import balanced_rows, partners_of
from unseen.nets.parts.styles import style_of
from unseen.registry import parse


def survey(work: Work) -> Tensor:
    """As the client's loop does it: in eval mode, without gradients."""
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


class Watched:
    """A net's stages, with what entered each of them."""

    def __init__(self, work: Work) -> None:
        self.entered: dict[int, Tensor] = {}
        self.run = work.net.run_stage
        work.net.run_stage = self  # type: ignore[method-assign, assignment]

    def __call__(self, stage: int, x: Tensor) -> Tensor:
        self.entered[stage] = x.detach()
        return self.run(stage, x)


# --- step 1 ----------------------------------------------------------------------------------------------------------
def test_survey_measures_styles_as_training_sees_them() -> None:
    """All images once, shuffled, in batches of the plan's size, as `fetch` augments them, BatchNorm by the batch."""
    fetched: list[Tensor] = []
    work = make_work(StableFDG(), batch_size=10)  # 32 images: three batches of 10 or 11

    def fetch(rows: Tensor) -> Batch:
        fetched.append(rows)
        found = work.site.train.batch(rows)
        return Batch(1 - found.x, found.y, found.domain)  # the augmentation

    work.fetch = fetch
    before = {name: value.clone() for name, value in work.net.state_dict().items()}
    statistics = survey(work)
    assert sorted(torch.cat(fetched).tolist()) == list(range(32)) != torch.cat(fetched).tolist()
    assert sorted(len(rows) for rows in fetched) == [10, 11, 11]
    assert all(torch.equal(value, before[name]) for name, value in work.net.state_dict().items())  # not one buffer
    means, stds = [], []
    with torch.no_grad():
        for rows in fetched:
            maps = work.net.train().run_stage(0, 1 - work.site.train.batch(rows).x).double().numpy()
            means.append(maps.mean((2, 3)))
            stds.append(np.sqrt(maps.var((2, 3)) + 1e-6))
    mean, std = np.concatenate(means), np.concatenate(stds)
    expected = np.stack([mean.mean(0), std.mean(0), mean.var(0), std.var(0)])
    np.testing.assert_allclose(statistics.numpy(), expected, rtol=1e-4, atol=1e-6)
    assert statistics.shape == (4, work.net.stage_channels[0])


def test_what_is_shared_is_where_training_is() -> None:
    """The centre that a client tells is that of the maps it will shift: eval mode's was far away in round 1."""
    work = make_work(StableFDG(), batch_size=32)
    told = survey(work)[:2]
    with torch.no_grad():
        trained = style_of(work.net.train().run_stage(0, work.site.train.batch(torch.arange(32)).x))
    seen = torch.stack([trained.mean.mean(0), trained.std.mean(0)])
    assert float((told - seen).norm() / seen.norm()) < 1e-3


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


# --- traffic ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("variant", "down"), [("official", 4), ("paper", 8)])
@pytest.mark.parametrize("selection", ["last", "validation"])
def test_a_rounds_bytes_are_fedavgs_and_the_highlighter_and_the_styles(
    tmp_path: Path, variant: str, down: int, selection: str
) -> None:
    """The model travels down once, with the survey. Also what is measured by validation comes with it."""
    fields: dict[str, Any] = {"local_steps": 1, "rounds": 2, "server_selection": selection}
    plain = federation(FedAvg(), tmp_path / "fedavg", **fields)
    ours = federation(StableFDG(variant=variant), tmp_path / "ours", **fields)  # type: ignore[arg-type]
    rounds = zip(plain.run(), ours.run(), strict=True)
    channels, classes, last, d = ours.net.stage_channels[0], ours.net.classes, ours.net.map_channels, 30
    highlighter = 4 * (2 * (last * d + d) + last * classes)  # queries, keys, and the head's second half
    for one, two in rounds:
        notes = 8 * (len(two.metrics["a"]) - len(one.metrics["a"]))  # the log's numbers: "batch"
        for client in CLIENTS:
            assert two.bytes_up[client] - one.bytes_up[client] == highlighter + 4 * 4 * channels + notes
            assert two.bytes_down[client] - one.bytes_down[client] == highlighter + 4 * down * channels
    assert not list((tmp_path / "ours").rglob("received-*"))  # no copy of a model stays at a client


def test_round_one_shares_and_so_does_a_part_of_the_clients(tmp_path: Path) -> None:
    ours = federation(StableFDG(), tmp_path, local_steps=1, rounds=3, participation=2)
    for done in ours.run():
        assert len(done.metrics) == 2
    crossed = ours.ledger.entries["down/statistics/styles"]
    assert crossed.crossings == 6 and crossed.shape == [1, 4, ours.net.stage_channels[0]]


def test_the_same_bits_for_one_and_two_workers(tmp_path: Path) -> None:
    one = federation(StableFDG(), tmp_path / "one", local_steps=2)
    two = federation(StableFDG(), tmp_path / "two", local_steps=2, workers=2)
    one.run(), two.run()
    assert all(torch.equal(value, two.server.state[name]) for name, value in one.server.state.items())


# --- step 2 ----------------------------------------------------------------------------------------------------------
def known_style(value: float = 50.0, channels: int = 3) -> Tensor:
    """A received style without spread: the new style is known exactly."""
    received = torch.full((1, 4, channels), value)
    received[:, 2:] = 0
    return received


@pytest.mark.parametrize("keeping", ["kmeans", "random"])
@pytest.mark.parametrize(("size", "shifted"), [(1, 0), (2, 1), (3, 1), (7, 3), (8, 4)])
def test_half_of_the_batch_takes_the_received_style(keeping: Any, size: int, shifted: int) -> None:
    x = torch.rand(size, 3, 4, 4)
    new = StableFDG(keeping=keeping)._shift(x, {"styles": known_style()}, np.random.default_rng(0))
    moved = (style_of(new).mean > 40).all(1)
    assert int(moved.sum()) == shifted and torch.equal(new[~moved], x[~moved])
    torch.testing.assert_close(style_of(new).mean[moved], torch.full((shifted, 3), 50.0), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(style_of(new).std[moved], torch.full((shifted, 3), 50.0), rtol=1e-3, atol=1e-3)


def test_the_image_between_its_likes_keeps_its_style_for_them() -> None:
    """Three alike and one apart, two kept: the one apart, and the middle of the three."""
    pattern = torch.tensor([[-1.0, 1.0], [1.0, -1.0]])
    x = torch.tensor([0.0, 0.2, 0.1, 9.0])[:, None, None, None] + pattern
    new = StableFDG()._shift(x, {"styles": known_style(channels=1)}, np.random.default_rng(0))
    np.testing.assert_allclose(style_of(new).mean[:, 0].numpy(), [50.0, 50.0, 0.1, 9.0], rtol=1e-5)


def test_several_received_styles_are_all_used() -> None:
    received = torch.zeros(3, 4, 2)
    received[:, 0] = torch.tensor([100.0, 200.0, 300.0])[:, None]
    new = StableFDG(styles=3)._shift(torch.rand(40, 2, 3, 3), {"styles": received}, np.random.default_rng(0))
    assert {100, 200, 300} <= set(style_of(new).mean[:, 0].round().int().tolist())


# --- steps 3 to 5 ----------------------------------------------------------------------------------------------------
def sizes(method: StableFDG, steps: int = 12) -> list[int]:
    work = briefed(method)
    with torch.no_grad():
        for _ in range(steps):
            method.loss(work, batch())
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
    images = Batch(batch().x, torch.tensor([0, 0, 0, 0, 1, 1, 2, 2]), torch.arange(8))
    method.loss(work, images)
    seen, features = work.scratch["batch"], work.scratch["features"]
    assert isinstance(seen, Batch) and isinstance(features, Tensor)
    assert features.shape == (16, work.net.feature_size) == (16, work.net.head.in_features)
    assert torch.bincount(seen.y).tolist() in ([6, 5, 5], [5, 6, 5], [5, 5, 6])
    for row in range(16):  # images, labels and domains stay together
        origin = int(seen.domain[row])
        assert torch.equal(seen.x[row], images.x[origin]) and seen.y[row] == images.y[origin]
    assert seen.domain[:8].tolist() == list(range(8))


def numpy_style(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return x.mean((2, 3), keepdims=True), np.sqrt(x.var((2, 3), keepdims=True) + 1e-6)


def test_shift_exploration_and_mixing_follow_each_other_and_each_measures_anew() -> None:
    """Algorithm 1 after stage 0 in plain NumPy, with a flat channel and a deviation that became 0."""
    method = StableFDG(style_only=True, probability=1.0, stages=(0,), alpha=2.0, keeping="random")
    work = make_work(method)
    received = survey(work)[None].clone()
    received[:, 2:] = 0
    received[:, 1, 0] = -1.0  # becomes 0: the shifted maps are flat there, and no arithmetic on styles knows it
    work.brief = {"styles": received}
    watched = Watched(work)
    with torch.no_grad():
        state = work.rng.get_state()
        method.loss(work, batch())
    got = watched.entered[1].double().numpy()

    work.rng.set_state(state)
    dice = np.random.default_rng(int(torch.randint(2**62, (), generator=work.rng)))
    x = watched.run(0, watched.entered[0]).detach().double().numpy()
    mean, std = numpy_style(x)
    dice.random()  # the coin of the shift
    moved = np.sort(dice.permutation(8)[4:])
    phi = received[0].double().numpy()[:, :, None, None]
    x[moved] = np.maximum(phi[1], 0) * (x[moved] - mean[moved]) / std[moved] + phi[0]
    dice.integers(1, size=4), dice.standard_normal((2, 4, x.shape[1]))  # which style; the noise
    dice.random()  # the coin of the exploration
    rows = balanced_rows(batch().y.numpy(), 8, dice)
    mean, std = numpy_style(x)
    far_mean, far_std = mean[rows] + 2 * (mean[rows] - mean.mean(0)), std[rows] + 2 * (std[rows] - std.mean(0))
    x = np.concatenate([x, far_std * (x[rows] - mean[rows]) / std[rows] + far_mean])
    mean, std = numpy_style(x)
    share, other = dice.beta(0.1, 0.1, (16, 1))[:, :, None, None], dice.permutation(16)
    new_mean, new_std = share * mean + (1 - share) * mean[other], share * std + (1 - share) * std[other]
    expected = new_std * (x - mean) / std + new_mean
    assert np.abs(got - expected).max() < 2e-3 * np.abs(expected).max()


@pytest.mark.parametrize("variant", ["official", "paper"])
def test_the_whole_loss_in_numpy(variant: Any) -> None:
    """Algorithm 1 under each variant: steps 2 to 5 after each stage, the highlighter, cross-entropy over all rows."""
    method = StableFDG(variant=variant, probability=1.0, alpha=0.5, keeping="random")
    work = briefed(method)
    labels, net = np.array([0, 0, 0, 0, 1, 1, 2, 2]), work.net
    images = Batch(batch().x, torch.from_numpy(labels), torch.zeros(8, dtype=torch.int64))
    start, state = {name: value.clone() for name, value in net.state_dict().items()}, work.rng.get_state()
    got = float(method.loss(work, images).detach())
    net.load_state_dict(start), work.rng.set_state(state)

    dice = np.random.default_rng(int(torch.randint(2**62, (), generator=work.rng)))
    shown, x, phi = np.arange(8), images.x, {name: value.double().numpy() for name, value in work.brief.items()}

    def adain(x: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
        own_mean, own_std = numpy_style(x)
        return std * (x - own_mean) / own_std + mean

    for stage in range(net.stages):
        with torch.no_grad():
            maps = net.run_stage(stage, x.float()).double().numpy()
        if stage == 0:  # step 2
            dice.random()
            moved = np.sort(dice.permutation(8)[4:])
            (mu, sigma, var_mu, var_sigma), _ = phi["styles"][0], dice.integers(1, size=4)
            noise_mu, noise_sigma = dice.standard_normal((2, 4, maps.shape[1])).astype(np.float32).astype(np.float64)
            if variant == "official":  # N(0, the received variance)
                spread_mu, spread_sigma = np.sqrt(var_mu), np.sqrt(var_sigma)
            else:  # epsilon * the received variance, epsilon ~ N(0, the own variance)
                spread_mu, spread_sigma = np.sqrt(phi["own"][2]) * var_mu, np.sqrt(phi["own"][3]) * var_sigma
            new_mean, new_std = mu + noise_mu * spread_mu, np.maximum(sigma + noise_sigma * spread_sigma, 0)
            maps[moved] = adain(maps[moved], new_mean[:, :, None, None], new_std[:, :, None, None])
        if stage < 3:
            dice.random()
            if variant == "paper" or stage == 0:  # steps 3 and 4
                rows = balanced_rows(labels[shown], 8, dice)
                mean, std = numpy_style(maps)
                far = (1.5 * part[rows] - 0.5 * part.mean(0) for part in (mean, std))
                maps, shown = np.concatenate([maps, adain(maps[rows], *far)]), np.concatenate([shown, shown[rows]])
            mean, std = numpy_style(maps)  # step 5
            share, other = dice.beta(0.1, 0.1, (len(maps), 1)).astype(np.float32), dice.permutation(len(maps))
            share = share[:, :, None, None].astype(np.float64)
            maps = adain(maps, *(share * part + (1 - share) * part[other] for part in (mean, std)))
        x = torch.from_numpy(maps)
    assert len(maps) == (16 if variant == "official" else 32)

    partners = partners_of(labels[shown], shown, dice)
    weights = {
        name: value.double().numpy() for name, value in net.state_dict().items() if name.startswith(("ex", "he"))
    }
    places = maps.reshape(len(maps), maps.shape[1], -1)

    def embedded(kind: str) -> np.ndarray:
        theta, bias = weights[f"extras.highlighter.{kind}.weight"], weights[f"extras.highlighter.{kind}.bias"]
        found = np.einsum("dc,bcn->bdn", theta, places) + bias[:, None]
        return found / np.linalg.norm(found, axis=1, keepdims=True) if variant == "official" else found

    queries, keys = embedded("query"), embedded("key")
    similarity = np.einsum("bdm,bdn->bmn", (queries[partners] + queries) / 2, keys)  # Eq. 8
    score = np.exp(similarity.mean(1) - similarity.mean(1).max(1, keepdims=True))
    highlighted = np.einsum("bcn,bn->bc", places, score / score.sum(1, keepdims=True))  # Eq. 7
    with torch.no_grad():
        pooled = net.pool(x.float()).double().numpy()
    logits = np.hstack([pooled, highlighted]) @ weights["head.weight"].T + weights["head.bias"]
    log_p = logits - logits.max(1, keepdims=True)
    log_p -= np.log(np.exp(log_p).sum(1, keepdims=True))
    assert got == pytest.approx(-log_p[np.arange(len(maps)), labels[shown]].mean(), rel=1e-5)


# --- attention -------------------------------------------------------------------------------------------------------
def test_head_and_highlighter_have_the_sizes_of_the_paper() -> None:
    plain = create_net("resnet18", 7, image_size=64)
    count = sum(p.numel() for p in plain.parameters())
    assert count == 11_180_103  # as Appendix E.2
    ours = sum(p.numel() for p in StableFDG().build(plain).parameters()) - count
    assert ours == 2 * (512 * 30 + 30) + 512 * 7  # +0.31 %; the authors' code has unused layers too: +0.445 %
    assert ours + (512 * 30 + 30) + (1 + 1) - 0 == 49_756 == 11_229_859 - count


def fetched_for(method: StableFDG, labels: list[int], rows: list[int]) -> tuple[list[int], Work]:
    """Which training images joined a batch of the training images `rows` with these labels."""
    calls: list[int] = []
    train = TensorImages(random_images(12).x, torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 2, 2, 3, 4]))
    work = make_work(method, site=Site("a", train, train))
    work.rows = torch.tensor(rows)
    assert train.labels[work.rows].tolist() == labels

    def fetch(wanted: Tensor) -> Batch:
        calls.extend(wanted.tolist())
        return train.batch(wanted)

    work.fetch = fetch
    method.loss(work, Batch(train.x[work.rows], train.labels[work.rows] % 3, torch.arange(len(rows))))
    return calls, work


def test_a_class_with_one_image_gets_another_image_of_it() -> None:
    rows = [0, 1, 2, 3, 4, 5, 6, 9]
    alone, pairs = [0, 0, 0, 0, 0, 0, 1, 2], [0, 0, 0, 0, 1, 1, 2, 2]
    for probability in (0.0, 1.0):  # a copy that oversampling makes is no other image
        joined, work = fetched_for(StableFDG(probability=probability, sharing="none"), alone, rows)
        assert joined == [7, 8]  # never 6 and 9, which are in the batch
        assert work.notes["batch"][0] == (10 if probability == 0 else 18)
    assert fetched_for(StableFDG(probability=0.0), pairs, [0, 1, 2, 3, 6, 7, 8, 9])[0] == []
    assert fetched_for(StableFDG(probability=0.0, attention="self"), alone, rows)[0] == []
    assert fetched_for(StableFDG(probability=0.0, style_only=True), alone, rows)[0] == []


def test_no_row_is_paired_with_its_own_copy() -> None:
    pairs: list[tuple[Tensor, Tensor]] = []

    class Seen(Listener):
        def _features(self, net: Any, maps: Tensor, partners: Tensor | None = None) -> Tensor:
            assert partners is not None
            pairs.append((maps, partners))
            return super()._features(net, maps, partners)

    method = Seen(probability=1.0)
    work = briefed(method)
    for seed in range(5):
        images = random_images(9, seed=seed).batch(torch.arange(9))
        method.loss(work, Batch(images.x, torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2]), torch.arange(9)))
        seen, partners = work.scratch["batch"], pairs[-1][1]
        assert isinstance(seen, Batch) and len(partners) == len(seen) == 18
        assert torch.equal(seen.y[partners], seen.y) and bool((seen.domain[partners] != seen.domain).all())


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


def test_styles_that_are_told_once_are_kept_and_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shifted, shift = [], StableFDG._shift

    def counted(self: StableFDG, x: Tensor, received: Any, dice: Any) -> Tensor:
        shifted.append(received["styles"])
        return shift(self, x, received, dice)

    monkeypatch.setattr(StableFDG, "_shift", counted)
    ours = federation(StableFDG(exchanges=1, probability=1.0), tmp_path, local_steps=1)
    ours.run()
    (told,) = (entry for key, entry in ours.ledger.entries.items() if key.startswith("up/statistics/"))
    assert told.crossings == len(CLIENTS)  # in the first round of two
    assert len(shifted) == 2 * len(CLIENTS)
    assert all(torch.equal(one, two) for one, two in zip(shifted[:3], shifted[3:], strict=True))


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
        ({"exchanges": 0}, "1 or more"),
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


@pytest.mark.parametrize("variant", ["official", "paper"])
@pytest.mark.parametrize("labels", [[0, 0], [0, 1], [0, 1, 1], [2, 1, 0], [0]], ids=str)
def test_small_batches_train_and_classes_may_be_missing(labels: list[int], variant: Any) -> None:
    """A client with few images; class 2 has one image there, and is its own partner."""
    few = TensorImages(random_images(6).x, torch.tensor([0, 0, 0, 1, 1, 2]))
    work = briefed(StableFDG(probability=1.0, variant=variant), site=Site("a", few, few), batch_size=4)
    rows = torch.tensor([{0: 0, 1: 3, 2: 5}[label] + labels[:i].count(label) for i, label in enumerate(labels)])
    for _ in range(3):
        work.rows = rows
        work.method.step(work, few.batch(rows))
    assert np.isfinite(work.notes["loss"]).all()


def test_a_client_smaller_than_a_batch_surveys_and_trains(tmp_path: Path) -> None:
    ours = federation(StableFDG(), tmp_path, local_steps=None, local_epochs=1, batch_size=30)  # "a" has 24 images
    for done in ours.run():
        assert set(done.metrics) == set(CLIENTS) and not done.refused


def test_what_it_sends_follows_its_fields() -> None:
    assert StableFDG().about.sends == StableFDG.traits.sends != ""
    for silent in (StableFDG(attention_only=True), StableFDG(sharing="none"), StableFDG(probability=0.0)):
        assert silent.about.sends == "" and not any(silent.surveys(round) for round in (1, 2))
