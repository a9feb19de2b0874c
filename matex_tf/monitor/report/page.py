"""The report of one or several runs: one self-contained HTML file, for screen and paper."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from matex_tf.monitor import progress, waits
from matex_tf.monitor.recording import Run, Series, Start, read_all
from matex_tf.monitor.report import quantities
from matex_tf.monitor.report.charts import COLOURS, Line, format_number, make_chart, make_curves, round_numbers
from matex_tf.monitor.report.template import Figures, Row, assemble_page, format_axes, format_facts

_MAX_BARS = 16  # displayed ranks of a large run: those that are waited for most
_MAX_TABLE_RANKS = 2048  # ranks in the table at the end
_LINES_OF_RANKS = 640
_CLOCK = 512  # points of a clock


@dataclass
class _Recorded:
    """A run with the data that the page shows."""

    run: Run
    place: int
    """The index of the run on the page."""
    name: str
    """The prefix of the names of its lines; "" if it is the only run."""
    everything: list[tuple[Start, dict[int, Series]]]
    prediction: str = ""

    def __post_init__(self) -> None:
        self.start, self.ranks = self.everything[-1]
        self.zero = float(self.everything[0][0].about["at"])
        ends = [float(one["t"][-1]) for _, ranks in self.everything for one in ranks.values()]
        self.end = max(ends, default=self.zero) - self.zero
        self.steps = waits.compute_mean_steps(self.ranks)
        self.epochs = progress.list_kept_epochs(self.run.starts)

    def prefix_name(self, name: str) -> str:
        return f"{self.name}, {name}" if self.name else name


def format_page(*runs: Run, predictions: Sequence[str] = ()) -> str:
    """The page of `runs`, side by side. `predictions` are the planner's texts for the runs, if there are any."""
    names = _name_runs(runs)
    texts = [*predictions, *[""] * (len(runs) - len(predictions))]
    recorded = [_read_run(*one) for one in zip(runs, range(len(runs)), names, texts)]
    figures = Figures()
    clocks = [_make_clocks(one) for one in recorded]
    axes = ["time", *(axis for axis in ("step", "epoch") if any(axis in clock for clock in clocks))]
    command = " and ".join(dict.fromkeys(progress.describe_command(one.start) for one in recorded))
    ranks = " and ".join(progress.describe_ranks(one.start) for one in recorded)
    body = [
        f"<h1>{escape(command)}</h1>",
        format_facts(_list_facts(recorded)),
        _set_side_by_side(recorded, _format_legend),
        format_axes(axes),
        *_draw_metrics(recorded, figures),
        *_draw_quantities(recorded, figures),
        _set_side_by_side(recorded, _draw_bars, _format_profile, _format_prediction, _format_events, _format_ranks),
    ]
    about = [{"clocks": clock, "marks": list(_list_marks(one))} for clock, one in zip(clocks, recorded)]
    return assemble_page(f"{command}, {ranks}", body, figures.charts, about, axes)


def _name_runs(runs: Sequence[Run]) -> list[str]:
    """The names of the runs' folders, or their paths if the names are not unique."""
    if len(runs) == 1:
        return [""]
    names = [Path(os.path.abspath(one.folder)).name for one in runs]
    return names if len(set(names)) == len(names) else [one.folder for one in runs]


def _read_run(run: Run, place: int, name: str, prediction: str) -> _Recorded:
    everything = [(start, {rank: one for rank, one in read_all(start).items() if len(one)}) for start in run.starts]
    return _Recorded(
        run, place, name, [(start, ranks) for start, ranks in everything if ranks] or everything[-1:], prediction
    )


def _make_clocks(one: _Recorded) -> dict[str, Any]:
    """For each axis except time: times, and the number of steps or epochs so far.

    Steps are those of the first recorded rank, over all starts; steps repeated after a restart count again.
    """
    clocks = {}
    times, steps = [np.zeros(1)], [np.zeros(1)]
    for _, ranks in one.everything:
        if ranks:
            first = next(iter(ranks.values()))
            times.append(first["t"] - one.zero)
            steps.append(steps[-1][-1] + np.nan_to_num(first["st"]))
    t, count = np.concatenate(times), np.concatenate(steps)
    if count[-1] > 0:
        grid = np.linspace(0, one.end, _CLOCK)
        clocks["step"] = [round_numbers(grid), round_numbers(np.interp(grid, t, count))]
    if one.epochs:
        ended = [0.0, *(each.t - one.zero for each in one.epochs)]
        clocks["epoch"] = [ended, [0, *progress.count_epochs(one.epochs)]]
    return clocks


