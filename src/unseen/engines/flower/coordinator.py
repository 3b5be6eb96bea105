"""The ServerApp of a deployment: the run config becomes settings, the run a run directory like any other."""

from __future__ import annotations

import datetime
import json
import time
from contextlib import nullcontext
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import ServerApp
from flwr.superlink.grid.http_grid import HttpGrid

import unseen
from unseen.core.errors import UserError
from unseen.core.files import read_json, write_json
from unseen.core.seeding import keep_secret
from unseen.core.types import ImageSet
from unseen.core.words import plain
from unseen.data.domains import index_site
from unseen.engines.flower.config import Deployment
from unseen.engines.flower.grid import FlowerEngine
from unseen.engines.flower.own_affairs import own_digests
from unseen.engines.flower.replies import DeployedGrid, Post
from unseen.engines.flower.status import StatusBoard
from unseen.registry import parse
from unseen.runs.directory import RunDirectory
from unseen.runs.images import store_of
from unseen.runs.progress import Watcher
from unseen.runs.results import RoundLine
from unseen.runs.run import PlannedRun, RunData, run
from unseen.runs.settings import Settings

app = ServerApp()


class Lines:
    """One line per event: `flwr run --stream` and `flwr log` show them, and the run directory keeps them in log.txt."""

    def __init__(self) -> None:
        self.file: Path | None = None
        self.board: StatusBoard | None = None

    def began(self, settings: Settings, clients: int, first: int, last: int) -> None:
        if self.board is not None:
            self.board.now.method, self.board.now.rounds, self.board.now.round = settings.method, last, first - 1
        self.said(f"{settings.method}: rounds {first} to {last} with {clients} sites")

    def round(self, line: RoundLine) -> None:
        words = f"round {line.round}: {', '.join(line.clients)}"
        if line.loss is not None:
            words += f", loss {line.loss:.4f}"
        if line.validation is not None and line.validation.accuracy is not None:
            words += f", validation after round {line.validation.round} {100 * line.validation.accuracy:.2f} %"
        if self.board is not None:
            self.board.round(line)
        self.said(words)

    def testing(self, done: int, total: int) -> None: ...

    def said(self, sentence: str) -> None:
        sentence = plain(sentence)  # it may hold what a site wrote
        print(f"unseen: {sentence}", flush=True)
        if self.file is not None:
            with self.file.open("a") as file:
                file.write(f"{datetime.datetime.now():%Y-%m-%d %H:%M:%S} {sentence}\n")
        if self.board is not None:
            self.board.now.said = sentence
            self.board.changed()


@app.main()  # type: ignore[untyped-decorator]
def main(grid: HttpGrid, context: Context) -> None:
    lines = Lines()
    try:
        _run(Deployment.from_config(context.run_config), DeployedGrid(grid), lines)
    except UserError as error:
        if lines.board is not None:
            lines.board.now.failed = str(error)
        lines.said(str(error))
        raise
    finally:
        if lines.board is not None:
            lines.board.write()


def _run(deployment: Deployment, grid: Post, lines: Lines) -> None:
    keep_secret()  # the sites know the run's seed: noise that the server adds must not come from it
    settings = deployment.fitting()
    directory = RunDirectory.of(settings, Path(deployment.out)).begin(settings)
    if directory.result() is not None:
        lines.said(f"this run is finished: {directory.path}")
        return
    lines.file = directory.path / "log.txt"
    lines.board = StatusBoard(directory.path, deployment.sites, unseen.__version__, time.monotonic)
    lines.board.now.method, lines.board.now.rounds = settings.method, settings.plan.rounds
    lines.said(f"run directory {directory.path}")
    engine = FlowerEngine(
        grid,
        {"settings": json.dumps(settings.to_json()), "own": json.dumps(own_digests(settings.method))},
        deployment.sites,
        minimum=settings.plan.minimum_clients,
        timeout=deployment.timeout,
        said=lines.said,
        board=lines.board,
    )

    def data(planned: PlannedRun, watcher: Watcher) -> RunData:
        engine.gather()
        classes = deployment.classes or _remembered(directory, engine.classes())
        engine.tell("classes", json.dumps(classes))
        return RunData(classes, {}, _target(deployment, classes))

    planned = PlannedRun(settings, parse(settings.method, settings.fields), index=None)
    result = run(planned, lambda *_: nullcontext(engine), directory=directory, watcher=lines, data=data)
    lines.board.now.finished = True
    lines.said(f"finished: round {result.selected_round} was selected; {result.record.ledger}")


def _remembered(directory: RunDirectory, told: tuple[str, ...]) -> tuple[str, ...]:
    """The classes that this run began with: a site that comes later cannot change the net."""
    path = directory.path / "classes.json"
    if not path.exists():
        write_json(path, list(told))
    return tuple(str(name) for name in read_json(path))


def _target(deployment: Deployment, classes: tuple[str, ...]) -> ImageSet | None:
    if not deployment.target_folder:
        return None
    settings = deployment.settings
    return store_of(settings, index_site(deployment.target_folder, classes, settings.target)).images
