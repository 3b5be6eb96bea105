from __future__ import annotations

from dataclasses import replace

import torch

from tests.tiny_work import batch, make_work
from unseen.core.tensors import snapshot
from unseen.core.types import Batch
from unseen.method import Method
from unseen.methods.fish import Fish, domains_of


def test_a_part_of_the_way_of_a_step_on_each_domain() -> None:
    images = replace(batch(8), domain=torch.tensor([0, 1, 0, 1, 2, 0, 1, 0]))  # one image of domain 2: left out
    fish, plain = make_work(Fish(rate=0.25), local_steps=4), make_work(Method())
    start = snapshot(plain.net)
    drawn = torch.randperm(3, generator=torch.Generator().manual_seed(0)).tolist()
    parts = domains_of(images, torch.Generator().manual_seed(0))
    assert [part.domain.unique().tolist() for part in parts] == [[domain] for domain in drawn if domain != 2]
    for part in parts:
        plain.method.step(plain, part)
    fish.method.step(fish, images)
    end, found = snapshot(plain.net), snapshot(fish.net)
    for key, parameter in fish.net.named_parameters():
        if parameter.requires_grad:
            torch.testing.assert_close(found[key], start[key] + 0.25 * (end[key] - start[key]))


def test_with_one_domain_every_step_is_shorter() -> None:
    images = batch(4)
    alone = Batch(images.x, images.y, torch.zeros(4, dtype=torch.int64))
    assert [len(part) for part in domains_of(alone, torch.Generator())] == [4]
    apart = Batch(images.x, images.y, torch.arange(4))
    assert [len(part) for part in domains_of(apart, torch.Generator())] == [4]  # nothing to split: the batch as it is
