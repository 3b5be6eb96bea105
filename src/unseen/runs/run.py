"""One run: its data, net and method; the rounds on an engine; the selected model on the unseen domain; its records.

`run` is the only way to carry a run out. What differs between the engines is one function, which takes the assembled
run and opens the engine for it.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from unseen.core.files import tensors_digest
from unseen.core.platform import Kernels, cpu, prepare_process, source_version
from unseen.core.shown import Row, Shown
from unseen.core.tensors import load, pick, snapshot
from unseen.core.terminal import duration, percent
from unseen.core.types import ClientId, Engine, Held, ImageSet, Server, Share, Site, Tensors
from unseen.core.updates import stepped_state
from unseen.core.words import megabytes
from unseen.data.augment import augment
from unseen.data.domains import DomainIndex
from unseen.data.pictures import conversions
from unseen.data.split import make_sites, partition
from unseen.federation.audit import AuditLog
from unseen.federation.calibrate import pooled
from unseen.federation.checks import Checks
from unseen.federation.client import ClientRunner
from unseen.federation.client_state import ClientStates
from unseen.federation.ledger import Ledger
from unseen.federation.measure import Score, examine, measure
from unseen.federation.permission import check_allowed, check_secure
from unseen.federation.secure import gather_for, runner_for
from unseen.federation.server import Evaluation, Round, evaluate, federate
from unseen.method import Method
from unseen.nets.net import Net
from unseen.registry import check_not_reading, parse
from unseen.runs import own_methods
from unseen.runs.directory import RunDirectory
from unseen.runs.images import index_of, store_of
from unseen.runs.model import Trained, build_net, load_trained
from unseen.runs.progress import Silent, Watcher
from unseen.runs.results import ClientScore, RoundLine, RunResult, UnseenScore, Validation, label_of, number
from unseen.runs.selection import WORDS, Selection
from unseen.runs.settings import NO_TARGET, Settings

T = TypeVar("T")
NOT_TESTED = Score(0, 0, 0.0)


@dataclass(frozen=True)
class PlannedRun:
    """A run that was asked for, with what was made of its words: nothing is parsed or scanned a second time."""

    settings: Settings
    method: Method
    index: DomainIndex | None  # None where the images are on other machines

    @classmethod
    def of(cls, settings: Settings) -> PlannedRun:
        """From settings alone: of a begun run's directory, or sent by a server."""
        return cls(settings, parse(settings.method, settings.fields), index_of(settings))


@dataclass(frozen=True)
class RunData:
    """The images of a run. The target's are kept apart from every client."""

    classes: tuple[str, ...]
    sites: dict[ClientId, Site]  # empty where the clients are on other machines
    target: ImageSet | None  # the unseen domain; None where nobody has its images


@dataclass(frozen=True)
class Assembly:
    """Everything a run is made of."""

    settings: Settings
    method: Method
    data: RunData
    net: Net
    share: Share

    def runner(self, states: ClientStates) -> ClientRunner:
        plan = self.settings.plan
        make = runner_for(plan)
        return make(self.method, self.net, plan, self.data.sites.__getitem__, states, augmenter(self.settings))


OpenEngine = Callable[[Assembly, RunDirectory], AbstractContextManager[Engine]]


def augmenter(settings: Settings) -> Any:
    """The plan's augmentation preset as a function of images and generator."""
    return partial(_augment, settings.plan.augmentation)


