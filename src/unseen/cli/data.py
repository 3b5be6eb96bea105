"""`unseen data list | check | show`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unseen.cli.screen import print_table, say
from unseen.core.errors import UserError

LIST_EXAMPLE = "Example: unseen data list"
CHECK_EXAMPLE = "Example: unseen data check pacs --root ~/data/PACS"
SHOW_EXAMPLE = "Example: unseen data show digits --target street --partition dirichlet:3:0.5 --out digits.png"

app = typer.Typer(help="Datasets: what there is, whether it is complete, what it looks like.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="digits, folder, or a name of `unseen data list`.")]
Root = Annotated[Path | None, typer.Option(help="The folder of the dataset's images.")]


@app.command("list", epilog=LIST_EXAMPLE)
def listing() -> None:
    """List the datasets: domains with their letters, classes, where to get them."""
    from unseen.data.catalog import BUILT_IN, CATALOG

    rows = []
    for name, make in BUILT_IN.items():
        index = make()
        domains = _domains(index.domains, index.letters)
        rows.append([name, domains, str(len(index.classes)), f"{len(index):,}", "built in"])
    for entry in CATALOG.values():
        counts = [domain.count for domain in entry.domains]
        total = f"{sum(c for c in counts if c is not None):,}" if None not in counts else "-"
        names = tuple(domain.name for domain in entry.domains)
        domains, source = _domains(names, entry.letters), f"{entry.title}: {entry.source}"
        rows.append([entry.name, domains, str(entry.class_count), total, source])
    own = "your own images: --data folder --root DIR, with DIR/DOMAIN/CLASS/*.jpg or *.png"
    rows.append(["folder", "any", "any", "any", own])
    print_table(
        ["dataset", "domains", "classes", "images", "where from"], rows, right=("classes", "images"),
        folded=("domains", "where from"),
    )  # fmt: skip


def _domains(names: tuple[str, ...], letters: tuple[str, ...]) -> str:
    return ", ".join(f"{name} ({letter})" for name, letter in zip(names, letters, strict=True))


@app.command(epilog=CHECK_EXAMPLE)
def check(name: Name, root: Root = None) -> None:
    """Say what of a dataset is complete and what is missing, by name. Exit code 1 if something is missing."""
    from unseen.data.catalog import check as look

    report = look(name, root)
    say(str(report))
    if not report.complete:
        raise typer.Exit(1)


@app.command(epilog=SHOW_EXAMPLE)
def show(
    name: Name,
    out: Annotated[Path, typer.Option(help="The picture of samples; the partition is drawn beside it.")],
    root: Root = None,
    target: Annotated[str | None, typer.Option(help="The unseen domain: its images are with no client.")] = None,
    partition: Annotated[
        str, typer.Option(help="Domains to clients: domain, iid:K, dirichlet:K:ALPHA, mixed:N:ALPHA, pairs.")
    ] = "domain",
    seed: Annotated[int, typer.Option(help="Of the partition.")] = 0,
    image_size: Annotated[
        int | None, typer.Option(help="Side of the images in px. (default: the quick protocol's)")
    ] = None,
    skip_broken: Annotated[bool, typer.Option("--skip-broken", help="Leave broken images out.")] = False,
) -> None:
    """Draw samples per domain, and the partition as clients x classes."""
    from unseen.data.catalog import load_index
    from unseen.data.draw import draw_partition, draw_samples
    from unseen.data.split import partition as deal
    from unseen.data.store import open_store
    from unseen.runs.protocols import protocol_for

    if out.suffix.lower() != ".png":
        raise UserError(f"{out} must end in .png.")
    index = load_index(name, root)
    sources = index.sources(target) if target else index.domains
    deal(index, sources, partition, seed)  # a wrong rule is said before the images are decoded
    # The size of a later quick run, so that what is decoded here is not decoded again.
    store = open_store(index, image_size or protocol_for(index.name).data.image_size, skip_broken=skip_broken)
    clients = deal(store.index, sources, partition, seed)
    beside = out.with_name(f"{out.stem}-partition{out.suffix}")
    drawn = (draw_samples(store, out, seed=seed), draw_partition(store.index, clients, beside))
    for path in drawn:
        say(f"written to {path}")
