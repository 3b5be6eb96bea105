"""What `mkdocs build` does beyond MkDocs itself (named in mkdocs.yml).

- A link to a file outside of docs, as `../src/unseen/method.py`, leads to a page of the site that shows the file. So the
  same link works on a code host, and in a site that is opened from disk. A file that is not there fails the build.
- Formulas become MathML while the site is built: no script, no network.
- Tables of what the program knows best are made from it: `<!-- options: run -->`, `<!-- settings -->`.
"""

from __future__ import annotations

import posixpath
import re
from html import unescape
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
SHOWN_BELOW = "project"  # where pages of files outside of docs are in the site
LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
LANGUAGES = {".py": "python", ".toml": "toml", ".sh": "bash", ".json": "json", ".txt": "text", ".cff": "yaml"}
METHODS = "Methods"


# --- files outside of docs -------------------------------------------------------------------------------------------
def file_of(uri: str) -> str:
    """The file in the repository that a page is made from."""
    if uri.startswith(f"{SHOWN_BELOW}/"):
        name = uri.removeprefix(f"{SHOWN_BELOW}/")
        return name if (ROOT / name).is_file() else name.removesuffix("/index.md").removesuffix(".md")
    return f"docs/{uri}"


def page_of(name: str) -> str:
    """The page that shows a file or folder of the repository."""
    if name.startswith("docs/") and (ROOT / name).is_file():
        return name.removeprefix("docs/")
    if (ROOT / name).is_dir():
        return f"{SHOWN_BELOW}/{name}/index.md"
    return f"{SHOWN_BELOW}/{name}" if name.endswith(".md") else f"{SHOWN_BELOW}/{name}.md"


def linked(name: str, text: str) -> set[str]:
    """Files and folders of the repository, outside of docs, that a Markdown file links to."""
    found = set()
    for match in LINK.finditer(text):
        target = posixpath.normpath(posixpath.join(posixpath.dirname(name), match[2]))
        there = ROOT / target
        if there.exists() and not (target.startswith("docs/") and there.is_file()):
            found.add(target)
    return found


def on_files(files: Files, config: Any) -> Files:
    """Add a page for every file outside of docs that is linked to, from docs or from such a page."""
    todo = {
        target
        for file in files.documentation_pages()
        for target in linked(f"docs/{file.src_uri}", (ROOT / "docs" / file.src_uri).read_text())
    }
    done: set[str] = set()
    while todo - done:
        name = min(todo - done)
        done.add(name)
        there = ROOT / name
        if there.is_dir():
            listing = "\n".join(f"- `{path.name}`" for path in sorted(there.iterdir()) if path.name[0] not in "._")
            content = f"# {name}\n\n{listing}\n"
        elif there.suffix == ".md":
            content = there.read_text()
            todo |= linked(name, content)
        else:
            code = there.read_text()
            content = f"# {name}\n\n````{LANGUAGES.get(there.suffix, 'text')}\n{code}\n````\n"
        files.append(File.generated(config, page_of(name), content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    name = file_of(page.file.src_uri)
    here = posixpath.dirname(page.file.src_uri)

    def moved(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(name), match[2]))
        if not (ROOT / target).exists():
            return match[0]
        return match[1] + posixpath.relpath(page_of(target), here or ".") + match[3]

    if name.endswith(".md"):
        markdown = LINK.sub(moved, markdown)
    return MARKS.sub(lambda match: TABLES[match[1]](match[2] or ""), markdown)


# --- the navigation --------------------------------------------------------------------------------------------------
def on_config(config: Any) -> Any:
    """All pages of methods, by name, below the page that lists them by idea."""
    pages = sorted(path.name for path in (ROOT / "docs/methods").glob("*.md") if path.name != "index.md")
    for entry in config.nav:
        if METHODS in entry:
            entry[METHODS] = [{"All methods": "methods/index.md"}, *(f"methods/{name}" for name in pages)]
    return config


# --- formulas --------------------------------------------------------------------------------------------------------
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    from latex2mathml.converter import convert

    return FORMULA.sub(
        lambda match: convert(unescape(match[3]), display="block" if match[2] == "[" else "inline"), html
    )


# --- tables ----------------------------------------------------------------------------------------------------------
MARKS = re.compile(r"^<!-- (options|settings)(?:: ([a-z -]+))? -->$", re.MULTILINE)


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace(" | ", " or ").replace("\n", " ") for cell in cells) + " |"


def options_table(command: str) -> str:
    """The options of a command, from the command line's own parser."""
    import typer

    from unseen.cli import app

    found: Any = typer.main.get_command(app)
    for word in command.split():
        found = found.commands[word]
    rows = [_row("option", "takes", "what it does"), _row("---", "---", "---")]
    for one in found.params:
        if one.name == "help":
            continue
        option = one.param_type_name == "option"
        names = (
            ", ".join(f"`{name}`" for name in (*one.opts, *one.secondary_opts)) if option else f"`{one.name.upper()}`"
        )
        kind = "" if option and one.is_flag else (one.metavar or one.type.name).lower()
        required = " Required." if one.required else ""
        rows.append(_row(names, f"`{kind}`" if kind else "", ((getattr(one, "help", "") or "") + required).strip()))
    return "\n".join(rows)


def settings_table(_: str) -> str:
    """Every setting of a run, from the dataclass fields themselves."""
    from unseen.core.options import options_of, spelled
    from unseen.runs.settings import Settings

    rows = [_row("Python and TOML", "command line", "takes", "default", "what it is"), _row(*["---"] * 5)]
    for one in options_of(Settings).values():
        rows.append(
            _row(f"`{one.name}`", f"`{one.flag}`", f"`{spelled(one.hint)}`", f"`{one.default}`", one.about.help)
        )
    return "\n".join(rows)


TABLES = {"options": options_table, "settings": settings_table}
