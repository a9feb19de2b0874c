"""The report of one or several runs: one self-contained HTML file, for screen and paper.

`format_page` is the entry. It reads the samples (`_Recorded`), then makes the sections from top to bottom: facts, the
legend of ranks, charts of metrics and of `quantities`, and for each run the bars, profile, events and table of ranks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from matex_tf.monitor import progress, waits
from matex_tf.monitor.recording import Run, Series, Start, read_all
from matex_tf.monitor.report import charts, quantities
from matex_tf.monitor.report.charts import COLOURS, Line, Row, format_number, make_chart, round_numbers
from matex_tf.monitor.report.template import Figures, assemble_page, format_axes, format_facts
from matex_tf.observe import balance

_MAX_BARS = 16  # displayed ranks of a large run: the ranks that wait least
_MAX_TABLE_RANKS = 2048  # ranks in the table at the end
# In one chart, over all its lines. A bucket is an interval of time, in which a line has at most two points.
_MAX_BUCKETS = 640
_CLOCK_POINTS = 512


@dataclass
class _Recorded:
    """A run with the data that the page shows."""

    run: Run
    index: int  # the index of the run on the page
    name: str
    """The prefix of the names of its lines; "" if it is the only run."""
    starts: list[tuple[Start, dict[int, Series]]]
    """Each start with the samples of its ranks; the last start is `start` and `ranks`."""
    prediction: str = ""
    """The planner's text for the run; "" if there is none."""

    def __post_init__(self) -> None:
        self.start, self.ranks = self.starts[-1]
        self.zero = float(self.starts[0][0].about["at"])  # the time of the first start, seconds since 1970
        ends = [float(series["t"][-1]) for _, ranks in self.starts for series in ranks.values()]
        self.end = max(ends, default=self.zero) - self.zero  # of the last sample, in seconds since `zero`
        self.steps = waits.compute_mean_steps(self.ranks)  # the mean times of a step, by rank
        self.epochs = progress.list_kept_epochs(self.run.starts)

    def prefix_name(self, name: str) -> str:
        return f"{self.name}, {name}" if self.name else name


def format_page(*runs: Run, predictions: Sequence[str] = ()) -> str:
    """The page of `runs`, side by side. `predictions` are the planner's texts for the first of them."""
    names = _name_runs(runs)
    predictions_of_runs = [*predictions, *[""] * (len(runs) - len(predictions))]
    all_recorded = list(map(_read_run, runs, range(len(runs)), names, predictions_of_runs))
    figures = Figures()
    clocks = [_make_clocks(recorded) for recorded in all_recorded]
    axes = ["time", *(axis for axis in ("step", "epoch") if any(axis in clock for clock in clocks))]
    command = " and ".join(dict.fromkeys(progress.describe_command(recorded.start) for recorded in all_recorded))
    ranks = " and ".join(progress.describe_ranks(recorded.start) for recorded in all_recorded)
    facts_of_runs = list(map(_list_facts, all_recorded))
    body = [
        f"<h1>{escape(command)}</h1>",
        format_facts({name: [facts[name] for facts in facts_of_runs] for name in facts_of_runs[0]}),
        _set_side_by_side(all_recorded, _format_legend),
        format_axes(axes),
        *_draw_metrics(all_recorded, figures),
        *_draw_quantities(all_recorded, figures),
        _set_side_by_side(all_recorded, _draw_bars, _format_texts, _format_events, _format_ranks),
    ]
    about = [{"clocks": clock, "marks": list(_list_marks(recorded))} for clock, recorded in zip(clocks, all_recorded)]
    return assemble_page(f"{command}, {ranks}", body, figures.charts, about, axes)


def _name_runs(runs: Sequence[Run]) -> list[str]:
    """The names of the runs' folders, or their paths if the names are not unique."""
    if len(runs) == 1:
        return [""]
    names = [Path(os.path.abspath(run.folder)).name for run in runs]
    return names if len(set(names)) == len(names) else [run.folder for run in runs]


def _read_run(run: Run, index: int, name: str, prediction: str) -> _Recorded:
    """Read the samples of the starts that have any; of the last start if none has."""
    with_samples: list[tuple[Start, dict[int, Series]]] = []
    for start in run.starts:
        ranks = {rank: series for rank, series in read_all(start).items() if len(series)}
        if ranks:
            with_samples.append((start, ranks))
    return _Recorded(run, index, name, with_samples or [(run.starts[-1], {})], prediction)


