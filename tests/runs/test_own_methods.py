"""A run keeps the user's method file: it can be used without it, and is not mixed with another version of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import unseen
from tests.data.trees import paint_tree
from unseen.methods import OWN_FILES
from unseen.registry import read_own_file
from unseen.runs.directory import RunDirectory
from unseen.runs.model import load_trained
from unseen.runs.new_method import write_new_method
from unseen.runs.run import PlannedRun

TINY = {"rounds": 1, "local_steps": 1, "batch_size": 4, "image_size": 16, "test_every": 0, "backbone": "convnet"}
METHOD = '''"""Quiet: smaller logits. 2026."""
from dataclasses import dataclass
from typing import ClassVar
from unseen import Method

@dataclass(frozen=True)
class Quiet(Method):
    name: ClassVar[str] = "quiet"
    factor: float = 0.5
    def predict(self, net, x):
        return self.factor * net(x)
'''


@pytest.fixture
def forget(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A process that has not read any own file."""
    monkeypatch.setattr("unseen.registry._own", {})
    monkeypatch.delenv(OWN_FILES, raising=False)
    read_own_file.cache_clear()
    return monkeypatch


def trained(tmp_path: Path, forget: pytest.MonkeyPatch) -> Path:
    paint_tree(tmp_path / "sites", domains=3, classes=2, each=8)
    file = tmp_path / "quiet.py"
    file.write_text(METHOD)
    forget.setenv(OWN_FILES, str(file))
    given = {**TINY, "data": "folder", "root": tmp_path / "sites", "weights": "none", "bottleneck": "none"}
    result = unseen.run(target="d0", method="fedbn+quiet", out=tmp_path / "out", workers=1, **given)
    assert result.directory is not None
    forget.delenv(OWN_FILES)
    forget.setattr("unseen.registry._own", {})
    read_own_file.cache_clear()
    return result.directory


def test_a_run_is_used_without_its_file(
    tmp_path: Path, forget: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = trained(tmp_path, forget)
    assert (path / "own" / "quiet.py").read_text() == METHOD
    (tmp_path / "quiet.py").unlink()
    capsys.readouterr()
    model = load_trained(path)
    assert "reading the method quiet from" in capsys.readouterr().err
    x = torch.rand(2, 3, 16, 16)
    with torch.inference_mode():
        assert torch.allclose(torch.as_tensor(model.logits(x)).float(), 0.5 * model.net(x), atol=1e-6)
    assert len(list(unseen.predict(path, tmp_path / "sites" / "d0"))) == 16


def test_with_none_runs_nothing_from_a_run_directory(tmp_path: Path, forget: pytest.MonkeyPatch) -> None:
    path = trained(tmp_path, forget)
    mark = tmp_path / "was run"
    copy = path / "own" / "quiet.py"
    copy.write_text(f"open({str(mark)!r}, 'w')\n{METHOD}")  # not the digest that was recorded
    with pytest.raises(unseen.UserError, match="not the file that the run was made with"):
        load_trained(path)
    copy.write_text(METHOD)
    forget.setenv(OWN_FILES, "none")
    with pytest.raises(unseen.UserError, match="--with none leaves unread"):
        load_trained(path)
    (path / "own" / "methods.json").write_text('{"methods": {"quiet": {"file": "../../evil.py", "digest": "0"}}}')
    forget.delenv(OWN_FILES)
    with pytest.raises(unseen.UserError, match="not a list of methods"):
        load_trained(path)
    assert not mark.exists()


def test_a_changed_file_does_not_go_on_with_the_old_run(tmp_path: Path, forget: pytest.MonkeyPatch) -> None:
    path = trained(tmp_path, forget)
    other = tmp_path / "quiet.py"
    other.write_text(METHOD.replace("self.factor *", "2 * self.factor *"))
    forget.setenv(OWN_FILES, str(other))
    directory = RunDirectory.open(path)
    with pytest.raises(unseen.UserError, match=r"another version of quiet\.py"):
        directory.begin(directory.settings())
    from unseen.api import carry_out

    with pytest.raises(unseen.UserError, match=r"another version of quiet\.py"):
        carry_out(PlannedRun.of(directory.settings()), directory, workers=1)
    other.write_text(METHOD)
    read_own_file.cache_clear()
    assert carry_out(PlannedRun.of(directory.settings()), directory, workers=1).directory == path


def test_a_file_that_trains_when_it_is_read_is_named(tmp_path: Path, forget: pytest.MonkeyPatch) -> None:
    file = tmp_path / "eager.py"
    file.write_text(METHOD + "\nimport unseen\nunseen.run(data='digits', target='ink', rounds=1)\n")
    with pytest.raises(unseen.UserError, match=r"eager\.py.*trains when it is read.*__main__"):
        read_own_file(file)


def test_a_new_method_has_a_test_that_passes(tmp_path: Path, forget: pytest.MonkeyPatch) -> None:
    method, test = write_new_method("fed-calm", tmp_path)
    assert (method.name, test.name) == ("fed_calm.py", "test_fed_calm.py")
    forget.syspath_prepend(tmp_path)  # as pytest does for a test's folder
    scope: dict[str, object] = {"__file__": str(test), "__name__": "test_fed_calm"}
    exec(compile(test.read_text(), str(test), "exec"), scope)
    tests = [value for name, value in scope.items() if name.startswith("test_")]
    assert len(tests) == 2
    for one in tests:
        one()  # type: ignore[operator]
    with pytest.raises(unseen.UserError, match="there already"):
        write_new_method("fed-calm", tmp_path)
    with pytest.raises(unseen.UserError, match='method "fedavg" already'):
        write_new_method("fedavg", tmp_path)
    for name in ("Fed", "1st", "a b", "../x", ""):
        with pytest.raises(unseen.UserError, match="no name for a method"):
            write_new_method(name, tmp_path)
