"""FedFD, FedFD-A and the adapter: known answers in NumPy, and what each part may touch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests import tiny_federation
from tests.tiny_work import batch, make_work, tiny_net
from unseen.core.errors import UserError
from unseen.core.tensors import snapshot
from unseen.core.types import Work
from unseen.method import Method, compose, overrides
from unseen.methods.fedavg import FedAvg
from unseen.methods.fedfd import (
    ADAPTERS,
    Adapted,
    Adapter,
    Diversified,
    FedFD,
    FedFDA,
    adapters_of,
    alphas,
    by_averaged_statistics,
    global_statistics,
    only_trainable,
)
from unseen.methods.silobn import SiloBN
from unseen.nets.backbones import create_net
from unseen.nets.norms.layers import StatNorm2d
from unseen.nets.norms.rules import ruled
from unseen.registry import parse, registered


def layer_and_work(method: FedFD, seed: int = 0) -> tuple[StatNorm2d, Work]:
    """The first norm of a net, with random affine map, running and global statistics."""
    work = make_work(method, seed=seed)
    rng = torch.Generator().manual_seed(seed + 7)
    norm = work.net.norms(StatNorm2d)[0]
    received = dict(work.received)
    for name, module in work.net.named_modules():
        if isinstance(module, StatNorm2d):
            received[f"{name}.running_mean"] = torch.randn(module.num_features, generator=rng)
            received[f"{name}.running_var"] = torch.rand(module.num_features, generator=rng) + 0.5
    with torch.no_grad():
        norm.weight.copy_(torch.randn(norm.num_features, generator=rng))
        norm.bias.copy_(torch.randn(norm.num_features, generator=rng))
    work.received = received
    return norm, work


def numpy_norm(x: np.ndarray, mean: np.ndarray, std: np.ndarray, norm: StatNorm2d) -> np.ndarray:
    """(x - mean) / std * weight + bias, with B x C statistics."""
    weight, bias = norm.weight.detach().numpy(), norm.bias.detach().numpy()
    standard = (x - mean[:, :, None, None]) / std[:, :, None, None]
    return standard * weight[None, :, None, None] + bias[None, :, None, None]


def given_and_global(
    norm: StatNorm2d, work: Work, size: tuple[int, int] = (7, 8)
) -> tuple[torch.Tensor, *tuple[np.ndarray, ...]]:
    """Random maps, their instance statistics, and the layer's global ones."""
    x = torch.randn(4, norm.num_features, *size, generator=torch.Generator().manual_seed(3)) * 2 + 1
    pixels = x.numpy()
    name = next(name for name, module in work.net.named_modules() if module is norm)
    mean_g = work.received[f"{name}.running_mean"].numpy()
    std_g = np.sqrt(work.received[f"{name}.running_var"].numpy() + norm.eps)
    return x, pixels.mean((2, 3)), np.sqrt(pixels.var((2, 3)) + norm.eps), mean_g, std_g


def close(ours: torch.Tensor, theirs: np.ndarray) -> None:
    np.testing.assert_allclose(ours.detach().numpy(), theirs, rtol=2e-4, atol=2e-4)


# --- Eq. 2: mixed statistics -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("per", ["channel", "image", "both", "number"])
@pytest.mark.parametrize("u", [(0.0, 1.0), (-0.1, 1.1), (0.5, 0.5)])
def test_mixed_statistics(per: str, u: tuple[float, float]) -> None:
    norm, work = layer_and_work(FedFD(u=u, u_per=per))  # type: ignore[arg-type]
    x, mean, std, mean_g, std_g = given_and_global(norm, work)
    channels = norm.num_features
    shape = {"channel": (1, channels), "image": (4, 1), "both": (4, channels), "number": (1, 1)}[per]
    draw = torch.rand(shape, generator=torch.Generator().manual_seed(5)).numpy()
    weight = u[0] + (u[1] - u[0]) * draw
    expected = numpy_norm(x.numpy(), weight * mean + (1 - weight) * mean_g, weight * std + (1 - weight) * std_g, norm)
    work.rng.manual_seed(5)
    rule = Diversified(work.method, work)  # type: ignore[arg-type]
    close(rule.normalise(norm, x), expected)


