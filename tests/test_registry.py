"""Names to methods, and settings to fields."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import pytest

from unseen.core.errors import UserError
from unseen.experiments.inference_rules import RULES
from unseen.method import Method, name_of, parts_of
from unseen.methods import ELSEWHERE, check_names
from unseen.methods.fedprox import FedProx
from unseen.registry import convert, parse, registered


@dataclass(frozen=True)
class Sample(Method):
    name: ClassVar[str] = "sample"
    number: int = 1
    share_it: bool = False
    kind: Literal["one", "two"] = "one"
    maybe: float | None = None
    stages: tuple[int, ...] = (0, 1)


def test_files_are_registered_by_being_there() -> None:
    assert {"fedavg", "fedprox", "fedbn", "silobn"} <= set(registered())


def test_parse_with_fields() -> None:
    method = parse("fedbn+fedprox", {"mu": "0.5"})
    assert name_of(method) == "fedbn+fedprox"
    assert parts_of(method)[1] == FedProx(mu=0.5)
    assert parse("fedprox", {"fedprox.mu": 0.25}) == FedProx(mu=0.25)


def test_unknown_names_come_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r'no method "fedavgg"\. Did you mean "fedavg"'):
        parse("fedavgg")
    with pytest.raises(UserError, match=r'no field "muu"\. Did you mean "mu"'):
        parse("fedprox", {"muu": "1"})


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_publication_with_another_name_here_is_told_where_it_is(name: str) -> None:
    assert name not in registered()
    for raised in (lambda: parse(name), lambda: check_names(f"fedavg+{name.upper()}")):
        with pytest.raises(UserError) as caught:
            raised()
        assert str(caught.value).endswith(f'". {ELSEWHERE[name].said}')
    assert name == ELSEWHERE[name].title.lower().replace("deep ", "deep").replace("q-f", "qf")
    for method in ELSEWHERE[name].methods:
        assert f"`{method}`" in ELSEWHERE[name].what
        parse(method)
    for word in re.findall(r"`([^`]+)`", ELSEWHERE[name].said):
        rule = re.fullmatch(r"unseen evaluate --inference (\S+)", word)
        if rule is not None:
            assert rule[1] in RULES
        elif not word.startswith("--"):
            parse(word)


def test_the_pages_table_of_other_names_has_each_of_them() -> None:
    page = (Path(__file__).parents[1] / "docs" / "methods" / "index.md").read_text()
    part = page.partition("\n## Other names\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in part.splitlines() if line.startswith("| ")][1:]
    listed = {title: here for titles, here in rows for title in titles.split(", ")}
    assert listed.keys() == {one.title for one in ELSEWHERE.values() if one.is_here}
    for one in ELSEWHERE.values():
        if one.is_here:
            assert all(f"`{method}`" in listed[one.title] for method in one.methods), one.title
            assert one.methods or "--inference" in listed[one.title]
    lost = page.partition("\n## Not built, and why\n")[2]
    assert all(f"**{one.title}**" in lost for one in ELSEWHERE.values() if not one.is_here)


@pytest.mark.parametrize(
    "field, raw, value",
    [
        ("number", "3", 3),
        ("share_it", "true", True),
        ("share_it", "off", False),
        ("kind", "two", "two"),
        ("maybe", "none", None),
        ("maybe", "0.5", 0.5),
        ("stages", "0,2", (0, 2)),
        ("stages", [1], (1,)),
        ("stages", "2", (2,)),
    ],
)
def test_values_become_the_fields_type(field: str, raw: object, value: object) -> None:
    assert convert(Sample, field, raw) == value


@pytest.mark.parametrize("field, raw", [("number", "x"), ("share_it", "perhaps"), ("kind", "three"), ("stages", "a,b")])
def test_values_that_do_not_fit_are_an_error(field: str, raw: str) -> None:
    with pytest.raises(UserError, match=f"does not fit the field {field} of sample"):
        convert(Sample, field, raw)
