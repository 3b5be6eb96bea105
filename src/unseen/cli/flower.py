"""`unseen flower`: a Flower app for real sites, its keys, and the process that works beside a SuperNode."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unseen.cli.run import read_fields
from unseen.cli.screen import errors, results
from unseen.core.errors import UserError

app = typer.Typer(help="Run a method at real sites, with Flower.", no_args_is_help=True)
EXAMPLE = "Example: unseen flower init hospitals --method fedfd-a --sites aachen,bergen,cadiz --rounds 20"


@app.command("init", epilog=EXAMPLE)
def init(
    folder: Annotated[Path, typer.Argument(help="A new folder for the app.")],
    sites: Annotated[str, typer.Option(help="Names of the sites, with commas.")],
    method: Annotated[str, typer.Option(help="A method, or several as fedbn+fedprox.")] = "fedavg",
    field: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="A field of the method; repeatable.")
    ] = None,
    data: Annotated[str, typer.Option(help="How the images lie: folder, CLASS/* at each site.")] = "folder",
    classes: Annotated[str, typer.Option(help="Names of the classes, with commas. [default: all the sites have]")] = "",
    target: Annotated[str, typer.Option(help="Name of the unseen site.")] = "elsewhere",
    target_folder: Annotated[
        Path | None, typer.Option(help="The unseen site's images, CLASS/*, if this machine has them.")
    ] = None,
    protocol: Annotated[str, typer.Option(help="The budget to begin with.")] = "pacs-quick",
    rounds: Annotated[int | None, typer.Option(help="Rounds.")] = None,
    local_epochs: Annotated[int | None, typer.Option(help="Local epochs per round.")] = None,
    local_steps: Annotated[int | None, typer.Option(help="Local steps per round, instead of epochs.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images per step.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    validation: Annotated[float | None, typer.Option(help="Part of each site's images held back.")] = None,
    augmentation: Annotated[str | None, typer.Option(help="none, domainbed, jigen, dassl, ...")] = None,
    backbone: Annotated[str | None, typer.Option(help="convnet, alexnet or a name of timm's.")] = None,
    weights: Annotated[str | None, typer.Option(help="none, imagenet, or a file.")] = None,
    image_size: Annotated[int | None, typer.Option(help="Side of the images in px.")] = None,
    seed: Annotated[int | None, typer.Option(help="The seed.")] = None,
    minimum_clients: Annotated[int, typer.Option(help="A round needs so many sites; with fewer it waits.")] = 2,
    timeout: Annotated[float, typer.Option(help="Seconds a round waits for a site.")] = 3600.0,
    host: Annotated[str, typer.Option(help="The coordinator's name, as the sites reach it.")] = "localhost",
    port: Annotated[int, typer.Option(help="The port that the proxy publishes.")] = 8443,
    link_port: Annotated[int, typer.Option(help="The SuperLink's own port, on loopback.")] = 8000,
    out: Annotated[Path | None, typer.Option(help="Folder of the run directory. [default: FOLDER/runs]")] = None,
) -> None:
    """Write a ready Flower app: settings, proxy, README with every command."""
    from unseen.api import absolute, spell_method, spell_weights
    from unseen.engines.flower.config import Deployment
    from unseen.engines.flower.scaffold import write_app
    from unseen.runs.protocols import settings

    if data != "folder":
        raise UserError(f'A deployment reads each site\'s own folder: give --data folder, not "{data}".')
    names = tuple(sorted({name.strip() for name in sites.split(",") if name.strip()}))
    if len(names) < 1 or not all(_plain(name) for name in names):
        raise UserError("--sites takes names of letters, digits, - and _, with commas: --sites aachen,bergen,cadiz.")
    if minimum_clients > len(names):
        raise UserError(f"--minimum-clients {minimum_clients} is more than the {len(names)} sites; give a smaller one.")
    named, fields = spell_method(method, read_fields(field or []))
    chosen = settings(
        method=named,
        fields=fields,
        data="folder",
        target=target,
        protocol=protocol,
        seed=seed,
        engine="flower",
        partition="domain",
        rounds=rounds,
        local_epochs=local_epochs,
        local_steps=local_steps,
        batch_size=batch_size,
        lr=lr,
        validation=validation,
        augmentation=augmentation,
        backbone=backbone,
        weights=spell_weights(weights),
        image_size=image_size,
        minimum_clients=minimum_clients,
    )
    deployment = Deployment(
        settings=chosen,
        sites=names,
        classes=tuple(name.strip() for name in classes.split(",") if name.strip()),
        target_folder=absolute(target_folder) or "",
        timeout=timeout,
        out=absolute(out) or str(folder.expanduser().resolve() / "runs"),
    )
    write_app(folder, deployment, host=host, port=port, link_port=link_port)
    results().print(f"wrote {folder}; every command is in {folder / 'README.md'}", highlight=False)


@app.command("keys", epilog="Example: unseen flower keys hospitals --host fl.example.org")
def keys(
    folder: Annotated[Path, typer.Argument(help="The folder of the app.")],
    host: Annotated[list[str] | None, typer.Option(help="A name or address of the coordinator; repeatable.")] = None,
    site: Annotated[list[str] | None, typer.Option(help="A site; repeatable. [default: those of the app]")] = None,
) -> None:
    """Make certificates and a key per site, for a trial."""
    import tomllib

    from unseen.engines.flower.scaffold import write_keys

    if not site:
        project = folder / "pyproject.toml"
        if not project.exists():
            raise UserError(f"{folder} is no app: it has no pyproject.toml; write one with `unseen flower init`.")
        site = tomllib.loads(project.read_text())["tool"]["flwr"]["app"]["config"]["sites"].split(",")
    hosts = dict.fromkeys([*(host or []), "localhost", "127.0.0.1"])
    made = write_keys(folder / "keys", site, list(hosts))
    results().print(f"wrote {len(made)} files to {folder / 'keys'}", highlight=False)


@app.command("node", epilog="Example: unseen flower node --supernode 127.0.0.1:9094")
def node(
    supernode: Annotated[
        str, typer.Option(help="Host and port of the SuperNode beside this process.")
    ] = "127.0.0.1:9094",
    root_certificates: Annotated[
        Path | None, typer.Option(help="The certificate authority, if the SuperNode's own port has TLS.")
    ] = None,
) -> None:
    """Take the tasks of a SuperNode started with --isolation process, and run the installed unseen only."""
    import importlib.util

    if importlib.util.find_spec("flwr") is None:
        raise UserError("`unseen flower node` needs Flower: `pip install unseen[flower]`.")
    from unseen.engines.flower.node import serve

    console = errors()
    serve(
        supernode,
        root_certificates=root_certificates,
        said=lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True),
    )


def _plain(name: str) -> bool:
    return all(c.isalnum() or c in "-_" for c in name)
