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
from typing import Any, ClassVar, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.core.accountant import epsilon_of
from unseen.core.errors import UserError, unknown
from unseen.core.forms import ANYTHING, Asked, Forms
from unseen.core.plan import Plan
from unseen.core.tensors import RunningMean, prefixed, unprefixed
from unseen.core.types import Batch, ClientId, Reply, Server, Share, Tensors, Work
from unseen.core.words import ONE_OWNER
from unseen.nets.net import Net

Weigh = Callable[[Reply], float]


BY_VARIANT: Any = None  # the default of a field that the method's table of `variants` sets


@dataclass(frozen=True)
class Traits:
    """What the loops, the ledger and the tables must know of a method beside its verbs."""

    sends: str = ""  # what leaves a client beyond the model's weights, in words; "" for nothing
    remark: str = ""  # what a reader of a table must know beside the name, as that it is not quite the published one
    norms: str = ""  # the kind of norm that `build` puts in BatchNorm's place; "" for none. A net has one kind
    head: str = ""  # what `build` makes of features and head; "" for nothing. A net has one head
    needs: frozenset[str] = frozenset()  # what it cannot do without, in words that `without` of another part may have
    without: frozenset[str] = frozenset()  # what other parts do not have beside it
    counts_images: bool = True  # a client weighs as much as it has images; off: all clients weigh the same
    needs_full_state: bool = False  # orders carry all of `share.up`, also what clients do not load
    validates_locally: bool = False  # replies carry the local model's own validation score (GA)
    averages: bool = False  # its own `merge` reads the replies through their weighted mean alone
    keeps_optimizers: frozenset[str] = frozenset()  # optimizers whose state a client keeps between rounds
    ignores: frozenset[str] = frozenset()  # verbs of other parts that this method's own verbs never call
    noise: float = 0.0  # Gaussian noise on what a round tells of a site, in multiples of its sensitivity; 0: none
    delta: float | None = None  # with noise: the delta for which epsilon is told

    def epsilon(self, rounds: int) -> float | None:
        """Of a site's images as a whole, over so many rounds; None without noise."""
        return epsilon_of(self.delta, self.noise, rounds) if self.noise > 0 and self.delta is not None else None

    def __add__(self, other: Traits) -> Traits:
        """The traits of two parts as one method's. `compose` has refused parts with different norms."""
        return Traits(
            sends="; ".join(filter(None, (self.sends, other.sends))),
            remark="; ".join(filter(None, (self.remark, other.remark))),
            norms=self.norms or other.norms,
            head=self.head or other.head,
            needs=self.needs | other.needs,
            without=self.without | other.without,
            counts_images=self.counts_images and other.counts_images,
            needs_full_state=self.needs_full_state or other.needs_full_state,
            validates_locally=self.validates_locally or other.validates_locally,
            averages=self.averages or other.averages,  # `merge` has one owner
            keeps_optimizers=self.keeps_optimizers | other.keeps_optimizers,
            ignores=self.ignores | other.ignores,
            noise=self.noise or other.noise,
            delta=self.delta if self.delta is not None else other.delta,
        )


@dataclass(frozen=True)
class Range:
    """Where `unseen tune` may draw a field's value from."""

    low: float
    high: float
    log: bool = True  # equally often in each decade; off: equally often everywhere

    def at(self, share: float) -> float:
        """The value that a share of the draws lies below; the share is from 0 to 1."""
        if self.log:
            return float(self.low * (self.high / self.low) ** share)
        return self.low + (self.high - self.low) * share


