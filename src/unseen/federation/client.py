"""The only local loop: one net that carries out orders for any client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from unseen.core.errors import UserError
from unseen.core.plan import Plan
from unseen.core.platform import keep_freed_memory
from unseen.core.seeding import derive, torch_generator
from unseen.core.tensors import load, pick, prefixed, snapshot, unprefixed
from unseen.core.types import Batch, ClientId, ImageSet, Metrics, Order, Reply, Site, Tensors, Work
from unseen.federation.calibrate import Tally, look_of_site
from unseen.federation.client_state import ClientStates
from unseen.federation.measure import Also, Score, measure, precision
from unseen.method import Method
from unseen.nets.net import Net

Augment = Callable[[Tensor, torch.Generator], Tensor]


class ClientRunner:
    """A net, a method and a plan; clients come in with their data and what they keep, one at a time."""

    def __init__(
        self,
        method: Method,
        net: Net,
        plan: Plan,
        site_of: Callable[[ClientId], Site],
        client_states: ClientStates,
        augment: Augment,
    ):
        keep_freed_memory()
        self.method, self.net, self.plan = method, net, plan
        self.site_of, self.client_states, self.augment = site_of, client_states, augment
        self.share = method.share(net)
        # What a client has of the state that is its own, before it has trained: nothing of the client before it may stay.
        self.own = frozenset(net.state_dict()) - self.share.down
        self.initial = snapshot(net, self.own)

    def reply(self, client: ClientId, order: Order) -> Reply:
        """One order, one reply. The same bits wherever and after whatever it runs."""
        site = self.site_of(client)
        if order.kind == "survey":
            self.client_states.hold(client, order.round, order.state)
        elif not order.state and self.share.down:
            order = replace(order, state=self.client_states.held(client, order.round))
        devices = [torch.device(self.plan.device)] if torch.device(self.plan.device).type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            # Dropout and the modules inside a net draw from torch's default generator; everything else from work.rng.
            torch.manual_seed(derive(self.plan.seed, round=order.round, client=client, purpose=f"default-{order.kind}"))
            asked = order.evaluate or order.kind == "evaluate"
            images = site.held(order.images)
            tally = Tally()
            also = tally.add if order.calibrate and order.images == "validation" else None
            metrics = self._evaluate(images, order.state, also) if asked and images is not None else {}
            if order.kind == "evaluate":
                if order.calibrate and also is None:
                    self._evaluate(site.validation, order.state, tally.add)
                numbers = tally.numbers()
                numbers |= look_of_site(site) if numbers else {}
                return Reply(client, order.kind, order.round, len(images or ()), report=numbers, metrics=metrics)
            work = self._work_for(client, site, order)
            if order.kind == "survey":
                self.net.eval()
                with torch.no_grad():
                    statistics = self.method.survey(work)
                return Reply(client, order.kind, order.round, len(site.train), report=statistics, metrics=metrics)
            return self._train(work, metrics)

    def _evaluate(self, images: ImageSet, state: Mapping[str, Tensor], also: Also | None = None) -> Metrics:
        """The received evaluation model on images that the client does not train on."""
        load(self.net, {**self.initial, **state})
        score = measure(self.method.predict, self.net, images, self.plan, also=also)
        return _metrics("received", score)

    def _work_for(self, client: ClientId, site: Site, order: Order) -> Work:
        kept, memory = self.client_states.load(client, order.round)
        # A client that kept nothing yet takes all it received, also what it will keep as its own from now on.
        received = pick(order.state, self.share.down) if kept else order.state
        load(self.net, {**self.initial, **received, **kept})
        work = Work(
            client=client,
            method=self.method,
            net=self.net,
            site=site,
            plan=self.plan,
            round=order.round,
            received=order.state,
            brief=order.brief,
            memory=memory,
            rng=torch_generator(self.plan.seed, round=order.round, client=client, purpose=f"method-{order.kind}"),
            fetch=lambda indices: self._fetch(site, indices, work.rng),
        )
        return work

    def _fetch(self, site: Site, indices: Tensor, rng: torch.Generator) -> Batch:
        batch = site.train.batch(indices)
        device = torch.device(self.plan.device)
        return Batch(self.augment(batch.x.to(device), rng), batch.y.to(device), batch.domain.to(device))

    def _train(self, work: Work, metrics: Metrics) -> Reply:
        work.optimizers["main"] = work.optimizer(self.net.trainable())
        self.method.prepare(work)
        _restore_optimizers(work)
        best = _Best(self) if self.plan.client_selection == "best" else None
        self.net.train()
        for batch in self._batches(work):
            with precision(self.plan):
                self.method.step(work, self.method.augment(work, batch))
            if best is not None and ((work.step + 1) % self.plan.check_every == 0 or work.step + 1 == work.steps):
                best.look(work)
        if best is not None:
            load(self.net, best.state)
            metrics = {**metrics, **_metrics("local", best.score)}
        elif self.method.about.validates_locally:
            metrics = {**metrics, **_metrics("local", self._local_score(work.site))}
        statistics = self.method.report(work)
        _keep_optimizers(work)
        self.client_states.save(work.client, work.round, snapshot(self.net, self.own), dict(work.memory))
        self.client_states.release(work.client)
        means = {name: sum(values) / len(values) for name, values in work.notes.items()}
        return Reply(
            work.client,
            "train",
            work.round,
            len(work.site.train),
            state=snapshot(self.net, sorted(self.share.up)),
            report=statistics,
            metrics={**metrics, **means},
        )

    def _local_score(self, site: Site) -> Score:
        score = measure(self.method.predict, self.net, site.validation, self.plan)
        self.net.train()
        return score

    def _batches(self, work: Work) -> Iterator[Batch]:
        """The round's batches. Order and augmentation have generators of their own, so all methods see the same images."""
        plan, images = self.plan, work.site.train
        if len(images) < 2:
            raise UserError(
                f'The client "{work.client}" has too few training images ({len(images)}); a step needs at least two.'
            )
        cuts = epoch_cuts(len(images), plan)
        work.steps = plan.local_steps if plan.local_steps is not None else len(cuts) * (plan.local_epochs or 1)
        shuffle = torch_generator(plan.seed, round=work.round, client=work.client, purpose="order")
        dice = torch_generator(plan.seed, round=work.round, client=work.client, purpose="augment")
        for step in range(work.steps):
            work.step, (work.epoch, position) = step, divmod(step, len(cuts))
            if position == 0:
                order = torch.randperm(len(images), generator=shuffle)
            work.rows = order[cuts[position]]
            yield self._fetch(work.site, work.rows, dice)


