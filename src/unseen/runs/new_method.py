"""`unseen new-method NAME`: a file with a method, and a test of it that passes. A place to begin from."""

from __future__ import annotations

import keyword
import re
from pathlib import Path

from unseen.core.errors import UserError
from unseen.core.files import atomic
from unseen.methods import cards

TEMPLATES = Path(__file__).parent / "templates"
NAME = re.compile(r"[a-z][a-z0-9-]*")


def write_new_method(name: str, folder: Path) -> list[Path]:
    """`NAME.py` and `test_NAME.py`; what is there already is left alone."""
    module = name.replace("-", "_")
    if not NAME.fullmatch(name) or keyword.iskeyword(module):
        raise UserError(f'"{name}" is no name for a method: small letters, digits and -, beginning with a letter.')
    if name in cards():
        raise UserError(
            f'There is a method "{name}" already; `unseen methods {name}` explains it. Give yours another name.'
        )
    files = {folder / f"{module}.py": "method.py.txt", folder / f"test_{module}.py": "test_method.py.txt"}
    for path in files:
        if path.exists():
            raise UserError(f"{path} is there already; give another name, or another --out.")
    words = {"NAME": name, "MODULE": module, "CLASS": "".join(part.capitalize() for part in name.split("-"))}
    folder.mkdir(parents=True, exist_ok=True)
    for path, template in files.items():
        content = (TEMPLATES / template).read_text(encoding="utf-8")
        for word, value in words.items():
            content = content.replace(f"<{word}>", value)
        with atomic(path) as temporary:
            temporary.write_text(content, encoding="utf-8")
    return list(files)