def test_fixed_ends_are_global_and_instance_normalisation() -> None:
    for u, pick in (((0.0, 0.0), "global"), ((1.0, 1.0), "instance")):
        norm, work = layer_and_work(FedFD(u=u))
        x, mean, std, mean_g, std_g = given_and_global(norm, work)
        if pick == "global":
            mean, std = np.broadcast_to(mean_g, mean.shape), np.broadcast_to(std_g, std.shape)
        close(Diversified(work.method, work).normalise(norm, x), numpy_norm(x.numpy(), mean, std, norm))  # type: ignore[arg-type]


def test_local_statistics_of_the_batch() -> None:
    norm, work = layer_and_work(FedFD(u=(1.0, 1.0), local="batch", u_per="both"))
    x = given_and_global(norm, work)[0]
    pixels = x.numpy()
    mean = np.broadcast_to(pixels.mean((0, 2, 3)), (4, norm.num_features))
    std = np.broadcast_to(np.sqrt(pixels.var((0, 2, 3)) + norm.eps), (4, norm.num_features))
    close(Diversified(work.method, work).normalise(norm, x), numpy_norm(pixels, mean, std, norm))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("method", "size", "whose"),
    [
        (FedFD(), (7, 7), "instance"),
        (FedFD(), (6, 8), "batch"),
        (FedFD(smallest_map=12), (3, 4), "instance"),
        (FedFD(smallest_map=13), (3, 4), "batch"),
        (FedFD(variant="paper"), (1, 2), "instance"),
    ],
)
def test_small_maps_are_mixed_by_the_batchs_statistics(method: FedFD, size: tuple[int, int], whose: str) -> None:
    """7 x 7 maps, the smallest of the paper's nets at 224 px, are mixed as in the paper."""
    norm, work = layer_and_work(method)
    x, mean, std, mean_g, std_g = given_and_global(norm, work, size)
    if whose == "batch":
        pixels = x.numpy()
        mean, std = pixels.mean((0, 2, 3)), np.sqrt(pixels.var((0, 2, 3)) + norm.eps)
        mean, std = np.tile(mean, (4, 1)), np.tile(std, (4, 1))
    u = torch.rand((1, norm.num_features), generator=torch.Generator().manual_seed(5)).numpy()
    work.rng.manual_seed(5)
    expected = numpy_norm(x.numpy(), u * mean + (1 - u) * mean_g, u * std + (1 - u) * std_g, norm)
    close(Diversified(method, work).normalise(norm, x), expected)


def test_what_is_ours_is_said() -> None:
    assert FedFD().about.remark == FedFDA().about.remark == "mean, not sum, small maps by batch"
    assert FedFD(variant="paper").about.remark == FedFDA(variant="paper").about.remark == ""
    assert FedFD(smallest_map=1).about.remark == "mean, not sum"
    assert Adapter().about.remark == ""


def test_detached_statistics_are_constants() -> None:
    """With u = 1 and constant statistics the gradient of a sum is weight / std at every pixel; through them it is 0."""
    for detached in (False, True):
        norm, work = layer_and_work(FedFD(u=(1.0, 1.0), detach_statistics=detached))
        x, _, std, _, _ = given_and_global(norm, work)
        x.requires_grad_()
        Diversified(work.method, work).normalise(norm, x).sum().backward()  # type: ignore[arg-type, no-untyped-call]
        slope = norm.weight.detach().numpy() / std if detached else np.zeros_like(std)
        assert x.grad is not None
        np.testing.assert_allclose(x.grad.numpy(), np.broadcast_to(slope[:, :, None, None], x.shape), atol=2e-4)


# --- Eqs. 1, 3, 4, 5: the loss ---------------------------------------------------------------------------------------
def numpy_cross_entropy(logits: np.ndarray, labels: np.ndarray) -> float:
    shifted = logits - logits.max(1, keepdims=True)
    return float((np.log(np.exp(shifted).sum(1)) - shifted[np.arange(len(labels)), labels]).mean())