def epoch_cuts(images: int, plan: Plan) -> list[slice]:
    """The batches of an epoch, as slices of its order. A client with less than a batch has one of all its images."""
    size = min(plan.batch_size, images)
    whole = images // size
    cuts = [slice(size * number, size * (number + 1)) for number in range(whole)]
    rest = images - size * whole
    if plan.keep_last and rest == 1:  # no batch of one: BatchNorm needs two, so the image joins the batch before
        cuts[-1] = slice(cuts[-1].start, images)
    elif plan.keep_last and rest:
        cuts.append(slice(size * whole, images))
    return cuts


class _Best:
    """The best local model so far, by the client's own validation images and the method's own prediction."""

    def __init__(self, runner: ClientRunner) -> None:
        self._runner = runner
        self.score = Score(-1, 1, 0.0)
        self.state: Tensors = {}

    def look(self, work: Work) -> None:
        score = self._runner._local_score(work.site)
        if score.correct > self.score.correct or not self.state:
            self.score, self.state = score, snapshot(work.net)


def _metrics(prefix: str, score: Score) -> Metrics:
    if score.examples == 0:
        return {}
    return {
        f"{prefix}.accuracy": score.accuracy,
        f"{prefix}.loss": score.loss,
        f"{prefix}.examples": float(score.examples),
    }


def _kept_optimizers(work: Work) -> dict[str, torch.optim.Optimizer]:
    """All of them where the plan says so, else those that the method names."""
    named = work.method.about.keeps_optimizers
    return {name: o for name, o in work.optimizers.items() if work.plan.optimizer.persist or name in named}


def _keep_optimizers(work: Work) -> None:
    """Optimizer state into the client's memory, as plain tensors."""
    for name, optimizer in _kept_optimizers(work).items():
        for index, values in optimizer.state_dict()["state"].items():
            tensors = {k: torch.as_tensor(v).detach().cpu().clone() for k, v in values.items() if v is not None}
            work.memory.update(prefixed(f"optimizer/{name}/{index}/", tensors))


def _restore_optimizers(work: Work) -> None:
    for name, optimizer in _kept_optimizers(work).items():
        state = optimizer.state_dict()
        for key, value in unprefixed(f"optimizer/{name}/", work.memory).items():
            index, _, entry = key.partition("/")
            state["state"].setdefault(int(index), {})[entry] = value
        optimizer.load_state_dict(state)
