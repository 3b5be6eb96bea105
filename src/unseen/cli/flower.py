"""`unseen flower`: a Flower app for real sites, its keys, and the process that works beside a SuperNode."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from unseen.cli.options import WHAT, with_settings
from unseen.cli.screen import errors, results
from unseen.core.errors import UserError
from unseen.core.plan import HOW

app = typer.Typer(help="Run a method at real sites, with Flower.", no_args_is_help=True)
EXAMPLE = "Example: unseen flower init hospitals --method fedfd-a --sites aachen,bergen,cadiz --rounds 20"


@app.command("init", epilog=EXAMPLE)
@with_settings(without=("engine", "data", "root", "partition"))
def init(
    settings: dict[str, Any],
    folder: Annotated[Path, typer.Argument(help="A new folder for the app.")],
    sites: Annotated[str, typer.Option(help="Names of the sites, with commas.", rich_help_panel=WHAT)],
    method: Annotated[
        str, typer.Option(help="A method, or several as fedbn+fedprox.", rich_help_panel=WHAT)
    ] = "fedavg",
    field: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="A field of the method; repeatable.", rich_help_panel=WHAT),
    ] = None,
    data: Annotated[
        str, typer.Option(help="How the images lie: folder, CLASS/* at each site.", rich_help_panel=WHAT)
    ] = "folder",
    classes: Annotated[
        str,
        typer.Option(help="Names of the classes, with commas. [default: all the sites have]", rich_help_panel=WHAT),
    ] = "",
    target: Annotated[
        str, typer.Option(help="Name of the unseen site; none: the model for the next one.", rich_help_panel=WHAT)
    ] = "elsewhere",
    target_folder: Annotated[
        Path | None,
        typer.Option(help="The unseen site's images, CLASS/*, if this machine has them.", rich_help_panel=WHAT),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The seed.", rich_help_panel=WHAT)] = None,
    timeout: Annotated[float, typer.Option(help="Seconds a round waits for a site.", rich_help_panel=HOW)] = 3600.0,
    host: Annotated[
        str, typer.Option(help="The coordinator's name, as the sites reach it.", rich_help_panel=HOW)
    ] = "localhost",
    port: Annotated[int, typer.Option(help="The port that the proxy publishes.", rich_help_panel=HOW)] = 8443,
    link_port: Annotated[int, typer.Option(help="The SuperLink's own port, on loopback.", rich_help_panel=HOW)] = 8000,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run directory. [default: FOLDER/runs]", rich_help_panel=HOW)
    ] = None,
) -> None:
    """Write a ready Flower app: settings, proxy, README with every command.

    A round waits until --minimum-clients sites are there (default: 2).
    """
    from unseen.engines.flower.config import FIXED, Deployment
    from unseen.engines.flower.scaffold import write_app
    from unseen.methods import check_names
    from unseen.runs.protocols import protocol_of
    from unseen.runs.settings import absolute, settings_of

    if data != "folder":
        raise UserError(f'A deployment reads each site\'s own folder: give --data folder, not "{data}".')
    names = tuple(sorted({name.strip() for name in sites.split(",") if name.strip()}))
    if len(names) < 1 or not all(_plain(name) for name in names):
        raise UserError("--sites takes names of letters, digits, - and _, with commas: --sites aachen,bergen,cadiz.")
    check_names(method)
    protocol = protocol_of(settings.pop("protocol", "pacs-quick"))
    settings.pop("centralized", None)
    if str(settings.get("weights", "none")) not in ("none", "imagenet"):
        settings["weights"] = absolute(settings["weights"])
    changes = {"minimum_clients": 2, **settings, **FIXED}
    from unseen.runs.planning import read_fields, read_method, spell_method

    named, fields = spell_method(read_method(method, read_fields(field or [])))
    chosen = settings_of(protocol, method=named, fields=fields, target=target, seed=seed, changes=changes)
    minimum = chosen.plan.minimum_clients
    if minimum > len(names):
        raise UserError(f"--minimum-clients {minimum} is more than the {len(names)} sites; give a smaller one.")
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
