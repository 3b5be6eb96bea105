"""Replacing modules inside a network, in place, by their type, and inserting others; in the way methods ask for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor, nn

from unseen.core.errors import UserError

if TYPE_CHECKING:
    from unseen.nets.net import Net  # which itself replaces norms by what is here

B = TypeVar("B", bound=nn.modules.batchnorm._BatchNorm)


def plain_batch_norm(norm: nn.modules.batchnorm._BatchNorm, into: Callable[..., B]) -> B:
    """A BatchNorm of class `into` that takes over the parameters, statistics and settings of `norm`."""
    new = into(
        norm.num_features,
        eps=norm.eps,
        momentum=norm.momentum,
        affine=norm.affine,
        track_running_stats=norm.track_running_stats,
    )
    # register_* and not plain assignment: an entry may be None
    for name in ("weight", "bias"):
        new.register_parameter(name, getattr(norm, name))
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        new.register_buffer(name, getattr(norm, name))
    new.train(norm.training)
    return new


def replace_batch_norms(
    root: nn.Module, kind: type[B], make: Callable[[B], nn.Module], within: Iterable[nn.Module] | None = None
) -> None:
    """Put `make(norm)` in the place of every BatchNorm of that kind below `root` (or below `within`, parts of it).

    timm's `BatchNormAct2d` is a BatchNorm with children (dropout, activation) that run on its output. `make` then gets
    a plain BatchNorm with the same parameters, and the children are hung on what it returns and run after it: a hook
    and not a wrapper, so that no name in the state changes.
    """
    chosen = None if within is None else {module for part in within for module in part.modules()}
    sites = [
        (parent, name, child)
        for parent in root.modules()
        for name, child in parent.named_children()
        if isinstance(child, kind) and (chosen is None or child in chosen)
    ]
    for parent, name, norm in sites:
        followers = list(norm.named_children())
        new = make(plain_batch_norm(norm, kind) if followers else norm)
        if new is not norm:
            for follower_name, follower in followers:
                new.add_module(follower_name, follower)
            if followers:
                new.register_forward_hook(_Follow(tuple(follower_name for follower_name, _ in followers)))
            new.train(norm.training)
            setattr(parent, name, new)


class _Follow:
    """A forward hook that runs some children of a module, in order, on its output."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def __call__(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        for name in self._names:
            output = module.get_submodule(name)(output)
        return output


# --- where a method says so, with errors for people ------------------------------------------------------------------
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
