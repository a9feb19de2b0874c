"""How a page looks: its style, the few lines of script in it, and its figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from matex_tf.monitor.report.charts import format_number

_PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#8c564b")  # Okabe and Ito

_STYLE = (
    ":root{color-scheme:light dark;--ink:#222;--page:#fff;--faint:#ddd;--soft:#0072b233}"
    "@media (prefers-color-scheme:dark){:root{--ink:#ddd;--page:#181818;--faint:#444;--soft:#56b4e944}}"
    "@media print{:root{--ink:#000;--page:#fff;--faint:#ccc}details{display:none}figure{break-inside:avoid}}"
    "body{font:15px/1.45 system-ui,sans-serif;color:var(--ink);background:var(--page);max-width:72rem;margin:2rem auto;"
    "padding:0 1rem}h1{font-size:1.4rem;overflow-wrap:anywhere}h2{font-size:1.15rem}"
    "dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem}dt{opacity:.7}"
    "dd{margin:0;overflow-wrap:anywhere}"
    "figure{margin:1.2rem 0;display:inline-block;width:min(100%,35rem);vertical-align:top}svg{width:100%}"
    ".wide{width:100%}"
    "svg text{font-size:22px;fill:currentColor;opacity:.75}"
    ".line{fill:none;vector-effect:non-scaling-stroke;stroke-width:1.5px}.dashed{stroke-dasharray:5 3}"
    ".median{stroke:var(--ink)}.band{fill:var(--soft)}"
    ".grid{stroke:var(--faint)}.mark{stroke:#c00;stroke-dasharray:6 6;stroke-width:3}.said{font-weight:600}"
    "svg .label{fill:#c00;opacity:1;font-size:20px}.hair{stroke:currentColor;opacity:.5}"
    "#tip{position:fixed;display:none;background:var(--page);border:1px solid var(--faint);padding:.2rem .5rem;"
    "white-space:pre;pointer-events:none;font-size:13px}"
    ".faint{opacity:.3}.dim{opacity:.12}.picked{opacity:1;stroke-width:3px}table{border-collapse:collapse;font-variant-numeric:tabular-nums}"
    "td,th{padding:.1rem .7rem .1rem 0;text-align:left;font-weight:400}pre{overflow-x:auto;font-size:13px}"
    ".bars{width:100%}.bar{width:60%;white-space:nowrap;font-size:0}.bar span{display:inline-block;height:.9rem}"
    ".key{display:inline-block;width:.8rem;height:.8rem;margin:0 .3rem 0 .6rem}"
    ".compute{background:#009e73}.waiting{background:#d55e00}.sums{background:#0072b2}"
    ".legend button{font:inherit;color:inherit;background:none;border:0;border-bottom:3px solid;margin:0 .8rem .3rem 0;"
    "cursor:pointer}"
    "figcaption span{border-bottom:3px solid;margin-left:.6rem}"
    + "".join(f".c{at}{{stroke:{of}}}.k{at}{{border-color:{of}!important}}" for at, of in enumerate(_PALETTE))
)  # fmt: skip

_SCRIPT = """
let of = null
for (const key of document.querySelectorAll("button[data-of]")) key.onclick = () => {
  of = of === key.dataset.of ? null : key.dataset.of
  const kind = key.dataset.of.split(" ")[0]
  for (const line of document.querySelectorAll(`path[data-of^="${kind} "]`)) {
    line.classList.toggle("dim", of !== null && line.dataset.of !== of)
    line.classList.toggle("picked", line.dataset.of === of)
  }
}
const tip = document.body.appendChild(document.createElement("div"))
tip.id = "tip"
const round = (value, digits) => Number(value.toPrecision(digits)).toLocaleString("en", {maximumFractionDigits: 12})
const find = (points, at) => points.reduce((a, b, n) => Math.abs(b[0] - at) < Math.abs(points[a][0] - at) ? n : a, 0)
for (const svg of document.querySelectorAll("svg[data-scale]")) {
  const [left, right, end, bottom, top, low, high] = svg.dataset.scale.split(" ").map(Number)
  const hair = svg.querySelector(".hair")
  svg.onpointerleave = () => { tip.style.display = "none"; hair.removeAttribute("d") }
  svg.onpointermove = event => {
    const box = svg.getBoundingClientRect(), at = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width
    const found = []
    for (const line of svg.querySelectorAll("path[data-of]")) {
      line.points ??= [...line.getAttribute("d").matchAll(/[ML](\\d+) (-?\\d+)/g)].map(one => [+one[1], +one[2]])
      if (!line.points.length) continue
      const near = find(line.points, at), [x, y] = line.points[near], known = line.dataset.values
      const drawn = low + (bottom - y) / (bottom - top) * (high - low)
      const value = known ? round(+known.split(" ")[near], 6) : round(drawn, 3)
      found.push([Math.abs(x - at), x, `${line.dataset.of}  ${value}`])
    }
    if (!found.length) return
    const [, x] = found.reduce((a, b) => b[0] < a[0] ? b : a), shown = found.filter(one => Math.abs(one[1] - x) < 12)
    hair.setAttribute("d", `M${x} ${top}V${bottom}`)
    const place = (x - left) / (right - left) * end
    const where = `${svg.dataset.step ? Math.round(place) : round(place, 3)} ${svg.dataset.unit}`
    tip.textContent = [where, ...shown.map(one => one[2])].join("\\n")
    tip.style.display = "block"
    tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 4)}px`
    tip.style.top = `${event.clientY + 14}px`
  }
}
"""


def assemble_page(title: str, body: Iterable[str]) -> str:
    """The page of these parts. `title` is text, the parts are HTML; empty ones are left out."""
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>\n<body>'
        + "\n".join(part for part in body if part) + f"<script>{_SCRIPT}</script></body></html>\n"
    )  # fmt: skip


def format_facts(facts: Mapping[str, object]) -> str:
    """What is known, by its names; what is empty is left out."""
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(str(value))}</dd>" for name, value in facts.items() if value)
    return f"<dl>{rows}</dl>"


def frame_figure(
    title: str, unit: str, picture: str, table: Sequence[tuple[str, float, float, float]], keys: bool = False
) -> str:
    """A picture with its title, and behind it the table that it is drawn from: names, least, mean and most."""
    rows = "".join(
        f"<tr><th>{escape(name)}<td>{format_number(least)}<td>{format_number(mean)}<td>{format_number(most)}"
        for name, least, mean, most in table
    )
    named = (
        "".join(f'<span class="k{place}">{escape(name)}</span>' for place, (name, *_) in enumerate(table))
        if keys
        else ""
    )
    return (
        f"<figure><figcaption><b>{escape(title)}</b> {escape(unit)} {named}</figcaption>{picture}"
        f"<details><summary>figures</summary><table><tr><th><th>least<th>mean<th>most{rows}</table></details></figure>"
    )
