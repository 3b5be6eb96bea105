from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.tiny_federation import same
from tests.tiny_work import PLAN, make_work, random_images, site, tiny_net
from unseen.core.tensors import snapshot
from unseen.core.types import Order, Reply, Server, Work
from unseen.federation.client import ClientRunner
from unseen.federation.client_state import ClientStates
from unseen.method import Method, compose
from unseen.methods.fedadg import FedADG, discriminator_loss, extractor_loss, generator_loss
from unseen.methods.fedavg import FedAvg
from unseen.methods.fedprox import FedProx
from unseen.nets.parts.adversarial import Discriminator, Generator

SOURCE, REFERENCE = [0.2, 0.6, 0.9], [0.7, 0.1, 0.4]


def play(work: Work, steps: int = 4) -> None:
    """A round of steps, as the client loop makes them."""
    work.method.prepare(work)
    work.net.train()
    work.steps = steps
    for step in range(steps):
        work.step = step
        work.method.step(work, work.site.train.batch(torch.arange(8 * step, 8 * step + 8)))


def changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    return {key for key, value in after.items() if value.is_floating_point() and not torch.equal(before[key], value)}


# --- the formulas ----------------------------------------------------------------------------------------------------
def test_the_three_losses_of_the_paper_by_hand() -> None:
    h, g = torch.tensor(SOURCE), torch.tensor(REFERENCE)
    eq2 = -(np.mean([(1 - d) ** 2 for d in SOURCE]) + np.mean([d**2 for d in REFERENCE]))
    eq3 = np.mean([(1 - d) ** 2 for d in SOURCE])
    eq4 = np.mean([(1 - d) ** 2 for d in REFERENCE])
    np.testing.assert_allclose(discriminator_loss(h, g, "paper").item(), eq2, rtol=1e-6)
    np.testing.assert_allclose(extractor_loss(h).item(), eq3, rtol=1e-6)
    np.testing.assert_allclose(generator_loss(g, "paper").item(), eq4, rtol=1e-6)


def test_the_least_squares_losses_by_hand() -> None:
    h, g = torch.tensor(SOURCE), torch.tensor(REFERENCE)
    of_d = np.mean([(1 - d) ** 2 for d in REFERENCE]) + np.mean([d**2 for d in SOURCE])
    np.testing.assert_allclose(discriminator_loss(h, g, "least-squares").item(), of_d, rtol=1e-6)
    np.testing.assert_allclose(generator_loss(g, "least-squares").item(), np.mean([d**2 for d in REFERENCE]), rtol=1e-6)


@pytest.mark.parametrize("contest", ["paper", "least-squares"])
def test_both_contests_push_opinions_of_source_down_and_of_reference_up(contest: Any) -> None:
    h, g = torch.tensor(SOURCE, requires_grad=True), torch.tensor(REFERENCE, requires_grad=True)
    discriminator_loss(h, g, contest).backward()  # type: ignore[no-untyped-call]
    assert h.grad is not None and g.grad is not None
    assert (h.grad > 0).all() and (g.grad < 0).all()


def test_warm_up_is_label_smoothed_cross_entropy() -> None:
    method = FedADG(smoothing=0.1)
    work = make_work(method)
    batch = work.site.train.batch(torch.arange(8))
    work.net.train()
    with torch.no_grad():
        logits = work.net.head(work.net.features(batch.x)).numpy().astype(np.float64)
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    target = np.full((8, 3), 0.1 / 3)
    target[np.arange(8), batch.y.numpy()] += 0.9
    by_hand = -(target * log_p).sum(axis=1).mean()
    method.prepare(work)
    method.step(work, batch)
    np.testing.assert_allclose(work.notes["loss"][0], by_hand, rtol=1e-5)
    assert set(work.notes) == {"loss"}


# --- who moves, and when ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("variant", ["follow", "paper", "official"])
def test_every_trainable_tensor_moves_and_the_generator_with_them(variant: Any) -> None:
    work = make_work(FedADG(variant=variant))
    before = snapshot(work.net)
    play(work)
    after = snapshot(work.net)
    trainable = {name for name, _ in work.net.named_parameters()}
    assert {name for name in trainable if "generator" in name} >= {"extras.generator.layers.0.weight"}
    assert trainable <= changed(before, after)
    fixed = "extras.discriminator.projection.matrix"
    assert (fixed in before) == (variant != "official")
    assert fixed not in changed(before, after)


def test_warm_up_leaves_generator_and_discriminator_alone() -> None:
    work = make_work(FedADG(warmup=0.5))
    before = snapshot(work.net)
    work.method.prepare(work)
    work.net.train()
    work.steps = 4
    for step, adversarial in enumerate([False, False, True, True]):
        work.step = step
        work.method.step(work, work.site.train.batch(torch.arange(8 * step, 8 * step + 8)))
        moved = changed(before, snapshot(work.net))
        assert "backbone.blocks.0.0.weight" in moved
        assert any(key.startswith("extras.") for key in moved) == adversarial


