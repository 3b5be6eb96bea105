"""The command line. Every command's module is cheap to import; torch is loaded by the command that needs it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from unseen.cli import (
    audit,
    bench,
    calibrate,
    check,
    choose,
    data,
    evaluate,
    export,
    fit,
    flower,
    keeping,
    methods,
    new_method,
    predict,
    report,
    run,
    show,
    tune,
)
from unseen.cli.screen import errors
from unseen.core.errors import UserError
from unseen.core.files import USERS, disk_error
from unseen.core.platform import ask_for_kernels, end_as_interrupted
from unseen.core.words import plain
from unseen.methods import NO_OWN_FILES, OWN_FILES


def said(sentence: str) -> typer.Exit:
    errors().print(f"Error: {plain(sentence)}", style="red", markup=False, highlight=False, soft_wrap=True)
    return typer.Exit(2)


class Commands(TyperGroup):
    """Errors for people: one sentence on stderr and exit code 2, whatever the command."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except UserError as error:
            raise said(str(error)) from None
        except OSError as error:
            if error.errno not in USERS:
                raise
            advice = "run the same command again, or give another place"
            raise said(str(disk_error(error.filename or "a file", error, advice))) from None
        except KeyboardInterrupt:
            errors().print("Stopped; run the same command again to go on.", highlight=False)
            raise typer.Exit(130) from None


app = typer.Typer(
    cls=Commands,
    name="unseen",
    help="Sites train one image classifier together, for a site that no one trained on.",
    epilog="Example: unseen run --data digits --target street --method fedavg",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("run", epilog=run.EXAMPLE)(run.run)
app.command("choose", epilog=choose.EXAMPLE)(choose.choose)
app.command("fit", epilog=fit.EXAMPLE)(fit.fit)
app.command("show", epilog=show.EXAMPLE)(show.show)
app.command("predict", epilog=predict.EXAMPLE)(predict.predict)
app.command("check", epilog=check.EXAMPLE)(check.check)
app.command("calibrate", epilog=calibrate.EXAMPLE)(calibrate.calibrate)
app.command("export", epilog=export.EXAMPLE)(export.export)
app.command("evaluate", epilog=evaluate.EXAMPLE)(evaluate.evaluate)
app.command("bench", epilog=bench.EXAMPLE)(bench.bench)
app.command("audit", epilog=audit.EXAMPLE)(audit.audit)
app.command("tune", epilog=tune.EXAMPLE)(tune.tune)
app.command("report", epilog=report.EXAMPLE)(report.report)
app.command("cost", epilog=report.COST_EXAMPLE)(report.cost)
app.command("rollback", epilog=keeping.ROLLBACK_EXAMPLE)(keeping.rollback)
app.command("methods", epilog=methods.EXAMPLE)(methods.methods)
app.command("new-method", epilog=new_method.EXAMPLE)(new_method.new_method)
app.command("protocols", epilog=methods.PROTOCOLS_EXAMPLE)(methods.protocols)
app.add_typer(data.app, name="data")
app.add_typer(flower.app, name="flower")
app.add_typer(keeping.ledger, name="ledger")


def _version(wanted: bool) -> None:
    if wanted:
        import unseen

        typer.echo(f"unseen {unseen.__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    own: Annotated[
        list[Path] | None,
        typer.Option(
            "--with",
            metavar="FILE",
            help="A Python file with methods of your own; repeatable. none: read no file, not even a run's own copy.",
        ),
    ] = None,
) -> None:
    if own and own != [Path(NO_OWN_FILES)]:
        os.environ[OWN_FILES] = os.pathsep.join(str(path.resolve()) for path in own)
    elif own:
        os.environ[OWN_FILES] = NO_OWN_FILES


def main() -> None:
    if os.environ.get("NO_COLOR"):
        # Typer draws the pages of --help, and keeps their bold; without a colour system there is no markup at all.
        import typer.rich_utils

        typer.rich_utils.COLOR_SYSTEM = None
    end_as_interrupted()
    ask_for_kernels()  # before numpy and torch are imported; a run that needs others takes this back
    app()
