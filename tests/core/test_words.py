"""Foreign text is shown as text, wherever it is shown."""

from __future__ import annotations

import csv
import io

import pytest

from unseen.core.terminal import CleanConsole
from unseen.core.words import cell, plain
from unseen.reports import figures, tables
from unseen.reports.tables import Grid, GridCell

EVIL = {
    "a colour": ("\x1b[31mred\x1b[0m", "?[31mred?[0m"),
    "a cursor": ("\x1b[2J\rgone\x08", "?[2J?gone?"),
    "turned round": ("photo\u202egnp.exe", "photo?gnp.exe"),
    "a new line": ("east\nError: all is lost", "east?Error: all is lost"),
    "another new line": ("east\u2028west\x85", "east?west?"),
    "half a letter": ("\udcff\udcfe.png", "??.png"),
    "a formula": ('=HYPERLINK("http://x","y")', '=HYPERLINK("http://x","y")'),
    "a file": (r"\input{/etc/passwd}", r"\input{/etc/passwd}"),
    "a script": ("<script>alert(1)</script>", "<script>alert(1)</script>"),
    "Persian, with a joiner": ("می\u200cخواهم", "می\u200cخواهم"),
    "plain": ("Müller & Söhne 日本 😀", "Müller & Söhne 日本 😀"),
}


@pytest.mark.parametrize("what", EVIL)
def test_what_cannot_be_seen_becomes_a_question_mark(what: str) -> None:
    text, shown = EVIL[what]
    assert plain(text) == shown and plain(shown) == shown


@pytest.mark.parametrize("what", EVIL)
def test_a_terminal_gets_no_order_from_a_name(what: str) -> None:
    from rich.table import Table
    from rich.text import Text

    file = io.StringIO()
    screen = CleanConsole(file=file, width=200, force_terminal=True, color_system=None)
    screen.print(EVIL[what][0], markup=False, highlight=False)
    table = Table()
    table.add_row(Text(EVIL[what][0]))
    screen.print(table)
    for letter in "\x1b\r\x08\u202e\u2028\x85\udcff":
        assert letter not in file.getvalue()


@pytest.mark.parametrize(
    ("text", "shown"),
    [('=HYPERLINK("x")', '\'=HYPERLINK("x")'), ("+1+cmd", "'+1+cmd"), ("-2+3", "'-2+3"), ("@SUM(A1)", "'@SUM(A1)"),
     (" =1+1", "' =1+1"), ("\t=1+1", "?=1+1"), ("-0.31", "-0.31"), ("-", "-"), ("cat", "cat"), ("a=b", "a=b")],
)  # fmt: skip
def test_a_spreadsheet_computes_nothing(text: str, shown: str) -> None:
    assert cell(text) == shown


def grid(name: str) -> Grid:
    return Grid("t", name, ["method", name], [[GridCell(name), GridCell("50.0", number=50.0)]], [name])


def test_tables_and_pages_carry_nothing_out() -> None:
    rows = list(csv.reader(io.StringIO(tables.comma_separated(grid('=HYPERLINK("x")')))))
    assert rows[1][0] == '\'=HYPERLINK("x")' and rows[0][1] == '\'=HYPERLINK("x")'
    tex = tables.latex(grid(r"\input{/etc/passwd}"))
    assert not any(r"\input" in line for line in tex.splitlines() if not line.startswith("%"))
    assert r"\textbackslash{}input\{/etc/passwd\}" in tex
    assert "<script" not in tables.markdown(grid("<script>alert(1)</script>"))
    assert figures.text("<script>\x1b[31m") == "&lt;script&gt;?[31m"
    for written in (tables.latex, tables.markdown, tables.comma_separated):
        assert "\x1b" not in written(grid("\x1b[31m")) and "\u202e" not in written(grid("\u202e"))
        assert len(written(grid("a\nb")).splitlines()) == len(written(grid("ab")).splitlines())
