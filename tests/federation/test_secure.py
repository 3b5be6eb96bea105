"""Secure aggregation: the plain run's model up to the stated rounding, whoever drops out; and nothing of a single one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("cryptography", reason="pip install unseen[secure]")
pytest.importorskip("Crypto", reason="pip install unseen[secure]")

from tests.engines.sites import draw_sites, small
from tests.small_runs import run_local, settings
from tests.tiny_federation import CLIENTS, Federation, federation, same
from tests.tiny_work import tiny_net
from unseen.core.errors import UserError
from unseen.core.plan import Plan
from unseen.core.tensors import RunningMean, pick, snapshot
from unseen.core.types import ClientId, Engine, Kind, Order, Reply, Server, Tensors
from unseen.core.updates import stepped_state
from unseen.engines.local import LocalEngine
from unseen.federation.permission import check_secure
from unseen.federation.secure import crypto, fixed
from unseen.method import Method
from unseen.registry import parse, registered

BOUND = 2.0**-25  # of a mean, before it is rounded to float32


@dataclass
class Lossy:
    """An engine that loses some replies, and keeps a copy of all that come."""

    engine: Engine
    lost: frozenset[tuple[ClientId, Kind]] = frozenset()
    change: Callable[[Reply], Reply] = lambda reply: reply
    seen: list[tuple[Order, Reply]] = field(default_factory=list)

    def clients(self) -> Sequence[ClientId]:
        return self.engine.clients()

    def ask(self, orders: Mapping[ClientId, Order]) -> Iterator[Reply]:
        for reply in self.engine.ask(orders):
            if (reply.client, reply.kind) not in self.lost:
                self.seen.append((orders[reply.client], reply))
                yield self.change(reply)


def secure(folder: Path, method: str = "fedavg", **changes: object) -> Federation:
    return federation(method, folder, secure=True, **changes)


def play(fed: Federation, *lost: tuple[ClientId, Kind], **given: Callable[[Reply], Reply]) -> Lossy:
    engine = Lossy(LocalEngine(fed.runner, fed.clients), frozenset(lost), **given)
    fed.rounds = fed.run_on(engine)  # type: ignore[attr-defined]
    return engine


def assert_near(one: Tensors, two: Tensors) -> None:
    """Within the bound and one rounding to float32, number by number."""
    assert one.keys() == two.keys()
    for name, value in one.items():
        other = two[name]
        assert value.dtype == other.dtype
        if value.is_floating_point():
            room = BOUND + value.abs().double() * 2.0**-23
            assert bool(((value.double() - other.double()).abs() <= room).all()), name
        else:
            assert torch.equal(value, other), name


def mean_of(fed: Federation, clients: Sequence[ClientId]) -> Tensors:
    """One plain round of some clients."""
    fed.clients = clients
    fed.run()
    return fed.server.state


# --- the same result ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "method", ["fedavg", "fedbn", "fedsr", "fedavgm"]
)  # images or clients count; kept norms; a merge
def test_a_round_has_the_plain_rounds_model_within_the_bound(tmp_path: Path, method: str) -> None:
    plain = federation(method, tmp_path / "plain", rounds=1)
    plain.run()
    hidden = secure(tmp_path / "secure", method, rounds=1)
    hidden.run()
    assert_near(hidden.server.state, plain.server.state)


def test_keys_are_random_and_the_models_bits_are_not(tmp_path: Path) -> None:
    one, two = secure(tmp_path / "one"), secure(tmp_path / "two", workers=2)  # orders of a round go to any worker
    masked = [dict(play(one).seen[-4][1].sealing), {}]
    rounds = two.run()
    assert same(one.server.state, two.server.state)
    assert two.server.round == 2 and len(rounds) == 2
    assert not list(tmp_path.rglob("session*")), "the secrets of a round are gone with it"
    third = secure(tmp_path / "three")
    masked[1] = dict(play(third).seen[-4][1].sealing)
    assert masked[0].keys() == masked[1].keys() == {"masked"}
    assert float((masked[0]["masked"] == masked[1]["masked"]).double().mean()) < 0.01
    assert same(one.server.state, third.server.state)


def test_a_whole_run_by_the_setting_alone(tmp_path: Path) -> None:
    folder = draw_sites(tmp_path / "data")
    plain, hidden = (run_local(small(folder, "fedavg", secure=word)) for word in (False, True))
    assert hidden.settings.digest() != plain.settings.digest()
    assert "masked weights and keys" in hidden.record.ledger and "MORE THAN WEIGHTS" not in hidden.record.ledger
    # Twice the bytes of float32 go up, and keys and shares besides.
    assert 1.9 * plain.record.bytes_up < hidden.record.bytes_up < 2.1 * plain.record.bytes_up
    one, two = (run.model.net.state_dict() for run in (plain, hidden))
    for name, value in one.items():  # two rounds: the rounding of the first has gone through training
        assert torch.allclose(value.double(), two[name].double(), atol=1e-4), name


# --- clients that drop out -------------------------------------------------------------------------------------------
def test_a_client_that_drops_out_after_it_dealt_its_shares_costs_its_own_update_alone(tmp_path: Path) -> None:
    hidden = secure(tmp_path / "secure", rounds=1)
    play(hidden, ("b", "train"))
    assert_near(hidden.server.state, mean_of(federation("fedavg", tmp_path / "plain", rounds=1), ("a", "c")))
    (played,) = hidden.rounds  # type: ignore[attr-defined]
    assert played.missing == ["b"] and set(played.metrics) == {"a", "c"}


@pytest.mark.parametrize("step", ["keys", "shares", "unmask"])
def test_a_client_may_drop_out_at_any_step(tmp_path: Path, step: Kind) -> None:
    hidden = secure(tmp_path / "secure", rounds=1)
    play(hidden, ("c", step))
    there = CLIENTS if step == "unmask" else ("a", "b")  # after its update came, it is in the sum
    assert_near(hidden.server.state, mean_of(federation("fedavg", tmp_path / "plain", rounds=1), there))
    (played,) = hidden.rounds  # type: ignore[attr-defined]
    assert played.missing == ([] if step == "unmask" else ["c"])


def test_too_few_that_answer_are_one_sentence_and_nothing_is_merged(tmp_path: Path) -> None:
    hidden = secure(tmp_path, rounds=1)
    before = dict(hidden.server.state)
    with pytest.raises(UserError, match=r"Round 1 was not merged: 1 of 3 clients sent their update, .* needs 2"):
        play(hidden, ("a", "train"), ("b", "train"))
    assert same(hidden.server.state, before) and hidden.server.round == 0
    # The same federation goes on with new keys.
    play(hidden)
    assert hidden.server.round == 1


def test_one_client_alone_is_no_sum(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"1 of 1 clients told their keys, .* needs 2"):
        secure(tmp_path, participation=1 / 3).run()


# --- what the server sees --------------------------------------------------------------------------------------------
def masked_of(engine: Lossy) -> dict[ClientId, np.ndarray]:  # type: ignore[type-arg]
    return {r.client: r.sealing["masked"].numpy().view(np.uint64) for o, r in engine.seen if o.kind == "train"}


def test_a_masked_model_looks_like_noise(tmp_path: Path) -> None:
    engine = play(secure(tmp_path, rounds=1))
    for numbers in masked_of(engine).values():
        # The top byte of the plain integers is 0 or 255; under the mask all 256 are equally frequent.
        found = np.bincount((numbers >> np.uint64(56)).astype(np.int64), minlength=256)
        expected = len(numbers) / 256
        assert expected > 20
        chi = float(((found - expected) ** 2 / expected).sum())
        assert 150 < chi < 380  # 255 degrees of freedom: outside with a chance below 1e-6
        assert abs(np.corrcoef(numbers[:-1].astype(float), numbers[1:].astype(float))[0, 1]) < 0.05
    for order, reply in engine.seen:
        assert not reply.state and not reply.report
        assert reply.num_examples == 1, "the number of images is hidden, too"
        assert order.kind in ("keys", "shares", "train", "unmask")


def test_all_but_one_mask_taken_away_still_hides_the_model(tmp_path: Path) -> None:
    """The server and one other site together do not see the third one's model."""
    fed = secure(tmp_path / "secure", rounds=1)
    held: dict[ClientId, Tensors] = {}

    def keep(reply: Reply) -> Reply:
        if reply.kind == "train":
            held[reply.client] = fed.runner.client_states.session(reply.client, 1)
        return reply

    engine = play(fed, change=keep)
    length = fixed.length_of({k: fed.server.state[k] for k in fed.share.up})
    numbers = masked_of(engine)["a"] - crypto.mask(crypto.as_bytes(held["a"]["seed"]), length)  # as the sum shows it

    def pair(peer: ClientId) -> np.ndarray:  # type: ignore[type-arg]
        own, theirs = held["a"]["mask"], held["a"][f"public/{peer}"][1]
        return crypto.mask(crypto.agreed(crypto.as_bytes(own), crypto.as_bytes(theirs), "mask", 1, "a", peer), length)

    assert int((numbers - pair("b"))[-1]) > fixed.MOST_WEIGHT  # b tells its mask: still noise
    assert int((numbers - pair("b") - pair("c"))[-1]) == 24  # both: its number of images is there


