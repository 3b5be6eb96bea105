from __future__ import annotations

import pytest
import torch

from tests.tiny_work import batch, make_work
from unseen.core.errors import UserError
from unseen.methods.randaug import RandAug
from unseen.nets.parts.images import rand_augment


def test_augments_by_ns_operations_at_ms_strength_from_the_clients_dice() -> None:
    work, images = make_work(RandAug(operations=3, magnitude=15)), batch()
    got = work.method.augment(work, images)
    assert torch.equal(got.x, rand_augment(images.x, 3, 0.5, torch.Generator().manual_seed(0)))
    assert torch.equal(got.y, images.y) and torch.equal(got.domain, images.domain)


def test_defaults_and_a_magnitude_that_is_none() -> None:
    assert (RandAug().operations, RandAug().magnitude) == (2, 10)
    with pytest.raises(UserError, match="0 to 30"):
        RandAug(magnitude=31)
