"""Each step of StableFDG on styles against its formula in plain NumPy, and the rows that the steps take."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.tiny_work import random_images, tiny_net
from unseen.core.errors import UserError
from unseen.methods.fedavg import FedAvg
from unseen.nets.parts.style_space import (
    as_in_training,
    balanced_rows,
    explore,
    kept_rows,
    mix,
    near,
    partners_of,
    shift,
    summary,
)
from unseen.nets.parts.styles import Style, style_of


def dice(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def maps(count: int = 4, seed: int = 0) -> Tensor:
    return torch.randn(count, 3, 5, 4, generator=torch.Generator().manual_seed(seed)) * 2 + 1


def numpy_style(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eq. 1, loop by loop; B x C x 1 x 1 each."""
    mean, std = np.zeros((*x.shape[:2], 1, 1)), np.zeros((*x.shape[:2], 1, 1))
    for b in range(x.shape[0]):
        for c in range(x.shape[1]):
            values = x[b, c].ravel()
            mean[b, c] = values.sum() / len(values)
            std[b, c] = np.sqrt(((values - mean[b, c]) ** 2).sum() / len(values) + 1e-6)
    return mean, std


def numpy_adain(x: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    own_mean, own_std = numpy_style(x)
    return np.asarray(std * (x - own_mean) / own_std + mean)


def close(got: Tensor, expected: np.ndarray) -> None:
    np.testing.assert_allclose(got.double().numpy(), expected, rtol=1e-4, atol=1e-4)


# --- step 1 ----------------------------------------------------------------------------------------------------------
def test_style_information_of_a_client_against_numpy() -> None:
    mean, std = (part[:, :, 0, 0] for part in numpy_style(maps(5).double().numpy()))
    expected = [
        mean.sum(0) / 5,
        std.sum(0) / 5,
        ((mean - mean.sum(0) / 5) ** 2).sum(0) / 5,
        ((std - std.sum(0) / 5) ** 2).sum(0) / 5,
    ]
    close(summary(*style_of(maps(5))), np.stack(expected))


@pytest.mark.parametrize("training", [True, False])
def test_a_pass_as_in_training_leaves_no_trace(training: bool) -> None:
    net = tiny_net(FedAvg()).train(training)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    images = random_images(8).x
    with torch.no_grad():
        as_seen = net.eval().run_stage(0, images)
        net.train(training)
        with as_in_training(net):
            by_batch = net.run_stage(0, images)
    assert not torch.allclose(as_seen, by_batch, atol=0.05)  # the statistics of the batch, not the running ones
    assert net.training is training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


# --- step 2 ----------------------------------------------------------------------------------------------------------
def test_styles_near_a_received_one_against_numpy() -> None:
    rng = dice()
    received, own = rng.random((3, 4, 5)).astype(np.float32), rng.random((4, 5)).astype(np.float32)
    received[0, 1] = -10  # so far below zero that only the clamp can help
    drawn = rng.standard_normal((2, 3, 5)).astype(np.float32)
    code = near(torch.from_numpy(received), torch.from_numpy(drawn))
    paper = near(torch.from_numpy(received), torch.from_numpy(drawn), torch.from_numpy(own))
    for n in range(3):
        mu, sigma, var_mu, var_sigma = received[n]
        np.testing.assert_allclose(code.mean[n], mu + drawn[0, n] * np.sqrt(var_mu), rtol=1e-5)
        np.testing.assert_allclose(code.std[n], np.maximum(sigma + drawn[1, n] * np.sqrt(var_sigma), 0), rtol=1e-5)
        epsilon_mu, epsilon_sigma = drawn[0, n] * np.sqrt(own[2]), drawn[1, n] * np.sqrt(own[3])
        np.testing.assert_allclose(paper.mean[n], mu + epsilon_mu * var_mu, rtol=1e-5)
        np.testing.assert_allclose(paper.std[n], np.maximum(sigma + epsilon_sigma * var_sigma, 0), rtol=1e-5)


def test_shift_against_numpy_and_the_others_stay_bit_by_bit() -> None:
    x, rows = maps(), torch.tensor([1, 3])
    new = Style(torch.rand(2, 3), torch.rand(2, 3))
    shifted = shift(x, style_of(x), rows, new)
    assert torch.equal(shifted[[0, 2]], x[[0, 2]])
    mean, std = (part.double().numpy()[:, :, None, None] for part in new)
    close(shifted[rows], numpy_adain(x[rows].double().numpy(), mean, std))


def test_two_clear_clusters_keep_the_middle_image_of_each() -> None:
    points = np.array([[0.0, 0], [0.2, 0], [0.1, 0], [9.0, 9], [9.2, 9], [9.1, 9]], dtype=np.float32)
    for seed in range(10):
        assert sorted(kept_rows(points, 2, dice(seed))) == [2, 5]


def test_every_kept_row_is_another_one() -> None:
    for seed in range(10):
        kept = kept_rows(np.ones((6, 4), dtype=np.float32), 3, dice(seed))  # all alike
        assert len(set(kept.tolist())) == 3 and kept.max() < 6
        assert sorted(kept_rows(dice(seed).random((5, 2)), 5, dice(seed))) == [0, 1, 2, 3, 4]
    assert kept_rows(np.ones((1, 4)), 1, dice()).tolist() == [0]


def test_seeds_are_drawn_by_squared_distance() -> None:
    """With two points at 0 and one each at 1 and 3: after 0, D^2 is 1 and 9, so 3 follows nine times in ten."""
    points = np.array([[0.0], [0.0], [1.0], [3.0]])
    kept = [tuple(sorted(kept_rows(points, 2, dice(seed)))) for seed in range(2000)]
    # From 0 (half of the draws) and then 1, the clusters are {0, 0}, {1, 3} with centres 0 and 2: the rows 0 and 2.
    # From 0 and then 3: {0, 0, 1}, {3}: 0 and 3. From 1 (a quarter): D^2 1, 1, 4. From 3 (a quarter): 9, 9, 4.
    expected = 1 - (1 / 2 * 1 / 10 + 1 / 4 * 2 / 6)  # all that end with 3 alone
    assert abs(np.mean([rows == (0, 3) for rows in kept]) - expected) < 0.03


PICK = """
import sys
import numpy as np
import torch
torch.set_num_threads(int(sys.argv[1]))
from unseen.nets.parts.style_space import kept_rows
rows = []
for seed in range(40):
    points = np.random.default_rng(seed).standard_normal((32, 128)).astype(np.float32)
    points[16:] = points[:16] * (1 + 1e-6)  # near ties: the last bit decides
    rows += kept_rows(points, 16, np.random.default_rng(seed)).tolist()
print(rows, "sklearn" in sys.modules)
"""


def test_the_rows_do_not_depend_on_threads_or_on_blas() -> None:
    def picked(threads: int, core: str) -> str:
        environment = {
            **os.environ, "UNSEEN_CPU": "native", "OPENBLAS_CORETYPE": core, "OMP_NUM_THREADS": str(threads)
        }  # fmt: skip
        command = [sys.executable, "-c", PICK, str(threads)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    here = picked(1, "Haswell")
    assert here.endswith("False\n"), "scikit-learn's k-means++ is built on BLAS"
    assert here == picked(2, "Prescott")


def test_styles_that_are_not_finite_are_an_error_for_people() -> None:
    with pytest.raises(UserError, match="diverged"):
        kept_rows(np.full((4, 2), np.nan, dtype=np.float32), 2, dice())


# --- steps 4 and 5 ---------------------------------------------------------------------------------------------------
def test_exploration_against_numpy() -> None:
    x, rows = maps(seed=1), [2, 2, 0]
    explored = explore(x, torch.tensor(rows), alpha=3.0)
    values = x.double().numpy()
    mean, std = numpy_style(values)
    far_mean = mean[rows] + 3.0 * (mean[rows] - mean.mean(0))
    far_std = std[rows] + 3.0 * (std[rows] - std.mean(0))
    assert torch.equal(explored[:4], x)
    close(explored[4:], numpy_adain(values[rows], far_mean, far_std))
    close(explore(x, torch.tensor(rows), alpha=0.0)[4:], values[rows])
    assert explore(x, torch.tensor([], dtype=torch.int64), alpha=3.0).shape == x.shape


def test_mixing_against_numpy() -> None:
    x = maps(seed=2)
    again = dice(3)
    share, other = again.beta(0.1, 0.1, (4, 1))[:, :, None, None], again.permutation(4)
    values = x.double().numpy()
    mean, std = numpy_style(values)
    expected = numpy_adain(values, share * mean + (1 - share) * mean[other], share * std + (1 - share) * std[other])
    close(mix(x, 0.1, dice(3)), expected)


def test_no_gradient_flows_through_the_statistics() -> None:
    """The gradient of AdaIN with constant statistics is the ratio of the deviations."""
    for change in (lambda x: explore(x, torch.arange(4), 3.0)[4:], lambda x: mix(x, 0.1, dice())):
        x = maps().requires_grad_()
        y = change(x)
        y.sum().backward()
        assert x.grad is not None
        slope = x.grad[:, :, :1, :1]
        torch.testing.assert_close(x.grad, slope.expand_as(x.grad))
        torch.testing.assert_close(slope.abs()[:, :, 0, 0], style_of(y).std / style_of(x).std, rtol=1e-3, atol=1e-3)


# --- oversampling: the example of Step 3 and of Appendix G: classes a, b, c with 3, 2 and 1 images -------------------
TOY = np.array([0, 1, 0, 2, 1, 0])


@pytest.mark.parametrize(
    ("size", "expected"),
    [(0, (0, 0, 0)), (1, (0, 0, 1)), (3, (0, 1, 2)), (6, (1, 2, 3)), (9, (2, 3, 4))],
)
def test_oversampling_of_the_papers_example(size: int, expected: tuple[int, ...]) -> None:
    rows = balanced_rows(TOY, size, dice())
    assert tuple(int((TOY[rows] == label).sum()) for label in range(3)) == expected


def test_an_oversampling_that_cannot_be_even_gives_to_random_classes() -> None:
    given_to = {tuple(TOY[balanced_rows(TOY, 4, dice(seed))][-1:]) for seed in range(30)}
    assert given_to == {(0,), (1,), (2,)}  # after 3 all classes have three; the fourth goes to any


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=20), st.integers(0, 40))
def test_oversampling_is_as_balanced_as_can_be(labels: list[int], size: int) -> None:
    before = np.array(labels)
    rows = balanced_rows(before, size, dice())
    assert len(rows) == size
    count_before = np.bincount(before, minlength=6)
    count_after = np.bincount(np.concatenate([before, before[rows]]), minlength=6)
    grown = count_after > count_before
    if grown.any():  # no class that grew is more than one above a class that is present
        assert count_after[grown].max() <= count_after[count_before > 0].min() + 1


# --- partners --------------------------------------------------------------------------------------------------------
def test_partners_show_another_image_of_the_same_class() -> None:
    labels, images = (
        np.array([2, 0, 2, 1, 0, 2, 1, 0, 2]),
        np.array([0, 1, 2, 3, 4, 5, 6, 1, 0]),
    )  # two copies at the end
    seen: list[set[int]] = [set() for _ in labels]
    for seed in range(60):
        for row, partner in enumerate(partners_of(labels, images, dice(seed))):
            assert labels[row] == labels[partner] and images[row] != images[partner]
            seen[row].add(int(partner))
    assert seen[0] == {2, 5} and seen[2] == {0, 5, 8} and seen[4] == {1, 7}  # each of them, in time


def test_an_image_without_another_of_its_class_is_its_own_partner() -> None:
    np.testing.assert_array_equal(partners_of(np.array([0, 1, 1, 0]), np.array([0, 1, 2, 0]), dice()), [0, 2, 1, 3])