def test_a_client_gives_one_share_of_each_and_only_once(tmp_path: Path) -> None:
    fed = secure(tmp_path, rounds=1)
    play_until = Lossy(LocalEngine(fed.runner, CLIENTS), frozenset((c, "unmask") for c in CLIENTS))  # type: ignore[misc]
    stopped = replace(play_until)
    orders: list[Order] = []

    class Stop(Exception): ...

    def ask(asked: Mapping[ClientId, Order]) -> Iterator[Reply]:
        if next(iter(asked.values())).kind == "unmask":
            orders.extend(asked.values())
            raise Stop
        return play_until.ask(asked)

    stopped.ask = ask  # type: ignore[method-assign]
    with pytest.raises(Stop):
        fed.run_on(stopped)
    everyone = orders[0].sealing
    gone = torch.tensor(0, dtype=torch.uint8)
    for flags, words in (
        ({**everyone, "b": gone, "c": gone}, "Too few"),
        ({name: everyone[name] for name in ("a", "b")}, "not those"),
        ({**everyone, "a": gone}, "not those"),
    ):
        with pytest.raises(UserError, match=words):
            fed.runner.reply("a", replace(orders[0], sealing=flags))
    assert fed.runner.reply("a", orders[0]).sealing.keys() == set(CLIENTS)
    with pytest.raises(UserError, match="no keys for round 1"):
        fed.runner.reply("a", replace(orders[0], sealing={**everyone, "b": gone}))


