"""Robust merging, each rule by hand: norm bound, median, trimmed mean, Krum, geometric median."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.tiny_federation import federation, same
from unseen.core.errors import UserError
from unseen.core.types import Reply, Server, Tensors
from unseen.method import Method
from unseen.methods.geomedian import GeoMedian
from unseen.methods.krum import Krum
from unseen.methods.median import Median
from unseen.methods.normbound import NormBound
from unseen.methods.trimmedmean import TrimmedMean
from unseen.registry import parse

START = np.array([1.0, -2.0])


def at(*move: float) -> np.ndarray:
    """Where the server's weights are after a move."""
    return START + np.array(move)


def server() -> Server:
    state = {"w": torch.tensor(START), "running": torch.tensor([4.0]), "n": torch.tensor(0)}
    return Server(state, stepped=frozenset({"w"}))


def replies(moves: Sequence[Sequence[float]], images: Sequence[int] | None = None) -> list[Reply]:
    """Clients a, b, ... that moved `w` so far; the running statistic and the counter follow the client's number."""
    counts = images or [10] * len(moves)
    return [
        Reply(
            "abcdefg"[i],
            "train",
            1,
            counts[i],
            state={
                "w": torch.tensor(START + np.array(move)),
                "running": torch.tensor([4.0 + i]),
                "n": torch.tensor(5 * i),
            },
        )
        for i, move in enumerate(moves)
    ]


def merged(method: Method, told: list[Reply]) -> Tensors:
    here = server()
    return method.merge(here, method.admit(here, iter(told)), lambda reply: method.weigh(here, reply))


def test_normbound_absolute_by_hand() -> None:
    # (3, 4) has norm 5 and becomes (0.6, 0.8); (0.3, 0.4) has norm 0.5 and stays, to the bit
    told = replies([[3.0, 4.0], [0.3, 0.4]])
    here = server()
    far, near = NormBound(bound=1.0).admit(here, iter(told))
    np.testing.assert_allclose(far.state["w"].numpy(), at(0.6, 0.8), rtol=1e-12)
    assert near.state["w"].equal(told[1].state["w"])
    assert far.state["running"].item() == 4.0 and near.state["running"].item() == 5.0  # only updates have this bound


def test_normbound_relative_to_the_median_by_hand() -> None:
    # norms 1, 2, 100: the median is 2; the running statistic moved by 0, 1, 2: the median is 1
    told = replies([[1.0, 0.0], [0.0, 2.0], [60.0, 80.0]])
    one, two, three = NormBound().admit(server(), iter(told))
    assert one.state["w"].equal(told[0].state["w"]) and two.state["w"].equal(told[1].state["w"])
    np.testing.assert_allclose(three.state["w"].numpy(), at(1.2, 1.6), rtol=1e-12)
    assert three.state["running"].item() == 5.0
    *_, looser = NormBound(times=10.0).admit(server(), iter(told))
    np.testing.assert_allclose(looser.state["w"].numpy(), at(12.0, 16.0), rtol=1e-12)


def test_an_absolute_bound_holds_one_reply_at_a_time() -> None:
    told = iter(replies([[1.0, 0.0], [0.0, 2.0]]))
    bounded = iter(NormBound(bound=1.0).admit(server(), told))
    next(bounded)
    assert next(told).client == "b"  # the second was not taken yet


def test_median_by_hand() -> None:
    odd = merged(Median(), replies([[1.0, 5.0], [2.0, -7.0], [1e9, 3.0]], images=[1, 1, 10**6]))
    np.testing.assert_allclose(odd["w"].numpy(), at(2.0, 3.0), rtol=1e-12)
    assert odd["running"].item() == 5.0 and odd["n"].item() == 5
    even = merged(Median(), replies([[1.0, 0.0], [2.0, 0.0], [4.0, 0.0], [1e9, 0.0]]))
    np.testing.assert_allclose(even["w"].numpy(), at(3.0, 0.0), rtol=1e-12)


def test_trimmed_mean_by_hand() -> None:
    told = replies([[-1e9, 0.0], [1.0, 2.0], [2.0, 1.0], [6.0, 6.0], [1e9, 7.0]])
    new = merged(TrimmedMean(trim=0.2), told)  # one at each end
    np.testing.assert_allclose(new["w"].numpy(), at(3.0, 3.0), rtol=1e-9)
    assert new["running"].item() == 6.0 and new["n"].item() == 10
    whole = merged(TrimmedMean(trim=0.0), replies([[3.0, 0.0], [0.0, 3.0], [0.0, 0.0]]))
    np.testing.assert_allclose(whole["w"].numpy(), at(1.0, 1.0), rtol=1e-12)
    assert merged(TrimmedMean(trim=0.4), told[:1])["w"].equal(told[0].state["w"])  # one is always left
    thirty = torch.arange(30.0).double()[:, None]
    assert TrimmedMean(trim=0.1).inner_mean(thirty).item() == 14.5  # 3 to 26: 0.1 of 30 is 3, whatever floats say


