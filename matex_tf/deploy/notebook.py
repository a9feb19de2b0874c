"""Display of a run in a notebook cell: its state, learning curves, ranks and last output lines.

The display is HTML. `show_run` replaces it every two seconds, in a thread of the notebook, until the run has ended.
"""

from __future__ import annotations

import html
import importlib
import io
import math
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console

from matex_tf.deploy import run_folder
from matex_tf.deploy.following import LineSplitter
from matex_tf.deploy.job import ENDED, FORGOTTEN, STUCK, JobError, State, UnreachableError
from matex_tf.monitor import picture, progress, recording

if TYPE_CHECKING:
    from matex_tf.deploy.python import LaunchedRun

THREAD = "matex_tf: display of a run"  # the name of the thread that updates the display
UPDATE_INTERVAL = 2.0  # seconds between two updates
_WIDTH = 120  # characters in a line about a rank
_SHOWN_LINES = 10  # displayed lines of the output
_TAIL_BYTES = 1 << 16  # bytes read from the end of the output
_PRE = (
    '<pre style="margin: 0; font-family: monospace; line-height: 1.3; white-space: pre; overflow-x: auto">{code}</pre>'
)


def format_page(run: LaunchedRun, state: State) -> str:
    """The display as HTML, in the colours of the surrounding page."""
    folder_text = f", {run.folder}" if run.folder else ""
    parts = [f"<div><b>{html.escape(run.id)}</b> {html.escape(str(state))}{html.escape(folder_text)}</div>"]
    if run.folder:
        parts += [_draw_curves(run.folder), _format_ranks(run.folder), _format_lines(run.folder)]
    return "\n".join(part for part in parts if part)


_CHART_WIDTH, _CHART_HEIGHT = 460, 150  # pixels
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 10, 20, 20  # margins of a chart in pixels, for labels
_COLOURS = ("#1f77b4", "#d62728")  # of a metric, and of its validation metric


def _draw_curves(folder: str) -> str:
    """Charts of the logs of `fit` by epoch; a metric and its validation metric share a chart."""
    try:
        epochs = progress.list_kept_epochs(recording.open_run(folder).starts)
    except recording.RecordingError:
        return ""  # no rank has written yet
    curves: dict[str, list[tuple[int, float]]] = {}
    for number, epoch in zip(progress.count_epochs(epochs), epochs):
        for name, value in epoch.logs.items():
            if math.isfinite(value):
                curves.setdefault(name, []).append((number, value))
    charts = []
    for name in curves:
        if name.startswith("val_") and name.removeprefix("val_") in curves:
            continue  # in the chart of its metric
        charts.append(_draw_curve({metric: curves[metric] for metric in (name, f"val_{name}") if metric in curves}))
    return f"<div>{''.join(charts)}</div>" if charts else ""


def _draw_curve(curves: Mapping[str, Sequence[tuple[int, float]]]) -> str:
    """A chart as SVG: values by epoch. Axes and labels have the text colour of the page."""
    values = [value for points in curves.values() for _, value in points]
    epochs = [epoch for points in curves.values() for epoch, _ in points]
    min_value, max_value, first_epoch, last_epoch = min(values), max(values), min(epochs), max(epochs)
    right, bottom = _CHART_WIDTH - _RIGHT, _CHART_HEIGHT - _BOTTOM

    def scale_point(epoch: int, value: float) -> str:
        x = _LEFT + (right - _LEFT) * (epoch - first_epoch) / max(last_epoch - first_epoch, 1)
        y = _TOP + (bottom - _TOP) * ((max_value - value) / (max_value - min_value) if max_value > min_value else 0.5)
        return f"{x:.1f},{y:.1f}"

    texts = [
        (_LEFT - 5, _TOP + 4, "end", f"{max_value:.4g}"),
        (_LEFT, _CHART_HEIGHT - 5, "start", f"epoch {first_epoch}"),
    ]
    texts += [(_LEFT - 5, bottom + 4, "end", f"{min_value:.4g}")] if max_value > min_value else []
    texts += [(right, _CHART_HEIGHT - 5, "end", f"{last_epoch}")] if last_epoch > first_epoch else []
    parts = [f'<path d="M{_LEFT},{_TOP}V{bottom}H{right}" fill="none" stroke="currentColor" opacity="0.4"/>']
    parts += [f'<text x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>' for x, y, anchor, text in texts]
    for index, ((metric, points), colour) in enumerate(zip(curves.items(), _COLOURS)):
        label = html.escape(f"{metric} {points[-1][1]:.4g}")
        parts.append(f'<text x="{_LEFT + index * 180}" y="{_TOP - 8}" fill="{colour}">{label}</text>')
        scaled_points = [scale_point(*point) for point in points]
        x, y = scaled_points[-1].split(",")
        parts.append(f'<polyline points="{" ".join(scaled_points)}" fill="none" stroke="{colour}"/>')
        parts.append(f'<circle cx="{x}" cy="{y}" r="2" fill="{colour}"/>')
    return (
        f'<svg width="{_CHART_WIDTH}" height="{_CHART_HEIGHT}" '
        'font-size="11" font-family="sans-serif" fill="currentColor">'
        f"{''.join(parts)}</svg>"
    )


def _format_ranks(folder: str) -> str:
    """The run's ranks, as `matex top` shows them in a terminal."""
    try:
        rank_picture = picture.draw_run(recording.open_run(folder))
    except recording.RecordingError:
        return ""  # no rank has written yet
    file = io.StringIO()  # without a file, rich would display the text in the notebook
    console = Console(record=True, file=file, width=_WIDTH, force_terminal=True, force_jupyter=False)
    console.print(rank_picture)
    return console.export_html(inline_styles=True, code_format=_PRE).rstrip()


def _format_lines(folder: str) -> str:
    """The last lines of the run's output."""
    splitter = LineSplitter()
    lines = splitter.feed(run_folder.read_tail(folder, _TAIL_BYTES))
    lines += [splitter.rest] if splitter.rest else []
    text = b"\n".join(lines[-_SHOWN_LINES:]).decode(errors="replace")
    return _PRE.format(code=html.escape(text)) if lines else ""


def is_notebook() -> bool:
    """Whether this process is a notebook kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")


def show_run(run: LaunchedRun) -> threading.Thread:
    """Display a run in the present cell of the notebook, and update the display until the run has ended.

    The cell finishes at once. The returned thread updates the cell's output, and ends with the run.
    """
    ipython_display: Any = importlib.import_module("IPython.display")
    HTML = ipython_display.HTML
    first_state = run.now()
    handle = ipython_display.display(HTML(format_page(run, first_state)), display_id=True)

    def update_display() -> None:
        state = first_state
        while state.phase not in (ENDED, FORGOTTEN, STUCK):
            time.sleep(UPDATE_INTERVAL)
            try:
                state = run.now()
            except UnreachableError:
                continue  # a later query may succeed, as in `follow`
            except JobError as error:  # a further query would fail in the same way
                handle.update(HTML(_PRE.format(code=html.escape(str(error)))))
                return
            handle.update(HTML(format_page(run, state)))

    thread = threading.Thread(target=update_display, name=THREAD, daemon=True)
    thread.start()
    return thread
