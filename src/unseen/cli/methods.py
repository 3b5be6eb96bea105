"""`unseen methods` and `unseen protocols`."""

from __future__ import annotations

import ast
import inspect
import io
import os
import textwrap
import tokenize
import typing
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unseen.cli.screen import budget, chosen_by, in_terminal, print_json, print_table, results, say
from unseen.core.errors import UserError

if TYPE_CHECKING:
    from unseen.method import Method
    from unseen.methods import Card
    from unseen.runs.settings import Protocol

EXAMPLE = "Example: unseen methods   ·   unseen methods fedprox   ·   unseen methods fedbn+fedprox"
PROTOCOLS_EXAMPLE = "Example: unseen protocols   ·   unseen protocols pacs-quick"


def methods(
    name: Annotated[str | None, typer.Argument(help="A method, or several as fedbn+fedprox.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for another program.")] = False,
) -> None:
    """List all methods, or explain one: citation, fields, what it sends, how it composes."""
    from unseen.methods import FAMILIES, OWN_FILES, by_family, check_names, elsewhere

    if os.environ.get(OWN_FILES):
        from unseen.registry import registered

        registered()  # runs the user's own files: what is wrong with them is said now
    if name is None:
        groups = by_family()
        if as_json:
            print_json([asdict(card) for group in groups.values() for card in group])
            return
        columns = ["method", "year", "what it is", "sends beyond weights", "passes", "owns"]
        tables = {FAMILIES[family]: [_listed(card) for card in group] for family, group in groups.items()}
        if not in_terminal():
            print_table([*columns, "idea"], [[*row, idea] for idea, rows in tables.items() for row in rows])
            return
        for idea, rows in tables.items():
            print_table(columns, rows, title=idea, right=("passes",), folded=columns[2:4])
        say(
            "passes: what a step costs, FedAvg's is 1; `unseen cost` measures it.",
            "owns: two methods that own one verb do not compose. Most others do, as fedbn+fedprox.",
            "`unseen methods NAME` explains one, and names what it does not compose with.",
            "FedGAMMA is `fedsam+scaffold`. For test time: `unseen evaluate --inference`.",
        )
        return
    other = elsewhere(name)
    named = other.methods if other is not None else ()
    if other is not None and not as_json:
        said = other.said.replace("`", "").removesuffix(".")
        say(f"{said}:\n" if named else f"{said}.")
        if not named:  # a rule for test time, which has no card
            return
    named = named or (name,)
    for one in named:
        check_names(one)
    from unseen.method import parts_of
    from unseen.registry import parse

    kinds = [type(part) for one in named for part in parts_of(parse(one))]
    if as_json:
        print_json([_as_json(kind) for kind in kinds])
    else:
        say(*(explain(kind, results().width if in_terminal() else None) for kind in kinds))


SOURCE_LINE = 85  # letters: a longer line of a docstring was broken to fit the file, not to end there


def fitted(text: str, width: int) -> str:
    """Lines broken anew for a terminal. Formulas and fields, which are indented, keep lines of their own."""
    whole: list[str] = []
    before = ""
    for line in text.split("\n"):
        goes_on = len(before) > SOURCE_LINE and not before.startswith(" ") and line and not line.startswith(" ")
        if goes_on:
            whole[-1] += f" {line}"
        else:
            whole.append(line)
        before = line
    found = []
    for line in whole:
        inner = line[: len(line) - len(line.lstrip())]
        found += textwrap.wrap(
            line, width, subsequent_indent=f"{inner}  " if inner else "", break_on_hyphens=False
        ) or [""]
    return "\n".join(found)


def _listed(card: Card) -> list[str]:
    sends = card.sends.partition(":")[0] or "nothing"  # what comes after a colon says how much, or of what
    idea = card.headline.partition(": ")[2] or card.headline  # its name stands in the first column
    if card.remark:
        idea += f" The default differs from its paper: {card.remark}."
    return [card.name, str(card.year or ""), idea, sends, f"{card.passes:.3g}", ", ".join(card.owns)]


def _as_json(kind: type[Method]) -> dict[str, Any]:
    from unseen.core.options import spelled

    meanings, hints, plain = field_comments(kind), typing.get_type_hints(kind), kind()
    return {
        "name": kind.name,
        "about": _about(kind),
        "sends": kind.traits.sends,
        "remark": plain.about.remark,
        "passes": kind.passes,
        "fields": [
            {
                "name": f.name,
                "type": spelled(hints[f.name]),
                "default": getattr(plain, f.name),
                "meaning": meanings.get(f.name, ""),
            }
            for f in fields(kind)
        ],
    }


def _about(kind: type[Method]) -> str:
    """What the class says of itself, else what its file says."""
    own = inspect.cleandoc(kind.__dict__.get("__doc__") or "")
    # A dataclass without a docstring is given its signature for one.
    if own and not own.startswith(f"{kind.__name__}("):
        return own
    module = inspect.getmodule(kind)
    return inspect.cleandoc(module.__doc__ or "") if module else ""