def test_krum_by_hand() -> None:
    # n = 5, f = 1: two nearest. a, b, c, d on a line at 0, 1, 2, 4; e far away
    moves = [[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [4.0, 0.0], [100.0, 0.0]]
    scores = Krum(liars=1).scores([{"w": torch.tensor(move)} for move in moves])
    assert scores.tolist() == [1 + 4, 1 + 1, 1 + 4, 4 + 9, 96**2 + 98**2]
    assert [reply.client for reply in Krum(liars=1).admit(server(), iter(replies(moves)))] == ["b"]
    # Multi-Krum: a and c have the same score, and stand in the clients' order
    assert [reply.client for reply in Krum(liars=1, kept=3).admit(server(), iter(replies(moves)))] == ["a", "b", "c"]
    three = merged(Krum(kept=3), replies(moves))
    np.testing.assert_allclose(three["w"].numpy(), at(1.0, 0.0), rtol=1e-12)


def test_geometric_median_by_hand() -> None:
    # On a line the geometric median of 0, 1, 50 is the middle one, 1; the mean is 17.
    moves = [[0.0, 0.0], [1.0, 0.0], [50.0, 0.0]]
    new = merged(GeoMedian(steps=60), replies(moves))
    np.testing.assert_allclose(new["w"].numpy(), at(1.0, 0.0), atol=1e-3)
    # One step, written out: from the weighted mean v, weights a_k / |v - w_k|.
    images, points = np.array([10.0, 20.0, 10.0]), np.array([0.0, 1.0, 50.0])
    v = (images * points).sum() / images.sum()
    b = images / np.abs(v - points)
    one = merged(GeoMedian(steps=1), replies(moves, images=[10, 20, 10]))
    np.testing.assert_allclose(one["w"].numpy(), at((b * points).sum() / b.sum(), 0.0), rtol=1e-12)
    np.testing.assert_allclose(one["running"].numpy(), [(b * [4.0, 5.0, 6.0]).sum() / b.sum()], rtol=1e-6)


def test_geometric_median_of_equal_replies_is_that_reply() -> None:
    new = merged(GeoMedian(), replies([[2.0, 1.0]] * 3))
    np.testing.assert_allclose(new["w"].numpy(), at(2.0, 1.0), rtol=1e-12)


@pytest.mark.parametrize(
    "words, fields",
    [("normbound", {"times": 0.0}), ("normbound", {"bound": -1.0}), ("trimmedmean", {"trim": 0.5}),
     ("krum", {"kept": 0}), ("geomedian", {"steps": 0})],
)  # fmt: skip
def test_nonsense_is_refused(words: str, fields: dict[str, float]) -> None:
    with pytest.raises(UserError, match=words):
        parse(words, fields)


def test_they_compose_with_a_bound_and_with_other_merges(tmp_path: Path) -> None:
    for name in ("normbound+median", "krum+fedavgm", "fedbn+normbound", "normbound+krum+scaffold"):
        fed = federation(name, tmp_path / name, rounds=1, local_steps=1)
        (played,) = fed.run()
        assert not played.refused and bool(played.left_out) == ("krum" in name)
    with pytest.raises(UserError, match="both define merge"):
        parse("median+geomedian")
    with pytest.raises(UserError, match='weigh of "ga" would be lost'):
        parse("median+ga")


def test_a_bound_that_nobody_reaches_changes_no_bit(tmp_path: Path) -> None:
    bounded = federation(parse("fedavg+normbound", {"bound": 1e6}), tmp_path / "1", rounds=1, local_steps=1)
    plain = federation("fedavg", tmp_path / "2", rounds=1, local_steps=1)
    bounded.run()
    plain.run()
    assert same(bounded.server.state, plain.server.state)


def test_a_scaled_liar_moves_the_mean_and_none_of_them() -> None:
    honest = [[1.0, 1.0], [1.1, 0.9], [0.9, 1.1], [1.0, 1.2]]
    told = [*replies(honest), replace(replies([*honest, [-1000.0, 500.0]])[4], num_examples=10)]
    assert np.abs(merged(Method(), told)["w"].numpy() - START).max() > 100
    for method in (NormBound(), Median(), TrimmedMean(), Krum(), Krum(kept=3), GeoMedian(steps=30)):
        moved = merged(method, told)["w"].numpy() - START
        assert np.abs(moved - 1.0).max() < 0.6, method
