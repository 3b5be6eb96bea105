"""One file per method. A file here is registered by being here; no method imports another.

What a file says of its methods in plain text (`cards`) is read without running it: a list of all methods, or the error
for a mistyped name, does not wait for torch.
"""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from unseen.core.errors import UserError, unknown
from unseen.core.words import ONE_OWNER

FAMILIES = {  # the ideas, in the order of lists and pages
    "averaging": "Averaging, and against drift",
    "servers": "Servers that do more than average",
    "weights": "Weights of clients",
    "gradients": "Gradients and risks that agree",
    "flat minima": "Flat minima",
    "augmentation": "Images and features changed",
    "styles": "Styles and spectra",
    "features": "Features that do not tell the domain",
    "prototypes": "Prototypes",
    "heads": "Heads of others",
    "normalisation": "Normalisation",
    "adapters": "Adapters and prompts",
    "robust": "Against a client that lies",
    "privacy": "Noise against what leaks",
    "": "Of your own",
}


@dataclass(frozen=True)
class Elsewhere:
    """A publication that no method is called after, and what there is instead."""

    title: str  # as its authors write it
    what: str  # it is here, or why it is not
    methods: tuple[str, ...] = ()  # whose cards say more
    is_here: bool = True

    @property
    def said(self) -> str:
        return f"{self.title} is here as {self.what}." if self.is_here else f"{self.title} is not here: {self.what}."


RULES_OF_INFERENCE = ("TENT", "SAR", "T3A", "LAME", "TsmoBN", "FedSPL", "TBN", "IABN", "MixNorm")
# By the name in small letters.
ELSEWHERE = {
    "fedgamma": Elsewhere("FedGAMMA", "`fedsam+scaffold`", ("fedsam+scaffold",)),
    "fedasam": Elsewhere("FedASAM", "`fedsam` with `--set adaptive=true`", ("fedsam",)),
    "pardon": Elsewhere("PARDON", "`fisc`", ("fisc",)),
    "feddg": Elsewhere("FedDG", "`elcfs`", ("elcfs",)),
    "feddg-ga": Elsewhere("FedDG-GA", "`ga`", ("ga",)),
    "fedga": Elsewhere("FedGA", "`ga`", ("ga",)),
    "fedalign": Elsewhere("FedAlign", "`fedccrl`, which has its modules", ("fedccrl",)),
    "deepcoral": Elsewhere("Deep CORAL", "`coral`", ("coral",)),
    "qffl": Elsewhere("q-FFL", "`qfedavg`, which solves it", ("qfedavg",)),
    "fedopt": Elsewhere(
        "FedOpt", "`fedadam`, `fedyogi`, `fedadagrad` and `fedavgm`", ("fedadam", "fedyogi", "fedadagrad", "fedavgm")
    ),
    "tta-feddg": Elsewhere(
        "TTA-FedDG", "`efdmix`, and at test time as `unseen evaluate --inference fedspl`", ("efdmix",)
    ),
    **{
        title.lower(): Elsewhere(title, f"a rule for test time: `unseen evaluate --inference {title.lower()}`")
        for title in RULES_OF_INFERENCE
    },
    "fedka": Elsewhere(
        "FedKA",
        "all of its parts train on images of the unseen domain. `dann` and `mmd` come near",
        is_here=False,
    ),
}
OWN_FILES = "UNSEEN_METHODS"  # the variable with the files of `unseen --with`, which all processes of a run inherit
NO_OWN_FILES = "none"  # its value if no file is to be read, not even a copy in a run directory


def listed_files() -> list[Path]:
    """The files of `unseen --with`."""
    listed = os.environ.get(OWN_FILES, "")
    return [] if listed == NO_OWN_FILES else [Path(name) for name in listed.split(os.pathsep) if name]


@dataclass(frozen=True)
class Card:
    """What a method's source says of it."""

    name: str
    headline: str  # the first sentence of its class, or of its file
    sends: str  # beyond the model's weights; "" for nothing
    year: int  # of the publication; 0 where its file does not say
    family: str  # one of FAMILIES; "" where its file does not say
    owns: tuple[str, ...]  # verbs that no other part of a composed method may define
    remark: str = ""  # how its default differs from its paper; "" where it does not
    passes: float = 1.0  # what a step costs, in FedAvg's: passes over a batch, forward and backward


