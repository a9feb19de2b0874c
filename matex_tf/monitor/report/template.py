"""The HTML template of a report: its style, the library and the script for charts, and its figures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any

from matex_tf.monitor.report.charts import Row, format_number

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#8c564b")  # Okabe and Ito

_STYLE = (
    ":root{color-scheme:light dark;--ink:#222;--page:#fff;--faint:#ddd;--soft:#0072b233}"
    "@media (prefers-color-scheme:dark){:root{--ink:#ddd;--page:#181818;--faint:#444;--soft:#56b4e944}}"
    "@media print{:root{--ink:#000;--page:#fff;--faint:#ccc}details{display:none}figure{break-inside:avoid}}"
    "body{font:15px/1.45 system-ui,sans-serif;color:var(--ink);background:var(--page);max-width:72rem;margin:2rem auto;"
    "padding:0 1rem}h1{font-size:1.4rem;overflow-wrap:anywhere}h2{font-size:1.15rem}"
    "td,th{padding:.1rem .7rem .1rem 0;text-align:left;font-weight:400;vertical-align:top}"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums}.facts th{opacity:.7}"
    ".facts td{overflow-wrap:anywhere}"
    "figure{margin:1.2rem 0;display:inline-block;width:min(100%,35rem);vertical-align:top}svg{width:100%}"
    ".wide{width:100%}.runs{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,30rem),1fr));gap:0 2rem}"
    ".runs>section{min-width:0;overflow-x:auto}"
    "svg text{font-size:22px;fill:currentColor;opacity:.75}"
    ".line{fill:none;vector-effect:non-scaling-stroke;stroke-width:1.5px}.grid{stroke:var(--faint)}.said{font-weight:600}"
    ".u-legend{font-size:12px;text-align:left;line-height:1.2}.u-legend th{font-weight:400}.u-series>*{padding:1px 2px}"
    ".u-inline tr{margin-right:10px}"
    ".mark{position:absolute;top:0;bottom:0;border-left:1.5px dashed #c00;color:#c00;font-size:11px}"
    ".mark span{position:absolute;left:4px;white-space:nowrap;max-width:16em;overflow:hidden;text-overflow:ellipsis;"
    "background:color-mix(in srgb,var(--page) 75%,transparent)}"
    ".mark.right span{left:auto;right:4px}"
    ".faint{opacity:.3}.dim{opacity:.12}.picked{opacity:1;stroke-width:3px}pre{overflow-x:auto;font-size:13px}"
    ".bars{width:100%}.bar{width:50%;white-space:nowrap;font-size:0}.bar span{display:inline-block;height:.9rem}"
    ".key{display:inline-block;width:.8rem;height:.8rem;margin:0 .3rem 0 .6rem}"
    ".compute{background:#009e73}.waiting{background:#d55e00}.sums{background:#0072b2}"
    "button{font:inherit;color:inherit;background:none;border:1px solid var(--faint);cursor:pointer;"
    "margin:0 .4rem .3rem 0}"
    "button[aria-pressed=true]{background:var(--soft)}.legend button{border:0;border-bottom:3px solid}"
    + "".join(f".c{n}{{stroke:{colour}}}.k{n}{{border-color:{colour}!important}}" for n, colour in enumerate(PALETTE))
)  # fmt: skip


def assemble_page(
    title: str,
    body: Iterable[str],
    charts: Sequence[Mapping[str, Any]],
    runs: Sequence[Mapping[str, Any]] = (),
    axes: Sequence[str] = (),
) -> str:
    """Assemble a self-contained page.

    Args:
        title: text.
        body: HTML; empty parts are omitted.
        charts: the charts of the figures, in their order; see `charts.make_chart`.
        runs: for each run, its "marks" (time, text) and "clocks" (for an axis, times and the positions at these times).
        axes: the axes that a reader may choose for all charts with one of these axes.
    """
    data = {"charts": charts, "runs": runs, "axes": axes, "colours": PALETTE}
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")  # so that no text ends the script element
    licence, code, style, script = map(
        _read_file, ("uplot/LICENSE", "uplot/uPlot.iife.min.js", "uplot/uPlot.min.css", "page.js")
    )
    # The complete licence replaces the comment at the beginning of uPlot's code.
    code = f"/* uPlot\n{licence}*/\n{code.split('*/', 1)[1]}"
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{style}{_STYLE}</style></head>\n<body>'
        + "\n".join(part for part in body if part)
        + f'<script type="application/json" id="data">{text}</script><script>{code}</script>\n'
        f"<script>{script}</script></body></html>\n"
    )  # fmt: skip


def _read_file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text()


def format_facts(facts: Mapping[str, Sequence[object]]) -> str:
    """A table of facts about the runs; empty rows are omitted."""
    rows = "".join(
        f"<tr><th>{escape(name)}" + "".join(f"<td>{escape(str(value))}" for value in values)
        for name, values in facts.items()
        if any(values)
    )
    return f'<table class="facts">{rows}</table>'


def format_axes(axes: Sequence[str]) -> str:
    """The buttons that choose the horizontal axis of the charts."""
    keys = "".join(f'<button data-axis="{axis}">{axis}</button>' for axis in axes)
    return f'<p>Horizontal axis: <button data-axis="">of each chart</button>{keys}</p>'


class Figures:
    """The figures of a page in order, and their charts."""

    def __init__(self) -> None:
        self.charts: list[Mapping[str, Any]] = []

    def add_figure(self, chart: Mapping[str, Any] | None, table: Sequence[Row]) -> str:
        """Add a chart. Returns its placeholder with the title and the table of values; "" if there is no chart."""
        if chart is None:
            return ""
        rows = "".join(
            f"<tr><th>{escape(name)}<td>{format_number(least)}<td>{format_number(mean)}<td>{format_number(most)}"
            for name, least, mean, most in table
        )
        title, unit = escape(chart["title"]), escape(chart["unit"])
        self.charts.append(chart)
        return (
            f'<figure data-chart="{len(self.charts) - 1}"><figcaption><b>{title}</b> {unit}</figcaption>'
            f'<div class="chart" role="img" aria-label="{title}, {unit}"></div><details><summary>figures</summary>'
            f"<table><tr><th><th>least<th>mean<th>most{rows}</table></details></figure>"
        )
