"""A client's work for tests: a tiny ConvNet, random images, and any method on it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from unseen.core.plan import OptimizerPlan, Plan
from unseen.core.tensors import snapshot
from unseen.core.types import Batch, Site, Work
from unseen.data.memory import TensorImages
from unseen.method import Method, parts_of
from unseen.nets.backbones import ConvNet, OwnAnatomy, create_net
from unseen.nets.net import Net

PLAN = Plan(
    rounds=2, batch_size=8, optimizer=OptimizerPlan(lr=0.05, momentum=0.9), seed=0, local_epochs=None, local_steps=4
)


def random_images(count: int, classes: int = 3, seed: int = 0, size: int = 32) -> TensorImages:
    """Every class has a colour of its own, so that it can be learnt."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    colours = torch.eye(3)[labels % 3][:, :, None, None] * 0.6
    x = (torch.rand(count, 3, size, size, generator=rng) * 0.4 + colours).clamp(0, 1)
    return TensorImages(x, labels, torch.arange(count) // classes % 2)  # two domains: some methods need several


def site(client: str = "a", count: int = 32, classes: int = 3, seed: int = 0) -> Site:
    return Site(client, random_images(count, classes, seed), random_images(12, classes, seed + 100))


# Where a convnet will not do.
BACKBONES = dict.fromkeys(("doprompt", "promptfl", "fedclip", "fedins", "feddgmoe"), "test_vit")


def tiny_net(method: Method, classes: int = 3, bottleneck: int | None = None, seed: int = 0) -> Net:
    """The ConvNet of the digits with narrow stages (these tests are about the methods), or what the method needs."""
    torch.manual_seed(seed)
    needed = next((BACKBONES[part.name] for part in parts_of(method) if part.name in BACKBONES), None)
    if needed is not None:
        return method.build(create_net(needed, classes, image_size=32, bottleneck=bottleneck, seed=seed))
    narrow = ConvNet(widths=(8, 16, 16, 64))
    net = Net(narrow, OwnAnatomy(), classes, image_size=32, bottleneck=bottleneck, backbone_name="convnet")
    return method.build(net)


def make_work(method: Method, *, brief: dict[str, Tensor] | None = None, seed: int = 0, **changes: Any) -> Work:
    """A Work with main optimizer, ready for `prepare` and `step`. `changes` are fields of Work or of Plan."""
    plan_changes = {k: changes.pop(k) for k in list(changes) if hasattr(PLAN, k)}
    plan = replace(PLAN, **plan_changes)
    net = changes.pop("net", None) or tiny_net(method, seed=seed)
    here = changes.pop("site", None) or site(seed=seed)
    rng = torch.Generator().manual_seed(seed)
    work = Work(
        client=here.client,
        method=method,
        net=net,
        site=here,
        plan=plan,
        round=1,
        received=snapshot(net),
        brief=brief or {},
        memory={},
        rng=rng,
        fetch=here.train.batch,
        steps=plan.local_steps or 4,
    )
    work.optimizers["main"] = work.optimizer(net.trainable())
    for name, value in changes.items():
        setattr(work, name, value)
    net.train()
    return work


def batch(count: int = 8, classes: int = 3, seed: int = 1) -> Batch:
    images = random_images(count, classes, seed)
    return images.batch(torch.arange(count))
