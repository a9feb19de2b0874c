"""Shows the progress of a search: a live table in a terminal, otherwise a line for each trial."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from matex_tf.monitor.progress import format_seconds
from matex_tf.tune.database import Record
from matex_tf.tune.objective import Objective
from matex_tf.tune.space import Space
from matex_tf.tune.trials.trial import DONE, FAILED, Trial

_REDRAW_INTERVAL = 0.5  # seconds
_OTHER_LINES = 6  # lines of the screen that are not trials


class Screen:
    """The display of one search. Without a terminal, ended trials go to standard output, messages to standard error.

    `earlier` has the recorded trials of a search that continues.
    """

    def __init__(
        self, space: Space, objective: Objective, trial_count: int, parallel: int, earlier: Sequence[Record] = ()
    ):
        self._space, self._objective, self._trial_count, self._parallel = space, objective, trial_count, parallel
        # By number of the trial. `_ended` has ended and paused trials in the order of their ends.
        # A record has seconds once a start of its trial has ended or paused.
        self._ended = {record.number: record for record in earlier if record.seconds}
        self._started: dict[int, Record] = {}  # all trials that this process has started
        self._running: dict[int, Trial] = {}
        self._best: Record | None = None
        self._drawn_at = 0.0  # seconds of time.monotonic
        self._has_heading = False  # whether the heading of the lines is printed
        self._printed_kinds: set[str] = set()  # kinds of printed messages
        self._console = Console(highlight=False, markup=False)
        self._live: Live | None = None  # None without a terminal

    def __enter__(self) -> Screen:
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, redirect_stderr=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._running = {}
            self._live.update(self.draw_table(len(self._ended) + _OTHER_LINES), refresh=True)
            self._live.stop()

    def show_start(self, record: Record) -> None:
        """A trial starts."""
        self._started[record.number] = record

    def show_running(self, trials: dict[int, Trial]) -> None:
        """The running trials were polled."""
        self._running = trials
        if self._live is not None and time.monotonic() - self._drawn_at > _REDRAW_INTERVAL:
            self._drawn_at = time.monotonic()
            self._live.update(self.draw_table(self._console.height), refresh=True)

    def show_end(self, record: Record, best: Record | None) -> None:
        """A trial has ended, or has paused at a rung."""
        self._ended.pop(record.number, None)  # a trial that was paused moves to the end
        self._ended[record.number] = record
        self._best = best
        if self._live is None:
            if not self._has_heading:
                self._has_heading = True
                print(self._format_line(self._headings), flush=True)
            print(self._format_line(self._format_cells(record)), flush=True)

    def print_line(self, text: str, kind: str = "") -> None:
        """Print a message; of a `kind` only the first one."""
        if kind in self._printed_kinds:
            return
        self._printed_kinds |= {kind} - {""}
        line = f"matex tune: {text}"
        if self._live is not None:
            self._console.print(line, soft_wrap=True)
        else:
            print(line, file=sys.stderr, flush=True)

    def draw_table(self, height: int) -> RenderableType:
        """The running trials, the best one, and the last ended ones, in at most `height` lines."""
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in self._headings:
            table.add_column(name, justify="left" if name == "state" else "right", no_wrap=True)
        max_records = max(height - _OTHER_LINES - len(self._running), 3)
        shown_records = [record for number, record in self._ended.items() if number not in self._running][-max_records:]
        if self._best is not None and self._best not in shown_records and self._best.number not in self._running:
            shown_records = [self._best, *shown_records[1:]]  # in place of the trial that ended first
        for record in shown_records:
            style = "bold green" if self._is_best(record) else "red" if record.state == FAILED else ""
            table.add_row(*self._format_cells(record), style=style)
        for number, trial in self._running.items():
            table.add_row(*self._format_running_cells(number, trial), style="dim")
        return Group(table, Text(self._format_foot()))

    @property
    def _headings(self) -> list[str]:
        return ["trial", self._objective.name, "epochs", "state", "s", *self._space.names]

    def _is_best(self, record: Record) -> bool:
        return self._best is not None and record.number == self._best.number

    def _format_cells(self, record: Record) -> list[str]:
        value = "-" if record.value is None else f"{record.value:.4g}"
        state = "best" if self._is_best(record) and record.state == DONE else record.state
        if record.state == FAILED:
            state = f"{record.state}: {record.why}" if len(record.why) < 30 else record.state
        epochs = str(record.curve[-1].epoch) if record.curve else "-"
        values = self._space.format_values(record.config)
        return [str(record.number), value, epochs, state, f"{record.seconds:.0f}", *values]

    def _format_running_cells(self, number: int, trial: Trial) -> list[str]:
        epoch_lines = [line for line in trial.lines if line.get("epoch")]
        values = [line["logs"][self._objective.name] for line in epoch_lines if self._objective.name in line["logs"]]
        value = f"{values[-1]:.4g}" if values else "-"
        epochs = str(epoch_lines[-1]["epoch"]) if epoch_lines else "-"
        state = "waits" if trial.waits else "runs"
        parameters = self._space.format_values(self._started[number].config)
        return [str(number), value, epochs, state, f"{trial.seconds:.0f}", *parameters]

    def _format_line(self, cells: Sequence[str]) -> str:
        min_widths = [5, 8, 6, 7, 5, *(8 for _ in self._space.names)]
        widths = [max(width, len(heading)) for width, heading in zip(min_widths, self._headings)]
        columns = zip(cells, widths, self._headings)
        return "  ".join(cell.ljust(width) if name == "state" else cell.rjust(width) for cell, width, name in columns)

    def _format_foot(self) -> str:
        remaining_trials = self._trial_count - len(self._ended)
        text = f"{len(self._ended)} of {self._trial_count} trials"
        if self._best is not None and self._best.value is not None:
            text += f", best {self._objective.name} {self._best.value:.4g} (trial {self._best.number})"
        if self._ended and remaining_trials > 0:
            mean_seconds = sum(record.seconds for record in self._ended.values()) / len(self._ended)
            text += f", left {format_seconds(mean_seconds * remaining_trials / self._parallel)}"
        return text