@dataclass(frozen=True)
class Method:
    """FedAvg. Override a verb to differ from it."""

    name: ClassVar[str] = ""  # on the command line; set by the registry from the file's name
    year: ClassVar[int] = 0  # of the publication
    family: ClassVar[str] = ""  # the idea it shares with others: one of `methods.FAMILIES`
    passes: ClassVar[float] = 1.0  # over a batch in a step, forward and backward; one without backward is a third
    traits: ClassVar[Traits] = Traits()  # read them by `about`, which knows the fields
    variants: ClassVar[Mapping[str, Mapping[str, object]]] = {}  # for each value of the field `variant`: what it sets
    ranges: ClassVar[Mapping[str, Range]] = {}  # at most two fields that `unseen tune` may change, and how far

    def __post_init__(self) -> None:
        """Fields that were not given are set by the variant."""
        if not self.variants:
            return
        chosen = vars(self)["variant"]
        if chosen not in self.variants:
            raise unknown("variant", chosen, self.variants, f"{self.name} has {', '.join(self.variants)}.")
        for name, value in self.variants[chosen].items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)

    @property
    def about(self) -> Traits:
        """The traits under these fields. Override it where a field changes one."""
        return self.traits

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
    def forms(self, asked: Asked) -> Forms:
        """Names, shapes and dtypes of all that `survey` and `report` send: the server refuses everything else.

        A method that says nothing here, and tells something, is heard with whatever it tells.
        """
        return ANYTHING if overrides(self, "survey") or overrides(self, "report") else Forms()

    def admit(self, server: Server, replies: Iterable[Reply]) -> Iterable[Reply]:
        """Change or leave out replies before they are heard and merged: bound an update, drop the odd one out."""
        return replies

    def hear(self, server: Server, reply: Reply) -> None:
        """Note what one admitted train reply says, before `merge` sees it: in `server.memory`, or as a new tensor in
        `server.state`. Never change a tensor in place: messages may still hold it."""

    def weigh(self, server: Server, reply: Reply) -> float:
        """A reply's weight in the mean; weights are normalised by their sum."""
        return float(reply.num_examples) if self.about.counts_images else 1.0

    def merge(self, server: Server, replies: Iterable[Reply], weigh: Weigh) -> Tensors:
        """The new server state. `replies` stream in, in the clients' order; `weigh(reply)` is the composed weight.

        Each reply is heard as it comes: read `server.state` after the last one.
        """
        mean = RunningMean()
        for reply in replies:
            mean.add(reply.state, weigh(reply))
        return {**server.state, **mean.result()}

    def evaluated(self, server: Server) -> Tensors:
        """The model of the last finished round as it is validated, tested and kept. Training goes on from `server.state`.

        The state itself costs no message of its own; another model is sent to the clients once more to be measured.
        """
        return server.state

    # --- at test time --------------------------------------------------------------------------------------------
    def predict(self, net: Net, x: Tensor) -> Tensor:
        """Logits. Must not depend on the other images of the batch."""
        logits: Tensor = net(x)
        return logits

    def inspect(self, net: Net, x: Tensor) -> Tensors:
        """For pictures, one row per image: the adapters' alphas, attention maps. The net is in eval mode."""
        return {}


# --- composition -----------------------------------------------------------------------------------------------------
def overrides(part: Method, verb: str) -> bool:
    """Does this method say something of its own for a verb?"""
    return getattr(type(part), verb) is not getattr(Method, verb)


V = TypeVar("V")
SHARED_OPTIMIZERS = frozenset({"main"})  # the same for all parts; every other optimizer is its part's own


class ScopedMapping(MutableMapping[str, V]):
    """A part's own scope of a mapping: the keys below its name. `shared` keys are the same for all parts."""

    def __init__(self, whole: MutableMapping[str, V], prefix: str, shared: frozenset[str] = frozenset()) -> None:
        self._whole, self._prefix, self._shared = whole, prefix, shared

    def _key(self, key: str) -> str:
        return key if key in self._shared else self._prefix + key

    def __getitem__(self, key: str) -> V:
        return self._whole[self._key(key)]

    def __setitem__(self, key: str, value: V) -> None:
        self._whole[self._key(key)] = value

    def __delitem__(self, key: str) -> None:
        del self._whole[self._key(key)]

    def __iter__(self) -> Iterator[str]:
        for key in self._whole:
            if key in self._shared:
                yield key
            elif key.startswith(self._prefix):
                yield key[len(self._prefix) :]

    def __len__(self) -> int:
        return sum(1 for _ in self)