def statistics_by_hand(work: Work, method: FedFD, x: torch.Tensor) -> torch.Tensor:
    """f' of the tiny net, every BatchNorm2d written out: (a - mu_Delta) / sigma_Delta * gamma + beta."""
    net, eps = work.net, 1e-5
    a = (x - net.pixel_mean) / net.pixel_std
    for number, (conv, norm, *after) in enumerate(net.backbone.blocks):  # type: ignore[union-attr, arg-type, misc]
        a = conv(a)
        small = a.shape[2] * a.shape[3] < method.smallest_map
        over = (0, 2, 3) if small else (2, 3)
        mu, sigma = a.mean(over, keepdim=True), (a.var(over, correction=0, keepdim=True) + eps).sqrt()
        name = f"backbone.blocks.{number}.1."
        mu_g, var_g = (work.received[name + part][:, None, None] for part in ("running_mean", "running_var"))
        u = torch.rand(1, a.shape[1], generator=work.rng)[:, :, None, None]
        mixed = (a - u * mu - (1 - u) * mu_g) / (u * sigma + (1 - u) * (var_g + eps).sqrt())
        a = mixed * norm.weight[:, None, None] + norm.bias[:, None, None]
        for module in after:
            a = module(a)
    linear, norm, relu = net.neck  # type: ignore[misc]
    v = linear(net._anatomy.pool(net.backbone, a))
    v = (v - v.mean(0)) / (v.var(0, correction=0) + eps).sqrt()  # the neck: this batch's own statistics
    diversified: torch.Tensor = relu(v * norm.weight + norm.bias)
    return diversified


@pytest.mark.parametrize(
    ("method", "lambda2", "reduce"),
    [
        (FedFD(), 4.0, "mean"),
        (FedFD(variant="paper"), 4.0, "sum"),
        (FedFD(variant="paper", lambda2=0.02, lambda1=0.3), 0.02, "sum"),
        (FedFD(lambda2=1.5, reduce="sum", lambda1=0.0), 1.5, "sum"),
        (FedFDA(), 4.0, "mean"),
        (FedFDA(variant="paper"), 4.0, "sum"),
    ],
)
def test_loss_by_hand(method: FedFD, lambda2: float, reduce: str) -> None:
    work = layer_and_work(method)[1]
    work.net = tiny_net(method, bottleneck=6)
    received = snapshot(work.net)
    rng = torch.Generator().manual_seed(2)
    for key in work.net.running_statistics():
        if received[key].is_floating_point():
            received[key] += torch.rand(received[key].shape, generator=rng)
    work.received = received
    work.net.train()
    given = batch()
    before = snapshot(work.net)
    own = work.net.features(given.x).detach().numpy()
    work.net.load_state_dict(before)
    work.rng.manual_seed(11)
    diversified = statistics_by_hand(work, method, given.x).detach().numpy()
    head = work.net.head
    assert isinstance(head, nn.Linear)
    weight, bias = head.weight.detach().numpy(), head.bias.detach().numpy()
    labels = given.y.numpy()
    ce, cacl = (numpy_cross_entropy(f @ weight.T + bias, labels) for f in (own, diversified))
    squares = (own - diversified) ** 2
    cafl = squares.sum(1).mean() if reduce == "sum" else squares.mean()
    expected = (1 - method.lambda1) * ce + method.lambda1 * cacl + lambda2 * cafl
    work.rng.manual_seed(11)
    work.scratch.clear()
    assert float(method.loss(work, given).detach()) == pytest.approx(expected, rel=1e-3)
    assert cafl > 0


def test_the_diversified_pass_remembers_nothing() -> None:
    """Running statistics after the loss are those of one ordinary pass, the neck's too, to the bit."""
    states = []
    for method in (FedFD(), FedFD(second="mixstyle"), FedAvg()):
        work = make_work(method, net=tiny_net(method, bottleneck=6))
        method.loss(work, batch())
        states.append(snapshot(work.net, sorted(work.net.running_statistics())))
    assert not moved(states[0], states[2]) and not moved(states[1], states[2])


@pytest.mark.parametrize("other", ["mixstyle", "dsu"])
def test_the_ordinary_pass_does_not_see_the_diversified_one(other: str) -> None:
    """Only u changes: f must be the same to the bit, also where a part mixes the images of a batch."""
    found = []
    for seed in (1, 2):
        method = parse(f"fedfd+{other}")
        work = make_work(method)
        work.rng.manual_seed(seed)
        torch.manual_seed(0)
        method.loss(work, batch())
        found.append((work.notes["ce"], work.notes["cacl"]))
    assert found[0][0] == found[1][0] and found[0][1] != found[1][1]


