"""The local loop's batches: which images a step gets, also where a client has few."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.tiny_federation import federation
from tests.tiny_work import PLAN, make_work, random_images, site
from unseen.core.errors import UserError
from unseen.core.types import Batch, Site
from unseen.federation.client import epoch_cuts
from unseen.registry import registered


@pytest.mark.parametrize(
    ("images", "keep_last", "sizes"),
    [
        (32, False, [8, 8, 8, 8]),
        (39, False, [8, 8, 8, 8]),
        (8, False, [8]),
        (7, False, [7]),  # less than a batch: all of them
        (2, False, [2]),
        (32, True, [8, 8, 8, 8]),
        (39, True, [8, 8, 8, 8, 7]),
        (34, True, [8, 8, 8, 8, 2]),
        (33, True, [8, 8, 8, 9]),  # BatchNorm cannot train on one image, so it joins the others
        (9, True, [9]),
        (7, True, [7]),
    ],
)
def test_an_epoch_in_batches(images: int, keep_last: bool, sizes: list[int]) -> None:
    cuts = epoch_cuts(images, replace(PLAN, batch_size=8, keep_last=keep_last))
    rows = [torch.arange(images)[cut].tolist() for cut in cuts]
    assert [len(part) for part in rows] == sizes
    assert [row for part in rows for row in part] == list(range(sum(sizes)))


def batches_of(here: Site, folder: Path, **changes: object) -> list[Batch]:
    fed = federation("fedavg", folder, **changes)
    work = make_work(fed.method, site=here, **changes)
    return list(fed.runner._batches(work))


def test_with_the_last_batch_an_epoch_sees_every_image_once(tmp_path: Path) -> None:
    here = site(count=21)
    plan: dict[str, object] = {"local_steps": None, "local_epochs": 2}
    kept = batches_of(here, tmp_path, keep_last=True, **plan)
    assert [len(batch) for batch in kept] == [8, 8, 5] * 2
    for epoch in (kept[:3], kept[3:]):
        seen = torch.cat([batch.x for batch in epoch]).flatten(1)
        every = here.train.batch(torch.arange(21)).x.flatten(1)
        assert {tuple(row[:9].tolist()) for row in seen} == {tuple(row[:9].tolist()) for row in every}
    dropped = batches_of(here, tmp_path, **plan)
    assert [len(batch) for batch in dropped] == [8, 8] * 2
    assert torch.equal(dropped[0].x, kept[0].x) and torch.equal(dropped[2].x, kept[3].x)  # the same order


def test_a_client_with_one_image_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r'"a" has too few training images \(1\)'):
        batches_of(Site("a", random_images(1), random_images(4)), tmp_path)


@pytest.mark.parametrize("images", [2, 5])
@pytest.mark.parametrize("method", list(registered()))
def test_every_method_trains_a_client_with_less_than_a_batch(method: str, images: int, tmp_path: Path) -> None:
    fed = federation(method, tmp_path, rounds=2, local_steps=2)
    fed.sites["b"] = Site("b", random_images(images), random_images(4))
    played = fed.run()
    assert all(not line.refused and not line.missing and "b" in line.metrics for line in played)
