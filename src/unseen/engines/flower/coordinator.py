"""The ServerApp of a deployment: the run config becomes settings, the run a run directory like any other."""

from __future__ import annotations

import datetime
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from unseen.core.errors import UserError
from unseen.core.types import ImageSet
from unseen.data.domains import index_site
from unseen.data.store import open_store
from unseen.engines.flower.config import Deployment
from unseen.engines.flower.grid import FlowerEngine
from unseen.registry import parse
from unseen.runs.directory import RunDirectory
from unseen.runs.model import build_net
from unseen.runs.protocols import Settings
from unseen.runs.run import Assembly, Trial, one_thread

app = ServerApp()


class Lines:
    """One line per event: `flwr run --stream` and `flwr log` show them, and the run directory keeps them in log.txt."""

    def __init__(self) -> None:
        self.file: Path | None = None

    def began(self, settings: Settings, clients: int, first: int, last: int) -> None:
        self.said(f"{settings.method}: rounds {first} to {last} with {clients} sites")

    def round(self, line: dict[str, Any]) -> None:
        validation = line.get("validation", {}).get("accuracy")
        words = f"round {line['round']}: {', '.join(line['clients'])}"
        if line["loss"] is not None:
            words += f", loss {line['loss']:.4f}"
        if validation is not None:
            words += f", validation after round {line['validation']['round']} {100 * validation:.2f} %"
        self.said(words)

    def testing(self, done: int, total: int) -> None: ...

    def said(self, sentence: str) -> None:
        print(f"unseen: {sentence}", flush=True)
        if self.file is not None:
            with self.file.open("a") as file:
                file.write(f"{datetime.datetime.now():%Y-%m-%d %H:%M:%S} {sentence}\n")


@app.main()  # type: ignore[untyped-decorator]
def main(grid: Grid, context: Context) -> None:
    lines = Lines()
    try:
        with one_thread():
            _run(Deployment.from_config(context.run_config), grid, lines)
    except UserError as error:
        lines.said(str(error))
        raise


def _run(deployment: Deployment, grid: Grid, lines: Lines) -> None:
    settings = _fitting(deployment)
    directory = RunDirectory.create(settings, Path(deployment.out))
    if directory.result() is not None:
        lines.said(f"this run is finished: {directory.path}")
        return
    lines.file = directory.path / "log.txt"
    lines.said(f"run directory {directory.path}")
    about = {"settings": json.dumps(settings.to_json())}
    engine = FlowerEngine(
        grid,
        about,
        deployment.sites,
        minimum=settings.plan.minimum_clients,
        timeout=deployment.timeout,
        said=lines.said,
    )
    # Without the names of the classes every site must be there once, to tell them.
    engine.gather(None if deployment.classes else float("inf"))
    classes = deployment.classes or engine.classes()
    engine.tell("classes", json.dumps(classes))
    method = parse(settings.method, settings.fields)
    net = build_net(settings, method, len(classes))
    target, share = _target(deployment, classes), method.share(net)
    assembly = Assembly(settings, method, settings.plan, classes, {}, target, net, share)
    result = Trial(assembly, directory, engine, lines).run()
    lines.said(f"finished: round {result.selected_round} was selected; {result.summary['ledger']}")


def _fitting(deployment: Deployment) -> Settings:
    settings = deployment.settings
    if deployment.target_folder:
        return settings
    if settings.plan.server_selection == "oracle":
        raise UserError("server-selection oracle needs the unseen site's images: give target-folder, or validation.")
    return replace(settings, test_every=0)  # nobody has what would be tested on


def _target(deployment: Deployment, classes: tuple[str, ...]) -> ImageSet | None:
    if not deployment.target_folder:
        return None
    index = index_site(deployment.target_folder, classes, deployment.settings.target)
    return open_store(index, deployment.settings.image_size, skip_broken=deployment.settings.skip_broken).images