def test_mixstyle_in_the_place_of_mixed_statistics() -> None:
    """Table 3 (b): the first pass is ordinary, the second has MixStyle, and both have the losses of FedFD."""
    plain, method = FedAvg(), FedFD(second="mixstyle")
    ce = float(plain.loss(make_work(plain), batch()).detach())
    distances = []
    for seed in range(8):  # after each of the two stages it mixes in half of the batches
        work = make_work(method)
        torch.manual_seed(seed)
        method.loss(work, batch())
        assert work.notes["ce"][0] == pytest.approx(ce, rel=1e-6)
        distances += work.notes["lambda2 * cafl"]
    assert min(distances) == 0 and max(distances) > 0.01


def test_detached_features_only_pull_the_diversified() -> None:
    own, diversified = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
    FedFD(detach_features=True).distance(own, diversified).backward()  # type: ignore[no-untyped-call]
    assert own.grad is None and diversified.grad is not None
    FedFD().distance(own, diversified).backward()  # type: ignore[no-untyped-call]
    assert own.grad is not None


# --- Eqs. 6 and 7: interpolated statistics ---------------------------------------------------------------------------
@pytest.mark.parametrize("start", [None, 0.1])
@pytest.mark.parametrize("noisy", [False, True])
def test_interpolated_statistics(noisy: bool, start: float | None) -> None:
    norm, work = layer_and_work(FedFDA(alpha_start=start))
    x, mean, std, mean_g, std_g = given_and_global(norm, work)
    hears, says = (
        {name: p.detach().numpy() for name, p in layer.named_parameters()}
        for layer in next(iter(work.net.extras[ADAPTERS].children())).children()
    )
    differences = np.concatenate([mean - mean_g, std - std_g], axis=1)
    hidden = np.maximum(differences @ hears["weight"].T + hears["bias"], 0)
    delta, epsilon = (hidden @ says["weight"].T + says["bias"]).T
    z = torch.randn(4, 1, generator=torch.Generator().manual_seed(9)).numpy()[:, 0] if noisy else np.zeros(4)
    alpha = np.clip(z * delta + epsilon, 0, 1)[:, None]
    expected = numpy_norm(x.numpy(), alpha * mean + (1 - alpha) * mean_g, alpha * std + (1 - alpha) * std_g, norm)
    generator = torch.Generator().manual_seed(9) if noisy else None
    rule = Adapted(work.net, generator)
    with by_averaged_statistics(work.net, work.received):
        close(rule.normalise(norm, x), expected)
    close(rule.seen[0], alpha[:, 0])


def test_straight_through_passes_the_clamp() -> None:
    """An alpha below 0 is cut to 0: no gradient for the adapter, unless it goes straight through."""
    for through in (False, True):
        norm, work = layer_and_work(FedFDA(alpha_start=-5.0, straight_through=through))
        adapter = next(iter(work.net.extras[ADAPTERS].children()))
        x = given_and_global(norm, work)[0]
        rule = Adapted(work.net, straight_through=through)
        rule.normalise(norm, x).square().sum().backward()  # type: ignore[no-untyped-call]
        assert float(rule.seen[0].abs().max()) < 1e-6
        gradient = adapter.says.bias.grad  # type: ignore[union-attr]
        assert isinstance(gradient, torch.Tensor)
        assert (float(gradient.abs().sum()) > 0) == through


def test_alphas_can_be_read_out() -> None:
    method = FedFDA(alpha_start=0.5)
    net = tiny_net(method)
    net.train()
    x = batch(5).x
    read = alphas(net, x)
    assert net.training
    assert [tuple(alpha.shape) for alpha in read] == [(5,)] * len(net.norms(StatNorm2d))
    assert all(bool(((alpha >= 0) & (alpha <= 1)).all()) for alpha in read)
    torch.testing.assert_close(alphas(net, x[:2])[1], read[1][:2])
    # alpha = 0 everywhere is plain BatchNorm by the running statistics
    net.eval()
    for adapter in net.extras[ADAPTERS].children():
        for parameter in adapter.parameters():
            nn.init.zeros_(parameter)
    assert all(float(alpha.abs().max()) == 0 for alpha in alphas(net, x))
    torch.testing.assert_close(method.predict(net, x), net(x), rtol=1e-4, atol=1e-4)


