"""Pictures of what was measured, and of what a model computes. `data/` holds the figures, each with its command."""

from __future__ import annotations

import json
from math import log2
from pathlib import Path
from typing import Any

from canvas import Axes, Canvas

DATA = Path(__file__).resolve().parent / "data"


def read(name: str) -> Any:
    return json.loads((DATA / f"{name}.json").read_text())


def curve() -> Canvas:
    """The same script alone and on two ranks: losses of the epochs, and seconds of one."""
    data = read("demo")
    canvas = Canvas(760, 290, "Handwritten digits alone and on 2 ranks: the same loss curve, in less time")
    canvas.text(28, 34, "same loss curve", 15, bold=True)
    canvas.text(480, 34, "less time", 15, bold=True)
    axes = Axes(canvas, (76, 222), (340, 164), (0.7, 5.3), (0, 0.8))
    axes.frame({n: str(n) for n in range(1, 6)}, {v / 10: f"{v / 10:.1f}" for v in (0, 2, 4, 6, 8)}, "epoch")
    alone, ranks = (list(enumerate(data[name]["losses"], 1)) for name in ("alone", "ranks"))
    axes.curve(alone, "blue", 6)
    axes.curve(ranks, "orange", 2)
    for point in ranks:
        canvas.circle(*axes.at(*point), 4, "orange")
    canvas.text(244, 84, f"largest difference {data['difference']:.1e}", 12, "faint")
    canvas.key(244, 108, (("blue", "alone"), ("orange", "2 ranks")), 76)
    widest = data["alone"]["seconds"]
    for number, (name, colour, words) in enumerate((("alone", "blue", "alone"), ("ranks", "orange", "2 ranks"))):
        seconds, y = data[name]["seconds"], 70 + number * 62
        canvas.text(480, y, words, 13)
        canvas.rectangle(480, y + 8, 190 * seconds / widest, 26, colour)
        canvas.text(480 + 190 * seconds / widest + 8, y + 26, f"{seconds:.2f} s", 13, bold=True)
    canvas.text(480, 212, "seconds an epoch, on 2 cores", 12, "faint")
    canvas.text(480, 230, "(alone, TensorFlow uses both, too)", 12, "faint")
    canvas.text(480, 268, "measured by scripts/demo", 12, "faint")
    return canvas


KINDS = {"compute": "grey", "wait": "orange", "transfer": "violet", "copy": "green", "other": "blue"}
WORDS = {
    "compute": "compute",
    "wait": "wait",
    "transfer": "sum",
    "copy": "copy",
    "other": "announce, metrics",
}


def timeline() -> Canvas:
    """One step of two ranks as MATEX_TIMELINE recorded it, gradients at once and overlapped."""
    data = read("timeline")
    lanes = [(way, lane) for way in data["ways"] for lane in way["lanes"]]
    canvas = Canvas(760, 96 + 46 * len(data["ways"]) + 36 * len(lanes), "One training step on two ranks, as recorded")
    canvas.key(28, 34, [(KINDS[kind], WORDS[kind]) for kind in KINDS], 136)
    longest, y = max(way["milliseconds"] for way in data["ways"]), 70
    scale = 560 / longest
    for way in data["ways"]:
        canvas.text(28, y, way["title"], 13, bold=True)
        for lane in way["lanes"]:
            y += 36
            canvas.text(160, y - 6, lane["name"], 12, "faint", "end")
            canvas.rectangle(170, y - 22, way["milliseconds"] * scale, 26, "panel", round_by=2)
            for kind, start, length in lane["spans"]:
                canvas.rectangle(170 + start * scale, y - 22, max(length * scale, 0.8), 26, KINDS[kind], round_by=1)
        y += 46
    for tick in range(0, int(longest) + 1, data["tick"]):
        canvas.text(170 + tick * scale, y - 14, str(tick), 12, "faint", "middle")
    canvas.text(170 + 280, y + 6, "milliseconds", 12, "faint", "middle")
    return canvas


def scaling() -> Canvas:
    """Efficiency by the model of benchmarks/growth.py, beside steps that benchmarks/hosts.py measured."""
    growth, hosts = read("growth"), read("hosts")
    canvas = Canvas(760, 330, "Modelled efficiency on 16 to 1,024 ranks, and measured steps on two hosts")
    canvas.text(28, 34, "modelled, not measured", 15, bold=True)
    canvas.text(28, 54, "efficiency of a ResNet-50 step, 16 ranks on a node;", 12, "faint")
    canvas.text(28, 70, "100%: a step takes as long as its computation alone", 12, "faint")
    axes = Axes(canvas, (76, 268), (256, 176), (4, 10), (0, 1))
    axes.frame(
        {log2(n): str(n) for n in (16, 64, 256, 1024)},
        {share: f"{share:.0%}" for share in (0, 0.25, 0.5, 0.75, 1)},
        "ranks",
    )
    lines = (("infiniband", "blue", 0.86), ("ethernet25", "green", 0.72), ("ethernet1", "orange", 0.27))
    for name, colour, height in lines:
        points = [(log2(int(ranks)), share) for ranks, share in growth["efficiency"][name].items()]
        axes.curve(points, colour)
        for point in points:
            canvas.circle(*axes.at(*point), 3, colour)
        x, y = axes.at(5.6, height)
        canvas.text(x, y, growth["names"][name], 12, colour, bold=True)
    canvas.text(400, 34, "measured", 15, bold=True)
    canvas.text(400, 54, "2 hosts, 1 Gbit/s, AlexNet-like, computed by sleep", 12, "faint")
    bars = (
        ("computation", "grey"),
        ("transfer", "violet"),
        ("step, overlapped", "blue"),
        ("step, all at once", "orange"),
    )
    longest = max(max(case["milliseconds"]) for case in hosts["cases"])
    for number, case in enumerate(hosts["cases"]):
        y = 84 + number * 112
        canvas.text(400, y, f"batch of {case['rows']} rows", 13, bold=True)
        for place, (value, (words, colour)) in enumerate(zip(case["milliseconds"], bars)):
            top = y + 8 + place * 22
            canvas.text(500, top + 13, words, 12, "faint", "end")
            canvas.rectangle(508, top, 180 * value / longest, 17, colour, round_by=2)
            canvas.text(512 + 180 * value / longest, top + 13, f"{value / 1000:.1f} s", 12)
    return canvas
