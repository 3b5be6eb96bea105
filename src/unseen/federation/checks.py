"""The one place that checks a reply: its form and its content, before any code of the method sees it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from unseen.core.errors import UserError
from unseen.core.forms import ANYTHING, Asked, Form, Forms, form_fault
from unseen.core.plan import Allow, Plan
from unseen.core.tensors import in_pieces
from unseen.core.types import ClientId, Metrics, Order, Reply, Server, Share
from unseen.federation import calibrate as calibration
from unseen.federation.permission import beyond
from unseen.method import Method
from unseen.nets.net import Net

LARGEST = 1e12  # no number of a model that can still be trained is larger
MOST_METRICS, LONGEST_NAME = 256, 200
NAMED = 3  # clients that are named when a merged model is spoilt


def _anything(round: int, images: int) -> Forms:
    return ANYTHING


def _nothing(order: Order) -> Mapping[str, Form]:
    return {}


@dataclass(frozen=True)
class Checks:
    """What method, net and plan say of a good reply. Without them, only the server's own state is known."""

    forms: Callable[[int, int], Forms] = _anything  # of the round and the client's number of training images
    variances: frozenset[str] = frozenset()  # state that is never negative
    most_images: int = Plan().most_images
    allow: Allow = Plan().allow
    sealing: Callable[[Order], Mapping[str, Form]] = _nothing  # of what secure aggregation has clients send

    @classmethod
    def plain(cls, plan: Plan) -> Checks:
        """What the plan alone says."""
        return cls(most_images=plan.most_images, allow=plan.allow)

    @classmethod
    def of(cls, method: Method, net: Net, share: Share, plan: Plan) -> Checks:
        return cls(
            lambda round, images: method.forms(Asked(net, plan, share, round, images)),
            net.running_variances(),
            plan.most_images,
            plan.allow,
        )


def faults(
    reply: Reply,
    order: Order,
    expected: Mapping[str, Tensor],
    checks: Checks | None = None,
    enrolled: int | None = None,
) -> str:
    """Why a reply cannot be merged, naming the tensor; empty when it can.

    `expected` is the state that a train reply brings, `enrolled` how many training images the client began with.
    """
    checks = checks or Checks()
    if reply.kind != order.kind or reply.round != order.round:
        return f"it answers {reply.kind} of round {reply.round}, not {order.kind} of round {order.round}"
    return (
        _count_fault(reply, checks.most_images, enrolled)
        or _metrics_fault(reply.metrics, checks.most_images)
        or beyond(reply, checks.allow)
        or _report_fault(reply, order, checks)
        or form_fault(checks.sealing(order), (), reply.sealing)
        or _state_fault(reply, expected, checks.variances)
    )


def _count_fault(reply: Reply, most: int, enrolled: int | None) -> str:
    if reply.kind == "evaluate":
        return "" if 0 <= reply.num_examples <= most else f"it counts {reply.num_examples} images"
    if reply.num_examples <= 0:
        return f"it counts {reply.num_examples} training images"
    if enrolled is not None and reply.num_examples > enrolled:
        return f"it counts {reply.num_examples} training images and began with {enrolled}"
    if reply.num_examples > most:
        return f"it counts {reply.num_examples} training images, and --most-images is {most}"
    return ""


def _metrics_fault(metrics: Metrics, most: int) -> str:
    if len(metrics) > MOST_METRICS or any(len(name) > LONGEST_NAME for name in metrics):
        return "it has too many metrics, or too long names for them"
    for name, value in metrics.items():
        if not math.isfinite(value):
            return f'its metric "{name}" is not a finite number'
    for prefix in ("received", "local"):
        score = [metrics.get(f"{prefix}.{name}") for name in ("examples", "accuracy", "loss")]
        if score == [None, None, None]:
            continue
        examples, accuracy, loss = (math.nan if value is None else value for value in score)
        if not (1 <= examples <= most and examples == int(examples) and 0 <= accuracy <= 1 and loss >= 0):
            return "its validation score is not one"
    return ""


def _report_fault(reply: Reply, order: Order, checks: Checks) -> str:
    if fault := _form_fault(reply, order, checks):
        return fault
    for name, value in reply.report.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            return f'"{name}" of its report holds NaN or infinity'
    return ""


def _form_fault(reply: Reply, order: Order, checks: Checks) -> str:
    if reply.kind == "evaluate":
        if reply.report and not order.calibrate:
            return "it brings a report, and only a score was asked for"
        return calibration.faults(reply.report)
    forms = checks.forms(reply.round, reply.num_examples)
    asked = forms.survey if reply.kind == "survey" else forms.report
    return form_fault(asked, forms.undeclared, reply.report)


def _state_fault(reply: Reply, expected: Mapping[str, Tensor], variances: frozenset[str]) -> str:
    if reply.kind != "train":
        return "it brings a model, and none was asked for" if reply.state else ""
    for name, like in expected.items():
        if name not in reply.state:
            return f'the tensor "{name}" is missing'
        value = reply.state[name]
        if value.shape != like.shape:
            return f'"{name}" has shape {tuple(value.shape)}, not {tuple(like.shape)}'
        if value.dtype != like.dtype:
            return f'"{name}" is {value.dtype}, not {like.dtype}'
        if fault := _number_fault(name, value, variances):
            return fault
    for name in reply.state:
        if name not in expected:
            return f'the tensor "{name}" is unknown'
    return ""


def _number_fault(name: str, value: Tensor, variances: frozenset[str]) -> str:
    """What is wrong with the numbers of a model's tensor."""
    if value.numel() == 0 or value.dtype == torch.bool:
        return ""
    low, high = (float(bound) for bound in value.aminmax())
    if not (math.isfinite(low) and math.isfinite(high)):
        return f'"{name}" holds NaN or infinity'
    if max(-low, high) > LARGEST:
        return f'"{name}" holds a number larger than {LARGEST:.0e}'
    if low < 0 and name in variances:
        return f'"{name}" is a variance and holds a negative number'
    return ""


# --- what comes of them ----------------------------------------------------------------------------------------------
def update_norm(server: Server, reply: Reply) -> float:
    """How far a client's steps moved what it received."""
    stepped, squares = server.state if server.stepped is None else server.stepped, 0.0
    for key, value in reply.state.items():
        if key in stepped and value.is_floating_point():
            for now, before in in_pieces(value, server.state[key]):
                step = (now - before).double().flatten()
                squares += float(step.dot(step))
    return math.sqrt(squares)


def check_merged(
    round: int, state: Mapping[str, Tensor], variances: frozenset[str], norms: Mapping[ClientId, float]
) -> None:
    """A merged model with NaN, infinity or a negative variance becomes no checkpoint."""
    for name, value in state.items():
        if fault := _number_fault(name, value, variances):
            largest = sorted(norms, key=lambda client: -norms[client])[:NAMED]
            named = ", ".join(f'"{client}" (norm {norms[client]:.3g})' for client in largest)
            told = f"The largest updates came from {named}" if named else "No single update can be looked at"
            raise UserError(
                f"Round {round} was not kept, and nothing of it was written: in the merged model {fault}. "
                f"{told}. Leave that client out, bound updates with +normbound, or go "
                f"back some rounds with `unseen rollback`."
            )
