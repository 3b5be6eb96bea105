"""`unseen flower`: deployments with Flower: their files and keys, a site's process, a trial on one machine, the status."""

from __future__ import annotations

import importlib.util
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from unseen.cli.options import WHAT, with_settings
from unseen.cli.screen import errors, print_json, print_table, results
from unseen.core.errors import UserError
from unseen.core.files import read_toml
from unseen.core.plan import HOW

if TYPE_CHECKING:
    from unseen.engines.flower.status import Status

app = typer.Typer(help="Run a method at real sites, with Flower.", no_args_is_help=True)
EXAMPLE = "Example: unseen flower init hospitals --method fedfd-a --sites aachen,bergen,cadiz --rounds 20"


@app.command("init", epilog=EXAMPLE)
@with_settings(without=("engine", "data", "root", "partition", "client_gpus"))
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
    allow_network: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NETWORK",
            help="Only these may reach the proxy, as 192.0.2.0/24; repeatable.",
            rich_help_panel=HOW,
        ),
    ] = None,
    client_certificates: Annotated[
        bool,
        typer.Option(
            "--client-certificates",
            help="The proxy also asks each site for a certificate of your authority.",
            rich_help_panel=HOW,
        ),
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run directory. [default: FOLDER/runs]", rich_help_panel=HOW)
    ] = None,
) -> None:
    """Write a ready Flower app: settings, proxy, README with every command.

    A round waits until --minimum-clients sites are there (default: 2).
    """
    if data != "folder":
        raise UserError(f'A deployment reads each site\'s own folder: give --data folder, not "{data}".')
    from unseen.engines.flower.prepare import deployment_of
    from unseen.engines.flower.scaffold import write_app

    deployment = deployment_of(
        settings,
        sites=sites.split(","),
        method=method,
        fields=field or [],
        classes=classes.split(","),
        target=target,
        target_folder=target_folder,
        seed=seed,
        timeout=timeout,
        out=(out or folder / "runs").expanduser().resolve(),
    )
    write_app(
        folder,
        deployment,
        host=host,
        port=port,
        link_port=link_port,
        allow=allow_network or (),
        client_certificates=client_certificates,
    )
    results().print(f"wrote {folder}; every command is in {folder / 'README.md'}", highlight=False)


@app.command("keys", epilog="Example: unseen flower keys hospitals --host fl.example.org")
def keys(
    folder: Annotated[Path, typer.Argument(help="The folder of the app.")],
    host: Annotated[list[str] | None, typer.Option(help="A name or address of the coordinator; repeatable.")] = None,
    site: Annotated[list[str] | None, typer.Option(help="A site; repeatable. [default: those of the app]")] = None,
) -> None:
    """Make certificates and a key per site, for a trial."""
    from unseen.engines.flower.scaffold import write_keys

    hosts = dict.fromkeys([*(host or []), "localhost", "127.0.0.1"])
    made = write_keys(folder, site or _sites_of(folder), list(hosts))
    results().print(f"wrote {len(made)} files to {folder / 'keys'} and {folder / 'sites'}", highlight=False)


@app.command("key", epilog="Example: unseen flower key aachen")
def key(place: Annotated[Path, typer.Argument(help="The site's package: the folder of its site.toml.")]) -> None:
    """Make a site's key where it is used, and print the public half for the coordinator."""
    from unseen.engines.flower.scaffold import write_site_key

    results().print(write_site_key(place), highlight=False, soft_wrap=True)


@app.command("register", epilog="Example: unseen flower register hospitals")
def register(
    folder: Annotated[Path, typer.Argument(help="The folder of the app; its SuperLink is running.")],
    site: Annotated[list[str] | None, typer.Option(help="A site; repeatable. [default: those of the app]")] = None,
) -> None:
    """Let the sites in: bind each site's name to its key (FOLDER/keys/NAME.pub)."""
    sites = site or _sites_of(folder)
    _need_flower()
    from unseen.engines.flower.control import register as tell

    new = tell(folder, list(sites))
    results().print(f"registered: {', '.join(new) or 'nothing new'}", highlight=False)


@app.command("node", epilog="Example: unseen flower node aachen --folder /data/images")
def node(
    place: Annotated[Path, typer.Argument(help="The site's package: the folder of its site.toml.")],
    folder: Annotated[Path | None, typer.Option(help="The site's images. [default: as in site.toml]")] = None,
) -> None:
    """Take orders at a site, and run the installed unseen only."""
    from unseen.engines.flower.site_file import SiteFile

    own = SiteFile.read(place)
    _need_flower()
    from unseen.engines.flower.node import serve

    console = errors()
    serve(
        own if folder is None else own.with_folder(folder),
        said=lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True),
    )


