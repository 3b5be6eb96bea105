"""Replacing BatchNorm by another layer where a method says so, with errors for people where that cannot be."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from unseen.core.errors import UserError
from unseen.nets.net import Net


def swap_norms(net: Net, make: Callable[[nn.BatchNorm2d], nn.Module], stages: int | None = None) -> Net:
    """`net.replace_norms`, but stages that the net does not have, or stages without BatchNorm2d, are an error."""
    if stages is not None and not 1 <= stages <= net.stages:
        raise UserError(f"{net.backbone_name} has {net.stages} stages: set stages to a number from 1 to {net.stages}.")
    replaced = 0

    def counted(norm: nn.BatchNorm2d) -> nn.Module:
        nonlocal replaced
        replaced += 1
        return make(norm)

    net.replace_norms(counted, stages=stages)
    if not replaced:
        raise UserError(
            f"{net.backbone_name} has no BatchNorm2d to replace: choose a backbone with BatchNorm, such as resnet18."
        )
    return net


def insert_after(net: Net, stages: tuple[int, ...], make: Callable[[], nn.Module]) -> Net:
    """A new module after each of these stages, counted from 0."""
    for stage in stages:
        if not 0 <= stage < net.stages:
            raise UserError(f"There is no stage {stage} in {net.backbone_name}: it has 0 to {net.stages - 1}.")
        net.insert(stage, make())
    return net
