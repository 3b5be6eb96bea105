"""What clients tell to calibrate a model, against the same worked out where all images lie together."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.tiny_federation import federation
from unseen.core.calibration import TEMPERATURES, log_odds, softmax
from unseen.core.look import NUMBERS, Look, look_of
from unseen.core.metrics import calibration_curve
from unseen.core.types import Order, Reply, Site
from unseen.data.memory import TensorImages
from unseen.engines.local import LocalEngine
from unseen.federation.calibrate import SENT, SHAPES, Tally, faults, look_of_site, pooled
from unseen.federation.ledger import Ledger
from unseen.federation.messages import pack_order, unpack_order
from unseen.federation.server import evaluate


def told(logits: torch.Tensor, labels: torch.Tensor, size: int = 7) -> dict[str, torch.Tensor]:
    tally = Tally()
    for x, y in zip(logits.split(size), labels.split(size), strict=True):
        tally.add(x, y)
    return tally.numbers()


@pytest.fixture
def clients() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Two clients of different size; an overconfident model."""
    rng = torch.Generator().manual_seed(3)
    found = []
    for count, lift in ((40, 2.0), (90, 1.0)):
        labels = torch.randint(0, 5, (count,), generator=rng)
        logits = torch.randn(count, 5, generator=rng)
        logits[torch.arange(count), labels] += lift
        found.append((logits * 4, labels))
    return found


def test_pooled_numbers_are_those_of_all_images_together(clients: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    found = pooled({str(i): told(x, y) for i, (x, y) in enumerate(clients)})
    assert found is not None and (found.images, found.clients) == (130, 2)
    logits = torch.cat([x for x, _ in clients]).double().numpy()
    labels = torch.cat([y for _, y in clients]).numpy()
    rows = np.arange(len(labels))
    losses = [-np.log(softmax(logits / t)[rows, labels]).sum() for t in TEMPERATURES]
    assert found.temperature == TEMPERATURES[int(np.argmin(losses))] and found.temperature > 2
    assert found.error_before == pytest.approx(calibration_curve(softmax(logits), labels).error)
    assert found.error_after == pytest.approx(calibration_curve(found.probabilities(logits), labels).error)
    assert found.error_after < found.error_before
    odds = log_odds(logits)[rows, labels]
    counts, _ = np.histogram(np.clip(odds, -12, 11.999), bins=np.arange(-12, 12.25, 0.25))
    assert found.true_odds == counts.tolist()
    for coverage in (0.5, 0.8, 0.9, 0.95):
        needed = np.ceil(coverage * 132)
        threshold = found.threshold(coverage)
        assert (odds >= threshold).sum() >= needed > (odds >= threshold + 0.25).sum()  # to a bin, on the safe side
        assert found.sets(logits, coverage)[rows, labels].mean() >= coverage
    largest = np.sort(logits.max(axis=1))
    for level in (5, 50, 95):  # within 1 % of the images, and a place
        place = level / 100 * 130
        low, high = largest[max(0, int(place - 3))], largest[min(129, int(place + 3))]
        assert low <= found.largest_logit[level - 1] <= high
    unlike = found.unlike(found.strangeness(logits, np.zeros((130, NUMBERS))))
    assert 0 <= sum(map(bool, unlike)) <= 13


def test_the_batches_do_not_matter_and_no_images_tell_nothing(clients: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    x, y = clients[0]
    one, two = told(x, y, 7), told(x, y, 40)
    assert all(torch.allclose(one[name].double(), two[name].double()) for name in SHAPES)
    assert Tally().numbers() == {} and pooled({}) is None and pooled({"a": {}}) is None
    assert told(torch.full((2, 3), torch.nan), torch.zeros(2, dtype=torch.int64)) == {}


def test_single_points_by_hand() -> None:
    found = told(torch.tensor([[2.0, 0.0], [0.0, 1.0], [-3.0, 4.0]]), torch.tensor([0, 1, 0]))
    assert found["largest_logit"][49] == 2.0 and found["largest_logit"][24] == pytest.approx(1.5)
    places = found["true_odds"].nonzero()[:, 0].tolist()
    assert places == [20, 52, 56]  # log-odds -7, 1 and 2 in bins of 0.25 from -12 on
    at_one = found["loss"][12]
    assert float(at_one) == pytest.approx(np.log1p(np.exp(-2)) + np.log1p(np.exp(-1)) + np.log1p(np.exp(7)))


def site(train: int, validation: int) -> Site:
    """Grey pictures, the validation images among them darker and darker."""
    x = torch.rand(train + validation, 3, 8, 8, generator=torch.Generator().manual_seed(5))
    x[train:] *= torch.linspace(0.9, 0.3, validation)[:, None, None, None]
    rows = torch.zeros(len(x), dtype=torch.int64)
    return Site("a", TensorImages(x[:train], rows[:train]), TensorImages(x[train:], rows[train:]))


def test_the_look_is_of_training_images_and_distances_are_of_validation_images() -> None:
    here = site(60, 40)
    found = look_of_site(here)
    looks = look_of(here.train.batch(torch.arange(60)).x.numpy())
    assert found["look_mean"].numpy() == pytest.approx(looks.mean(axis=0), rel=1e-5)
    whole = np.cov(looks.T, bias=True)[np.triu_indices(NUMBERS)]
    assert found["look_covariance"].numpy() == pytest.approx(whole, abs=1e-6)
    own = Look(found["look_mean"].tolist(), found["look_covariance"].tolist())
    distances = own.distance(look_of(here.validation.batch(torch.arange(40)).x.numpy()))
    points = np.quantile(distances, np.arange(1, 100) / 100)
    assert found["look_distance"].numpy() == pytest.approx(points, rel=1e-5)
    assert look_of_site(site(29, 40)) == look_of_site(site(60, 9)) == {}, "a mean over so few would show them"


def test_looks_come_with_the_calibration_and_are_pooled_as_they_are() -> None:
    told_here = told(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1]))
    with_look = {**told_here, **look_of_site(site(60, 40))}
    assert faults(with_look) == ""
    found = pooled({"a": with_look, "b": told_here})
    assert found is not None and len(found.looks) == 1
    assert found.look_distance == with_look["look_distance"].tolist() and found.least_familiar == pytest.approx(
        (found.largest_logit[1] + found.largest_logit[2]) / 2
    )
    both = pooled({"a": with_look, "b": {**with_look, "look_distance": with_look["look_distance"] + 100}})
    assert both is not None and len(both.looks) == 2 and both.look_distance[48] < 100 < both.look_distance[50]
    for name, value, words in (
        ("look_mean", torch.full((35,), 6.0), "larger numbers than pictures can have"),
        ("look_covariance", torch.full((630,), 26.0), "larger numbers than pictures can have"),
        ("look_distance", torch.linspace(-1, 5, 99), "further from their look than pictures can be"),
        ("look_distance", torch.linspace(1, 1e5, 99), "further from their look than pictures can be"),
        ("look_distance", torch.linspace(2, 1, 99), '"look_distance" of its calibration do not rise'),
        ("look_distance", torch.zeros(99, dtype=torch.float64), "float64"),
    ):
        assert words in faults({**with_look, name: value})
    del with_look["look_distance"]
    assert "its calibration has" in faults(with_look)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("loss", torch.zeros(31), "float32"),
        ("gap", torch.zeros(31, 14, dtype=torch.float64), r"\(31, 14\)"),
        ("gap", torch.full((31, 15), 9.0, dtype=torch.float64), "do not fit its number of images"),
        ("true_odds", torch.zeros(96, dtype=torch.int64), "counts no images"),
        ("true_odds", torch.full((96,), -1), "counts no images"),
        ("loss", torch.full((31,), -1.0, dtype=torch.float64), "do not fit"),
        ("largest_logit", torch.arange(99, 0, -1, dtype=torch.float64), "do not rise"),
        ("more", torch.zeros(1), "its calibration has"),
    ],
)
def test_numbers_that_cannot_be_are_refused(name: str, value: torch.Tensor, words: str) -> None:
    good = told(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1]))
    assert faults(good) == ""
    assert re.search(words, faults({**good, name: value}))


