"""The papers' own numbers, each with its paper and table, to stand beside ours: one TOML file per paper.

Rows are as printed, `-` where the number is missing or cannot be read. Where a printed number is known to be wrong, the
correction is in the table's remark. Systems with a `~` were trained on data in one place; those with `=` are only
quoted by the paper from others (MTSSL, Epi-FCR, EISNet, L2A-OT).
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import overload

PAPERS = ("fedfd", "gperxan", "stablefdg", "fedadg")  # files here, in the order of the tables


@dataclass(frozen=True)
class PaperRow:
    """One system in one table."""

    system: str
    values: tuple[float, ...]  # by the table's columns; nan where it cannot be read
    average: float
    centralised: bool = False
    quoted: bool = False


@dataclass(frozen=True)
class PaperTable:
    """One table of one paper, of one dataset and one backbone."""

    paper: str
    table: str
    data: str
    backbone: str
    about: str
    text: str = field(repr=False)  # the rows as in the file
    protocol: str = ""  # the name of ours that is this paper's budget; "" where none is
    columns: tuple[str, ...] = ()  # domains, or what else the columns are; an average follows
    remark: str = ""
    is_main: bool = False  # the table that a method's number is taken from

    @property
    def source(self) -> str:
        return f"{self.paper} {self.table}"

    @cached_property
    def rows(self) -> tuple[PaperRow, ...]:
        found = []
        for line in self.text.strip().splitlines():
            name, _, numbers = line.strip().rpartition(":")
            values = [math.nan if word == "-" else float(word) for word in numbers.split()]
            assert len(values) == len(self.columns) + 1, f"{self.source}: {line}"
            mark, name = (name[0], name[1:].strip()) if name[0] in "~=" else ("", name.strip())
            found.append(PaperRow(name, tuple(values[:-1]), values[-1], mark != "", mark == "="))
        return tuple(found)


class _Tables(Sequence[PaperTable]):
    """All tables, read when the first of them is wanted."""

    @cached_property
    def _read(self) -> tuple[PaperTable, ...]:
        return tuple(table for name in PAPERS for table in _read_paper(Path(__file__).with_name(f"{name}.toml")))

    def __iter__(self) -> Iterator[PaperTable]:
        return iter(self._read)

    def __len__(self) -> int:
        return len(self._read)

    @overload
    def __getitem__(self, index: int) -> PaperTable: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[PaperTable]: ...
    def __getitem__(self, index: int | slice) -> PaperTable | Sequence[PaperTable]:
        return self._read[index]


def _read_paper(file: Path) -> Iterator[PaperTable]:
    found = tomllib.loads(file.read_text(encoding="utf-8"))
    for table in found["tables"]:
        columns, text = tuple(table.pop("columns", ())), table.pop("rows")
        yield PaperTable(paper=found["paper"], columns=columns, text=text, **table)


TABLES: Sequence[PaperTable] = _Tables()

# The systems' names in the papers -> names of methods here. What is not here has no counterpart.
SYSTEMS: Mapping[str, str] = {
    "FedAvg": "fedavg", "FedProx": "fedprox", "FedBN": "fedbn", "SiloBN": "silobn", "RandAug": "randaug", "MixStyle": "mixstyle",
    "SFA": "sfa", "RandConv": "randconv", "L2D": "l2d", "JiGen": "jigen", "RSC": "rsc", "SelfReg": "selfreg", "COPA": "copa",
    "FedDG": "elcfs", "ELCFS": "elcfs", "CCST": "ccst", "CSAC": "csac", "FedSR": "fedsr", "FedSAM": "fedsam",
    "SiloBN w/ GA": "silobn+ga", "FedDG-GA": "ga", "FedFD": "fedfd", "FedFD-A": "fedfd-a", "gPerXAN": "gperxan", "guide": "guide",
    "guide + I-BN": "guide+ibn", "guide + DSON": "guide+dson", "DSU": "dsu", "StableFDG": "stablefdg", "FedADG": "fedadg",
    "DoPrompt": "doprompt", "DoPrompt w/ GA": "doprompt+ga",
}  # fmt: skip


@dataclass(frozen=True)
class Published:
    """A method's average in a paper, under that paper's own budget."""

    average: float
    source: str
    note: str  # for below the table


def beside(data: str, protocol: str, methods: Sequence[str], backbone: str = "resnet18") -> dict[str, Published]:
    """The published number of each method on a dataset: of our protocol's own paper, or else of one table for all.

    One table is chosen for the whole column, the one of this backbone (or of ResNet-18, which most have) that has most
    of the methods, so that its numbers may be compared with each other; a method that is not in it has the number of
    the first table that has it. Under another protocol than the paper's they are marked as such in the note.
    """
    tables = [t for t in TABLES if t.data == data and t.is_main and t.columns]
    own = [t for t in tables if protocol and t.protocol == protocol]
    found: dict[str, Published] = {}
    wanted = backbone if any(t.backbone == backbone for t in own or tables) else "resnet18"
    for table in sorted(own or tables, key=lambda t: (t.backbone != wanted, -len(set(methods) & set(_methods(t))))):
        numbers = _methods(table)
        for method in methods:
            if method in found or method not in numbers:
                continue
            budget = "the same protocol" if own else f"its own protocol ({table.backbone}, {table.about})"
            note = f"[{table.source}]: published, under {budget}{'; not to be compared with ours' if not own else ''}."
            found[method] = Published(numbers[method], table.source, note)
    return found


def _methods(table: PaperTable) -> dict[str, float]:
    """Averages of the federated systems of a table, by our names."""
    return {
        SYSTEMS[row.system]: row.average
        for row in table.rows
        if row.system in SYSTEMS and not row.centralised and not math.isnan(row.average)
    }
