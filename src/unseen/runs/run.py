"""One run: assemble data, net, method and engine; federate; test the selected model on the unseen domain; write it down."""

from __future__ import annotations

import contextlib
import math
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from unseen.core.errors import UserError
from unseen.core.plan import Plan
from unseen.core.tensors import load, snapshot
from unseen.core.types import ClientId, Engine, ImageSet, Server, Share, Site, Tensors
from unseen.data.augment import augment
from unseen.data.catalog import load_index
from unseen.data.split import make_sites, partition
from unseen.data.store import open_store
from unseen.engines.local import LocalEngine
from unseen.federation.client import ClientRunner
from unseen.federation.client_state import ClientStates
from unseen.federation.ledger import Ledger
from unseen.federation.measure import Score, measure
from unseen.federation.server import Evaluation, Round, evaluate, federate
from unseen.method import Method, name_of
from unseen.nets.net import Net
from unseen.registry import parse
from unseen.runs.directory import RunDirectory
from unseen.runs.model import Trained, build_net, load_trained
from unseen.runs.protocols import Settings
from unseen.runs.selection import WORDS, Selection


class Watcher(Protocol):
    """Who is told how far a run is. Every call may be ignored."""

    def began(self, settings: Settings, clients: int, first: int, last: int) -> None: ...

    def round(self, line: dict[str, Any]) -> None: ...

    def testing(self, done: int, total: int) -> None: ...

    def said(self, sentence: str) -> None: ...


class Silent:
    """Watches without a word."""

    def began(self, settings: Settings, clients: int, first: int, last: int) -> None: ...

    def round(self, line: dict[str, Any]) -> None: ...

    def testing(self, done: int, total: int) -> None: ...

    def said(self, sentence: str) -> None: ...


@dataclass
class Result:
    """What a run found. `accuracy` is on the unseen domain, as a fraction."""

    accuracy: float | None
    in_domain_accuracy: float | None
    selected_round: int
    summary: dict[str, Any]  # result.json
    curves: list[dict[str, Any]]  # results.jsonl
    directory: Path | None
    settings: Settings
    _trained: Trained | None = field(default=None, repr=False)

    @property
    def model(self) -> Trained:
        """The selected model: `.net`, `.classes`, and `.predict(images)` by the method's own rule."""
        if self._trained is None:
            assert self.directory is not None
            self._trained = load_trained(self.directory)
        return self._trained


@dataclass
class Assembly:
    """Everything a run is made of."""

    settings: Settings
    method: Method
    plan: Plan
    classes: tuple[str, ...]
    sites: dict[ClientId, Site]  # empty where the clients are on other machines
    target: ImageSet | None  # the unseen domain; None where nobody has its images (a deployment)
    net: Net
    share: Share

    def runner(self, client_states: ClientStates) -> ClientRunner:
        return ClientRunner(
            self.method, self.net, self.plan, self.sites.__getitem__, client_states, augmenter(self.plan)
        )


def augmenter(plan: Plan) -> Any:
    """The plan's augmentation preset as a function of images and generator."""
    return partial(_augment, plan.augmentation)


