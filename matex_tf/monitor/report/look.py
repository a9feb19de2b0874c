"""How the report looks, and the few lines of script in it."""

from __future__ import annotations

_PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#8c564b")  # Okabe and Ito

STYLE = (
    ":root{color-scheme:light dark;--ink:#222;--page:#fff;--faint:#ddd;--soft:#0072b233}"
    "@media (prefers-color-scheme:dark){:root{--ink:#ddd;--page:#181818;--faint:#444;--soft:#56b4e944}}"
    "@media print{:root{--ink:#000;--page:#fff;--faint:#ccc}details{display:none}figure{break-inside:avoid}}"
    "body{font:15px/1.45 system-ui,sans-serif;color:var(--ink);background:var(--page);max-width:72rem;margin:2rem auto;"
    "padding:0 1rem}h1{font-size:1.4rem;overflow-wrap:anywhere}h2{font-size:1.15rem}"
    "dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem}dt{opacity:.7}"
    "dd{margin:0;overflow-wrap:anywhere}"
    "figure{margin:1.2rem 0;display:inline-block;width:min(100%,35rem);vertical-align:top}svg{width:100%}"
    "svg text{font-size:22px;fill:currentColor;opacity:.75}"
    ".line{fill:none;vector-effect:non-scaling-stroke;stroke-width:1.5px}.dashed{stroke-dasharray:5 3}"
    ".median{stroke:var(--ink)}.band{fill:var(--soft)}"
    ".grid{stroke:var(--faint)}.mark{stroke:#c00;stroke-dasharray:6 6;stroke-width:3}.said{font-weight:600}"
    ".dim{opacity:.12}table{border-collapse:collapse;font-variant-numeric:tabular-nums}"
    "td,th{padding:.1rem .7rem .1rem 0;text-align:left;font-weight:400}pre{overflow-x:auto;font-size:13px}"
    ".bars{width:100%}.bar{width:60%;white-space:nowrap;font-size:0}.bar span{display:inline-block;height:.9rem}"
    ".key{display:inline-block;width:.8rem;height:.8rem;margin:0 .3rem 0 .6rem}"
    ".compute{background:#009e73}.waiting{background:#d55e00}.sums{background:#0072b2}"
    ".legend button{font:inherit;color:inherit;background:none;border:0;border-bottom:3px solid;margin:0 .8rem .3rem 0;"
    "cursor:pointer}"
    "figcaption span{border-bottom:3px solid;margin-left:.6rem}"
    + "".join(f".c{at}{{stroke:{of}}}.k{at}{{border-color:{of}!important}}" for at, of in enumerate(_PALETTE))
)  # fmt: skip

SCRIPT = """
let of = null
for (const key of document.querySelectorAll("button[data-of]")) key.onclick = () => {
  of = of === key.dataset.of ? null : key.dataset.of
  for (const line of document.querySelectorAll('path[data-of^="rank "]'))
    line.classList.toggle("dim", of !== null && line.dataset.of !== of)
}
"""
