"""The ClientApp: carries orders out at one site, with the site's own folder and its own memory on its own disk.

A real site is told by its own `site.toml` who it is and where its images are; nothing the server sends names a path here:

    site      the site's name
    folder    its images, CLASS/*.jpg or *.png below it
    keep      where it keeps what is its own between rounds (default: ~/.local/share/unseen)
    device    cpu, cuda, ... (default: the run's)
    threads   CPU threads (default: 1, with which every engine gives the same bits)
    weights   a file with pretrained weights, where the run's are a file of the server
    allow     weights: this site sends nothing beyond the model's weights, whatever the server asks for
    secure    true: this site sends its model only by secure aggregation
    epsilon, delta, clip    local differential privacy: see `privacy`
    fields    values of the method's fields that only this site can give, as files that it needs
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

import unseen
from unseen.core.errors import UserError
from unseen.core.plan import Allow
from unseen.core.platform import prepare_process
from unseen.core.seeding import keep_secret
from unseen.core.types import ClientId, Kind, Order, Reply
from unseen.data.domains import index_site
from unseen.data.split import make_sites
from unseen.data.store import cache_folder
from unseen.engines.flower.own_affairs import check_own_files, check_room, own_fields
from unseen.engines.flower.privacy import LocalPrivacy
from unseen.engines.flower.records import SENTENCE, read_order, reply_content
from unseen.federation.audit import NAME as AUDIT
from unseen.federation.audit import AuditLog, summary
from unseen.federation.client import ClientRunner
from unseen.federation.client_state import VERSIONS, ClientStates
from unseen.federation.messages import carried
from unseen.federation.permission import beyond, check_allowed, check_secure
from unseen.federation.secure import runner_for
from unseen.method import Method
from unseen.nets.net import Net
from unseen.registry import parse
from unseen.runs.directory import directory_for
from unseen.runs.images import store_of
from unseen.runs.model import build_net
from unseen.runs.progress import Silent
from unseen.runs.run import PlannedRun, assemble, augmenter, load_data
from unseen.runs.settings import Settings

app = ClientApp()


@dataclass(frozen=True)
class SiteConfig:
    """What a site's node config says."""

    site: ClientId
    folder: Path
    keep: Path
    device: str | None = None
    threads: int = 1
    weights: str | None = None
    privacy: LocalPrivacy | None = None
    fields: tuple[tuple[str, str], ...] = ()
    allow: Allow = "weights,statistics"
    secure: bool = False

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> SiteConfig:
        for key in ("site", "folder"):
            if not config.get(key):
                raise UserError(f'The site has no "{key}"; give it in site.toml.')
        home = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
        return cls(
            site=str(config["site"]),
            folder=Path(str(config["folder"])).expanduser(),
            keep=Path(str(config.get("keep") or f"{home}/unseen")).expanduser(),
            device=str(config["device"]) if config.get("device") else None,
            threads=int(config.get("threads") or 1),
            weights=str(config["weights"]) if config.get("weights") else None,
            privacy=(privacy := LocalPrivacy.read(config)),
            fields=tuple((str(name), str(value)) for name, value in dict(config.get("fields") or {}).items()),
            allow="weights" if privacy is not None else _read_allow(config),  # noise covers nothing else
            secure=_read_secure(config),
        )


def _read_allow(config: Mapping[str, Any]) -> Allow:
    word = str(config.get("allow") or "weights,statistics")
    if word not in get_args(Allow):
        raise UserError(f'"{word}" is no choice for allow in the node config: {" or ".join(get_args(Allow))}.')
    return cast(Allow, word)


def _read_secure(config: Mapping[str, Any]) -> bool:
    word = config.get("secure", False)
    if not isinstance(word, bool):
        raise UserError(f'secure in the node config is true or false, not "{word}".')
    return word


@app.query("hello")  # type: ignore[untyped-decorator]
def hello(message: Message, context: Context) -> Message:
    """Who is this, and which classes does it have?"""
    try:
        own = SiteConfig.read(context.node_config)
        index = index_site(own.folder, name=own.site)
        answer = ConfigRecord(
            {"site": own.site, "classes": list(index.classes), "images": len(index), "version": unseen.__version__}
        )
    except UserError as error:
        answer = ConfigRecord({SENTENCE: str(error)})
    return Message(RecordDict({"hello": answer}), reply_to=message)


@app.query("survey")  # type: ignore[untyped-decorator]
def survey(message: Message, context: Context) -> Message:
    return _answer("survey", message, context)


@app.query("keys")  # type: ignore[untyped-decorator]
def keys(message: Message, context: Context) -> Message:
    return _answer("keys", message, context)


@app.query("shares")  # type: ignore[untyped-decorator]
def shares(message: Message, context: Context) -> Message:
    return _answer("shares", message, context)


@app.query("unmask")  # type: ignore[untyped-decorator]
def unmask(message: Message, context: Context) -> Message:
    return _answer("unmask", message, context)


@app.train()  # type: ignore[untyped-decorator]
def train(message: Message, context: Context) -> Message:
    return _answer("train", message, context)


@app.evaluate()  # type: ignore[untyped-decorator]
def evaluate(message: Message, context: Context) -> Message:
    return _answer("evaluate", message, context)