@dataclass(frozen=True)
class Composed(Method):
    """Several methods at once: `fedbn+fedfd+ga`.

    build, prepare, augment, gradient, admit: in order; who builds a head builds first. share: intersection. penalty: sum.
    survey, brief, report, forms, hear, and memory, scratch and optimizers but the main one: each part in its own scope.
    loss, step, weigh, merge, evaluated, predict: one owner at most, else an error naming both.
    """

    parts: tuple[Method, ...] = ()

    @property
    def about(self) -> Traits:
        total = Traits()
        for part in self.parts:
            kept = part.about.keeps_optimizers
            own = frozenset(f"{part.name}/{name}" for name in kept - SHARED_OPTIMIZERS)
            total += replace(part.about, keeps_optimizers=(kept & SHARED_OPTIMIZERS) | own)
        return total

    def _owner(self, verb: str) -> Method:
        return next((part for part in self.parts if overrides(part, verb)), self.parts[0])

    def _work_for(self, part: Method, work: Work) -> Work:
        whole = work.whole or work
        prefix = f"{part.name}/"
        return replace(
            whole,
            memory=ScopedMapping(whole.memory, prefix),
            scratch=ScopedMapping(whole.scratch, prefix),
            optimizers=ScopedMapping(whole.optimizers, prefix, SHARED_OPTIMIZERS),
            brief=unprefixed(prefix, whole.brief),
            whole=whole,
        )

    def _server_for(self, part: Method, server: Server) -> Server:
        return replace(server, memory=ScopedMapping(server.memory, f"{part.name}/"))

    def _reply_for(self, part: Method, reply: Reply) -> Reply:
        return replace(reply, report=unprefixed(f"{part.name}/", reply.report))

    def build(self, net: Net) -> Net:
        for part in sorted(self.parts, key=lambda part: not part.about.head):  # others fit what they build to it
            net = part.build(net)
        return net

    def share(self, net: Net) -> Share:
        shares = [part.share(net) for part in self.parts]
        return Share(frozenset.intersection(*(s.up for s in shares)), frozenset.intersection(*(s.down for s in shares)))

    def surveys(self, round: int) -> bool:
        return any(part.surveys(round) for part in self.parts)

    def survey(self, work: Work) -> Tensors:
        statistics: Tensors = {}
        for part in self.parts:
            if part.surveys(work.round):
                statistics |= prefixed(f"{part.name}/", part.survey(self._work_for(part, work)))
        return statistics

    def brief(
        self, server: Server, surveys: Mapping[ClientId, Tensors], chosen: Sequence[ClientId]
    ) -> Mapping[ClientId, Tensors]:
        notes: dict[ClientId, Tensors] = {}
        for part in self.parts:
            prefix = f"{part.name}/"
            own: dict[ClientId, Tensors] = {}
            if part.surveys(server.round + 1):
                own = {client: unprefixed(prefix, statistics) for client, statistics in surveys.items()}
            for client, note in part.brief(self._server_for(part, server), own, chosen).items():
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
        statistics: Tensors = {}
        for part in self.parts:
            statistics |= prefixed(f"{part.name}/", part.report(self._work_for(part, work)))
        return statistics

    def forms(self, asked: Asked) -> Forms:
        total = Forms()
        for part in self.parts:
            own = part.forms(asked)
            total += (own if part.surveys(asked.round) else replace(own, survey={})).below(f"{part.name}/")
        return total

    def admit(self, server: Server, replies: Iterable[Reply]) -> Iterable[Reply]:
        for part in self.parts:
            replies = part.admit(self._server_for(part, server), replies)
        return replies

    def hear(self, server: Server, reply: Reply) -> None:
        for part in self.parts:
            part.hear(self._server_for(part, server), self._reply_for(part, reply))

    def weigh(self, server: Server, reply: Reply) -> float:
        part = self._owner("weigh")
        # Equal weights are a trait, and no claim to the verb: GA adjusts those of `fedsr+ga`.
        if not overrides(part, "weigh"):
            return super().weigh(server, reply)
        return part.weigh(self._server_for(part, server), self._reply_for(part, reply))

    def merge(self, server: Server, replies: Iterable[Reply], weigh: Weigh) -> Tensors:
        part = self._owner("merge")
        originals: dict[ClientId, Reply] = {}

        def views() -> Iterator[Reply]:
            for reply in replies:
                # Only the report is kept back: `weigh` may belong to another part, which must see its own scope of it.
                originals[reply.client] = replace(reply, state={})
                yield self._reply_for(part, reply)

        return part.merge(self._server_for(part, server), views(), lambda reply: weigh(originals[reply.client]))

    def evaluated(self, server: Server) -> Tensors:
        part = self._owner("evaluated")
        return part.evaluated(self._server_for(part, server))

    def predict(self, net: Net, x: Tensor) -> Tensor:
        return self._owner("predict").predict(net, x)

    def inspect(self, net: Net, x: Tensor) -> Tensors:
        return {name: value for part in self.parts for name, value in part.inspect(net, x).items()}


