"""The picture of a run that Python started, for a cell of a notebook: its state, its ranks, its last lines."""

from __future__ import annotations

import html
import io
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from rich.console import Console

from matex_tf.deploy import run_folder
from matex_tf.deploy.following import Lines
from matex_tf.deploy.job import ENDED, FORGOTTEN, STUCK, JobError, State, UnreachableError
from matex_tf.monitor import picture, recording

THREAD = "matex_tf: picture of a run"
EACH = 2.0  # seconds between two pictures
_WIDTH = 120
_LAST = 10  # lines of the output
_KEPT = 1 << 16  # bytes at the end of the output, in which they are
_PRE = (
    '<pre style="margin: 0; font-family: monospace; line-height: 1.3; white-space: pre; overflow-x: auto">{code}</pre>'
)


class Shown(Protocol):
    """A run, as far as it is shown."""

    folder: str

    @property
    def id(self) -> str:
        """Its name."""

    def now(self) -> State:
        """Where it is."""


def format_page(run: Shown, now: State) -> str:
    """The picture as HTML, in the colours of the page that it is in."""
    where = f", {run.folder}" if run.folder else ""
    parts = [f"<div><b>{html.escape(run.id)}</b> {html.escape(str(now))}{html.escape(where)}</div>"]
    if run.folder:
        parts += [_format_ranks(run.folder), _format_lines(run.folder)]
    return "\n".join(part for part in parts if part)


def _format_ranks(folder: str) -> str:
    try:
        drawn = picture.draw_run(recording.open_run(folder))
    except recording.RecordingError:
        return ""  # no rank has begun to write
    shown = io.StringIO()  # within a notebook rich would show it in a cell of its own
    console = Console(record=True, file=shown, width=_WIDTH, force_terminal=True, force_jupyter=False)
    console.print(drawn)
    return console.export_html(inline_styles=True, code_format=_PRE).rstrip()


def _format_lines(folder: str) -> str:
    """The last lines that the run printed."""
    shown = io.BytesIO()
    lines = Lines(shown)
    lines.write(run_folder.read_tail(folder, _KEPT))
    lines.close()
    last = shown.getvalue().decode(errors="replace").splitlines()[-_LAST:]
    return _PRE.format(code=html.escape("\n".join(last))) if last else ""


def show_run(run: Shown, display: Callable[..., Any]) -> None:
    """Show the picture by `display` of IPython, and keep it up to date until the run has ended.

    The cell ends at once: a thread replaces what it shows.
    """
    from IPython.display import HTML

    now = run.now()
    handle = display(HTML(format_page(run, now)), display_id=True)

    def update_picture() -> None:
        state = now
        while state.phase not in (ENDED, FORGOTTEN, STUCK):
            time.sleep(EACH)
            try:
                state = run.now()
            except UnreachableError:
                continue  # it is asked again, as `follow` does
            except JobError as error:  # it would say the same again
                handle.update(HTML(_PRE.format(code=html.escape(str(error)))))
                return
            handle.update(HTML(format_page(run, state)))

    threading.Thread(target=update_picture, name=THREAD, daemon=True).start()