def _augment(preset: str, x: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
    return augment(x, preset, rng)


def load_data(planned: PlannedRun, watcher: Watcher) -> RunData:
    """All images of the dataset, dealt out to clients, and the unseen domain's."""
    settings, index = planned.settings, planned.index
    assert index is not None, "the images of this run are on other machines"
    store = store_of(settings, index)
    if store.left_out:
        watcher.said(f"left out {len(store.left_out)} broken images: {', '.join(store.left_out)}")
    for sentence in conversions(store.converted):
        watcher.said(sentence)
    index = store.index
    nothing = settings.target == NO_TARGET
    sources = index.domains if nothing else index.sources(settings.target)
    clients = partition(index, sources, settings.data.partition, settings.seed)
    asked = settings.data
    sites = make_sites(store, clients, asked.validation, settings.seed, asked.in_domain_test)
    unseen = None if nothing else store.domain(settings.target)
    return RunData(index.classes, {site.client: site for site in sites}, unseen)


def assemble(planned: PlannedRun, data: RunData) -> Assembly:
    net = build_net(planned.settings, planned.method, len(data.classes))
    return Assembly(planned.settings, planned.method, data, net, planned.method.share(net))


@dataclass(repr=False)
class Result(Shown):
    """A finished run. `accuracy` is on the unseen domain, as a fraction."""

    record: RunResult
    rounds: list[RoundLine]
    settings: Settings
    directory: Path | None
    _trained: Trained | None = field(default=None, repr=False)

    @property
    def accuracy(self) -> float | None:
        return self.record.accuracy

    @property
    def in_domain_accuracy(self) -> float | None:
        return self.record.in_domain_accuracy

    @property
    def selected_round(self) -> int:
        return self.record.selected_round

    @property
    def model(self) -> Trained:
        """The selected model: `.net`, `.classes`, and `.predict(images)` by the method's own rule."""
        if self._trained is None:
            assert self.directory is not None
            self._trained = load_trained(self.directory)
        return self._trained

    @property
    def confusion(self) -> list[list[int]] | None:
        """Images of the unseen domain: rows by their class, columns by the answer. None where it was not recorded."""
        return self.record.measured.confusion if self.record.measured is not None else None

    def per_class(self) -> dict[str, float | None]:
        """Accuracy on the unseen domain by class, as fractions; None for a class without images there."""
        if (table := self.confusion) is None:
            return {}
        names = self.model.classes
        return {
            name: row[k] / sum(row) if sum(row) else None
            for k, (name, row) in enumerate(zip(names, table, strict=True))
        }

    def lines(self) -> list[str]:
        about = self.record
        unseen = "" if about.target == NO_TARGET else f"unseen accuracy {percent(about.accuracy)}{about.mark}, "
        return [
            f"{label_of(self.settings, about.remark)} on {about.data}, {self.settings.left_out}, seed {about.seed}, "
            f"protocol {about.protocol}",
            f"{unseen}in-domain {percent(about.in_domain_accuracy)}; round {about.selected_round} of {about.rounds}, "
            f"chosen by {about.selection}",
            f"last round: unseen {percent(about.last_accuracy)}, in-domain {percent(about.last_in_domain_accuracy)}",
            f"{about.clients} clients sent {megabytes(about.bytes_up)} each per round"
            + (f", {about.beyond_weights} among it" if about.beyond_weights else ""),
            f"{duration(about.seconds)}"
            + (f"; {self.directory}" if self.directory is not None else "; not kept on disk"),
        ]

    def rows(self) -> list[Row]:
        """A row per round. Validation of the last round is in the result itself."""
        measured = [line.validation for line in self.rounds] + [self.record.validation_last]
        validated = {v.round: v.accuracy for v in measured if v is not None}
        return [
            {
                "round": line.round,
                "loss": line.loss,
                "validation": validated.get(line.round),
                "unseen": line.unseen.accuracy if line.unseen is not None else None,
                "bytes_up": sum(line.bytes_up.values()),
                "bytes_down": sum(line.bytes_down.values()),
            }
            for line in self.rounds
        ]

    def draw(self, axes: Any) -> None:
        """Accuracy over the rounds, in %."""
        rows = self.rows()
        for name, words in (("validation", "sources' validation"), ("unseen", f"unseen: {self.record.target}")):
            points = [(row["round"], 100 * row[name]) for row in rows if row[name] is not None]
            if points:
                axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=words)
        axes.axvline(self.record.selected_round, color="#999999", linewidth=1, linestyle=":")
        axes.set(xlabel="round", ylabel="accuracy (%)", title=label_of(self.settings, self.record.remark))
        axes.legend(frameon=False)