def cards() -> dict[str, Card]:
    """Every method by its name on the command line: the files of this folder, and the user's own."""
    files = [path for path in Path(__file__).parent.glob("*.py") if path.name != "__init__.py"]
    files += listed_files()
    return {card.name: card for path in sorted(files) for card in _cards_in(path)}


def by_family() -> dict[str, list[Card]]:
    """All methods by their idea, in the order of FAMILIES, and within an idea by year. An idea of your own is the last."""
    groups: dict[str, list[Card]] = {family: [] for family in FAMILIES}
    for card in sorted(cards().values(), key=lambda card: (card.year, card.name)):
        groups[card.family if card.family in FAMILIES else ""].append(card)
    return {family: group for family, group in groups.items() if group}


def check_names(text: str) -> None:
    """An error for people if a part of `"fedbn+fedprox"` is no method."""
    known = cards()
    for name in (word.strip() for word in text.split("+")):
        if name not in known:
            raise no_method(name, known)


def elsewhere(name: str) -> Elsewhere | None:
    """What a publication's name stands for, if it is here and no method of your own has the name."""
    found = ELSEWHERE.get(name.lower())
    return found if found is not None and found.is_here and name not in cards() else None


def no_method(name: str, known: Iterable[str]) -> UserError:
    """The error for a name that no method has."""
    if name.lower() in ELSEWHERE:
        return UserError(f'There is no method "{name}". {ELSEWHERE[name.lower()].said}')
    more = "`unseen methods` lists them all; one of your own comes by `unseen --with FILE`."
    return unknown("method", name, known, more)


def names_in(path: Path) -> set[str]:
    """The methods that a file defines, read without running it; none if it cannot be read."""
    try:
        return {card.name for card in _cards_in(path)}
    except UserError:
        return set()


@cache
def _cards_in(path: Path) -> tuple[Card, ...]:
    if not path.is_file():
        raise UserError(f'There is no file "{path}" to read methods from; give --with a Python file.')
    try:
        tree = ast.parse(path.read_text())
    except (SyntaxError, ValueError, OSError) as error:
        raise UserError(f'"{path}" could not be read: {type(error).__name__}: {error}.') from None
    return tuple(_read(tree))


def _read(tree: ast.Module) -> Iterator[Card]:
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    for node in classes.values():
        values = _values(node)
        name = _text(values.get("name"))
        if name:
            about = inspect.cleandoc(ast.get_docstring(node) or ast.get_docstring(tree) or "")
            headline = about.split("\n\n")[0].replace("\n", " ")
            defined = _verbs(node, classes)
            yield Card(
                name,
                headline,
                _trait(values.get("traits"), "sends"),
                int(_number(values.get("year"))),
                _text(values.get("family")),
                tuple(verb for verb in ONE_OWNER if verb in defined),
                _trait(values.get("traits"), "remark"),
                _number(values.get("passes")) or 1.0,
            )


def _values(node: ast.ClassDef) -> dict[str, ast.expr | None]:
    """What a class sets in its body."""
    values = {_target(line): line.value for line in node.body if isinstance(line, ast.AnnAssign)}
    return values | {_target(line): line.value for line in node.body if isinstance(line, ast.Assign)}


def _verbs(node: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> set[str]:
    """The functions of a class and of those of its bases that are in its file."""
    found = {line.name for line in node.body if isinstance(line, ast.FunctionDef)}
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id in classes:
            found |= _verbs(classes[base.id], classes)
    return found


def _text(value: ast.expr | None) -> str:
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""


def _number(value: ast.expr | None) -> float:
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, (int, float)) else 0


def _target(statement: ast.AnnAssign | ast.Assign) -> str:
    target = statement.target if isinstance(statement, ast.AnnAssign) else statement.targets[0]
    return target.id if isinstance(target, ast.Name) else ""


def _trait(traits: ast.expr | None, name: str) -> str:
    """The words behind `name` in `traits = Traits(name="...")`."""
    for keyword in traits.keywords if isinstance(traits, ast.Call) else ():
        if keyword.arg == name:
            return _text(keyword.value)
    return ""
