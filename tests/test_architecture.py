"""Imports go one way. The rooms and who may look into which are in docs/architecture.md."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "unseen"

# room -> rooms it may import (of unseen); itself is always allowed
MODEL = {"core", "nets", "method"}
ONE_RUN = MODEL | {"federation", "data", "registry", "methods"}
MAY_IMPORT: dict[str, set[str]] = {
    "core": set(),
    "nets": {"core"},
    "method": {"core", "nets"},
    "methods": MODEL,
    "registry": {"core", "method", "methods"},
    "federation": MODEL,
    "data": {"core"},
    "runs": ONE_RUN,
    "engines": ONE_RUN | {"runs"},
    "delivery": ONE_RUN | {"runs"},
    "experiments": ONE_RUN | {"runs"},
    "audits": ONE_RUN | {"runs", "engines", "experiments"},
    "reports": {"core", "runs", "experiments", "audits"},
}
FOR_ANNOTATIONS = {
    "core": {"method", "nets"}
}  # behind TYPE_CHECKING: what a client works with is said in core/types.py
ANYTHING = {"api", "cli", "__init__", "__main__"}


def room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """The modules that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module)
            if node.module == "unseen":
                found |= {f"unseen.{alias.name}" for alias in node.names}
    return found


FILES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_one_way(path: Path) -> None:
    here = room(path)
    for module in imported(path):
        parts = module.split(".")
        if parts[0] in ("flwr", "ray"):
            inside = path.relative_to(SOURCE).parts[:2]
            assert inside == ("engines", "flower"), "only the Flower engine imports flwr and ray"
        if parts[0] != "unseen" or len(parts) < 2 or here in ANYTHING:
            continue
        assert here in MAY_IMPORT, f"the room {here} is not in the rules"
        allowed = MAY_IMPORT[here] | FOR_ANNOTATIONS.get(here, set()) | {here}
        assert parts[1] in allowed, f"{here} may not import {parts[1]}"


@pytest.mark.parametrize("path", sorted((SOURCE / "methods").glob("*.py")), ids=lambda p: p.stem)
def test_no_method_imports_another(path: Path) -> None:
    assert not [m for m in imported(path) if m.startswith("unseen.methods")]


def test_nothing_is_unpickled_and_no_model_is_copied_deeply() -> None:
    for path in FILES:
        text = path.read_text()
        assert "deepcopy(" not in text, path
        assert "import pickle" not in text, path
        assert "torch.load(" not in text.replace("safetensors.torch.load(", ""), path


def test_every_method_file_opens_with_the_method() -> None:
    for path in (SOURCE / "methods").glob("[a-z]*.py"):
        opening = ast.get_docstring(ast.parse(path.read_text())) or ""
        assert "The method:" in opening, path.name


def test_a_run_with_a_net_of_ours_starts_without_the_heavy_imports() -> None:
    heavy = ("timm", "torchvision", "sklearn", "matplotlib", "flwr", "ray")
    code = f"import sys, unseen.api, unseen.runs.run, unseen.cli; print([m for m in {heavy} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