def explain(kind: type[Method], width: int | None = None) -> str:
    """All that the files say of a method; for a terminal, in lines of its width."""
    from unseen.core.options import spelled

    def fit(text: str) -> str:
        return text if width is None else fitted(text, width)

    module = inspect.getmodule(kind)
    own, filed = _about(kind), inspect.cleandoc(module.__doc__ or "") if module else ""
    lines = [kind.name, "", fit(own), *(["", fit(filed)] if filed and filed != own else []), ""]
    meanings, hints = field_comments(kind), typing.get_type_hints(kind)
    plain = kind()
    lines.append("Fields, for --set:" if fields(kind) else "It has no fields.")
    for f in fields(kind):
        meaning = meanings.get(f.name, "")
        said = f"  {f.name} = {getattr(plain, f.name)} ({spelled(hints[f.name])}){': ' + meaning if meaning else ''}"
        lines.append(fit(said))
    ours = plain.about.remark
    closing = [
        *([f"Beside its name tables say how its default differs from the paper: {ours}."] if ours else []),
        f"Sends beyond the model's weights: {kind.traits.sends or 'nothing'}.",
        f"A step costs {kind.passes:.3g} of FedAvg's, by its passes.",
        *_composition(plain),
    ]
    lines += ["", *map(fit, closing), ""]
    return "\n".join(lines)


def _composition(method: Method) -> list[str]:
    from unseen.core.words import ONE_OWNER
    from unseen.method import Method, compose, overrides
    from unseen.registry import registered

    tools = ("descend",)
    verbs = [verb for verb, value in vars(Method).items() if inspect.isfunction(value) and verb[0] != "_"]
    own = [verb for verb in verbs if verb not in tools and overrides(method, verb)]
    lines = [f"Differs from FedAvg in: {', '.join(own) or 'nothing'}."]
    if alone := [verb for verb in own if verb in ONE_OWNER]:
        lines.append(f"No other part of a composed method may define: {', '.join(alone)}.")
    if method.about.ignores:
        lines.append(f"Trains without the other parts': {', '.join(sorted(method.about.ignores))}.")
    clashes = []
    for name, kind in registered().items():
        if name != method.name:
            try:
                compose(method, kind())
            except UserError:
                clashes.append(name)
    lines.append(f"Does not compose with: {', '.join(clashes)}." if clashes else "Composes with every other method.")
    return lines


def field_comments(kind: type) -> dict[str, str]:
    """The comment behind each field in the source: its meaning, written where the field is."""
    found: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        try:
            source = textwrap.dedent(inspect.getsource(owner))
        except (OSError, TypeError):  # typed into a prompt, or written in C
            continue
        comments = {
            token.start[0]: token.string.lstrip("# ")
            for token in tokenize.generate_tokens(io.StringIO(source).readline)
            if token.type == tokenize.COMMENT
        }
        body = ast.parse(source).body[0]
        for node in body.body if isinstance(body, ast.ClassDef) else []:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                rows = range(node.lineno, (node.end_lineno or node.lineno) + 1)
                found[node.target.id] = " ".join(comments[row] for row in rows if row in comments)
    return found


def protocols(name: Annotated[str | None, typer.Argument(help="A protocol.")] = None) -> None:
    """List the named budgets, or show one with all its settings."""
    from unseen.core.options import options_of, value_of
    from unseen.runs.protocols import PROTOCOLS, protocol_of
    from unseen.runs.settings import Protocol

    if name is not None:
        chosen = protocol_of(name)
        rows = [
            [setting.name, str(value_of(chosen, setting)), setting.about.help]
            for setting in options_of(Protocol).values()
        ]
        rows.append(["seeds", ", ".join(map(str, chosen.seeds)), "Seeds of the published numbers, or for ours."])
        print_table(
            ["setting", "value", "what it is"], rows, title=f"{chosen.name}: {chosen.about}",
            folded=("value", "what it is"),
        )  # fmt: skip
        return
    columns = ["protocol", "data", "net", "clients", "budget", "optimizer", "selection", "about"]
    print_table(columns, [_row(protocol) for protocol in PROTOCOLS.values()], folded=columns[2:])


def _row(protocol: Protocol) -> tuple[str, ...]:
    data, plan = protocol.data, protocol.plan
    return (
        protocol.name,
        data.name,
        f"{protocol.net.backbone}, {data.image_size} px",
        data.partition if plan.participation == 1 else f"{data.partition}, {plan.participation:g} a round",
        budget(plan),
        f"{plan.optimizer.name}, lr {plan.optimizer.lr:g}, {plan.optimizer.schedule}",
        f"{plan.client_selection}, {chosen_by(plan.server_selection)}",
        protocol.about.split(":")[0],
    )