def run(
    planned: PlannedRun,
    open_engine: OpenEngine,
    *,
    directory: RunDirectory | None = None,
    watcher: Watcher | None = None,
    data: Callable[[PlannedRun, Watcher], RunData] = load_data,
) -> Result:
    """Carry a run out, or go on with it, or read its result if it is finished. Without a directory nothing is kept."""
    watcher, settings = watcher or Silent(), planned.settings
    check_not_reading()
    check_allowed(planned.method, settings.plan.allow)
    if settings.plan.secure:
        check_secure(planned.method)
    if directory is not None and directory.finished and (record := directory.result()) is not None:
        own_methods.check(directory.path, settings.method)
        return Result(record, directory.rounds(), directory.settings(), directory.path)
    with contextlib.ExitStack() as stack:
        kernels = prepare_process(settings.plan.precision, settings.plan.device)  # before torch computes
        if kernels.remark:
            watcher.said(kernels.remark)
        stack.enter_context(one_thread())
        assembly = assemble(planned, data(planned, watcher))
        kept = directory is not None
        if directory is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="unseen-")))
            directory = RunDirectory(folder / "run")
        directory.begin(settings)  # only now: bad input leaves no empty directory behind
        stack.enter_context(directory.locked())
        engine = stack.enter_context(open_engine(assembly, directory))
        record = Execution(assembly, directory, engine, watcher, kernels, directory.audit()).run()
        result = Result(record, directory.rounds(), settings, directory.path)
        if not kept:  # the files go with the temporary directory, so the model is read now
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
class Execution:
    """A run under way."""

    assembly: Assembly
    directory: RunDirectory
    engine: Engine
    watcher: Watcher
    kernels: Kernels
    audit: AuditLog

    def run(self) -> RunResult:
        assembly, plan = self.assembly, self.assembly.settings.plan
        restored = self.directory.restore()
        if restored is None:
            server = Server(snapshot(assembly.net, sorted(assembly.share.up | assembly.share.down)), plan.seed)
            selection, ledger, before = (
                Selection(plan.server_selection),
                Ledger(declared=assembly.method.about.sends),
                0.0,
            )
        else:
            server, selection, ledger, before = restored
        server.stepped = stepped_state(assembly.net, assembly.share)
        started = time.monotonic() - before
        self.watcher.began(assembly.settings, len(self.engine.clients()), server.round + 1, plan.rounds)
        self.audit.note(
            "begin" if restored is None else "resume",
            round=server.round,
            method=assembly.settings.method,
            settings=assembly.settings.digest(),
            version=source_version(),
        )
        try:
            self._rounds(server, selection, ledger, started)
            return self._finish(server, selection, ledger, started)
        finally:
            self.audit.write()  # also of a round that failed: its messages have crossed

    def _rounds(self, server: Server, selection: Selection, ledger: Ledger, started: float) -> None:
        assembly, plan = self.assembly, self.assembly.settings.plan
        checks = Checks.of(assembly.method, assembly.net, assembly.share, plan)
        gather = gather_for(plan, pick(server.state, assembly.share.up))
        for played in federate(
            assembly.method, assembly.share, plan, self.engine, server, ledger, checks, self.audit, gather
        ):
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
            self.audit.write()
            self.directory.save(server, selection, ledger, time.monotonic() - started, self.audit.head)
            self.watcher.round(line)

    def _select(self, selection: Selection, evaluation: Evaluation, state: Tensors) -> bool:
        accuracy = evaluation.accuracy(self.assembly.settings.plan.validation_mean)
        return not math.isnan(accuracy) and selection.validated(evaluation.round, state, accuracy)

    def _line(self, played: Round, server: Server, selection: Selection) -> RoundLine:
        return RoundLine(
            round=played.round,
            loss=number(played.loss),
            clients=played.metrics,
            bytes_up=played.bytes_up,
            bytes_down=played.bytes_down,
            validation=self._validation(played.evaluation) if played.evaluation is not None else None,
            unseen=self._look(played.round, server, selection),
        )

    def _look(self, round: int, server: Server, selection: Selection) -> UnseenScore | None:
        """The round's model on the unseen domain, where the plan asks for the curve or the selection peeks."""
        plan = self.assembly.settings.plan
        asked = plan.test_every and (round % plan.test_every == 0 or round == plan.rounds)
        if not (asked or selection.rule == "oracle"):
            return None
        model = self.assembly.method.evaluated(server)
        score = self._on_target(measure, model) or NOT_TESTED
        if selection.tested(round, model, score.accuracy):
            self.directory.save_best(selection)
        return UnseenScore(round, number(score.accuracy), number(score.loss))

    def _validation(self, evaluation: Evaluation) -> Validation:
        return Validation(
            evaluation.round,
            number(evaluation.accuracy(self.assembly.settings.plan.validation_mean)),
            {client: ClientScore(score.accuracy, score.loss) for client, score in evaluation.clients.items()},
        )

    def _on_target(self, look: Callable[..., T], state: Tensors) -> T | None:
        """What `measure` or `examine` says of a state on the whole unseen domain; None where nobody has its images."""
        net, target = self.assembly.net, self.assembly.data.target
        if target is None:
            return None
        load(net, state)
        return look(
            self.assembly.method.predict,
            net,
            target,
            self.assembly.settings.plan,
            lambda done: self.watcher.testing(done, len(target)),
        )

    def _finish(self, server: Server, selection: Selection, ledger: Ledger, started: float) -> RunResult:
        assembly, settings = self.assembly, self.assembly.settings
        model = assembly.method.evaluated(server)
        calibrates = settings.plan.allow != "weights"  # sums and counts of validation images are more than weights
        # Each client also tells what calibrates the model; if another round's is kept, once more for that one.
        last = evaluate(self.engine, model, server.round, ledger, audit=self.audit, calibrate=calibrates)
        self._select(selection, last, model)
        selection.finished(server.round, model)
        images: Held = "test" if settings.data.in_domain_test > 0 else "validation"
        last_in_domain = (
            last if images == "validation" else evaluate(self.engine, model, server.round, ledger, images, self.audit)
        )
        score, measured = self._on_target(examine, selection.state) or (NOT_TESTED, None)
        in_domain, last_score, kept_scores = last_in_domain, score, last
        if selection.round != server.round:
            in_domain = evaluate(self.engine, selection.state, selection.round, ledger, images, self.audit, calibrates)
            last_score, kept_scores = self._on_target(measure, model) or NOT_TESTED, in_domain
        for sentence in kept_scores.refused:
            self.watcher.said(sentence)
        result = RunResult(
            method=settings.method,
            fields=settings.fields,
            data=settings.data.name,
            target=settings.target,
            seed=settings.seed,
            protocol=settings.protocol,
            backbone=settings.net.backbone,
            engine=settings.engine,
            accuracy=number(score.accuracy),
            loss=number(score.loss),
            in_domain_accuracy=number(in_domain.accuracy(settings.plan.validation_mean)),
            in_domain={client: s.accuracy for client, s in in_domain.clients.items()},
            training_images={client: len(site.train) for client, site in assembly.data.sites.items()},
            in_domain_images=images,
            last_accuracy=number(last_score.accuracy),
            last_in_domain_accuracy=number(last_in_domain.accuracy(settings.plan.validation_mean)),
            selection=settings.plan.server_selection,
            selection_words=WORDS[settings.plan.server_selection],
            peeks=settings.plan.server_selection == "oracle",
            selected_round=selection.round,
            rounds=settings.plan.rounds,
            bytes_up=ledger.per_trip("up"),
            bytes_down=ledger.per_trip("down"),
            bytes_up_statistics=ledger.per_trip("up", "statistics"),
            bytes_down_statistics=ledger.per_trip("down", "statistics"),
            parameters=sum(p.numel() for p in assembly.net.parameters()),
            clients=len(self.engine.clients()),
            seconds=time.monotonic() - started,
            kernels=self.kernels.used,
            cpu=cpu(),
            kernels_remark=self.kernels.remark,
            commit=source_version(),
            beyond_weights=ledger.beyond_weights(),
            remark=assembly.method.about.remark,
            ledger=ledger.sentence(),
            epsilon=assembly.method.about.epsilon(settings.plan.rounds),
            delta=assembly.method.about.delta,
            validation_last=self._validation(last),
            measured=measured,
        )
        about = {
            "classes": list(assembly.data.classes),
            "settings": settings.to_json(),
            "selected_round": selection.round,
            "method": settings.method,
        }
        # What nobody trains does not travel (a frozen tower); the file of the model has it all the same.
        still = {name: p.detach().cpu() for name, p in assembly.net.named_parameters() if not p.requires_grad}
        kept = {**still, **selection.state}
        self.directory.finish(kept, about, pooled(kept_scores.calibrating, tensors_digest(kept)), ledger, result)
        return result