@pytest.mark.parametrize(
    ("warmup", "steps", "expected"), [(0.3, 10, 3), (0.3, 200, 60), (0.3, 1, 0), (1.0, 4, 3), (0.0, 4, 0)]
)
def test_warm_up_is_a_share_of_the_budget(warmup: float, steps: int, expected: int) -> None:
    assert FedADG(warmup=warmup)._warmup_steps(steps) == expected


@pytest.mark.parametrize(("contest", "sign"), [("paper", 1), ("least-squares", -1)])
def test_by_eq_4_the_generator_agrees_with_d_and_by_least_squares_not(contest: Any, sign: int) -> None:
    """A step of G moves D's opinion of the reference up (away from source features) or down (towards them)."""
    torch.manual_seed(0)
    generator, discriminator = Generator(4, 2, 16, 8), Discriminator(8, 2, 16, 4, "fixed")
    z, label = torch.rand(32, 4), torch.eye(2).repeat(16, 1)
    before = discriminator(generator(z, label), label).mean()
    loss = generator_loss(discriminator(generator(z, label), label), contest)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.optim.SGD(generator.parameters(), lr=0.1).step()
    after = discriminator(generator(z, label), label).mean()
    assert sign * float((after - before).detach()) > 0


def test_order_of_the_moves() -> None:
    class Spy(FedADG):
        def descend(self, work: Work, loss: Tensor, optimizer: str = "main") -> None:
            moves.append(optimizer)
            super().descend(work, loss, optimizer)

    for variant, order in {
        "paper": ["main", "discriminator", "generator"],
        "follow": ["main", "discriminator", "generator"],
        "official": ["discriminator", "main", "generator"],
    }.items():
        moves: list[str] = []
        play(make_work(Spy(variant=variant, warmup=0.0)), steps=1)  # type: ignore[arg-type]
        assert moves == order


def test_three_learning_rates_and_no_parameter_in_two_optimizers() -> None:
    method = FedADG(generator_lr=0.5, discriminator_lr=0.25)
    work = make_work(method)
    method.prepare(work)
    rates = {name: optimizer.param_groups[0]["lr"] for name, optimizer in work.optimizers.items()}
    assert rates == pytest.approx({"main": 0.05, "generator": 0.025, "discriminator": 0.0125})
    held = [p for optimizer in work.optimizers.values() for group in optimizer.param_groups for p in group["params"]]
    assert len(held) == len(set(held)) == len(work.net.trainable())


# --- what is shared --------------------------------------------------------------------------------------------------
def test_the_discriminator_is_private_and_the_generator_shared() -> None:
    method = FedADG()
    net = tiny_net(method)
    share = method.share(net)
    own = {key for key in net.state_dict() if key.startswith("extras.discriminator.")}
    assert len(own) == 5
    assert share.up == share.down == frozenset(net.state_dict()) - own
    assert any(key.startswith("extras.generator.") for key in share.up)


def test_the_mean_is_plain() -> None:
    server = Server(state={})
    for count in (10, 1000):
        assert FedADG().weigh(server, Reply("a", "train", 1, count)) == 1.0


def runner(method: Method, folder: Path) -> ClientRunner:
    sites = {name: site(name, seed=index) for index, name in enumerate("ab")}
    return ClientRunner(
        method, tiny_net(method), PLAN, lambda client: sites[client], ClientStates(folder), lambda x, rng: x
    )


def test_the_discriminator_and_its_momentum_stay_with_the_client(tmp_path: Path) -> None:
    method = FedADG()
    client = runner(method, tmp_path)
    state = snapshot(client.net, client.share.up)
    reply = client.reply("a", Order("train", 1, state))
    assert set(reply.state) == client.share.up
    mine = {key: value for key, value in snapshot(client.net).items() if key.startswith("extras.discriminator.")}
    client.reply("b", Order("train", 1, state))
    kept, memory = ClientStates(tmp_path).load("a", 2)
    assert all(torch.equal(kept[key], value) for key, value in mine.items())
    momenta = [value for key, value in memory.items() if key.startswith("optimizer/discriminator/")]
    assert len(momenta) == 4 and all(bool(m.abs().sum() > 0) for m in momenta)
    assert not [key for key in memory if not key.startswith("optimizer/discriminator/")]


def test_a_second_round_with_persisting_optimizers_also_works(tmp_path: Path) -> None:
    method = FedADG()
    client = runner(method, tmp_path)
    client.plan = replace(PLAN, optimizer=replace(PLAN.optimizer, persist=True))
    state = snapshot(client.net, client.share.up)
    client.reply("a", Order("train", 1, state))
    reply = client.reply("a", Order("train", 2, state))
    assert all(bool(value.isfinite().all()) for value in reply.state.values())


