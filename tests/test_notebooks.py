"""The notebooks run from the first cell to the last, with a smaller budget, and show what they say they show."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pytest

pytestmark = pytest.mark.usefixtures("runs_here")

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
SMALL = {"rounds": 1, "local_steps": 1, "batch_size": 4, "image_size": 16, "test_every": 1}


def run_notebook(name: str) -> tuple[dict[str, Any], list[object]]:
    """Every code cell in one scope, as a kernel does; the values of last expressions are what a notebook shows."""
    book = json.loads((FOLDER / f"{name}.ipynb").read_text())
    assert book["nbformat"] == 4 and all(not cell.get("outputs") for cell in book["cells"]), "kept without output"
    scope: dict[str, Any] = {"__name__": "__main__"}
    shown: list[object] = []
    for cell in book["cells"]:
        if cell["cell_type"] != "code":
            continue
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name, "exec", dont_inherit=True), scope)
        if last is not None:
            shown.append(eval(compile(ast.Expression(last.value), name, "eval", dont_inherit=True), scope))
        if "parameters" in cell["metadata"].get("tags", []):
            scope["SETTINGS"] |= SMALL
    plt.close("all")
    return scope, shown


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("unseen.registry._own", {})


def test_the_researchers_notebook() -> None:
    scope, shown = run_notebook("researcher")
    assert repr(shown[0]).startswith("fedavg on digits, unseen street, seed 0") and set(shown[2]) == set("0123456789")
    assert [name for name, _ in shown[4]] == ["fedavg", "fedcalm", "fedbn+fedcalm"]
    assert {row["method"] for row in scope["bench"].rows()} == {"fedavg", "fedbn"}
    assert scope["page"].read_text().startswith("<!doctype html>")


def test_the_engineers_notebook() -> None:
    scope, shown = run_notebook("engineer")
    assert len(scope["bench"].rows()) == 3 and scope["model"].record.target == "none"
    assert "each client sent" in scope["model"].record.ledger
    assert len(scope["found"]) == 24 and {label for _, label, _ in shown[-1]} <= {"bright", "dark"}