def test_over_the_wire_the_same_bits_counted_by_the_ledger(tmp_path: Path) -> None:
    fed = federation("fedavg", tmp_path, rounds=1, local_steps=1)
    fed.run()
    before, answers = fed.ledger.per_trip("up"), []
    for workers in (1, 2):
        ledger = Ledger()
        with LocalEngine(fed.runner, fed.clients, workers) as engine:
            answers.append(evaluate(engine, fed.server.state, 1, ledger, calibrate=True))
        # Two of the three have images enough to tell of their look.
        told_by_all, looks = 3 * (31 + 31 * 15 + 96 + 99) * 8, 2 * (35 + 630 + 99) * 4
        assert ledger.total("up", "calibration") == told_by_all + looks
        assert SENT in ledger.sentence() and ledger.beyond_weights() == "" and ledger.per_trip("up") == 0
    one, two = answers
    assert pooled(one.calibrating) == pooled(two.calibrating) is not None
    assert one.clients == two.clients and set(one.calibrating) == set(fed.clients)
    assert before == fed.ledger.per_trip("up")
    # An order for test images still calibrates by validation images; there are no test images here.
    with LocalEngine(fed.runner, fed.clients, 1) as engine:
        test = evaluate(engine, fed.server.state, 1, Ledger(), "test", calibrate=True)
    assert test.clients == {} and pooled(test.calibrating) == pooled(one.calibrating)
    assert unpack_order(pack_order("a", Order("evaluate", 1, {}, calibrate=True)))[1].calibrate


def test_a_liar_is_left_out_and_named() -> None:
    good = told(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1]))

    class Two:
        def clients(self) -> list[str]:
            return ["a", "b"]

        def ask(self, orders: dict[str, Order]) -> list[Reply]:
            wrong = {**good, "loss": torch.full((31,), torch.nan, dtype=torch.float64)}
            return [Reply("a", "evaluate", 1, 2, report=good), Reply("b", "evaluate", 1, 2, report=wrong)]

    found = evaluate(Two(), {}, 1, Ledger(), calibrate=True)  # type: ignore[arg-type]
    assert set(found.calibrating) == {"a"} and len(found.refused) == 1 and '"b"' in found.refused[0]