@app.command("poc", epilog="Example: unseen flower poc --root hospitals --method fedbn --rounds 5")
@with_settings(without=("engine", "data", "root", "partition", "client_gpus"))
def poc(
    settings: dict[str, Any],
    root: Annotated[Path, typer.Option(help="The sites' images: ROOT/SITE/CLASS/*.", rich_help_panel=WHAT)],
    sites: Annotated[
        str, typer.Option(help="Names of the sites, with commas. [default: all of ROOT]", rich_help_panel=WHAT)
    ] = "",
    method: Annotated[
        str, typer.Option(help="A method, or several as fedbn+fedprox.", rich_help_panel=WHAT)
    ] = "fedavg",
    field: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="A field of the method; repeatable.", rich_help_panel=WHAT),
    ] = None,
    target: Annotated[
        str, typer.Option(help="A site of ROOT that takes no part; the model is tested on it.", rich_help_panel=WHAT)
    ] = "",
    seed: Annotated[int | None, typer.Option(help="The seed.", rich_help_panel=WHAT)] = None,
    timeout: Annotated[float, typer.Option(help="Seconds a round waits for a site.", rich_help_panel=HOW)] = 3600.0,
    out: Annotated[
        Path, typer.Option(help="A folder for the app, the logs and the run. The same command again goes on.")
    ] = Path("poc"),
    stay: Annotated[bool, typer.Option("--stay", help="Keep everything running after the run, until Ctrl-C.")] = False,
) -> None:
    """Start a whole deployment on this machine, do one run, show it, and stop everything.

    The same processes as on real machines: SuperLink, proxy, a node per site, with keys and TLS, on loopback.
    """
    _need_flower()
    from unseen.engines.flower import poc as trial
    from unseen.engines.flower.prepare import deployment_of

    folder = out.expanduser().resolve()
    images = trial.site_folders(root, [s for s in sites.split(",") if s], [target] if target else [])
    deployment = deployment_of(
        settings,
        sites=list(images),
        method=method,
        fields=field or [],
        target=target or "elsewhere",
        target_folder=(root / target).expanduser().resolve() if target else None,
        seed=seed,
        timeout=timeout,
        out=folder / "runs",
    )
    began, screen = time.monotonic(), errors()

    def said(sentence: str) -> None:
        line = f"{time.monotonic() - began:5.0f} s  {sentence}"
        screen.print(line, markup=False, highlight=False, soft_wrap=True)

    last = ""

    def changed(status: Status) -> None:
        nonlocal last
        if status.said != last:
            last = status.said
            said(status.said)

    said(f"starting a SuperLink, a proxy and {len(images)} nodes; their logs are in {folder}")
    with trial.poc(folder, deployment, images, said) as running:
        said("all are up; starting the run")
        running.begin()
        said(f"look: unseen flower status {folder} --serve")
        running.follow(changed)
        results().print(str(running.directory.path), highlight=False, soft_wrap=True)
        if stay:
            said("the deployment stays until Ctrl-C; its README has more commands: " + str(running.app / "README.md"))
            while True:
                running.check()
                time.sleep(1.0)
    said("all processes are stopped")


@app.command("status", epilog="Example: unseen flower status hospitals --serve")
def status(
    folder: Annotated[Path, typer.Argument(help="The folder of the app, or of a run.")],
    json_output: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    serve: Annotated[
        bool, typer.Option("--serve", help="As a page on loopback that refreshes itself, until Ctrl-C.")
    ] = False,
    port: Annotated[int, typer.Option(help="With --serve: the page's port; 0: any that is free.")] = 0,
) -> None:
    """Who is there, who is waited for, and how far a deployed run is."""
    from unseen.engines.flower.status import COLUMNS, headlines, read_status, site_rows

    if serve:
        from unseen.engines.flower.status_page import serve_page

        errors().print("Ctrl-C ends it.", highlight=False)
        serve_page(folder, port, said=lambda line: results().print(line, highlight=False, soft_wrap=True))
        return
    found = read_status(folder)
    if json_output:
        print_json(asdict(found))
        return
    for line in headlines(found):
        results().print(line, markup=False, highlight=False, soft_wrap=True)
    print_table(COLUMNS, [[Text(cell) for cell in row] for row in site_rows(found)], folded=("remark",))


def _need_flower() -> None:
    if importlib.util.find_spec("flwr") is None:
        raise UserError("This command needs Flower: `pip install unseen[flower]`.")


def _sites_of(folder: Path) -> list[str]:
    project = folder / "pyproject.toml"
    if not project.exists():
        raise UserError(f"{folder} is no app: it has no pyproject.toml; write one with `unseen flower init`.")
    try:
        return str(read_toml(project)["tool"]["flwr"]["app"]["config"]["sites"]).split(",")
    except (KeyError, TypeError):
        raise UserError(f"{project} names no sites; write it anew with `unseen flower init`.") from None
