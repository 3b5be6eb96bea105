"""The contract: a method says what is different from FedAvg, and nothing else.

A method is a frozen, stateless dataclass; its fields are its hyper-parameters; state is passed in. Every verb defaults to
FedAvg, so the smallest method is an empty class. A worked example, FedProx:

    @dataclass(frozen=True)
    class FedProx(Method):
        mu: float = 0.1

        def penalty(self, work, batch, features):
            return self.mu / 2 * squared_distance(work.net, work.received)

`compose(FedBN(), FedProx())` keeps BatchNorm local and adds the proximal term.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.core.errors import UserError
from unseen.core.tensors import RunningMean, prefixed, unprefixed
from unseen.core.types import Batch, ClientId, Memory, Reply, Server, Share, Tensors, Work
from unseen.nets.net import Net

Weigh = Callable[[Reply], float]


@dataclass(frozen=True)
class Method:
    """FedAvg. Override a verb to differ from it."""

    name: ClassVar[str] = ""  # on the command line; set by the registry from the file's name
    sends: ClassVar[str] = ""  # what leaves a client beyond the model's weights, in words; "" for nothing
    needs_full_state: ClassVar[bool] = False  # orders carry all of `share.up`, also what clients do not load
    validates_locally: ClassVar[bool] = False  # replies carry the local model's own validation score (GA)
    keeps_optimizers: ClassVar[frozenset[str]] = frozenset()  # optimizers whose state a client keeps between rounds
    counts_images: ClassVar[bool] = True  # a client weighs as much as it has images; off: all clients weigh the same
    ignores: ClassVar[frozenset[str]] = frozenset()  # verbs of other parts that this method's own verbs never call

    @property
    def sending(self) -> str:
        """`sends`, less what these fields leave out."""
        return self.sends

    @property
    def remark(self) -> str:
        """What a reader of a table must know beside the name, as that this is not quite the published method."""
        return ""

    @property
    def norms(self) -> str:
        """What `build` makes of the BatchNorm layers: the name of another kind, or nothing. A net has one kind."""
        return ""

    # --- the model -----------------------------------------------------------------------------------------------
    def build(self, net: Net) -> Net:
        """Surgery and side networks. Runs once per worker, under the run's seed."""
        return net

    def share(self, net: Net) -> Share:
        """Which state crosses the wire."""
        return net.share_all()

    # --- before the round ----------------------------------------------------------------------------------------
    def surveys(self, round: int) -> bool:
        """Does this round begin with a survey?"""
        return False

    def survey(self, work: Work) -> Tensors:
        """What a client tells before it trains: styles, spectra, losses. The net holds the received state, in eval mode."""
        return {}

    def brief(
        self, server: Server, surveys: Mapping[ClientId, Tensors], chosen: Sequence[ClientId]
    ) -> Mapping[ClientId, Tensors]:
        """A note for each chosen client of this round. `surveys` is empty in rounds without a survey."""
        return {}

    # --- on the client -------------------------------------------------------------------------------------------
    def prepare(self, work: Work) -> None:
        """Before the first step: own optimizers, frozen references."""

    def augment(self, work: Work, batch: Batch) -> Batch:
        """Change the images (already augmented by the protocol's preset)."""
        return batch

    def loss(self, work: Work, batch: Batch) -> Tensor:
        """What the main optimizer descends on."""
        features = work.net.features(batch.x)
        loss = F.cross_entropy(work.net.head(features), batch.y)
        return loss + work.method.penalty(work, batch, features)

    def penalty(self, work: Work, batch: Batch, features: Tensor) -> Tensor:
        """Added to the loss of whoever owns `loss`; `features` are those the loss was computed from."""
        return features.new_zeros(())

    def gradient(self, work: Work) -> None:
        """Edit gradients between backward and the optimizer's step (SCAFFOLD)."""

    def step(self, work: Work, batch: Batch) -> None:
        """One local step."""
        loss = work.method.loss(work, batch)
        work.note("loss", loss)
        self.descend(work, loss)

    def descend(self, work: Work, loss: Tensor, optimizer: str = "main") -> None:
        """Backward, let parts edit the gradient, clip, step. Not a verb: a tool for steps."""
        optim = work.optimizers[optimizer]
        optim.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        work.method.gradient(work)
        if work.plan.optimizer.clip_norm is not None:
            parameters = [p for group in optim.param_groups for p in group["params"]]
            torch.nn.utils.clip_grad_norm_(parameters, work.plan.optimizer.clip_norm)
        optim.step()

    def report(self, work: Work) -> Tensors:
        """After the last step: what to remember (in `work.memory`) and what to tell beyond the model."""
        return {}

    # --- on the server -------------------------------------------------------------------------------------------
    def weigh(self, server: Server, reply: Reply) -> float:
        """A reply's weight in the mean; weights are normalised by their sum."""
        return float(reply.num_examples) if self.counts_images else 1.0

    def merge(self, server: Server, replies: Iterable[Reply], weigh: Weigh) -> Tensors:
        """The new server state. `replies` stream in, in the clients' order; `weigh(reply)` is the composed weight."""
        mean = RunningMean()
        for reply in replies:
            mean.add(reply.state, weigh(reply))
        return {**server.state, **mean.result()}

    # --- at test time --------------------------------------------------------------------------------------------
    def predict(self, net: Net, x: Tensor) -> Tensor:
        """Logits. Must not depend on the other images of the batch."""
        logits: Tensor = net(x)
        return logits

    def inspect(self, net: Net, x: Tensor) -> Tensors:
        """For pictures, one row per image: the adapters' alphas, attention maps. The net is in eval mode."""
        return {}

    # --- about ---------------------------------------------------------------------------------------------------
    def describe(self) -> dict[str, object]:
        """The fields as plain values, for config.json."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


# --- composition -----------------------------------------------------------------------------------------------------
ONE_OWNER = ("loss", "step", "weigh", "merge", "predict")


def overrides(part: Method, verb: str) -> bool:
    """Does this method say something of its own for a verb?"""
    return getattr(type(part), verb) is not getattr(Method, verb)


class ScopedMapping(MutableMapping[str, Tensor]):
    """A part's own corner of a memory: the keys below its name."""

    def __init__(self, memory: Memory, prefix: str) -> None:
        self._memory, self._prefix = memory, prefix

    def __getitem__(self, key: str) -> Tensor:
        return self._memory[self._prefix + key]

    def __setitem__(self, key: str, value: Tensor) -> None:
        self._memory[self._prefix + key] = value

    def __delitem__(self, key: str) -> None:
        del self._memory[self._prefix + key]

    def __iter__(self) -> Iterator[str]:
        start = len(self._prefix)
        return (key[start:] for key in self._memory if key.startswith(self._prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)


@dataclass(frozen=True)
class Composed(Method):
    """Several methods at once: `fedbn+fedfd+ga`.

    build, prepare, augment, gradient: in order. share: intersection. penalty: sum. survey, brief, report, memory: each part
    its own corner. loss, step, weigh, merge, predict: one owner at most, else an error naming both.
    """

    parts: tuple[Method, ...] = ()

    @property
    def sending(self) -> str:
        return "; ".join(part.sending for part in self.parts if part.sending)

    @property
    def remark(self) -> str:
        return "; ".join(part.remark for part in self.parts if part.remark)

    def _owner(self, verb: str) -> Method:
        return next((part for part in self.parts if overrides(part, verb)), self.parts[0])

    def _work_for(self, part: Method, work: Work) -> Work:
        whole = work.whole or work
        prefix = f"{part.name}/"
        return replace(
            whole, memory=ScopedMapping(whole.memory, prefix), brief=unprefixed(prefix, whole.brief), whole=whole
        )

    def _server_for(self, part: Method, server: Server) -> Server:
        return replace(server, memory=ScopedMapping(server.memory, f"{part.name}/"))

    def _reply_for(self, part: Method, reply: Reply) -> Reply:
        return replace(reply, report=unprefixed(f"{part.name}/", reply.report))

    def build(self, net: Net) -> Net:
        for part in self.parts:
            net = part.build(net)
        return net

    def share(self, net: Net) -> Share:
        shares = [part.share(net) for part in self.parts]
        return Share(frozenset.intersection(*(s.up for s in shares)), frozenset.intersection(*(s.down for s in shares)))

    def surveys(self, round: int) -> bool:
        return any(part.surveys(round) for part in self.parts)

    def survey(self, work: Work) -> Tensors:
        told: Tensors = {}
        for part in self.parts:
            if part.surveys(work.round):
                told |= prefixed(f"{part.name}/", part.survey(self._work_for(part, work)))
        return told

    def brief(
        self, server: Server, surveys: Mapping[ClientId, Tensors], chosen: Sequence[ClientId]
    ) -> Mapping[ClientId, Tensors]:
        notes: dict[ClientId, Tensors] = {}
        for part in self.parts:
            prefix = f"{part.name}/"
            heard = (
                {client: unprefixed(prefix, told) for client, told in surveys.items()}
                if part.surveys(server.round + 1)
                else {}
            )
            for client, note in part.brief(self._server_for(part, server), heard, chosen).items():
                notes[client] = {**notes.get(client, {}), **prefixed(prefix, note)}
        return notes

    def prepare(self, work: Work) -> None:
        for part in self.parts:
            part.prepare(self._work_for(part, work))

    def augment(self, work: Work, batch: Batch) -> Batch:
        for part in self.parts:
            batch = part.augment(self._work_for(part, work), batch)
        return batch

    def loss(self, work: Work, batch: Batch) -> Tensor:
        part = self._owner("loss")
        return part.loss(self._work_for(part, work), batch)

    def penalty(self, work: Work, batch: Batch, features: Tensor) -> Tensor:
        total = features.new_zeros(())
        for part in self.parts:
            total = total + part.penalty(self._work_for(part, work), batch, features)
        return total

    def gradient(self, work: Work) -> None:
        for part in self.parts:
            part.gradient(self._work_for(part, work))

    def step(self, work: Work, batch: Batch) -> None:
        part = self._owner("step")
        part.step(self._work_for(part, work), batch)

    def report(self, work: Work) -> Tensors:
        told: Tensors = {}
        for part in self.parts:
            told |= prefixed(f"{part.name}/", part.report(self._work_for(part, work)))
        return told

    def weigh(self, server: Server, reply: Reply) -> float:
        # Equal weights are where a part begins, and no claim to the verb: GA adjusts those of `fedsr+ga`.
        usual = next((part for part in self.parts if not part.counts_images), self.parts[0])
        part = next((part for part in self.parts if overrides(part, "weigh")), usual)
        return part.weigh(self._server_for(part, server), self._reply_for(part, reply))

    def merge(self, server: Server, replies: Iterable[Reply], weigh: Weigh) -> Tensors:
        part = self._owner("merge")
        originals: dict[ClientId, Reply] = {}

        def heard() -> Iterator[Reply]:
            for reply in replies:
                # Only the report is kept back: `weigh` may belong to another part, which must see its own corner of it.
                originals[reply.client] = replace(reply, state={})
                yield self._reply_for(part, reply)

        return part.merge(self._server_for(part, server), heard(), lambda reply: weigh(originals[reply.client]))

    def predict(self, net: Net, x: Tensor) -> Tensor:
        return self._owner("predict").predict(net, x)

    def inspect(self, net: Net, x: Tensor) -> Tensors:
        return {name: value for part in self.parts for name, value in part.inspect(net, x).items()}

    def describe(self) -> dict[str, object]:
        return {part.name: part.describe() for part in self.parts}


def parts_of(method: Method) -> tuple[Method, ...]:
    """The parts of a composed method; a method that is not composed is its own only part."""
    return method.parts if isinstance(method, Composed) else (method,)


def name_of(method: Method) -> str:
    """`"fedbn+fedfd"`."""
    return "+".join(part.name for part in parts_of(method))


def compose(*parts: Method) -> Method:
    """One method out of several. A clash is an error that names both parts and the verb."""
    if len(parts) == 1:
        return parts[0]
    names = [part.name for part in parts]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f'The method "{name}" is named twice; name each part once.')
    for verb in ONE_OWNER:
        owners = [part.name for part in parts if overrides(part, verb)]
        if len(owners) > 1:
            raise UserError(f'"{owners[0]}" and "{owners[1]}" do not compose: both define {verb}; use one of them.')
    for part in parts:
        for other in parts:
            for verb in sorted(part.ignores):
                if other is not part and overrides(other, verb):
                    raise UserError(
                        f'"{part.name}" and "{other.name}" do not compose: the {verb} of "{other.name}" would be lost, '
                        f'because "{part.name}" trains without it; use one of them.'
                    )
    kinds = [part for part in parts if part.norms]
    for part in kinds:
        if part.norms != kinds[0].norms:
            raise UserError(
                f'"{kinds[0].name}" and "{part.name}" do not compose: the build of both replaces BatchNorm, '
                f"by {kinds[0].norms} and by {part.norms}; use one of them."
            )
    return Composed(parts=tuple(parts))
