"""The page's style sheet and its scripts: light and dark, narrow and wide, tables that sort, charts to point at."""

# ruff: noqa: E501 (a style sheet has lines of its own length)
from __future__ import annotations

from pathlib import Path

from unseen.reports.names import HUES

# Ten colours that are told apart on both grounds; the dark ones are the same hues, lighter.
_LIGHT = ("#2563a8", "#c2410c", "#2e7d4f", "#8e44ad", "#b7791f", "#b83255", "#0e7c86", "#6b6f76", "#5b7f1c", "#7a4a2b")
_DARK = ("#6ea8e8", "#f08a4b", "#69c08d", "#c58be0", "#e0b04f", "#ee7f9c", "#4fc0c9", "#a9adb5", "#a9cc5b", "#cc9a78")


def _variables(colours: tuple[str, ...]) -> str:
    return "".join(f"--c{i}:{colour};" for i, colour in enumerate(colours))


_DAY = f"--ground:#fff;--ink:#1f2933;--soft:#5c6773;--rule:#d9dfe5;--panel:#f6f8fa;--heat:#2563a8;--light:38%;{_variables(_LIGHT)}"
_NIGHT = f"--ground:#14181d;--ink:#e6eaee;--soft:#9aa5b1;--rule:#323a43;--panel:#1c2229;--heat:#4f8fd6;--light:68%;{_variables(_DARK)}"

STYLE = (
    f":root{{color-scheme:light dark;{_DAY}}}"
    f"@media (prefers-color-scheme:dark){{:root{{{_NIGHT}}}}}"
    f":root[data-theme=light]{{color-scheme:light;{_DAY}}}:root[data-theme=dark]{{color-scheme:dark;{_NIGHT}}}"
    + "".join(f".c{i}{{--own:var(--c{i})}}" for i in range(10))
    + "".join(f".h{i}{{--own:hsl({360 * i // HUES} 62% var(--light))}}" for i in range(HUES))
    + """
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
main,header{max-width:1340px;margin:0 auto;padding:0 16px}
header{display:flex;align-items:center;justify-content:space-between;gap:12px;padding-top:14px}
h1{font-size:1.5rem;margin:0;overflow-wrap:anywhere}h2{font-size:1.25rem;margin:1.6em 0 .4em}h3{font-size:1.08rem;margin:1.8em 0 .4em}
h4{margin:1.2em 0 .3em}h5{margin:.6em 0 .2em;color:var(--soft);font-weight:600}
p{margin:.4em 0;max-width:75ch}
nav{display:flex;flex-wrap:wrap;gap:4px 16px;border-bottom:1px solid var(--rule);padding:6px 0}
a{color:var(--c0)}
button{font:inherit;color:inherit;background:none;border:0;padding:0;cursor:pointer}
#theme{border:1px solid var(--rule);border-radius:6px;padding:4px 10px;white-space:nowrap}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;margin:.6em 0}
caption{text-align:left;color:var(--soft);padding:4px 0}
th,td{padding:5px 12px 5px 0;text-align:right;white-space:nowrap;border-bottom:1px solid var(--rule);font-weight:400}
thead th{font-weight:600}thead th button{font-weight:600}
th:first-child,td:first-child{text-align:left}
th[scope=row]{white-space:normal;min-width:9em;max-width:20em}
.wide th:first-child{position:sticky;left:0;background:var(--ground)}
th[aria-sort=ascending] button::after{content:" ▲"}th[aria-sort=descending] button::after{content:" ▼"}
td.heat{background:color-mix(in srgb,var(--heat) var(--part),transparent);padding:5px 12px;text-align:center}
.notes{color:var(--soft);font-size:.87rem;margin:.2em 0 1em;padding-left:1.2em;max-width:110ch}
.figures{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,340px),1fr));gap:14px 22px}
figure{margin:0;min-width:0}figcaption{color:var(--soft);font-size:.87rem}
svg{display:block;width:100%;height:auto;max-width:560px}
svg text{font:12px system-ui,sans-serif;fill:var(--soft)}svg text.label{fill:var(--ink)}
.grid{stroke:var(--rule);stroke-width:1}.axis{stroke:var(--soft);stroke-width:1}
.line{fill:none;stroke:var(--own);stroke-width:2}.band{fill:var(--own);opacity:.16}
.others{--own:var(--rule)}.line.others{stroke-width:1.4}.dot{fill:var(--own)}.star{fill:var(--own,var(--ink));stroke:var(--ink);stroke-width:.8}.ring{fill:none;stroke:var(--own);stroke-width:1.4}.faint{fill:var(--own);opacity:.45}
.legend{display:flex;flex-wrap:wrap;gap:2px 16px;font-size:.9rem;max-width:none}
.legend i{display:inline-block;width:11px;height:11px;border-radius:50%;margin-right:6px;border:2px solid var(--own)}
.legend i.solid{background:var(--own)}
.tiles{display:flex;flex-wrap:wrap;gap:10px}.tile{max-width:152px;line-height:1.25}.tile figcaption{max-width:96px}
.tile img{border-radius:4px;image-rendering:auto;margin-right:3px}
details{margin:.3em 0}summary{cursor:pointer}summary.part{font-weight:600;margin:1em 0 .3em}.more{color:var(--c1);font-weight:600}
pre{background:var(--panel);padding:12px;overflow-x:auto;border-radius:6px;font-size:.87rem}
code{font-size:.9em}
footer{color:var(--soft);font-size:.87rem;margin:2.5em 0 1.5em}
.summary{font-size:1.05rem;padding-left:1.2em;max-width:85ch}.summary li{margin:.3em 0}
.pick{display:flex;flex-wrap:wrap;gap:2px 16px;font-size:.9rem;border:0;padding:0;margin:.4em 0}.pick legend{float:left;margin-right:14px;color:var(--soft);padding:0}
.pick label{display:inline-flex;align-items:center;gap:5px}.pick i{width:11px;height:11px;border-radius:50%;background:var(--own)}
.pick button{color:var(--c0);text-decoration:underline}
:focus-visible{outline:2px solid var(--c0);outline-offset:2px}
.chart .u-legend{display:none}.chart .read{color:var(--ink);font-size:.82rem;min-height:2.6em;font-variant-numeric:tabular-nums}.chart .read b{color:var(--own)}
td.heat.small{padding:2px 5px;min-width:2.2em;font-size:.82rem}
.flips select{font:inherit;color:inherit;background:var(--panel);border:1px solid var(--rule);border-radius:6px;padding:3px 6px}
.flips .tile[hidden]{display:none}
@media (max-width:600px){body{font-size:15px}main,header{padding-left:12px;padding-right:12px}th,td{padding-right:9px}th[scope=row]{min-width:7em;max-width:9.5em;font-size:.93em}}
@media print{#theme,nav{display:none}}
"""
)

_HERE = Path(__file__).parent
SCRIPT = (_HERE / "page.js").read_text(encoding="utf-8")


def library() -> tuple[str, str]:
    """uPlot's style sheet and script, with its licence: all that draws the page's charts."""
    vendor = _HERE / "vendor"
    licence = (vendor / "uPlot.LICENSE.txt").read_text(encoding="utf-8")
    # Its first line is its address, which a page that loads nothing need not name.
    code = (vendor / "uPlot.iife.min.js").read_text(encoding="utf-8").split("\n", 1)[1]
    style = (vendor / "uPlot.min.css").read_text(encoding="utf-8")
    return style, f"/* uPlot 1.6.32\n{licence}*/\n{code}"