# --- switches --------------------------------------------------------------------------------------------------------
def test_without_one_hot_neither_network_sees_labels() -> None:
    with_labels, without = (tiny_net(FedADG(one_hot=value)).extras for value in (None, 0.0))
    for side, width in (("generator", 32), ("discriminator", 16)):
        first = f"{side}.layers.0.weight"
        assert with_labels.state_dict()[first].shape[1] == width + 3
        assert without.state_dict()[first].shape[1] == width


def test_without_projection_and_sizes() -> None:
    assert tiny_net(FedADG(projection="none")).extras.state_dict()["discriminator.layers.0.weight"].shape == (64, 67)
    extras = tiny_net(FedADG(projection_size=5, noise_size=7)).extras.state_dict()
    assert extras["discriminator.projection.matrix"].shape == (64, 5)
    assert extras["generator.layers.0.weight"].shape == (64, 10)


def test_without_generator_and_discriminator_it_is_smoothed_fedavg() -> None:
    method = FedADG(adversarial=False)
    work = make_work(method)
    play(work)
    assert len(work.net.extras) == 0 and list(work.optimizers) == ["main"]
    assert method.share(work.net) == work.net.share_all()
    assert set(work.notes) == {"loss"}


@pytest.mark.parametrize("reference", ["normal", "uniform", "laplace"])
def test_fixed_references_have_no_generator(reference: Any) -> None:
    work = make_work(FedADG(reference=reference, warmup=0.0))
    play(work)
    assert list(work.net.extras) == ["discriminator"]
    assert set(work.optimizers) == {"main", "discriminator"}
    assert "loss.generator" not in work.notes


def test_fixed_references_are_drawn_from_their_distributions() -> None:
    features, label = torch.zeros(200, 100), torch.zeros(200, 3)
    drawn = {
        name: FedADG(reference=name)._reference(make_work(FedADG(reference=name)), label, features).numpy()
        for name in ("normal", "uniform", "laplace")
    }
    for values in drawn.values():
        assert abs(values.mean()) < 0.03
    assert abs(drawn["normal"].std() - 1) < 0.03
    assert drawn["uniform"].min() >= -1 and drawn["uniform"].max() < 1
    assert abs(drawn["uniform"].std() - 1 / np.sqrt(3)) < 0.03
    # Laplace(b): standard deviation b sqrt(2), mean absolute value b
    assert abs(drawn["laplace"].std() - 1) < 0.03
    assert abs(np.abs(drawn["laplace"]).mean() - 1 / np.sqrt(2)) < 0.03
    assert np.isfinite(drawn["laplace"]).all()


def test_variants_take_fields_that_say_otherwise() -> None:
    official = FedADG(variant="official", adversarial_weight=0.5, projection="fixed")
    assert (official.adversarial_weight, official.class_weight, official.projection) == (0.5, 0.85, "fixed")
    paper = FedADG(variant="paper")
    assert (paper.adversarial_weight, paper.class_weight, paper.one_hot) == (0.85, 0.15, 1.0)
    assert (paper.discriminator_hidden, FedADG(variant="official", discriminator_hidden=0).discriminator_hidden) == (
        0,
        0,
    )


def test_in_company_the_discriminators_momentum_is_kept_too(tmp_path: Path) -> None:
    """`fedavg+fedadg` is FedADG: the optimizer is named by its part there, and what it keeps must still be found."""
    states = []
    for name, method in (("alone", FedADG()), ("composed", compose(FedAvg(), FedADG()))):
        client = runner(method, tmp_path / name)
        state = snapshot(client.net, client.share.up)
        for round in (1, 2):
            state = client.reply("a", Order("train", round, state)).state
        states.append(state)
    _, memory = ClientStates(tmp_path / "composed").load("a", 3)
    assert any(key.startswith("optimizer/fedadg/discriminator/") for key in memory)
    assert same(*states)


# --- with others -----------------------------------------------------------------------------------------------------
def test_a_penalty_of_another_part_is_felt_in_both_phases() -> None:
    composed = compose(FedADG(), FedProx(mu=50.0))
    states = []
    for method in (FedADG(), composed):
        work = make_work(method, net=tiny_net(FedADG()))
        start = snapshot(work.net)
        play(work)
        moved = sum(
            float((value - start[key]).square().sum())
            for key, value in snapshot(work.net).items()
            if key.startswith("backbone.") and key.endswith(".weight")
        )
        states.append(moved)
    assert states[1] < states[0]


def test_it_learns(tmp_path: Path) -> None:
    method = FedADG()
    client = runner(method, tmp_path)
    client.plan = replace(PLAN, local_steps=16)
    state = snapshot(client.net, client.share.up)
    state |= client.reply("a", Order("train", 1, state)).state
    images = random_images(30, seed=9)
    client.net.eval()
    with torch.no_grad():
        right = (method.predict(client.net, images.x).argmax(1) == images.y).float().mean()
    assert right > 0.8