def _set_side_by_side(recorded: Sequence[_Recorded], *parts: Any) -> str:
    """The `parts` of each run in a column of its own."""
    texts = ["".join(part(one) for part in parts) for one in recorded]
    if len(recorded) == 1:
        return texts[0]
    sections = (f"<section><h2>{escape(one.name)}</h2>{text}</section>" for one, text in zip(recorded, texts))
    return f'<div class="runs">{"".join(sections)}</div>'


def _list_facts(recorded: Sequence[_Recorded]) -> dict[str, list[str]]:
    columns = [_describe_run(one) for one in recorded]
    return {name: [column[name] for column in columns] for name in columns[0]}


def _describe_run(one: _Recorded) -> dict[str, str]:
    start, about = one.start, one.start.about
    ways = dict.fromkeys(series.ended or "end unknown" for series in one.ranks.values())
    return {
        "run": one.name,
        "command": progress.describe_command(start) if one.name else "",
        "ranks": progress.describe_ranks(start),
        "hosts": ", ".join(list(dict.fromkeys(start.hosts))[:8]) + (" ..." if len(set(start.hosts)) > 8 else ""),
        "began": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one.zero)),
        "recorded": progress.format_seconds(one.end),
        "starts": str(len(one.run.starts)),
        "end": "; ".join(ways),
        "versions": ", ".join(f"{name} {version}" for name, version in about["versions"].items()),
        "settings": ", ".join(f"{name}={value}" for name, value in sorted(about["settings"].items())),
        "folder": about["folder"],
    }


def _format_legend(one: _Recorded) -> str:
    """The rank that others wait for, and the legend: a click on a rank highlights it in all charts."""
    said = f'<p class="said">{escape(waits.describe_waits(one.ranks, one.steps, one.start.hosts))}</p>'
    if len(one.ranks) > quantities.MAX_LINES:
        return (
            f"{said}<p>Of {len(one.ranks)} ranks, charts show their range, their median and outliers. Each point of "
            "a line is the mean since the point before.</p>"
        )
    keys = "".join(
        f'<button data-of="{escape(one.prefix_name(f"rank {rank}"))}" class="k{place % COLOURS}">rank {rank} '
        f"<small>{escape(one.start.hosts[rank])}</small></button>"
        for place, rank in enumerate(one.ranks)
    )
    return f'{said}<p class="legend">{keys}</p>'


def _draw_metrics(recorded: Sequence[_Recorded], figures: Figures) -> Iterator[str]:
    """Loss and metrics at the ends of epochs, each with its validation metric."""
    names = list(dict.fromkeys(name for one in recorded for epoch in one.epochs for name in epoch.logs))
    for name in [name for name in names if not (name.startswith("val_") and name[4:] in names)]:
        curves: list[dict[str, Any]] = []
        table: list[Row] = []
        for one in recorded:
            lines = []
            for colour, metric in enumerate(each for each in (name, f"val_{name}") if each in names):
                known = [(epoch.t - one.zero, epoch.logs[metric]) for epoch in one.epochs if metric in epoch.logs]
                t, values = np.array(known, float).reshape(-1, 2).T
                label = one.prefix_name(metric)
                if np.isfinite(values).any():
                    lines.append(Line(label, colour, [(t, values)]))
                    table.append(quantities.summarize_line(label, lines[-1].pieces))
                elif known:
                    yield f'<p class="said">{escape(label)} was never a finite number</p>'
            curves += make_curves(lines, None, one.place, one.end)
        yield figures.add_figure(make_chart(name, "at the end of each epoch", curves, "epoch", from_zero=False), table)


