"""`unseen audit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from unseen.cli.options import WHAT, with_settings
from unseen.cli.screen import duration, percent, print_grid, results, screen
from unseen.core.plan import HOW

EXAMPLE = (
    "Example: unseen audit runs/digits-street-fedavg-s0-1a2b3c4d   ·   "
    "unseen audit --methods fedavg,stablefdg,elcfs --data digits --out audits"
)


@with_settings()
def audit(
    settings: dict[str, Any],
    directory: Annotated[Path | None, typer.Argument(help="A finished run, or a folder of them.")] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            "--methods",
            "--method",
            help="Instead of a directory: methods with commas, or all; their runs are made first.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="The unseen domain. (default: the dataset's last)", rich_help_panel=WHAT)
    ] = None,
    seed: Annotated[int, typer.Option(help="The seed.", rich_help_panel=WHAT)] = 0,
    attacks: Annotated[
        str | None,
        typer.Option(
            help="Some attacks only, with commas: features, labels, norms, classes, styles, decoder, spectra, "
            "membership, updates, generator, domain, matching. (default: all that fit what crossed)",
            rich_help_panel=WHAT,
        ),
    ] = None,
    effort: Annotated[
        float, typer.Option(help="How long costly attacks try: 0.2 is a fifth as long.", rich_help_panel=HOW)
    ] = 1.0,
    workers: Annotated[
        int | None,
        typer.Option(
            help="Processes; the same bits for any number. (default: a process per core)", rich_help_panel=HOW
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Where it is written. (default: beside the run; audits with --methods)", rich_help_panel=HOW),
    ] = None,
) -> None:
    """Attack what leaves the clients, and say what was learnt from it.

    The replies are those of the run itself, recorded as they cross. The same command again goes on where it was stopped.
    """
    if methods is not None:
        from unseen.methods import check_names

        for word in methods.split(","):
            if word.strip() != "all":
                check_names(word.split(":")[0].strip())
    from unseen.api import audit as audited
    from unseen.reports.audit import audit_grids

    watcher = screen()
    try:
        found = audited(
            directory,
            methods=methods,
            target=target,
            seed=seed,
            out=out,
            effort=effort,
            attacks=attacks,
            workers=workers,
            watcher=watcher,
            **settings,
        )
    finally:
        watcher.close()
    for one in found:
        if one.same_bits is not None:
            same = "the same bits as the run" if one.same_bits else "OTHER BITS than the run"
            _print(f"{one.label}: replayed rounds {', '.join(map(str, one.rounds))} had {same}")
        for finding in one.findings:
            named = finding.identified_of_100
            words = [f"{named.value:.0f} of 100 images identified"] if named is not None else []
            words += [f"{name} {score.value:.2f}" for name, score in finding.scores.items()]
            how = "" if finding.real else " (upper bound)"
            _print(f"  {finding.attack}{how}, {finding.plays}: {'; '.join(words) or finding.failed}  [{finding.saw}]")
        _print(f"  unseen accuracy {percent(one.accuracy)}; {duration(one.seconds)}")
    if len(found) > 1:
        for grid in audit_grids(found):
            print_grid(grid)


def _print(sentence: str) -> None:
    results().print(sentence, markup=False, highlight=False, soft_wrap=True)