def _make_clocks(recorded: _Recorded) -> dict[str, Any]:
    """The clocks, by which the page converts times: for each axis except "time", a list of times, and a list of the
    numbers of steps or epochs by then.

    Steps are counted on the first recorded rank, over all starts; steps repeated after a restart count again.
    """
    clocks = {}
    times, steps = [np.zeros(1)], [np.zeros(1)]
    for _, ranks in recorded.starts:
        if ranks:
            first = next(iter(ranks.values()))
            times.append(first["t"] - recorded.zero)
            steps.append(steps[-1][-1] + np.nan_to_num(first["st"]))  # "st": steps since the start
    t, count = np.concatenate(times), np.concatenate(steps)
    if count[-1] > 0:
        grid = np.linspace(0, recorded.end, _CLOCK_POINTS)
        clocks["step"] = [round_numbers(grid), round_numbers(np.interp(grid, t, count))]
    if recorded.epochs:
        ended = [0.0, *(epoch.t - recorded.zero for epoch in recorded.epochs)]
        clocks["epoch"] = [ended, [0, *progress.count_epochs(recorded.epochs)]]
    return clocks


def _set_side_by_side(runs: Sequence[_Recorded], *sections: Callable[[_Recorded], str]) -> str:
    """The HTML of the `sections` of each run, in a column of its own."""
    texts = ["".join(section(recorded) for section in sections) for recorded in runs]
    if len(runs) == 1:
        return texts[0]
    columns = (f"<section><h2>{escape(recorded.name)}</h2>{text}</section>" for recorded, text in zip(runs, texts))
    return f'<div class="runs">{"".join(columns)}</div>'


def _list_facts(recorded: _Recorded) -> dict[str, str]:
    start, about = recorded.start, recorded.start.about
    endings = dict.fromkeys(series.ended or "end unknown" for series in recorded.ranks.values())
    return {
        "run": recorded.name,
        "command": progress.describe_command(start) if recorded.name else "",
        "ranks": progress.describe_ranks(start),
        "hosts": ", ".join(list(dict.fromkeys(start.hosts))[:8]) + (" ..." if len(set(start.hosts)) > 8 else ""),
        "began": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(recorded.zero)),
        "recorded": progress.format_seconds(recorded.end),
        "starts": str(len(recorded.run.starts)),
        "end": "; ".join(endings),
        "versions": ", ".join(f"{name} {version}" for name, version in about["versions"].items()),
        "settings": ", ".join(f"{name}={value}" for name, value in sorted(about["settings"].items())),
        "folder": about["folder"],
    }


def _format_legend(recorded: _Recorded) -> str:
    """The rank that others wait for, and the legend: a click on a rank highlights it in all charts."""
    message = (
        f'<p class="said">{escape(waits.describe_waits(recorded.ranks, recorded.steps, recorded.start.hosts))}</p>'
    )
    if len(recorded.ranks) > quantities.MAX_LINES:
        return (
            f"{message}<p>Of {len(recorded.ranks)} ranks, charts show their range, their median and outliers. Each "
            "point of a line is the mean since the point before.</p>"
        )
    keys = "".join(
        f'<button data-of="{escape(recorded.prefix_name(f"rank {rank}"))}" class="k{index % COLOURS}">rank {rank} '
        f"<small>{escape(recorded.start.hosts[rank])}</small></button>"
        for index, rank in enumerate(recorded.ranks)
    )
    return f'{message}<p class="legend">{keys}</p>'


def _draw_metrics(runs: Sequence[_Recorded], figures: Figures) -> Iterator[str]:
    """Loss and metrics at the ends of epochs, each with its validation metric."""
    names = list(dict.fromkeys(name for recorded in runs for epoch in recorded.epochs for name in epoch.logs))
    for name in [name for name in names if not (name.startswith("val_") and name[4:] in names)]:
        lines_of_runs: list[list[Line]] = []
        for recorded in runs:
            lines_of_runs.append([])
            for colour, metric in enumerate(each for each in (name, f"val_{name}") if each in names):
                points = [
                    (epoch.t - recorded.zero, epoch.logs[metric]) for epoch in recorded.epochs if metric in epoch.logs
                ]
                t, values = np.array(points, float).reshape(-1, 2).T  # two empty arrays if there are no points
                if np.isfinite(values).any():
                    lines_of_runs[-1].append(Line(metric, colour, [(t, values)]))
                elif points:
                    yield f'<p class="said">{escape(recorded.prefix_name(metric))} was never a finite number</p>'
        curves, table = _combine_lines(runs, lines_of_runs)
        yield figures.add_figure(make_chart(name, "at the end of each epoch", curves, "epoch", from_zero=False), table)


