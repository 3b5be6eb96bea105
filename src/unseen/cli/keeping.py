"""`unseen rollback` and `unseen ledger verify`: a run's past."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unseen.cli.screen import results

ROLLBACK_EXAMPLE = "Example: unseen rollback runs/digits-street-fedavg-s0-1a2b3c4d --round 7"
VERIFY_EXAMPLE = "Example: unseen ledger verify runs/digits-street-fedavg-s0-1a2b3c4d"
ledger = typer.Typer(help="What crossed between server and clients.", no_args_is_help=True)


def rollback(
    directory: Annotated[Path, typer.Argument(help="A run directory.")],
    round: Annotated[int, typer.Option(help="The round to go back to: one of the last three.")],
) -> None:
    """Go back to an earlier round of a run: after a client spoilt the model, say. What came later is deleted."""
    from unseen import api

    run = api.rollback(directory, round)
    data = run.settings().data
    deployed = data.name == "folder" and data.root is None  # its images are at the sites
    again = "`flwr run` again" if deployed else f"`unseen run --resume {run.path}`"
    results().print(
        f"back at round {round}; {again} goes on",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


@ledger.command("verify", epilog=VERIFY_EXAMPLE)
def verify(directory: Annotated[Path, typer.Argument(help="A run directory, or a site's folder of a run.")]) -> None:
    """Follow the audit log's chain of hashes: is it whole, and if not, where is it broken? (exit code 1)"""
    from unseen import api

    chain = api.verify_ledger(directory)
    cut = "; its last line is cut off, as a killed process leaves it" if chain.cut else ""
    if chain.fault:
        results().print(f"BROKEN: {chain.fault}", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1)
    results().print(
        f"whole: {chain.entries:,} entries, the last is {chain.head}{cut}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