def test_a_mask_hides_one_model_and_no_second_one(tmp_path: Path) -> None:
    fed = secure(tmp_path, rounds=1)
    asked: list[Order] = []

    def again(reply: Reply) -> Reply:
        if reply.kind == "train" and reply.client == "a":
            (order,) = (o for o, r in engine.seen if r is reply)
            asked.append(order)
            assert torch.equal(fed.runner.reply("a", order).sealing["masked"], reply.sealing["masked"])  # a lost reply
            other = replace(order, state={name: value + 1 for name, value in order.state.items()})
            with pytest.raises(UserError, match="used already"):
                fed.runner.reply("a", other)
        return reply

    engine = Lossy(LocalEngine(fed.runner, CLIENTS), change=again)
    fed.run_on(engine)
    assert asked
    with pytest.raises(UserError, match="sends no model without a mask"):
        fed.runner.reply("a", replace(asked[0], round=2))


def test_wrong_shares_and_wrong_models_are_found(tmp_path: Path) -> None:
    def wrong_share(reply: Reply) -> Reply:
        if reply.kind == "unmask" and reply.client == "a":
            return replace(reply, sealing={name: 255 - value for name, value in reply.sealing.items()})
        return reply

    with pytest.raises(UserError, match="makes no sense"):
        play(secure(tmp_path / "share", rounds=1), change=wrong_share)
    with pytest.raises(UserError, match='the key of "b", which dropped out, do not fit'):
        play(secure(tmp_path / "key", rounds=1), ("b", "train"), change=wrong_share)

    def plain_model(reply: Reply) -> Reply:
        return (
            replace(reply, sealing={"masked": torch.zeros(3)})
            if reply.kind == "train" and reply.client == "c"
            else reply
        )

    hidden = secure(tmp_path / "form", rounds=1)
    play(hidden, change=plain_model)
    (played,) = hidden.rounds  # type: ignore[attr-defined]
    assert "torch.float32, not torch.int64" in played.refused[0] and not played.missing
    assert_near(hidden.server.state, mean_of(federation("fedavg", tmp_path / "plain", rounds=1), ("a", "b")))


def test_a_changed_share_is_found_by_the_client_that_gets_it(tmp_path: Path) -> None:
    def changed(reply: Reply) -> Reply:
        if reply.kind == "shares" and reply.client == "b":
            return replace(reply, sealing={name: 255 - value for name, value in reply.sealing.items()})
        return reply

    with pytest.raises(UserError, match="changed on its way"):
        play(secure(tmp_path, rounds=1), change=changed)


def test_the_ledger_counts_what_crosses(tmp_path: Path) -> None:
    fed = secure(tmp_path, rounds=1)
    engine = play(fed)
    (played,) = fed.rounds  # type: ignore[attr-defined]
    up = sum(value.nbytes for _, reply in engine.seen for value in reply.sealing.values())
    down = sum(
        value.nbytes for order, _ in engine.seen for part in (order.state, order.sealing) for value in part.values()
    )
    numbers = sum(8 * len(reply.metrics) for _, reply in engine.seen)
    assert fed.ledger.total("up", "masked") == up and sum(played.bytes_up.values()) == up + numbers
    assert sum(played.bytes_down.values()) == down
    assert fed.ledger.beyond_weights() == "" and fed.ledger.total("up", "model") == 0


