"""The pages are true in what a machine can check: links lead somewhere, commands parse, lines are short, the site builds."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer

from unseen.cli import app
from unseen.methods import FAMILIES, by_family
from unseen.registry import registered
from unseen.reports.names import TITLES

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")],
    key=lambda path: path.relative_to(ROOT).as_posix(),
)
LINK = re.compile(r"\]\(([^)\s]+)\)")
OUTSIDE = re.compile(r"[a-z]+:")  # https:, mailto:
LONGEST = 120


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def lines_outside_code(page: Path) -> Iterator[tuple[int, str]]:
    fence = ""
    for number, line in enumerate(page.read_text().splitlines(), 1):
        mark = re.match(r"\s*(`{3,}|~{3,})", line)
        if mark and not fence:
            fence = mark[1]
        elif mark and mark[1].startswith(fence):
            fence = ""
        elif not fence:
            yield number, line


def blocks(page: Path) -> Iterator[str]:
    """What is inside of fences, and in lists of commands that are indented instead."""
    text = page.read_text()
    for match in re.finditer(r"^( *)```([a-z]*)\n(.*?)^\1```", text, re.DOTALL | re.MULTILINE):
        if match[2] not in ("python", "toml"):
            yield match[3]
    yield from (match[0] for match in re.finditer(r"(?:^ {4}unseen [^\n]*\n)+", text, re.MULTILINE))


def commands(page: Path) -> Iterator[list[str]]:
    """The `unseen ...` lines of a page, as a shell would split them. Lines that end with a backslash go on."""
    for block in blocks(page):
        for line in block.replace("\\\n", " ").splitlines():
            if not re.match(r"(?:[A-Z_]+=\S+ +)*unseen (?!accuracy )", line.strip()):  # and no output of it
                continue
            words = shlex.split(line.strip(), comments=True)
            yield words[words.index("unseen") + 1 :]


def parse(words: list[str]) -> None:
    """As the command line reads it: every command and option must exist. Nothing is run."""
    if "--help" in words or "--version" in words:
        return
    command: click.Command = typer.main.get_command(app)
    context = command.make_context("unseen", list(words))
    while isinstance(command, click.Group):
        name, found, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert found is not None
        command, context = found, found.make_context(name, rest, parent=context)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_files(page: Path) -> None:
    lost = [
        f"line {number}: {target}"
        for number, line in lines_outside_code(page)
        for target in LINK.findall(re.sub(r"`[^`]*`(?!\])", "", line))
        if not OUTSIDE.match(target) and not target.startswith("#")
        if not (page.parent / target.split("#")[0]).exists()
    ]
    assert not lost


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_lines_are_short(page: Path) -> None:
    """Outside of tables, code, and lines that are one long link. An address counts nothing: it cannot be broken."""
    long = [
        f"line {number}: {len(line)} characters"
        for number, line in lines_outside_code(page)
        if len(re.sub(r"\(https://[^)\s]+\)", "()", line)) > LONGEST
        and not line.lstrip().startswith("|")
        and not re.match(r"^[-*]?\s*!?\[.*\]\(.*\)$", line)
    ]
    assert not long


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_parse(page: Path) -> None:
    wrong = []
    for words in commands(page):
        if "..." in words or "COMMAND" in words:
            continue
        try:
            parse(words)
        except click.exceptions.ClickException as error:
            wrong.append(f"unseen {shlex.join(words)}: {error.format_message()}")
    assert not wrong


def test_a_wrong_command_is_seen() -> None:
    with pytest.raises(click.exceptions.NoSuchOption):
        parse(["run", "--tragets", "street"])
    with pytest.raises(click.exceptions.UsageError):
        parse(["ruin", "--target", "street"])
    with pytest.raises(click.exceptions.UsageError):
        parse(["flower", "init", "hospitals", "--site", "aachen"])  # it is --sites
    parse(["--with", "mine.py", "bench", "--methods", "fedavg", "--tuned", "choices.json"])


def test_pages_with_commands_are_found() -> None:
    assert sum(1 for page in PAGES for _ in commands(page)) > 50


METHOD_PAGES = [page for page in PAGES if page.parent.name == "methods" and page.name != "index.md"]


@pytest.mark.parametrize("page", METHOD_PAGES, ids=name_of)
def test_a_method_page_says_why_first_and_has_every_part(page: Path) -> None:
    text = page.read_text()
    title, why, *rest = text.split("\n\n")
    assert title.startswith("# ") and len(why) > 150 and not re.match(r"\*\*(Paper|Code)|[|#$!<]", why), (
        "the point first"
    )
    cited = next(part for part in rest if re.match(r"\*\*(Paper|Papers|Book)\.\*\*", part))
    assert re.search(r"\]\(https://", cited) and "](../../src/unseen/" in text, "links to the paper and to our file"
    assert "](../img/" in text, "a figure"
    for heading in ("The method", "Verbs", "Our numbers"):
        assert f"\n## {heading}\n" in text
    assert re.search(r"<!-- results: method \S+ digits pacs -->", text)
    # A formula is typeset; what is indented is a command, or belongs to a list.
    indented = re.findall(r"^ {4}(?!unseen |\S.*[.,;:]$)\S.*=.*$", re.sub(r"(?s)\$\$.*?\$\$", "", text), re.MULTILINE)
    assert not indented


def test_every_method_has_a_page_a_name_and_its_numbers_there() -> None:
    pages = {page: page.read_text() for page in METHOD_PAGES}
    listed = (ROOT / "docs/methods/index.md").read_text()
    for name, kind in registered().items():
        if not kind.__module__.startswith("unseen.methods."):
            continue  # one that another test registered
        assert name in TITLES, f"{name} has no name for tables"
        assert sum(f"<!-- results: method {name} digits pacs -->" in text for text in pages.values()) == 1, name
        assert f"| [`{name}`](" in listed, name


def test_the_map_of_the_field_is_in_the_order_of_the_list() -> None:
    """By idea, and within an idea by year, as `unseen methods` prints them. A composed method stands among its parts."""
    text = (ROOT / "docs/methods/index.md").read_text()
    for family, cards in by_family().items():
        part = text.partition(f"\n## {FAMILIES[family]}\n")[2].partition("\n## ")[0]
        listed = re.findall(r"^\| \[`([^`+]+)`\]", part, re.MULTILINE)
        assert listed == [card.name for card in cards if card.name in registered()], FAMILIES[family]


# The methods of the benchmark nearest to ours, as it names them.
BENCHMARK = {
    "ERM", "IRM", "Fish", "Mixup", "MMD", "DeepCORAL", "GroupDRO", "FedProx", "SCAFFOLD", "AFL", "FedGMA", "FedDG",
    "FedADG", "FedSR",
}  # fmt: skip
FL_BENCH = {"FedSR", "ADCOL", "FedIIR"}  # in its list "FL Domain Generalization Methods"


def test_the_methods_of_other_collections_are_here_by_name() -> None:
    part = (ROOT / "docs" / "comparison.md").read_text().partition("### Their methods, here")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in part.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 5
    for _, collection, here, *_ in rows:
        names = re.findall(r"`([^`]+)`", here)
        assert names and set(names) <= set(registered()), collection
    assert set(re.findall(r"\w+", rows[0][2])) >= BENCHMARK
    assert rows[3][1].startswith(" FL-bench") and set(re.findall(r"\w+", rows[3][2])) >= FL_BENCH


def test_every_command_has_its_options_on_the_page() -> None:
    def below(command: click.Command, words: tuple[str, ...] = ()) -> Iterator[str]:
        if isinstance(command, click.Group):
            for name, one in command.commands.items():
                yield from below(one, (*words, name))
        else:
            yield " ".join(words)

    page = (ROOT / "docs/reference/options.md").read_text()
    assert re.findall(r"^<!-- options: (.+) -->$", page, re.MULTILINE) == list(below(typer.main.get_command(app)))


def test_the_drawings_of_verbs_are_what_the_methods_say() -> None:
    script = ROOT / "docs/figures/verbs.py"
    spec = importlib.util.spec_from_file_location("verbs", script)
    assert spec is not None and spec.loader is not None
    verbs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(verbs)
    files = {path.stem: path.read_text() for path in (ROOT / "docs/img/verbs").glob("*.svg")}
    assert files == verbs.drawings(), f"run: python {script.relative_to(ROOT)}"
    assert verbs.changed(registered()["gperxan"]()) == {"build", "share", "penalty"}


def test_the_site_builds_strictly(tmp_path: Path) -> None:
    for module in ("mkdocs", "material", "mkdocstrings", "latex2mathml"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed: pip install -c constraints.txt -e '.[docs]'")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert built.returncode == 0, built.stderr
    page = (tmp_path / "site/reference/method.html").read_text()
    assert "counts_images" in page  # fields and their comments come from the source
    asked = [
        found
        for file in (tmp_path / "site").rglob("*.html")
        for found in re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(https?://[^"]+)"', file.read_text())
    ]
    assert not asked, "the site asks a network for these"


def test_a_benchmark_that_needs_the_tests_finds_them_wherever_it_is_started() -> None:
    for script in sorted((ROOT / "benchmarks").glob("*.py")):
        text = script.read_text()
        if "\nfrom tests" in text:
            assert f"python -m benchmarks.{script.stem}" in text or "sys.path.insert" in text, script