def _answer(kind: Kind, message: Message, context: Context) -> Message:
    config = message.content["order"]
    try:
        order = read_order(message.content, kind)
        settings, classes = str(config["settings"]), str(config["classes"])
        real = "folder" in context.node_config or "site" in context.node_config
        if real:
            own = SiteConfig.read(context.node_config)
            torch.set_num_threads(own.threads)
            check_own_files(json.loads(str(config.get("own", "{}"))))
            runner, client, allow = _site_runner(own, settings, classes), own.site, own.allow
        else:
            torch.set_num_threads(1)
            runner, client = _simulated_runner(settings, str(config["keep"])), str(config["client"])
            allow = runner.plan.allow
        for limit in (allow, runner.plan.allow):  # the site's word and the run's: neither widens the other
            check_allowed(runner.method, limit)
            order = order if limit != "weights" else replace(order, calibrate=False)
        log = AuditLog.at(runner.client_states.root / AUDIT) if real else AuditLog()
        with _noted(log, order, str(message.metadata.src_node_id)) as noted:
            reply = runner.reply(client, order)
            if more := beyond(reply, allow) or beyond(reply, runner.plan.allow):
                raise UserError(f"The reply was kept back: {more}.")
            noted(reply)
        content = reply_content(reply)
    except UserError as error:
        content = RecordDict({"reply": ConfigRecord({SENTENCE: str(error)})})
    return Message(content, reply_to=message)


@contextlib.contextmanager
def _noted(log: AuditLog, order: Order, sender: str) -> Iterator[Callable[[Reply], None]]:
    """This site's own entry about an order: what came, and what left or why nothing did. Written before it leaves."""
    what: dict[str, Any] = {"round": order.round, "sender": sender, "asked": order.kind, "got": summary(carried(order))}

    def left(reply: Reply) -> None:
        what["sent"] = summary(carried(reply))
        what["images"] = reply.num_examples

    try:
        yield left
    except UserError as error:
        what["refused"] = str(error)
        raise
    finally:
        log.note("order", **what)
        log.write()


@lru_cache(maxsize=2)
def _simulated_runner(settings: str, keep: str) -> ClientRunner:
    """In a simulation every worker can play every client: the images are mapped, not copied."""
    planned = PlannedRun.of(Settings.from_json(json.loads(settings)))
    prepare_process(planned.settings.plan.precision, planned.settings.plan.device)
    return assemble(planned, load_data(planned, Silent())).runner(ClientStates(Path(keep)))


@lru_cache(maxsize=4)
def _site_runner(own: SiteConfig, settings_json: str, classes_json: str) -> ClientRunner:
    keep_secret()  # the server knows the run's seed: a part that adds noise must not draw it from that
    sent = Settings.from_json(json.loads(settings_json))
    settings = sent.with_changes({"device": own.device or sent.plan.device, "root": None})
    prepare_process(settings.plan.precision, settings.plan.device)  # the same kernels at every site
    classes = [str(c) for c in json.loads(classes_json)]
    method = parse(settings.method, own_fields(settings, dict(own.fields)))
    if own.secure and not settings.plan.secure:
        raise UserError("This site sends its model only by secure aggregation: begin the run with --secure.")
    if settings.plan.secure:
        check_secure(method)
    if own.privacy is not None:
        method = own.privacy.added_to(method, settings.plan.rounds)
        promised = f"epsilon {own.privacy.epsilon:g} at delta {own.privacy.delta:g}"
        print(f"local privacy: {promised} over {settings.plan.rounds} rounds", flush=True)
    index = index_site(own.folder, classes, own.site)
    check_room(cache_folder(), len(index) * 3 * settings.data.image_size**2, "decoded images")
    store = store_of(settings, index)
    rows = np.arange(len(store.index), dtype=np.int64)
    data = settings.data
    (site,) = make_sites(store, {own.site: rows}, data.validation, settings.seed, data.in_domain_test)
    net = _net(settings, method, own, len(classes))
    size = sum(value.nbytes for value in net.state_dict().values())
    check_room(own.keep, (VERSIONS + 1) * size, "what the site keeps between rounds")
    # By the settings as the server sent them: the same experiment, whatever this site adds to it.
    states = ClientStates(own.keep / directory_for(sent, Path()).name)
    make = runner_for(settings.plan)
    return make(method, net, settings.plan, {own.site: site}.__getitem__, states, augmenter(settings))


def _net(settings: Settings, method: Method, own: SiteConfig, classes: int) -> Net:
    """The net. Its weights come with the first order; only state that never travels needs the pretrained ones here."""
    net = build_net(settings.with_changes({"weights": "none"}), method, classes)
    share = method.share(net)
    if settings.net.weights == "none" or set(net.state_dict()) <= share.up | share.down:
        return net
    if settings.net.weights_are_a_file and own.weights is None:
        raise UserError(
            f'The run begins with a file of weights, and "{settings.method}" keeps some of them at each site: name the '
            f"same file as weights in this site's site.toml."
        )
    return build_net(settings.with_changes({"weights": own.weights or settings.net.weights}), method, classes)
