"""Partitions and splits: nothing lost, nothing twice, groups whole, and answers known by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.trees import made_up, paint_tree
from unseen.core.errors import UserError
from unseen.data.digits import index_digits
from unseen.data.domains import DomainIndex, index_folder, index_site
from unseen.data.split import RULES, make_sites, partition, split
from unseen.data.store import open_store


@st.composite
def indexes(draw: st.DrawFn) -> DomainIndex:
    """Two to four domains, one to four classes, images in groups of one to three."""
    domains, classes = draw(st.integers(2, 4)), draw(st.integers(1, 4))
    rows: list[tuple[int, int, int]] = []
    group = 0
    for d in range(domains):
        for k in range(classes):
            for _ in range(draw(st.integers(4, 12))):
                rows += [(d, k, group)] * draw(st.integers(1, 3))
                group += 1
    return made_up(*zip(*rows, strict=True))


def assert_everything_once(index: DomainIndex, sources: tuple[str, ...], clients: dict[str, np.ndarray]) -> None:
    together = np.concatenate(list(clients.values()))
    assert sorted(together.tolist()) == sorted(row for s in sources for row in index.rows(s).tolist())
    owner = {int(row): client for client, rows in clients.items() for row in rows}
    for group in np.unique(index.group[together]):
        assert len({owner[int(row)] for row in np.flatnonzero(index.group == group)}) == 1
    for rows in clients.values():
        assert rows.tolist() == sorted(rows.tolist())


@settings(max_examples=40, deadline=None)
@given(
    indexes(),
    st.sampled_from(["domain", "iid:1", "iid:3", "dirichlet:2:0.5:1", "mixed:3:0.5:1", "pairs", "pooled"]),
    st.integers(0, 9),
)
def test_nothing_is_lost_and_nothing_twice(index: DomainIndex, rule: str, seed: int) -> None:
    sources = index.sources("d0")
    if rule == "pairs" and len(sources) < 2:
        with pytest.raises(UserError, match="two source domains"):
            partition(index, sources, rule, seed)
        return
    clients = partition(index, sources, rule, seed)
    assert_everything_once(index, sources, clients)
    again = partition(index, sources, rule, seed)
    assert all(np.array_equal(clients[client], again[client]) for client in clients)


@settings(max_examples=60, deadline=None)
@given(indexes(), st.floats(0, 0.6), st.sampled_from([0.0, 0.15, 0.3]), st.integers(0, 9))
def test_a_split_loses_nothing_parts_no_group_and_leaves_every_class_in_training(
    index: DomainIndex, fraction: float, test_fraction: float, seed: int
) -> None:
    rows = np.arange(len(index))
    parts = split(rows, index.label, index.group, fraction, seed, "c", index.domain, test_fraction)
    assert sorted(row for part in parts for row in part.tolist()) == rows.tolist()
    groups = [set(index.group[part].tolist()) for part in parts]
    assert sum(len(part) for part in groups) == len(set.union(*groups))
    assert set(index.label[parts.train].tolist()) == set(index.label.tolist())
    # A group is at most three images.
    assert abs(len(parts.validation) - fraction * len(rows)) <= 3 or fraction > 0.4
    assert abs(len(parts.test) - test_fraction * len(rows)) <= 3 or fraction + test_fraction > 0.4
    # The test's part changes nothing about validation.
    without = split(rows, index.label, index.group, fraction, seed, "c", index.domain)
    assert np.array_equal(without.validation, parts.validation) and len(without.test) == 0


def test_one_client_per_domain() -> None:
    index = made_up([0, 0, 1, 1, 2], [0, 1, 0, 1, 0])
    clients = partition(index, ("d2", "d0"), "domain", 0)
    assert {client: rows.tolist() for client, rows in clients.items()} == {"d2": [4], "d0": [0, 1]}


def test_iid_deals_every_class_evenly() -> None:
    index = made_up([0] * 24, [0] * 12 + [1] * 6 + [2] * 6)
    clients = partition(index, ("d0",), "iid:3", 7)
    assert list(clients) == ["d0-00", "d0-01", "d0-02"]
    for rows in clients.values():
        assert np.bincount(index.label[rows]).tolist() == [4, 2, 2]


def test_iid_sizes_differ_by_one_group_at_most() -> None:
    index = made_up([0] * 23, [k % 4 for k in range(23)])
    sizes = sorted(len(rows) for rows in partition(index, ("d0",), "iid:5", 0).values())
    assert sizes == [4, 4, 5, 5, 5]


def test_more_than_a_hundred_clients_still_sort_by_number() -> None:
    names = list(partition(made_up([0] * 150, [0] * 150), ("d0",), "iid:120", 0))
    assert names[0] == "d0-000" and names == sorted(names)


def test_a_small_alpha_skews_classes_and_a_large_one_does_not() -> None:
    index = made_up([0] * 1000, [k % 5 for k in range(1000)])

    def largest_share(rule: str) -> float:
        clients = partition(index, ("d0",), rule, 3)
        counts = np.stack([np.bincount(index.label[rows], minlength=5) for rows in clients.values()])
        return float((counts.max(axis=1) / counts.sum(axis=1)).mean())

    assert largest_share("dirichlet:5:1000") < 0.25
    assert largest_share("dirichlet:5:0.1") > 0.5


def test_mixed_clients_have_several_domains_and_at_least_so_many_images() -> None:
    index = made_up([0] * 300 + [1] * 300 + [2] * 300, [0] * 900)
    clients = partition(index, ("d0", "d1", "d2"), "mixed:10:0.5:40", 1)
    assert next(iter(clients)) == "client-00" and len(clients) == 10
    assert min(len(rows) for rows in clients.values()) >= 40
    assert max(len(np.unique(index.domain[rows])) for rows in clients.values()) == 3


def test_pairs_are_a_ring_of_halves() -> None:
    index = made_up([0] * 8 + [1] * 8 + [2] * 8, [0, 0, 0, 0, 1, 1, 1, 1] * 3)
    clients = partition(index, ("d0", "d1", "d2"), "pairs", 0)
    assert list(clients) == ["d0+d1", "d1+d2", "d2+d0"]
    for client, rows in clients.items():
        have = {f"d{d}": int(n) for d, n in enumerate(np.bincount(index.domain[rows], minlength=3)) if n}
        assert have == dict.fromkeys(client.split("+"), 4)
        assert np.bincount(index.label[rows]).tolist() == [4, 4]


def test_duplicated_pairs_have_whole_domains() -> None:
    index = made_up([0] * 3 + [1] * 4 + [2] * 5, [0] * 12)
    clients = partition(index, ("d0", "d1", "d2"), "pairs:duplicate", 0)
    assert {client: len(rows) for client, rows in clients.items()} == {"d0+d1": 7, "d1+d2": 9, "d2+d0": 8}
    assert np.bincount(np.concatenate(list(clients.values()))).tolist() == [2] * 12


def test_leaving_out_another_target_does_not_reshuffle_a_domain() -> None:
    index = made_up([0] * 20 + [1] * 20 + [2] * 20, [0, 1] * 30)
    one = partition(index, ("d0", "d1"), "dirichlet:2:1:1", 5)
    two = partition(index, ("d1", "d2"), "dirichlet:2:1:1", 5)
    np.testing.assert_array_equal(one["d1-00"], two["d1-00"])


@pytest.mark.parametrize(
    "rule", ["iid", "iid:x", "iid:0", "iid:-1", "dirichlet:3", "mixed:3:0", "domain:2", "iid:2.5", "pairs:some"]
)
def test_a_rule_that_is_not_understood_shows_how_it_is_written(rule: str) -> None:
    with pytest.raises(UserError, match=f'"{rule}"'):
        partition(made_up([0, 1], [0, 0]), ("d0", "d1"), rule, 0)


def test_unknown_rules_and_domains_are_told_the_nearest() -> None:
    index = made_up([0, 1], [0, 0])
    with pytest.raises(UserError, match=r'no partition "diriclet".*"dirichlet"'):
        partition(index, ("d0",), "diriclet:2:1", 0)
    with pytest.raises(UserError, match='"d7" is not a domain'):
        partition(index, ("d7",), "domain", 0)
    assert {rule.partition(":")[0].split()[0] for rule in RULES} >= {"domain", "iid", "dirichlet", "mixed", "pairs"}


def test_a_dirichlet_that_cannot_be_drawn_says_so() -> None:
    with pytest.raises(UserError, match="at least 10 images"):
        partition(made_up([0] * 15, [0] * 15), ("d0",), "dirichlet:2:1", 0)


def test_the_split_is_stratified() -> None:
    labels = np.array([0] * 50 + [1] * 30 + [2] * 20)
    train, validation, test = split(np.arange(100) + 1000, labels, np.arange(100), 0.2, 0, "photo", test_fraction=0.1)
    assert np.bincount(labels[validation - 1000]).tolist() == [10, 6, 4]
    assert np.bincount(labels[test - 1000]).tolist() == [5, 3, 2]
    assert len(train) == 70


def test_a_split_without_a_test_is_that_of_earlier_versions() -> None:
    # By the code of commit 39909d8.
    labels, groups = [0] * 6 + [1] * 6 + [2] * 3, [0, 0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 6, 7, 8, 9]
    train, validation, test = split(np.arange(15), np.array(labels), np.array(groups), 0.3, 3, "c")
    assert train.tolist() == [0, 1, 4, 5, 6, 7, 8, 9, 12, 13]
    assert validation.tolist() == [2, 3, 10, 11, 14] and test.tolist() == []


def test_small_classes_together_give_the_fraction() -> None:
    labels = np.repeat(np.arange(10), 4)  # 10 % of four is no image: every second or third class gives one
    _, validation, _ = split(np.arange(40), labels, np.arange(40), 0.1, 0, "c")
    assert len(validation) == 4
    assert np.bincount(labels[validation], minlength=10).max() == 1


def test_a_class_of_one_image_trains() -> None:
    train, validation, _ = split(np.arange(3), np.array([0, 1, 1]), np.arange(3), 0.5, 0, "c")
    assert 0 in train and len(validation) == 1


def test_no_fraction_no_validation_and_a_senseless_fraction_is_refused() -> None:
    train, validation, test = split(np.arange(5), np.zeros(5), np.arange(5), 0.0, 0, "c")
    assert train.tolist() == [0, 1, 2, 3, 4] and validation.tolist() == [] == test.tolist()
    for wrong in (-0.1, 0.7):
        with pytest.raises(UserError, match="in-domain test"):
            split(np.arange(5), np.zeros(5), np.arange(5), 0.3, 0, "c", test_fraction=wrong)
    with pytest.raises(UserError, match="fraction"):
        split(np.arange(5), np.zeros(5), np.arange(5), 1.0, 0, "c")


def test_seeds_and_clients_split_differently() -> None:
    rows, labels = np.arange(100), np.zeros(100)
    draws = [
        split(rows, labels, rows, 0.2, seed, client)[1].tolist() for seed, client in [(0, "a"), (1, "a"), (0, "b")]
    ]
    assert draws[0] != draws[1] and draws[0] != draws[2]


def test_a_site_with_its_own_folder_alone_comes_to_the_same_split(tmp_path: Path) -> None:
    paint_tree(tmp_path / "set", domains=3, classes=3, each=7)
    whole = index_folder(tmp_path / "set")
    rows = partition(whole, whole.sources("d0"), "domain", 4)["d2"]
    here = split(rows, whole.label[rows], whole.group[rows], 0.3, 4, "d2", whole.domain[rows], 0.2)
    site = index_site(tmp_path / "set/d2", whole.classes)
    there = split(np.arange(len(site)), site.label, site.group, 0.3, 4, "d2", site.domain, 0.2)
    assert len(here.test) == 4
    for one, other in zip(here, there, strict=True):
        assert [whole.paths[row] for row in one] == [f"d2/{site.paths[row]}" for row in other]


def test_two_drawings_of_a_digit_stay_together() -> None:
    index = index_digits()
    for rule in ("domain", "iid:5", "dirichlet:3:0.5", "mixed:6:0.5", "pairs"):
        clients = partition(index, index.sources("street"), rule, 0)
        assert_everything_once(index, index.sources("street"), clients)
        for client, rows in clients.items():
            parts = split(rows, index.label[rows], index.group[rows], 0.2, 0, client, index.domain[rows], 0.15)
            groups = [set(index.group[part].tolist()) for part in parts]
            assert sum(len(part) for part in groups) == len(set.union(*groups))


def test_sites_hold_their_images_and_never_the_target(tmp_path: Path) -> None:
    paint_tree(tmp_path / "set", domains=3, classes=2, each=5)
    store = open_store(index_folder(tmp_path / "set"), 4, progress=False, cache=tmp_path / "cache")
    sites = make_sites(store, partition(store.index, store.index.sources("d1"), "domain", 0), 0.2, 0, 0.2)
    assert [site.client for site in sites] == ["d0", "d2"]
    parts = [(site.train, site.validation, site.test) for site in sites]
    assert [[len(part) for part in site] for site in parts] == [[6, 2, 2], [6, 2, 2]]
    assert {int(d) for site in parts for part in site for d in part.domains} == {0, 2}
    greys = [round(float(v) * 255) for part in parts[1] for v in part.batch(torch.arange(len(part))).x[:, 0, 0, 0]]
    assert sorted(greys) == [100 + 5 * k for k in range(10)]