def test_prediction_does_not_depend_on_the_batch() -> None:
    method = FedFDA(alpha_start=0.5)
    net = tiny_net(method, bottleneck=6).eval()
    x = batch(6).x
    with torch.no_grad():
        together = method.predict(net, x)
        alone = torch.cat([method.predict(net, image[None]) for image in x])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(together, net(x))


# --- alternating training --------------------------------------------------------------------------------------------
def moved(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[str]:
    return {key for key, value in before.items() if not torch.equal(value, after[key])}


def test_adapter_step_changes_only_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    method = FedFDA(alpha_start=0.5)
    work = make_work(method, net=tiny_net(method, bottleneck=6))
    method.prepare(work)
    states = [snapshot(work.net)]
    descend = FedFDA.descend

    def watched(self: FedFDA, *arguments: object) -> None:
        descend(self, *arguments)  # type: ignore[arg-type]
        states.append(snapshot(work.net))

    monkeypatch.setattr(FedFDA, "descend", watched)
    method.step(work, batch())
    own = {key for key in states[0] if key.startswith(f"extras.{ADAPTERS}.")}
    assert own == set(work.net.state_of(nn.Linear)) & own
    assert len(states) == 3
    parameters = {name for name, _ in work.net.named_parameters()}
    assert moved(states[0], states[1]) & parameters == parameters - own
    # Running statistics neither: the adapter's pass remembers nothing.
    assert moved(states[1], states[2]) == own
    assert all(parameter.requires_grad for parameter in work.net.parameters())


def test_the_adapters_see_the_neck_as_prediction_does() -> None:
    """With alpha the same in both, the loss that adapters train on is that of prediction: no batch hides a shift.

    By the averaged statistics, also the neck's: a client's own are not those of the model that predicts.
    """
    method = Adapter(alpha_start=0.5)
    work = make_work(method, net=tiny_net(method, bottleneck=6))
    net, given = work.net, batch()
    for adapter in adapters_of(net):
        nn.init.zeros_(adapter.says.weight)  # type: ignore[union-attr, arg-type]
        adapter.says.bias.data[0] = 0  # type: ignore[union-attr, index]
    for _ in range(3):
        net(given.x)  # the neck's running statistics are not the batch's
    work.received = {key: value + 0.3 if "running" in key else value for key, value in snapshot(net).items()}
    method.prepare(work)
    work.optimizers["main"].param_groups[0]["lr"] = 0.0
    before = snapshot(net)
    method.step(work, given)
    after = snapshot(net)
    own = {key for key in before if key.startswith(f"extras.{ADAPTERS}.")}
    averaged = {key: value for key, value in work.received.items() if "running" in key}
    net.load_state_dict({**after, **{key: before[key] for key in own}, **averaged})
    method.report(work)
    with torch.no_grad():
        logits = method.predict(net.eval(), given.x)
    expected = numpy_cross_entropy(logits.numpy(), given.y.numpy())
    assert work.notes["adapter loss"][0] == pytest.approx(expected, rel=1e-4)


def test_a_client_validates_adapters_by_the_global_statistics() -> None:
    """By those they train against, and not by the client's own; after its order the running ones are the global."""
    method = FedFDA(alpha_start=0.3)
    work = make_work(method)
    received = {key: value + 0.5 if "running" in key else value for key, value in work.received.items()}
    x = batch().x
    work.net.eval()
    with torch.no_grad():
        by_own = method.predict(work.net, x)
        other = tiny_net(method)
        other.load_state_dict(received)
        by_global = method.predict(other.eval(), x)
        work.received = received
        method.prepare(work)
        torch.testing.assert_close(method.predict(work.net, x), by_global)
        method.report(work)
        torch.testing.assert_close(method.predict(work.net, x), by_own)
    assert not torch.allclose(by_own, by_global, atol=1e-3)


def test_alpha_starts_where_the_field_says_and_every_adapter_has_a_gradient() -> None:
    method = FedFDA(alpha_start=0.1)
    work = make_work(method, net=tiny_net(method, bottleneck=6))
    assert all(bool((alpha == 0.1).all()) for alpha in alphas(work.net, batch().x))
    method.prepare(work)
    net = work.net
    rule = Adapted(net, work.rng)
    with only_trainable(net, adapters_of(net)), by_averaged_statistics(net, work.received), ruled(net, rule):
        nn.functional.cross_entropy(net(batch().x), batch().y).backward()  # type: ignore[no-untyped-call]
    for adapter in adapters_of(net):
        gradient = adapter.says.bias.grad  # type: ignore[union-attr]
        assert isinstance(gradient, torch.Tensor) and float(gradient.abs().sum()) > 0


def test_optimizers_share_no_parameter() -> None:
    method = compose(FedFD(), Adapter())
    work = make_work(method)
    method.prepare(work)
    main, adapter = (
        {id(p) for group in work.optimizers[name].param_groups for p in group["params"]}
        for name in ("main", "adapter/adapter")
    )
    assert not main & adapter
    assert main | adapter == {id(p) for p in work.net.parameters()}


def test_running_statistics_move_as_in_fedavg() -> None:
    """The diversified pass and the adapters' remember nothing: after one step the statistics are FedAvg's."""
    work_fd, work_avg = (make_work(m, net=tiny_net(m, bottleneck=6)) for m in (FedFDA(), FedAvg()))
    for work in (work_fd, work_avg):
        work.method.prepare(work)
        work.method.step(work, batch())
    for key in work_avg.net.running_statistics():
        torch.testing.assert_close(work_fd.net.state_dict()[key], work_avg.net.state_dict()[key], rtol=1e-4, atol=1e-5)


def test_no_verb_of_fedfd_a_hangs_on_the_order_of_its_two_bases() -> None:
    own = {verb for verb in vars(Method) if callable(getattr(Method, verb)) and not verb.startswith("_")}
    both = [verb for verb in own if overrides(FedFD(), verb) and overrides(Adapter(), verb)]
    shared = [verb for verb in both if getattr(FedFD, verb) is getattr(Adapter, verb)]  # of the base of both
    assert set(both) - set(shared) == {"build"}  # which the adapter's extends, by name
    assert not overrides(FedFD(), "step") and not overrides(Adapter(), "loss")


def test_fedfd_and_adapter_compose_to_fedfd_a() -> None:
    states = []
    for method in (FedFDA(), compose(FedFD(), Adapter())):
        work = make_work(method)
        method.prepare(work)
        for seed in range(2):
            method.step(work, batch(seed=seed))
        states.append(snapshot(work.net))
    assert not moved(states[0], states[1])


def test_adapter_alone_leaves_the_network_to_silobn() -> None:
    """Table 3 (c1): with the adapter in turn, the network is trained as without it."""
    states = []
    for method in (SiloBN(), Adapter(alpha_start=0.5)):
        work = make_work(method)
        method.prepare(work)
        for seed in range(3):
            method.step(work, batch(seed=seed))
        states.append(snapshot(work.net))
    assert not {key for key, value in states[0].items() if not torch.equal(value, states[1][key])}
    assert set(states[1]) > set(states[0])


# --- sharing ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["fedfd", "fedfd-a", "adapter"])
def test_bases(name: str) -> None:
    def kept(text: str, **settings: str) -> frozenset[str]:
        method = parse(text, settings)
        share = method.share(tiny_net(method))
        assert share.up == frozenset(tiny_net(method).state_dict())
        return share.up - share.down

    net = tiny_net(parse(name))
    assert kept(name) == kept(f"silobn+{name}") == net.running_statistics()
    assert kept(f"fedbn+{name}") == net.state_of(nn.modules.batchnorm._BatchNorm)
    assert kept(name, base="fedavg") == kept(f"fedavg+{name}", base="fedavg") == frozenset()
    assert kept(f"fedbn+{name}", base="fedavg") == kept(f"fedbn+{name}")
    assert registered()[name]().about.needs_full_state


@pytest.mark.parametrize(("name", "neck"), [("fedfd", 6), ("fedfd-a", None), ("fedfd-a", 6)])
def test_the_base_does_not_matter_when_all_take_part(
    name: str, neck: int | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A client's own statistics enter the training nowhere."""
    monkeypatch.setattr(tiny_federation, "tiny_net", lambda method: tiny_net(method, bottleneck=neck))
    silobn, fedavg = (
        tiny_federation.federation(parse(name, {"base": base}), tmp_path / base, rounds=2, local_steps=2)
        for base in ("silobn", "fedavg")
    )
    silobn.run(), fedavg.run()
    pairs = {key: (value, fedavg.server.state[key]) for key, value in silobn.server.state.items()}
    assert not [key for key, (one, two) in pairs.items() if not torch.allclose(one.float(), two.float(), 1e-3, 1e-4)]


def test_composes_with_bases_and_penalties() -> None:
    for text in ("fedbn+fedfd", "silobn+fedfd", "fedprox+fedfd", "fedprox+fedfd-a", "silobn+adapter"):
        method = parse(text)
        work = make_work(method)
        method.prepare(work)
        method.step(work, batch())
        assert np.isfinite(work.notes["loss"][0])


@pytest.mark.parametrize("text", ["fedfd+bin", "bin+fedfd", "dson+fedfd", "fedfd+dson", "fedfd+ibn", "gperxan+fedfd"])
def test_other_norms_have_mixed_statistics_on_their_batch_side(text: str) -> None:
    """Table 3 (c2): FedFD on BIN's and DSON's norms. What they normalise by the batch is mixed; nothing is remembered."""
    method = parse(text)
    work = make_work(method)
    method.prepare(work)
    plain = snapshot(work.net)
    work.net.features(batch().x)
    once = snapshot(work.net, sorted(work.net.running_statistics()))
    work.net.load_state_dict(plain)
    method.step(work, batch())
    assert not moved(once, snapshot(work.net, sorted(once)))
    assert work.notes["lambda2 * cafl"][0] > 0


def test_global_statistics_of_norms_that_are_handed_around() -> None:
    """DSON's norms are not averaged: mu_G is the mean over the clients' branches, or the net's own before there are any."""
    method = parse("fedfd+dson")
    work = make_work(method)
    room = work.net.extras["branches"]
    key = next(key for key in room.keys if key.endswith("running_mean"))  # type: ignore[operator, union-attr]
    norm = work.net.get_submodule(key.removesuffix(".running_mean"))
    received = {name: value for name, value in work.received.items() if name not in room.keys}  # type: ignore[operator]
    work.received = received
    close(global_statistics(work)[norm].mean, np.zeros((1, 8)))
    rows = torch.stack([torch.full_like(received["extras.branches.rows"][0], value) for value in (1.0, 2.0, 9.0)])
    work.received = {
        **received, "extras.branches.rows": rows, "extras.branches.taken": torch.tensor([1, 1, 0])
    }  # fmt: skip
    work.scratch.clear()
    close(global_statistics(work)[norm].mean, np.full((1, 8), 1.5))
    close(global_statistics(work)[norm].std, np.full((1, 8), np.sqrt(1.5 + 1e-5)))


def test_adapters_need_norms_of_their_own() -> None:
    for text in ("bin+adapter", "fedfd-a+gperxan"):
        with pytest.raises(UserError, match="the build of both replaces BatchNorm"):
            parse(text)


def test_backbone_without_batch_norm_is_named() -> None:
    with pytest.raises(UserError, match="alexnet"):
        FedFD().build(create_net("alexnet", 3, image_size=64))


# --- size ------------------------------------------------------------------------------------------------------------
def test_parameters_of_resnet18() -> None:
    """Table 4: 11.31 M, and 11.53 M with adapters (7 classes, 256-d bottleneck)."""

    def count(method: FedFD | Adapter) -> int:
        net = method.build(create_net("resnet18", 7, image_size=64, bottleneck=256))
        assert len(net.norms(StatNorm2d)) == 20
        return sum(p.numel() for p in net.parameters())

    assert count(FedFD()) == 11_310_151
    assert count(FedFDA()) == 11_310_151 + 218_540 == 11_528_691
    assert count(replace(Adapter(), reduction=8)) > 11_528_691