# --- the integers ----------------------------------------------------------------------------------------------------
def test_a_mean_is_within_the_stated_bound() -> None:
    rng = torch.Generator().manual_seed(0)
    weights = (1, 7, 1000)
    states = [
        {
            "w": torch.randn(2000, generator=rng) * 10.0 ** (i - 2),
            "n": torch.tensor(7),
            "v": torch.rand(3, generator=rng),
        }
        for i in range(3)
    ]
    total = sum(fixed.encode(s, w, 3) for s, w in zip(states, weights, strict=True))
    mean, weight = fixed.decode(total, {**states[0], "w": states[0]["w"].double()})  # as it is before it is rounded
    assert weight == 1008 and int(mean["n"]) == 7 and mean["v"].dtype == torch.float32
    exact = sum(w * s["w"].double() for s, w in zip(states, weights, strict=True)) / 1008
    assert float((mean["w"] - exact).abs().max()) <= 3 / 2 / 1008 * 2.0**-24 < BOUND  # type: ignore[operator,union-attr]


def test_the_largest_numbers_fit_and_larger_ones_are_said() -> None:
    most = torch.tensor([fixed.LARGEST, -fixed.LARGEST])
    share = fixed.MOST_WEIGHT // 4
    total = sum(fixed.encode({"w": most * sign}, share, 4) for sign in (1, 1, 1, 1))
    assert torch.equal(fixed.decode(total, {"w": most})[0]["w"], most)
    for bad in (float("nan"), float("inf"), 65537.0):
        with pytest.raises(UserError, match='"w" holds a number beyond 65536'):
            fixed.encode({"w": torch.tensor([bad])}, 1, 2)
    with pytest.raises(UserError, match="carries 2796202 each"):
        fixed.encode({"w": most}, 10**7, 3)


def test_fewer_shares_than_needed_tell_nothing() -> None:
    secret = crypto.new_secret()
    shares = crypto.split(secret, 3, 5)
    assert crypto.joined({0: shares[0], 3: shares[3], 4: shares[4]}) == secret
    assert crypto.joined(dict(enumerate(shares))) == secret
    assert crypto.joined({0: shares[0], 3: shares[3]}) != secret
    assert [crypto.threshold(n) for n in (2, 3, 4, 5, 10)] == [2, 2, 3, 3, 6]


# --- which methods ---------------------------------------------------------------------------------------------------
def test_methods_that_need_single_replies_are_refused_by_name() -> None:
    for name, words in {
        "ga": "hear and weigh",
        "krum": "admit",
        "copa": "hear",
        "median": "merge",
        "centraldp": "merge",
        "scaffold": "hear",
        "stablefdg": "also sends style statistics",
        "fedprox+elcfs": '"elcfs".*also sends',
        "fedavgm+vrex": '"vrex".*hear',
    }.items():
        with pytest.raises(UserError, match=words):
            check_secure(parse(name))
    for name in ("fedavg", "fedprox+fedbn", "fedadam", "fedfd", "gperxan", "fedadg", "moon", "dp", "swad"):
        check_secure(parse(name))
    check_secure(parse("stablefdg", {"sharing": "none"}))
    with pytest.raises(UserError, match='"ga" does not go with --secure'):
        run_local(settings(method="ga", secure=True))


def served(method: Method) -> bool:
    try:
        check_secure(method)
    except UserError:
        return False
    return True


@pytest.mark.parametrize("name", registered())
def test_every_method_is_refused_or_merges_the_mean_alone(name: str) -> None:
    """No method is let in whose merge would be another one if each reply brought the mean of all."""
    method = parse(name)
    if not served(method):
        return
    net, rng = tiny_net(method), torch.Generator().manual_seed(0)
    share = method.share(net)
    before = snapshot(net, sorted(share.up | share.down))
    states = [
        {
            key: value + torch.rand(value.shape, generator=rng) if value.is_floating_point() else value
            for key, value in pick(before, share.up).items()
        }
        for _ in CLIENTS
    ]
    mean = RunningMean()
    replies = [Reply(c, "train", 1, 8 + i, state) for i, (c, state) in enumerate(zip(CLIENTS, states, strict=True))]
    servers = [Server(dict(before), rounds=2, stepped=stepped_state(net, share)) for _ in range(2)]
    for reply in replies:
        mean.add(reply.state, method.weigh(servers[0], reply))
    hidden = [replace(reply, state=mean.result(), num_examples=1) for reply in replies]
    merged = [
        method.merge(server, given, partial(method.weigh, server))
        for server, given in zip(servers, (replies, hidden), strict=True)
    ]
    for key, value in merged[0].items():
        assert torch.allclose(value.double(), merged[1][key].double(), atol=1e-5), key


def test_the_plan_says_it_and_old_runs_keep_their_names() -> None:
    assert Plan().secure is False and settings().digest() == settings(secure=False).digest()
