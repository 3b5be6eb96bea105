"""The report page: whole, self-contained, and alive in a real browser."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.reports.runs import invent
from unseen.core.files import read_tensors, write_json, write_tensors
from unseen.core.metrics import Measured
from unseen.experiments.collect import collect
from unseen.experiments.insight import FILE
from unseen.experiments.published import TABLES
from unseen.reports.figures import shade
from unseen.reports.names import colour_of, titled
from unseen.reports.page import write_page

BROWSER = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine: apt-get install chromium")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bench")
    invent(out, {"fedavg": 0.50, "fedfd-a": 0.60, "stablefdg": 0.55}, insight=True)
    write_json(
        out / "bench.json", {"commands": ["unseen bench --data <digits>"], "labels": {}, "methods": [], "targets": []}
    )
    return write_page(collect(out), out / "report.html")


class Tags(HTMLParser):
    VOID = frozenset({"meta", "link", "img", "br", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attributes:
            if name == "id":
                self.ids.append(value or "")
            if name == "href" and tag == "a":
                self.links.append(value or "")
            elif name in ("src", "href"):
                self.loaded.append(value or "")

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, tag


def test_the_page_is_well_formed_and_loads_nothing(page: Path) -> None:
    text = page.read_text()
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert len(set(tags.ids)) == len(tags.ids)
    assert all(link.startswith("#") and link[1:] in tags.ids for link in tags.links)
    assert all(value.startswith("data:") for value in tags.loaded)
    assert "http://" not in text and "https://" not in text and "@import" not in text


def test_every_part_is_there_with_its_numbers_as_text(page: Path) -> None:
    text = page.read_text()
    for name in (
        "summary",
        "leaderboard",
        "heat",
        "curves",
        "cost",
        "ledger",
        "partition",
        "samples",
        "features",
        "alphas",
        "attention",
        "settings",
    ):
        assert f'id="g0-{name}"' in text, name
    assert "60.60 ± 0.10" in text and "Wilcoxon" in text
    assert "sends more than weights: style statistics" in text
    assert "unseen bench --data &lt;digits&gt;" in text
    assert text.count('class="band') == 3 * 3 and "<polyline" in text


def test_the_papers_tables_of_the_dataset_are_there_with_what_they_quote(tmp_path: Path, page: Path) -> None:
    invent(tmp_path, {"fedavg": 0.5}, data="pacs", protocol="pacs-quick", targets=("photo", "sketch"))
    text = write_page(collect(tmp_path), tmp_path / "report.html").read_text()
    start = text.index('id="g0-papers"')
    papers = text[start : text.index("</section>", start)]
    assert papers.count("<details>") == len([t for t in TABLES if t.data == "pacs" and t.is_main]) >= 4
    row = re.search(r"<tr><th[^>]*>L2A-OT \(quoted\)</th>(.*?)</tr>", papers)
    assert row and re.findall(r">(?:<[bu]>)?([0-9.]+)<", row[1]) == ["73.60", "83.30", "78.20", "96.20", "82.81"]
    assert "JiGen (centralised)" in papers and "it is not in unseen" in papers
    assert "papers" not in [part.removeprefix("g0-") for part in re.findall(r'id="([^"]+)"', page.read_text())]


def test_pictures_are_of_the_target_that_is_asked_for(tmp_path: Path) -> None:
    invent(tmp_path, {"fedavg": 0.5}, insight=True)
    (group,) = collect(tmp_path).groups
    looked = next(run for run in group.rows[0].runs.values() if (run.path / FILE).exists())
    other = next(target for target in group.targets if target != looked.settings().target)
    run = next(run for (target, _), run in group.rows[0].runs.items() if target == other)
    tensors, about = read_tensors(looked.path / FILE)
    write_tensors(run.path / FILE, dict(tensors), {**about, "target": other})
    for target in (looked.settings().target, other):
        page = write_page(collect(tmp_path), tmp_path / "report.html", target=target).read_text()
        assert f"FedAvg, unseen {target}" in page


def test_features_stand_beside_their_reference_before_and_after_training(tmp_path: Path) -> None:
    invent(tmp_path, {"fedavg": 0.5, "fedadg": 0.55}, insight=True)
    page = write_page(collect(tmp_path), tmp_path / "report.html").read_text()
    features = page[page.index('id="g0-features"') :]
    features = features[: features.index("</section>")]
    for when in ("before", "after"):
        assert features.count(f"features of fedadg and its reference {when} training</title>") == 1
        assert f"{when} training, sources beside the reference<" in features
    assert features.count('<path class="star c') == 2 * 20  # in the colours of their classes
    assert "★ reference" in features and "● colour" in features
    assert "features of fedavg and its reference" not in features


def test_of_many_methods_the_best_and_the_baseline_have_a_colour(tmp_path: Path) -> None:
    names = ["mixstyle", "dsu", "sfa", "rsc", "ibn", "bin", "moon", "fednova", "fedsam", "fedprox", "fedbn"]
    invent(tmp_path, {"fedavg": 0.2} | {name: 0.9 - 0.02 * place for place, name in enumerate(names)})
    html = write_page(collect(tmp_path), tmp_path / "report.html").read_text()
    picks = re.search(r'<fieldset class="pick">(.*?)</fieldset>', html)
    assert picks is not None
    found = re.findall(r'value="([^"]+)"><i class="(\w+)"></i>([^<]+)<', picks[1])
    bright = [*names[:9], "fedavg"]
    assert found == [(n, shade(colour_of(n)) if n in bright else "others", titled(n)) for n in [*names, "fedavg"]]
    assert html.count('class="line others"') == 3 * 2  # two methods in three figures
    assert '">FedBN</text>' not in html and "<title>FedBN: " in html  # a grey dot keeps its name inside


def test_accuracy_against_privacy_where_noise_was_added(tmp_path: Path) -> None:
    invent(tmp_path, {"fedavg": 0.7})
    for noise, epsilon in ((0.3, 244.0), (3.0, 9.0)):
        for run in invent(tmp_path, {"fedavg+dp": 0.6}, fields={"noise": noise}):
            result = run.result()
            assert result is not None
            write_json(run.path / "result.json", replace(result, epsilon=epsilon).to_json())
    html = write_page(collect(tmp_path), tmp_path / "report.html").read_text()
    charts = [json.loads(unescape(found)) for found in re.findall(r'data-chart="([^"]+)"', html)]
    (chart,) = [chart for chart in charts if chart["x_name"].startswith("epsilon")]
    assert chart["log"] and chart["x"] == [9.0, 244.0]
    names = {one["title"]: one["y"] for one in chart["series"]}
    assert names["FedAvg+local DP (noise=3)"] == [60.6, None], "a dot at its own epsilon"
    assert names["FedAvg"] == [70.6, 70.6], "without noise: a line across"
    assert '<button type="button">Epsilon</button>' in html and '<td data-v="9">9</td>' in html
    plain = tmp_path / "plain"
    invent(plain, {"fedavg": 0.7, "moon": 0.6})
    assert "psilon" not in write_page(collect(plain), tmp_path / "plain.html").read_text().split("<script>")[0]


def test_a_shade_is_a_number_of_points_and_commands_have_lines_of_their_own(page: Path) -> None:
    html = page.read_text()
    heat = html[html.index('id="g0-heat"') : html.index('id="g0-curves"')]
    assert "the darkest is 10.0 points above" in heat
    assert re.findall(r"--part:(\d+)%", heat) == ["70", "70", "35", "35", "0", "0"]
    assert re.search(r"<pre>unseen bench --data &lt;digits&gt;\nunseen report [^<\n]+</pre>", html)


def test_a_method_without_all_targets_has_no_curve_and_is_named(tmp_path: Path) -> None:
    invent(tmp_path, {"fedavg": 0.5})
    invent(tmp_path, {"fedbn": 0.6}, targets=("ink",))
    html = write_page(collect(tmp_path), tmp_path / "report.html").read_text()
    assert "Not drawn, because targets are missing: FedBN." in html
    legend = re.search(r'<fieldset class="pick">(.*?)</fieldset>', html)
    assert legend is not None and "FedAvg" in legend[1] and "FedBN" not in legend[1]
    assert html.count("<polyline") == 3


def test_a_curve_has_its_last_point_and_costs_begin_at_nothing(tmp_path: Path) -> None:
    for run in invent(tmp_path, {"fedavg": 0.5, "moon": 0.6}, seeds=[0]):
        lines = [replace(line, unseen=line.unseen if line.round == 1 else None) for line in run.rounds()]
        (run.path / "results.jsonl").write_text("")
        for line in lines:
            run.append(line)
        result = run.result()
        assert result is not None
        write_json(run.path / "result.json", replace(result, last_accuracy=0.4).to_json())
    html = write_page(collect(tmp_path), tmp_path / "report.html").read_text()
    chart = json.loads(unescape(re.findall(r'data-chart="([^"]+)"', html)[0]))
    assert chart["x"] == [1, 4] and [one["y"][-1] for one in chart["series"]] == [40.0, 40.0]
    costs = html[html.index('id="g0-cost"') : html.index('id="g0-ledger"')]
    assert costs.count('text-anchor="middle">0</text>') == 3, "three axes, each from 0"


def test_classes_and_confusions_are_shown(tmp_path: Path) -> None:
    for run in invent(tmp_path, {"fedavg": 0.5, "moon": 0.6}):
        result = run.result()
        assert result is not None
        found = Measured(0.5, 0.5, 0.9, 0.1, [[3, 1], [0, 2]])
        write_json(run.path / "result.json", replace(result, measured=found).to_json())
    html = write_page(collect(tmp_path), tmp_path / "report.html").read_text()
    part = html[html.index('id="g0-classes"') : html.index('id="g0-cost"')]
    assert re.findall(r'--part:\d+%">(\d+)</td>', part)[:2] == ["75", "100"]  # 3 of 4 and 2 of 2
    assert "MOON: confusion matrix" in part and ">9</td>" in part  # three seeds together
    assert 'id="g0-measures"' in html


def test_without_insight_those_parts_are_left_out(tmp_path: Path) -> None:
    invent(tmp_path, {"fedavg": 0.5}, seeds=[0])
    text = write_page(collect(tmp_path), tmp_path / "report.html").read_text()
    assert "t-SNE" not in text and "Leaderboard" in text and "unseen run --resume" in text


PROBE = """
<script>
window.onerror = function (message) { document.title = "ERROR " + message; };
</script>
"""
ACT = """
<script>
addEventListener("load", function () {
  var table = document.querySelector("table.sortable"), names = function () {
    var first = function (row) { return row.cells[0].textContent.split(" ")[0]; };
    return Array.from(table.tBodies[0].rows).map(first).join(",");
  };
  var said = [names()];
  table.tHead.rows[0].cells[3].click(); said.push(names());
  table.tHead.rows[0].cells[3].click(); said.push(names());
  table.tHead.rows[0].cells[0].click(); said.push(names());
  var before = getComputedStyle(document.body).backgroundColor;
  document.getElementById("theme").click();
  said.push(getComputedStyle(document.body).backgroundColor !== before);
  said.push(document.documentElement.scrollWidth <= innerWidth);
  var charts = document.querySelectorAll("figure.chart canvas").length;
  var plot = document.querySelector("figure.chart .plot"), read = document.querySelector("figure.chart .read");
  plot.focus();
  var press = function () { plot.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true })); };
  setTimeout(press, 100);  // a chart that was just made places its scales a moment later
  setTimeout(function () {
  var pointed = read.textContent, chart = document.querySelector("figure.chart").chart;
  var box = document.querySelector(".pick input[value=stablefdg]");
  box.click();
  var costs = document.querySelector("[id$=-cost] figure.chart").chart, all = costs.scales.x.max;
  var off = costs.series.filter(function (s) { return !s.show; }).length;
  var shown = chart.series.filter(function (s) { return s.show; }).length;
  costs.setScale("x", { min: 0.3, max: 0.4 });
  var zoomed, out = new KeyboardEvent("keydown", { key: "Escape", bubbles: true });
  setTimeout(function () {  // a chart answers a moment later
    zoomed = costs.scales.x.min;
    document.querySelector("[id$=-cost] .plot").dispatchEvent(out);
  }, 100);
  setTimeout(function () {
  box.click();
  var flips = document.querySelectorAll(".flips .tile:not([hidden])").length;
  var head = document.querySelector(".flips h5").textContent;
  said.push([charts, document.activeElement === plot, pointed, off, shown, flips, head].join(";"));
  said.push([zoomed, costs.scales.x.min, costs.scales.x.max === all, all > 0.38].join(";"));
  said.push(document.title.indexOf("ERROR") < 0);
  document.body.innerHTML = "<pre id=said>" + said.join("|") + "</pre>";
  }, 200);
  }, 300);
});
</script>
"""


def browse(*words: str) -> subprocess.CompletedProcess[str]:
    assert BROWSER is not None
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--enable-logging=stderr",
        "--v=0",
    ]
    return subprocess.run(
        [BROWSER, *flags, *words], capture_output=True, text=True, timeout=300, check=False, env={**os.environ}
    )


@needs_browser
@pytest.mark.parametrize("width", [1280, 390])
def test_in_a_browser_it_loads_sorts_and_changes_its_theme(page: Path, tmp_path: Path, width: int) -> None:
    probed = tmp_path / "probed.html"
    probed.write_text(page.read_text().replace("<head>", "<head>" + PROBE, 1).replace("</body>", ACT + "</body>", 1))
    done = browse(
        f"--user-data-dir={tmp_path / 'profile'}",
        f"--window-size={width},900",
        "--virtual-time-budget=3000",
        "--dump-dom",
        probed.as_uri(),
    )
    found = re.search(r"<pre id=\"said\">(.*?)</pre>", done.stdout)
    assert found is not None, done.stderr[-2000:]
    first, down, up, by_name, themed, fits, drawn, zoom, calm = found[1].split("|")
    assert first == "FedFD-A,StableFDG,FedAvg", "best first"
    assert down == "FedFD-A,StableFDG,FedAvg" and up == "FedAvg,StableFDG,FedFD-A"
    assert by_name == "FedAvg,FedFD-A,StableFDG"
    charts, focused, pointed, off, shown, flips, head = drawn.split(";")
    assert (charts, focused, off) == ("6", "true", "1"), "three of rounds, three of costs"
    # A cost chart begins at 0 and is zoomed; Escape zooms out again.
    assert zoom == "0.3;0;true;true"
    assert pointed.startswith("round 1 FedFD-A 15.15 "), "the first round of the best method, by the keyboard"
    assert shown == "7", "the axis, and line and band of two of three methods"
    # FedAvg is made to be wrong on all of 16 images, FedFD-A on every other one.
    assert (flips, head) == ("8", "Right by FedFD-A, wrong by FedAvg: 8 of 16")
    assert (themed, calm) == ("true", "true")
    assert fits == "true", "the page is wider than the screen"
    assert "CONSOLE" not in done.stderr, done.stderr
