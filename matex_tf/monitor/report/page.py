"""The report of a run: one HTML file that asks nothing of any network, for the screen, dark or light, and for paper."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from html import escape

import numpy as np

from matex_tf.monitor import progress, waits
from matex_tf.monitor.recording import Run, Series, Start, read_all
from matex_tf.monitor.report import quantities
from matex_tf.monitor.report.charts import COLOURS, Line, draw_chart, format_number
from matex_tf.monitor.report.template import assemble_page, format_facts, frame_figure

_BARS = 16  # of hundreds of ranks, those that are waited for most
_ALL = 2048  # ranks in the table at the end
_LINES_OF_RANKS = 640
_EPOCHS = ((1, "epochs"),)
_EPOCHS_ABOVE = 8  # the most that stand at the upper border of a chart over time


def format_page(run: Run, prediction: str = "") -> str:
    """The page of `run`. `prediction` is what the planner says of it, if it has been asked."""
    everything = [(start, {rank: one for rank, one in read_all(start).items() if len(one)}) for start in run.starts]
    everything = [(start, ranks) for start, ranks in everything if ranks] or everything[-1:]
    start, ranks = everything[-1]
    zero = everything[0][0].about["at"]
    end = max((float(one["t"][-1]) for _, those in everything for one in those.values()), default=zero) - zero
    steps = waits.compute_mean_steps(ranks)
    slow = waits.find_slowest(steps)
    marks = list(_list_marks(run, zero, end))
    done = progress.list_kept_epochs(run.starts)
    above = [(one.t - zero, f"epoch {one.number}") for one in done[:: max(-(-len(done) // _EPOCHS_ABOVE), 1)]]
    body = [
        f"<h1>{escape(progress.describe_command(start))}</h1>",
        _format_head(run, start, ranks, zero, end),
        f'<p class="said">{escape(waits.describe_waits(ranks, steps, start.hosts))}</p>',
        _format_legend(start, ranks),
        *_draw_metrics(done, zero, marks),
    ]
    chosen = [slow[0]] if slow else []
    buckets = max(_LINES_OF_RANKS // min(max(len(ranks), 1), quantities.MOST_LINES), 40)
    for quantity in quantities.QUANTITIES:
        if drawn := quantities.draw_quantity(quantity, everything, zero, end, chosen):
            picture = draw_chart(
                quantity.title,
                quantity.unit,
                drawn.lines,
                end,
                marks,
                drawn.band,
                buckets=min(buckets, 160),
                above=above,
            )
            body.append(frame_figure(quantity.title, quantity.unit, picture, drawn.table, keys=drawn.band is not None))
    body += [
        _draw_bars(start, steps),
        _format_profile(start),
        _format_prediction(prediction),
        _format_events(run, zero),
        _format_ranks(start, ranks, steps),
    ]
    return assemble_page(f"{progress.describe_command(start)}, {progress.describe_ranks(start)}", body)


def _format_head(run: Run, start: Start, ranks: Mapping[int, Series], zero: float, end: float) -> str:
    about = start.about
    ways = dict.fromkeys(series.ended or "no word of its end" for series in ranks.values())
    facts = {
        "ranks": progress.describe_ranks(start),
        "hosts": ", ".join(list(dict.fromkeys(start.hosts))[:8]) + (" ..." if len(set(start.hosts)) > 8 else ""),
        "began": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(zero)),
        "recorded": progress.format_seconds(end),
        "starts": str(len(run.starts)),
        "end": "; ".join(ways),
        "versions": ", ".join(f"{name} {version}" for name, version in about["versions"].items()),
        "settings": ", ".join(f"{name}={value}" for name, value in sorted(about["settings"].items())),
        "folder": about["folder"],
    }
    return format_facts(facts)


def _format_legend(start: Start, ranks: Mapping[int, Series]) -> str:
    """The ranks and their colours; a click brings out one of them in all charts."""
    if len(ranks) > quantities.MOST_LINES:
        return (
            f"<p>Of {len(ranks)} ranks, charts show what they lie between, the median, and those that stand out. Each "
            "point of a line is a mean up to it.</p>"
        )
    keys = "".join(
        f'<button data-of="rank {rank}" class="k{place % COLOURS}">rank {rank} '
        f"<small>{escape(start.hosts[rank])}</small></button>"
        for place, rank in enumerate(ranks)
    )
    return f'<p class="legend">{keys}</p>'


def _draw_metrics(done: Sequence[progress.Epoch], zero: float, marks: Sequence[tuple[float, str]]) -> Iterable[str]:
    """Loss and metrics over the epochs, with those of the validation beside them."""
    places = progress.count_epochs(done)
    times = [one.t - zero for one in done]
    marked = [(float(np.interp(t, [0.0, *times], [0, *places])), text) for t, text in marks]
    names = list(dict.fromkeys(name for one in done for name in one.logs))
    for name in [name for name in names if not (name.startswith("val_") and name[4:] in names)]:
        lines, table = [], []
        for colour, one in enumerate(each for each in (name, f"val_{name}") if each in names):
            known = [(place, epoch.logs[one]) for place, epoch in zip(places, done) if one in epoch.logs]
            x, values = np.array(known, float).T
            finite = values[np.isfinite(values)]
            if not len(finite):
                yield f'<p class="said">{escape(one)} was never a finite number</p>'
                continue
            lines.append(Line(one, colour, [(x, values)]))
            table.append((one, float(finite.min()), float(finite.mean()), float(finite.max())))
        picture = draw_chart(name, "", lines, places[-1], marked, from_zero=False, units=_EPOCHS, exact=True)
        yield frame_figure(name, "at the end of each epoch", picture, table, keys=True)


def _draw_bars(start: Start, steps: Mapping[int, waits.Step]) -> str:
    """What a step of each rank went into, as bars; the rank that is waited for first."""
    if not steps:
        return ""
    longest = max(step.whole for step in steps.values()) or 1
    order = sorted(steps, key=lambda rank: (steps[rank].waiting, rank))
    rows = []
    for rank in order[:_BARS]:
        step = steps[rank]
        parts = "".join(
            f'<span class="{name}" style="width:{value / longest:.2%}" title="{name} {value * 1e3:.2f} ms"></span>'
            for name, value in (("compute", step.compute), ("waiting", step.waiting), ("sums", step.sums))
        )
        text = f"{step.compute * 1e3:.2f} + {step.waiting * 1e3:.2f} + {step.sums * 1e3:.2f} ms"
        rows.append(f'<tr><th>rank {rank}<td>{escape(start.hosts[rank])}<td class="bar">{parts}<td>{text}')
    more = f"<p>and {len(order) - _BARS} more ranks, which wait no less</p>" if len(order) > _BARS else ""
    return (
        "<h2>Who is waited for</h2><p>A step of each rank: <span class='key compute'></span>compute, <span class='key "
        "waiting'></span>waiting for the others, <span class='key sums'></span>sums. Who waits least is waited for.</p>"
        f'<table class="bars">{"".join(rows)}</table>{more}'
    )


def _format_profile(start: Start) -> str:
    return f"<h2>Profile</h2><pre>{escape(start.profile)}</pre>" if start.profile else ""


def _format_prediction(prediction: str) -> str:
    return f"<h2>Predicted and measured</h2><pre>{escape(prediction)}</pre>" if prediction else ""


def _list_events(run: Run) -> list[tuple[float, str]]:
    """What has happened, but for epochs, in order."""
    found = [(one["t"], str(one["event"])) for one in run.events if "event" in one]
    for start in run.starts:
        if start.number > 1:
            found.append((start.about["at"], f"start {start.number}, on {progress.describe_ranks(start)}"))
        found += [(one["t"], str(one["event"])) for one in start.events if "event" in one]
    return sorted(found)


def _list_marks(run: Run, zero: float, end: float) -> Iterable[tuple[float, str]]:
    """What is marked in charts: what happened while there were ranks."""
    return ((t - zero, text) for t, text in _list_events(run) if zero < t <= zero + end)


def _format_events(run: Run, zero: float) -> str:
    rows = "".join(f"<tr><td>{t - zero:+.1f} s<td>{escape(text)}" for t, text in _list_events(run))
    return f"<h2>What happened</h2><table>{rows}</table>" if rows else ""


def _format_ranks(start: Start, ranks: Mapping[int, Series], steps: Mapping[int, waits.Step]) -> str:
    """The means of each rank, as a table."""
    rows = []
    for rank, series in list(ranks.items())[:_ALL]:
        memory = np.nanmax(series["mem"]) if np.isfinite(series["mem"]).any() else np.nan
        values = [progress.compute_mean_rate(series, "cpu"), memory / 2**30, series["read"][-1] / 1e9, series["in"][-1]]
        step = steps.get(rank)
        values += [1e3 * one for one in (step.compute, step.waiting, step.sums)] if step else [np.nan] * 3
        cells = "".join(f"<td>{format_number(value) if value == value else '-'}" for value in values)
        rows.append(f"<tr><th>{rank}<td>{escape(start.hosts[rank])}{cells}<td>{escape(series.ended)}")
    head = "<tr><th>rank<th>host<th>CPU, cores<th>most memory, GiB<th>read, GB<th>waiting for the input, s"
    head += "<th>compute, ms<th>waiting, ms<th>sums, ms<th>end"
    return f"<details><summary>Each rank: means over the run</summary><table>{head}{''.join(rows)}</table></details>"
