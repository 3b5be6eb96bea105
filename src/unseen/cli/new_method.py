"""`unseen new-method`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unseen.cli.screen import say

EXAMPLE = "Example: unseen new-method fedcalm"


def new_method(
    name: Annotated[str, typer.Argument(help="The name of your method on the command line.")],
    out: Annotated[Path, typer.Option(help="The folder of the two files.")] = Path(),
) -> None:
    """Write a method of your own to begin from, and a test of it that passes."""
    from unseen.runs.new_method import write_new_method

    method, test = write_new_method(name, out)
    say(
        f"written: {method} and {test}",
        f"try it: python -m pytest {test}",
        f"run it: unseen --with {method} bench --data digits --methods fedavg,{name} --targets street --out bench",
    )