def parts_of(method: Method) -> tuple[Method, ...]:
    """The parts of a composed method; a method that is not composed is its own only part."""
    return method.parts if isinstance(method, Composed) else (method,)


def name_of(method: Method) -> str:
    """`"fedbn+fedfd"`."""
    return "+".join(part.name for part in parts_of(method))


def changed_fields(part: Method) -> dict[str, object]:
    """The fields of a method that differ from their defaults; where its variant sets a default, from that."""
    kind: Any = type(part)
    usual = vars(kind(variant=vars(part)["variant"]) if part.variants else kind())
    usual = {**usual, "variant": vars(kind()).get("variant")}
    return {f.name: vars(part)[f.name] for f in fields(part) if vars(part)[f.name] != usual[f.name]}


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
            for verb in sorted(part.about.ignores):
                if other is not part and overrides(other, verb):
                    raise UserError(
                        f'"{part.name}" and "{other.name}" do not compose: the {verb} of "{other.name}" would be lost, '
                        f'because "{part.name}" trains without it; use one of them.'
                    )
    for place, name in (("BatchNorm", "norms"), ("the head", "head")):
        kinds = [(part.name, kind) for part in parts if (kind := getattr(part.about, name))]
        for other_name, kind in kinds:
            if kind != kinds[0][1]:
                raise UserError(
                    f'"{kinds[0][0]}" and "{other_name}" do not compose: the build of both replaces {place}, '
                    f"by {kinds[0][1]} and by {kind}; use one of them."
                )
    for part in parts:
        for other in parts:
            for need in sorted(_needed(part) & _missing(other)) if other is not part else ():
                raise UserError(
                    f'"{part.name}" and "{other.name}" do not compose: "{part.name}" needs {need}, '
                    f'which it cannot have beside "{other.name}"; use one of them.'
                )
    return Composed(parts=tuple(parts))


def check_plan(method: Method, plan: Plan) -> None:
    """Refuse a plan under which a method would not get what it reads, before anything is trained."""
    if method.about.validates_locally and plan.server_selection != "validation":
        raise UserError(
            f'"{name_of(method)}" reads how the aggregated model does on the clients: use --server-selection validation.'
        )


# What parts need of each other's nets and messages: words for `needs` and `without`.
BATCH_NORM = "BatchNorm"
OWN_HEAD = "the server's head at all clients"
PLAIN_FEATURES = "a head on the net's own features"
LINEAR_HEAD = "a linear head"
ALONE = "a net in which no other part trains something of its own"
ONE_PROMPT = "the only prompt"
WEIGHTS_ALONE = "clients that tell their weights alone"
ALL_LOADED = "clients that load all that they send"


def _needed(part: Method) -> frozenset[str]:
    return part.about.needs | ({BATCH_NORM} if part.about.norms else frozenset())


def _missing(part: Method) -> frozenset[str]:
    return part.about.without | ({WEIGHTS_ALONE} if part.about.sends else frozenset())