def _draw_quantities(recorded: Sequence[_Recorded], figures: Figures) -> Iterator[str]:
    count = sum(min(max(len(one.ranks), 1), quantities.MAX_LINES) for one in recorded)
    buckets = min(max(_LINES_OF_RANKS // count, 40), 160)
    for quantity in quantities.QUANTITIES:
        curves: list[dict[str, Any]] = []
        table: list[Row] = []
        for one in recorded:
            slow = waits.find_slowest(one.steps)
            chosen = [slow[0]] if slow else []
            drawn = quantities.draw_quantity(quantity, one.everything, one.zero, one.end, chosen)
            if drawn:
                made = make_curves(drawn.lines, drawn.band, one.place, one.end, buckets)
                curves += [{**curve, "name": one.prefix_name(curve["name"])} for curve in made]
                table += [(one.prefix_name(row[0]), *row[1:]) for row in drawn.table]
        yield figures.add_figure(make_chart(quantity.title, quantity.unit, curves, "time"), table)


def _draw_bars(one: _Recorded) -> str:
    """The composition of each rank's step as bars; the rank that others wait for comes first."""
    start, steps = one.start, one.steps
    if not steps:
        return ""
    longest = max(step.whole for step in steps.values()) or 1
    order = sorted(steps, key=lambda rank: (steps[rank].waiting, rank))
    rows = []
    for rank in order[:_MAX_BARS]:
        step = steps[rank]
        parts = "".join(
            f'<span class="{name}" style="width:{value / longest:.2%}" title="{name} {value * 1e3:.2f} ms"></span>'
            for name, value in (("compute", step.compute), ("waiting", step.waiting), ("sums", step.sums))
        )
        text = f"{step.compute * 1e3:.2f} + {step.waiting * 1e3:.2f} + {step.sums * 1e3:.2f} ms"
        rows.append(f'<tr><th>rank {rank}<td>{escape(start.hosts[rank])}<td class="bar">{parts}<td>{text}')
    more = (
        f"<p>and {len(order) - _MAX_BARS} more ranks, which wait at least as long</p>" if len(order) > _MAX_BARS else ""
    )
    return (
        "<h2>Waiting</h2><p>A step of each rank: <span class='key compute'></span>compute, <span class='key "
        "waiting'></span>waiting for the others, <span class='key sums'></span>sums. "
        "The others wait for the rank that waits least.</p>"
        f'<table class="bars">{"".join(rows)}</table>{more}'
    )


def _format_profile(one: _Recorded) -> str:
    return f"<h2>Profile</h2><pre>{escape(one.start.profile)}</pre>" if one.start.profile else ""


def _format_prediction(one: _Recorded) -> str:
    return f"<h2>Predicted and measured</h2><pre>{escape(one.prediction)}</pre>" if one.prediction else ""


def _list_events(run: Run) -> list[tuple[float, str]]:
    """All events except epochs, in order."""
    found = [(one["t"], str(one["event"])) for one in run.events if "event" in one]
    for start in run.starts:
        if start.number > 1:
            found.append((start.about["at"], f"start {start.number}, on {progress.describe_ranks(start)}"))
        found += [(one["t"], str(one["event"])) for one in start.events if "event" in one]
    return sorted(found)


def _list_marks(one: _Recorded) -> Iterator[tuple[float, str]]:
    """The marks in charts: events while ranks ran."""
    return (
        (round(t - one.zero, 3), one.prefix_name(text))
        for t, text in _list_events(one.run)
        if one.zero < t <= one.zero + one.end
    )


def _format_events(one: _Recorded) -> str:
    rows = "".join(f"<tr><td>{t - one.zero:+.1f} s<td>{escape(text)}" for t, text in _list_events(one.run))
    return f"<h2>Events</h2><table>{rows}</table>" if rows else ""


def _format_ranks(recorded: _Recorded) -> str:
    """The table with the means of each rank."""
    start, ranks, steps = recorded.start, recorded.ranks, recorded.steps
    rows = []
    for rank, series in list(ranks.items())[:_MAX_TABLE_RANKS]:
        memory = np.nanmax(series["mem"]) if np.isfinite(series["mem"]).any() else np.nan
        values = [progress.compute_mean_rate(series, "cpu"), memory / 2**30, series["read"][-1] / 1e9, series["in"][-1]]
        step = steps.get(rank)
        values += [1e3 * one for one in (step.compute, step.waiting, step.sums)] if step else [np.nan] * 3
        cells = "".join(f"<td>{format_number(value) if value == value else '-'}" for value in values)
        rows.append(f"<tr><th>{rank}<td>{escape(start.hosts[rank])}{cells}<td>{escape(series.ended)}")
    head = "<tr><th>rank<th>host<th>CPU, cores<th>most memory, GiB<th>read, GB<th>waiting for the input, s"
    head += "<th>compute, ms<th>waiting, ms<th>sums, ms<th>end"
    return f"<details><summary>Each rank: means over the run</summary><table>{head}{''.join(rows)}</table></details>"
