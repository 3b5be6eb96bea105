"""`unseen flower status`: in words, as JSON, and as a page."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from unseen.cli import app
from unseen.engines.flower.status import SiteStatus, Status, StatusBoard, headlines, site_rows
from unseen.engines.flower.status_page import page, server
from unseen.runs.results import RoundLine, Validation


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run in its third round that waits for one of three sites."""
    folder = tmp_path / "app" / "runs" / "one"
    folder.mkdir(parents=True)
    board = StatusBoard(folder, ["aachen", "bergen", "cadiz"], "0.2.0", clock=lambda: 0.0)
    board.now.method, board.now.rounds = "fedbn", 20
    board.now.sites["aachen"] = SiteStatus(True, time.time() - 3, 812, "0.2.0")
    board.now.sites["bergen"] = SiteStatus(True, time.time() - 130, 77, "0.1.0")
    board.now.sites["cadiz"] = SiteStatus(refused="<b>no images</b>")
    board.round(
        RoundLine(
            2,
            0.71,
            {},
            {"aachen": 4_000_000, "bergen": 5_000_000},
            {"aachen": 18_000_000},
            Validation(1, 0.5, {}),
            None,
        )
    )
    board.now.waiting, board.now.said = ["bergen"], "round 2: aachen, bergen"
    board.write()
    return tmp_path / "app"


def test_in_words(run: Path) -> None:
    done = CliRunner().invoke(app, ["flower", "status", str(run)])
    assert done.exit_code == 0, done.output
    for words in (
        "fedbn: round 2 of 20",
        "loss 0.7100, validation 50.00 %, 9.00 MB up and 18.00 MB down in the last round",
        "waiting for bergen",
        "2 min ago",
        "the coordinator has 0.2.0",
        "refused: <b>no images</b>",
        "812",
    ):
        assert words in done.output, words
    cadiz = next(line for line in done.output.splitlines() if line.startswith("cadiz"))
    assert "absent" in cadiz and "never" in cadiz


def test_as_json(run: Path) -> None:
    done = CliRunner().invoke(app, ["flower", "status", str(run), "--json"])
    told = json.loads(done.stdout)
    assert (told["round"], told["rounds"], told["waiting"]) == (2, 20, ["bergen"])
    assert told["sites"]["aachen"]["images"] == 812


def test_a_server_that_is_gone_and_a_run_that_failed_are_said() -> None:
    silent = Status(method="fedavg", rounds=3, written=time.time() - 100, sites={"a": SiteStatus(alive=True)})
    assert "not been heard of for 100 s" in headlines(silent)[1]
    assert site_rows(silent)[0][1] == "-"  # nobody knows
    failed = Status(method="fedavg", written=0.0, failed="Round 1 has 0 good updates.")
    assert headlines(failed)[1] == "the run ended without a result: Round 1 has 0 good updates."


def test_it_answers_without_torch(run: Path) -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from unseen.cli import app;"
        f"done = CliRunner().invoke(app, ['flower', 'status', {str(run)!r}]);"
        "print(done.exit_code, 'torch' in sys.modules, 'flwr' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "0 False False", done.stderr


def test_nothing_has_begun(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["flower", "status", str(tmp_path)])
    assert done.exit_code == 2
    assert "No deployed run has begun" in done.output


def test_the_page_refreshes_itself_and_speaks_to_loopback_only(run: Path) -> None:
    text = page(run)
    assert 'http-equiv="refresh"' in text
    assert "&lt;b&gt;no images&lt;/b&gt;" in text and "<b>no" not in text
    assert "<script" not in text
    with server(run) as listening:
        assert listening.server_address[0] == "127.0.0.1"
        threading.Thread(target=listening.serve_forever, daemon=True).start()

        def ask(path: str, host: str) -> tuple[int, str]:
            line = http.client.HTTPConnection("127.0.0.1", listening.server_port, timeout=10)
            line.request("GET", path, headers={"Host": host})
            answer = line.getresponse()
            return answer.status, answer.read().decode()

        assert ask("/", f"localhost:{listening.server_port}")[0] == 200
        assert ask("/", "evil.example:80")[0] == 403  # a name that a stranger's DNS points at 127.0.0.1
        assert json.loads(ask("/status.json", f"127.0.0.1:{listening.server_port}")[1])["round"] == 2
        assert ask("/other", f"127.0.0.1:{listening.server_port}")[0] == 404
        listening.shutdown()
