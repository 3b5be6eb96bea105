"""Options of the command line, made from the settings themselves: a new setting is one field, and nothing here."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from functools import wraps
from typing import Annotated, Any

import typer

from unseen.core.options import Setting, options_of, spelled
from unseen.runs.settings import Settings

WHAT = "What"


def with_settings(without: Collection[str] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command gets an option for every setting of a run, and those that were given in its argument `settings`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        chosen = {name: one for name, one in options_of(Settings).items() if name not in without}
        own = inspect.signature(command, eval_str=True)

        @wraps(command)
        def wrapped(**given: Any) -> None:
            settings = {name: given.pop(name) for name in chosen}
            settings |= {name: given.pop(name) for name in ("protocol", "centralized")}
            command(settings={name: value for name, value in settings.items() if value is not None}, **given)

        parameters = [p for p in own.parameters.values() if p.name != "settings"]
        parameters += [_protocol(), _centralized(), *(_parameter(one) for one in chosen.values())]
        signature = own.replace(parameters=[p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters])
        wrapped.__signature__ = signature  # type: ignore[attr-defined]
        wrapped.__annotations__ = {p.name: p.annotation for p in parameters}
        return wrapped

    return decorate


def _parameter(setting: Setting) -> inspect.Parameter:
    about = setting.about
    if setting.hint is bool:
        kind: Any = Annotated[
            bool | None,
            typer.Option(f"{setting.flag}/--no-{setting.flag[2:]}", help=about.help, rich_help_panel=about.panel),
        ]
    else:
        # Words, whatever the type: they are read by the rules that TOML files and Python have, `none` included.
        metavar = spelled(setting.hint).upper() if len(spelled(setting.hint)) < 20 else "WORD"
        kind = Annotated[
            str | None,
            typer.Option(setting.flag, help=about.help, metavar=metavar, rich_help_panel=about.panel),
        ]
    return _keyword(setting.name, kind)


def _protocol() -> inspect.Parameter:
    text = "All settings below by one name; `unseen protocols` lists them. (default: digits, pacs-quick)"
    return _keyword("protocol", Annotated[str | None, typer.Option(help=text, rich_help_panel=WHAT)])


def _centralized() -> inspect.Parameter:
    text = "All source domains in one place: the same as --partition pooled."
    return _keyword(
        "centralized", Annotated[bool | None, typer.Option("--centralized", help=text, rich_help_panel="Data")]
    )


def _keyword(name: str, kind: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
