"""Display of a run in a notebook cell: its state, learning curves, ranks and last output lines."""

from __future__ import annotations

import html
import importlib
import io
import math
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from rich.console import Console

from matex_tf.deploy import run_folder
from matex_tf.deploy.following import Lines
from matex_tf.deploy.job import ENDED, FORGOTTEN, STUCK, JobError, State, UnreachableError
from matex_tf.monitor import picture, progress, recording

THREAD = "matex_tf: picture of a run"
UPDATE_INTERVAL = 2.0  # seconds between two updates
_WIDTH = 120
_SHOWN_LINES = 10  # displayed lines of the output
_TAIL_BYTES = 1 << 16  # bytes read from the end of the output
_PRE = (
    '<pre style="margin: 0; font-family: monospace; line-height: 1.3; white-space: pre; overflow-x: auto">{code}</pre>'
)


class Shown(Protocol):
    """The attributes of a run that the display uses."""

    folder: str

    @property
    def id(self) -> str:
        """The id of the run."""

    def now(self) -> State:
        """The state of the run."""


def format_page(run: Shown, now: State) -> str:
    """The display as HTML, in the colours of the surrounding page."""
    where = f", {run.folder}" if run.folder else ""
    parts = [f"<div><b>{html.escape(run.id)}</b> {html.escape(str(now))}{html.escape(where)}</div>"]
    if run.folder:
        parts += [_draw_curves(run.folder), _format_ranks(run.folder), _format_lines(run.folder)]
    return "\n".join(part for part in parts if part)


_WIDE, _HEIGHT = 460, 150  # size of a chart in pixels
_LEFT, _TOP, _BOTTOM = 60, 20, 20  # margins in pixels, for labels
_COLOURS = ("#1f77b4", "#d62728")


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
    names = [name for name in curves if name.removeprefix("val_") not in curves or not name.startswith("val_")]
    drawn = (_draw_curve({one: curves[one] for one in (name, f"val_{name}") if one in curves}) for name in names)
    return f"<div>{''.join(drawn)}</div>" if names else ""


def _draw_curve(lines: Mapping[str, Sequence[tuple[int, float]]]) -> str:
    """A chart as SVG: values by epoch. Axes and labels have the text colour of the page."""
    values = [value for points in lines.values() for _, value in points]
    epochs = [epoch for points in lines.values() for epoch, _ in points]
    low, high, first, last = min(values), max(values), min(epochs), max(epochs)

    def place(epoch: int, value: float) -> str:
        x = _LEFT + (_WIDE - _LEFT - 10) * (epoch - first) / max(last - first, 1)
        y = _TOP + (_HEIGHT - _TOP - _BOTTOM) * ((high - value) / (high - low) if high > low else 0.5)
        return f"{x:.1f},{y:.1f}"

    bottom = _HEIGHT - _BOTTOM
    texts = [(_LEFT - 5, _TOP + 4, "end", f"{high:.4g}"), (_LEFT, _HEIGHT - 5, "start", f"epoch {first}")]
    texts += [(_LEFT - 5, bottom + 4, "end", f"{low:.4g}")] if high > low else []
    texts += [(_WIDE - 10, _HEIGHT - 5, "end", f"{last}")] if last > first else []
    parts = [f'<path d="M{_LEFT},{_TOP}V{bottom}H{_WIDE - 10}" fill="none" stroke="currentColor" opacity="0.4"/>']
    parts += [f'<text x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>' for x, y, anchor, text in texts]
    for at, ((name, points), colour) in enumerate(zip(lines.items(), _COLOURS)):
        said = html.escape(f"{name} {points[-1][1]:.4g}")
        parts.append(f'<text x="{_LEFT + at * 180}" y="{_TOP - 8}" fill="{colour}">{said}</text>')
        parts.append(f'<polyline points="{" ".join(place(*one) for one in points)}" fill="none" stroke="{colour}"/>')
        parts += [f'<circle cx="{x}" cy="{y}" r="2" fill="{colour}"/>' for x, y in [place(*points[-1]).split(",")]]
    return (
        f'<svg width="{_WIDE}" height="{_HEIGHT}" font-size="11" font-family="sans-serif" fill="currentColor">'
        f"{''.join(parts)}</svg>"
    )


def _format_ranks(folder: str) -> str:
    try:
        drawn = picture.draw_run(recording.open_run(folder))
    except recording.RecordingError:
        return ""  # no rank has written yet
    shown = io.StringIO()  # without a file, rich would display the text in the notebook
    console = Console(record=True, file=shown, width=_WIDTH, force_terminal=True, force_jupyter=False)
    console.print(drawn)
    return console.export_html(inline_styles=True, code_format=_PRE).rstrip()


def _format_lines(folder: str) -> str:
    """The last lines of the run's output."""
    shown = io.BytesIO()
    lines = Lines(shown)
    lines.write(run_folder.read_tail(folder, _TAIL_BYTES))
    lines.close()
    last = shown.getvalue().decode(errors="replace").splitlines()[-_SHOWN_LINES:]
    return _PRE.format(code=html.escape("\n".join(last))) if last else ""


def is_notebook() -> bool:
    """Whether this process is a notebook kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")


def show_run(run: Shown, display: Callable[..., Any]) -> threading.Thread:
    """Display a run with IPython's `display`, and update the display until the run has ended.

    The cell finishes at once. The returned thread updates the cell's output, and ends with the run.
    """
    HTML: Any = importlib.import_module("IPython.display").HTML
    now = run.now()
    handle = display(HTML(format_page(run, now)), display_id=True)

    def update_picture() -> None:
        state = now
        while state.phase not in (ENDED, FORGOTTEN, STUCK):
            time.sleep(UPDATE_INTERVAL)
            try:
                state = run.now()
            except UnreachableError:
                continue  # queried again, as in `follow`
            except JobError as error:  # a further query would fail in the same way
                handle.update(HTML(_PRE.format(code=html.escape(str(error)))))
                return
            handle.update(HTML(format_page(run, state)))

    thread = threading.Thread(target=update_picture, name=THREAD, daemon=True)
    thread.start()
    return thread