def _augment(preset: str, x: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
    return augment(x, preset, rng)


def assemble(settings: Settings, watcher: Watcher | None = None) -> Assembly:
    """Data and net for these settings. The target's images are kept apart from every client."""
    method = parse(settings.method, settings.fields)
    index = load_index(settings.data, Path(settings.root) if settings.root else None)
    target = index.find(settings.target)
    store = open_store(index, settings.image_size, skip_broken=settings.skip_broken)
    if store.left_out and watcher is not None:
        watcher.said(f"left out {len(store.left_out)} broken images: {', '.join(store.left_out)}")
    index = store.index
    clients = partition(index, index.sources(target), settings.partition, settings.seed)
    sites = {site.client: site for site in make_sites(store, clients, settings.validation, settings.seed)}
    for site in sites.values():
        if len(site.train) < settings.plan.batch_size:
            raise UserError(
                f'The client "{site.client}" has {len(site.train)} training images, fewer than one batch of '
                f"{settings.plan.batch_size}; give a smaller --batch-size or fewer clients."
            )
    net = build_net(settings, method, len(index.classes))
    return Assembly(settings, method, settings.plan, index.classes, sites, store.domain(target), net, method.share(net))


def run_settings(
    settings: Settings,
    *,
    out: Path | None = None,
    workers: int = 1,
    watcher: Watcher | None = None,
    engine: Engine | None = None,
) -> Result:
    """Carry a run out, or go on with it, or read its result if it is finished."""
    watcher = watcher or Silent()
    with contextlib.ExitStack() as stack:
        passing = out is None
        if out is None:
            out = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="unseen-")))
        begun = RunDirectory.find(settings, out)
        if begun is not None and (summary := begun.result()) is not None:
            return _result(summary, begun)
        stack.enter_context(one_thread())
        assembly = assemble(settings, watcher)
        directory = begun or RunDirectory.create(settings, out)  # only now: bad input leaves no empty directory behind
        if engine is None:
            clients = list(assembly.sites)
            engine = stack.enter_context(LocalEngine(assembly.runner(directory.client_states), clients, workers))
        result = Trial(assembly, directory, engine, watcher).run()
        if passing:  # the files go with the temporary directory, so the model is read now
            result._trained, result.directory = load_trained(directory.path), None
        return result


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """One thread per process: sums are then in one order, so that any number of workers gives the same bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass
class Trial:
    """A run under way."""

    assembly: Assembly
    directory: RunDirectory
    engine: Engine
    watcher: Watcher

    def run(self) -> Result:
        assembly, plan = self.assembly, self.assembly.plan
        restored = self.directory.restore()
        if restored is None:
            server = Server(snapshot(assembly.net, sorted(assembly.share.up | assembly.share.down)), plan.seed)
            selection, ledger, before = Selection(plan.server_selection), Ledger(beyond=assembly.method.sending), 0.0
        else:
            server, selection, ledger, before = restored
        started = time.monotonic() - before
        self.watcher.began(assembly.settings, len(self.engine.clients()), server.round + 1, plan.rounds)
        for played in federate(assembly.method, assembly.share, plan, self.engine, server, ledger):
            for sentence in played.refused:
                self.watcher.said(sentence)
            if played.missing:
                self.watcher.said(
                    f"Round {played.round}: no reply from {', '.join(played.missing)}; the others went on."
                )
            if played.evaluation is not None and self._select(selection, played.evaluation, played.before):
                self.directory.save_best(selection)
            line = self._line(played, server, selection)
            self.directory.append(line)
            self.directory.save(server, selection, ledger, time.monotonic() - started)
            self.watcher.round(line)
        return self._finish(server, selection, ledger, started)

    def _select(self, selection: Selection, evaluation: Evaluation, state: Tensors) -> bool:
        accuracy = evaluation.accuracy(self.assembly.plan.validation_mean)
        return not math.isnan(accuracy) and selection.validated(evaluation.round, state, accuracy)

    def _line(self, played: Round, server: Server, selection: Selection) -> dict[str, Any]:
        """The round as a line of results.jsonl. `validation` is of the round before: it came with this round's replies."""
        line: dict[str, Any] = {
            "round": played.round,
            "loss": number(played.loss),
            "clients": played.metrics,
            "bytes_up": played.bytes_up,
            "bytes_down": played.bytes_down,
        }
        if played.evaluation is not None:
            line["validation"] = self._validation(played.evaluation)
        every = self.assembly.settings.test_every
        if selection.rule == "oracle" or (
            every and (played.round % every == 0 or played.round == self.assembly.plan.rounds)
        ):
            score = self._test(server.state)
            line["unseen"] = {"round": played.round, "accuracy": score.accuracy, "loss": score.loss}
            if selection.tested(played.round, server.state, score.accuracy):
                self.directory.save_best(selection)
        return line

    def _validation(self, evaluation: Evaluation) -> dict[str, Any]:
        return {
            "round": evaluation.round,
            "accuracy": evaluation.accuracy(self.assembly.plan.validation_mean),
            "clients": {c: {"accuracy": s.accuracy, "loss": s.loss} for c, s in evaluation.clients.items()},
        }

    def _test(self, state: Tensors) -> Score:
        """A state on the whole unseen domain; a score of no images where nobody has them."""
        net, target = self.assembly.net, self.assembly.target
        if target is None:
            return Score(0, 0, 0.0)
        load(net, state)
        return measure(
            self.assembly.method.predict,
            net,
            target,
            self.assembly.plan,
            lambda done: self.watcher.testing(done, len(target)),
        )

    def _finish(self, server: Server, selection: Selection, ledger: Ledger, started: float) -> Result:
        assembly, settings = self.assembly, self.assembly.settings
        last = evaluate(self.engine, server.state, server.round, ledger)
        self._select(selection, last, server.state)
        selection.finished(server.round, server.state)
        in_domain = last
        if selection.round != server.round:
            in_domain = evaluate(self.engine, selection.state, selection.round, ledger)
        score = self._test(selection.state)
        summary = {
            "method": settings.method,
            "fields": settings.fields,
            "data": settings.data,
            "target": settings.target,
            "seed": settings.seed,
            "protocol": settings.protocol,
            "backbone": settings.backbone,
            "engine": settings.engine,
            "accuracy": number(score.accuracy),
            "loss": number(score.loss),
            "in_domain_accuracy": number(in_domain.accuracy(assembly.plan.validation_mean)),
            "in_domain": {client: s.accuracy for client, s in in_domain.clients.items()},
            "selection": settings.plan.server_selection,
            "selection_words": WORDS[settings.plan.server_selection],
            "peeks": settings.plan.server_selection == "oracle",
            "selected_round": selection.round,
            "rounds": settings.plan.rounds,
            "bytes_up": ledger.per_trip("up"),
            "bytes_down": ledger.per_trip("down"),
            "bytes_up_statistics": ledger.per_trip("up", "statistics"),
            "bytes_down_statistics": ledger.per_trip("down", "statistics"),
            "parameters": sum(p.numel() for p in assembly.net.parameters()),
            "clients": len(self.engine.clients()),
            "seconds": time.monotonic() - started,
            "kernels": torch.backends.cpu.get_cpu_capability(),
            "beyond_weights": ledger.beyond,
            "ledger": ledger.sentence(),
            "validation_last": self._validation(last),
        }
        about = {
            "classes": list(assembly.classes),
            "settings": settings.to_json(),
            "selected_round": selection.round,
            "method": name_of(assembly.method),
        }
        self.directory.finish(selection.state, about, ledger, summary)
        return _result(summary, self.directory)


def number(value: float) -> float | None:
    """JSON has no nan: what was not measured is null."""
    return value if math.isfinite(value) else None


def _result(summary: dict[str, Any], directory: RunDirectory) -> Result:
    return Result(
        summary["accuracy"],
        summary["in_domain_accuracy"],
        summary["selected_round"],
        summary,
        directory.rounds(),
        directory.path,
        directory.settings(),
    )