def _draw_quantities(runs: Sequence[_Recorded], figures: Figures) -> Iterator[str]:
    """A chart of each quantity; "" for a quantity that was not recorded. With more lines, each has fewer points."""
    line_count = sum(min(max(len(recorded.ranks), 1), quantities.MAX_LINES) for recorded in runs)
    buckets = min(max(_MAX_BUCKETS // line_count, 40), 160)
    for quantity in quantities.QUANTITIES:
        lines_of_runs = []
        for recorded in runs:
            slowest = balance.find_slowest(recorded.steps)  # (rank, seconds that others wait for it), or None
            chosen = [slowest[0]] if slowest else []
            lines_of_runs.append(
                quantities.draw_quantity(quantity, recorded.starts, recorded.zero, recorded.end, chosen)
            )
        curves, table = _combine_lines(runs, lines_of_runs, buckets)
        yield figures.add_figure(make_chart(quantity.title, quantity.unit, curves, "time"), table)


def _combine_lines(
    runs: Sequence[_Recorded], lines_of_runs: Sequence[Sequence[Line]], buckets: int = 160
) -> tuple[list[dict[str, Any]], list[Row]]:
    """The curves of a chart with lines of all runs, and the table of their values."""
    curves: list[dict[str, Any]] = []
    table: list[Row] = []
    for recorded, lines in zip(runs, lines_of_runs):
        named = [replace(line, name=recorded.prefix_name(line.name)) for line in lines]
        curves += charts.make_curves(named, recorded.index, recorded.end, buckets)
        table += charts.summarize_lines(named)
    return curves, table


def _draw_bars(recorded: _Recorded) -> str:
    """The composition of each rank's step as bars; the rank that others wait for comes first."""
    start, steps = recorded.start, recorded.steps
    if not steps:
        return ""
    longest = max(step.whole for step in steps.values()) or 1
    order = balance.sort_ranks(steps)
    rows = []
    for rank in order[:_MAX_BARS]:
        step = steps[rank]
        bar = "".join(
            f'<span class="{name}" style="width:{value / longest:.2%}" title="{name} {value * 1e3:.2f} ms"></span>'
            for name, value in (("compute", step.compute), ("waiting", step.waiting), ("sums", step.sums))
        )
        text = f"{step.compute * 1e3:.2f} + {step.waiting * 1e3:.2f} + {step.sums * 1e3:.2f} ms"
        rows.append(f'<tr><th>rank {rank}<td>{escape(start.hosts[rank])}<td class="bar">{bar}<td>{text}')
    more = (
        f"<p>and {len(order) - _MAX_BARS} more ranks, which wait at least as long</p>" if len(order) > _MAX_BARS else ""
    )
    return (
        "<h2>Waiting</h2><p>A step of each rank: <span class='key compute'></span>compute, <span class='key "
        "waiting'></span>waiting for the others, <span class='key sums'></span>sums. "
        "The others wait for the rank that waits least.</p>"
        f'<table class="bars">{"".join(rows)}</table>{more}'
    )


def _format_texts(recorded: _Recorded) -> str:
    texts = {"Profile": recorded.start.profile, "Predicted and measured": recorded.prediction}
    return "".join(f"<h2>{title}</h2><pre>{escape(text)}</pre>" for title, text in texts.items() if text)


def _list_events(run: Run) -> list[tuple[float, str]]:
    """All events except epochs, in order."""
    events = [(event["t"], str(event["event"])) for event in run.events if "event" in event]
    for start in run.starts:
        if start.number > 1:
            events.append((start.about["at"], f"start {start.number}, on {progress.describe_ranks(start)}"))
        events += [(event["t"], str(event["event"])) for event in start.events if "event" in event]
    return sorted(events)


def _list_marks(recorded: _Recorded) -> Iterator[tuple[float, str]]:
    """The marks in charts: times in seconds since the first start, and texts of the events while ranks ran."""
    return (
        (round(t - recorded.zero, 3), recorded.prefix_name(text))
        for t, text in _list_events(recorded.run)
        if recorded.zero < t <= recorded.zero + recorded.end
    )


def _format_events(recorded: _Recorded) -> str:
    rows = "".join(f"<tr><td>{t - recorded.zero:+.1f} s<td>{escape(text)}" for t, text in _list_events(recorded.run))
    return f"<h2>Events</h2><table>{rows}</table>" if rows else ""


def _format_ranks(recorded: _Recorded) -> str:
    start, ranks, steps = recorded.start, recorded.ranks, recorded.steps
    rows = []
    for rank, series in list(ranks.items())[:_MAX_TABLE_RANKS]:
        memory = np.nanmax(series["mem"]) if np.isfinite(series["mem"]).any() else np.nan
        values = [progress.compute_mean_rate(series, "cpu"), memory / 2**30, series["read"][-1] / 1e9, series["in"][-1]]
        step = steps.get(rank)
        values += [1e3 * seconds for seconds in (step.compute, step.waiting, step.sums)] if step else [np.nan] * 3
        cells = "".join(f"<td>{format_number(value) if value == value else '-'}" for value in values)  # "-": NaN
        rows.append(f"<tr><th>{rank}<td>{escape(start.hosts[rank])}{cells}<td>{escape(series.ended)}")
    head = "<tr><th>rank<th>host<th>CPU, cores<th>most memory, GiB<th>read, GB<th>waiting for the input, s"
    head += "<th>compute, ms<th>waiting, ms<th>sums, ms<th>end"
    return f"<details><summary>Each rank: means over the run</summary><table>{head}{''.join(rows)}</table></details>"
