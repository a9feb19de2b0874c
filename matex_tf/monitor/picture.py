"""The display of `matex top` and `matex run --live`, drawn from the newest samples: progress, and a table of ranks.

A sample is a line that a rank records about itself: counters such as updates (`up`) and bytes sent (`tx`), and current
values such as memory (`mem`). A rank records a sample every `Start.seconds`, and less often later in a long run. The
samples of a rank are a `Series`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal, NamedTuple

import numpy as np
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from matex_tf.monitor import progress, waits
from matex_tf.monitor.recording import Run, Series, Start, read_recent
from matex_tf.observe import balance
from matex_tf.settings import format_bytes
from matex_tf.world import exit_codes

WINDOW = 10.0
"""Seconds over which displayed numbers are averaged."""
SILENT = 10
"""A rank counts as silent if its last sample is older than this multiple of the interval between its samples."""
_OTHER_LINES = 7  # lines of the display other than ranks
_OPTIONAL_COLUMNS = tuple("GPU mem,sent/s,recv/s,memory,GPU,sums,CPU,read/s,input,host,compute".split(","))
"""The columns that a narrow terminal omits, in this order, until the table fits."""
_MAX_WIDTH = 1000


def draw_run(run: Run, height: int = 0, now: float | None = None) -> RenderableType:
    """The display of the run's last start, with as many ranks as fit into `height` lines (0: all)."""
    start = run.starts[-1]
    recent = _read_recent(start)
    if not recent:
        return Text(f"{progress.describe_command(start)}, {progress.describe_ranks(start)}: no sample yet")
    steps = waits.compute_mean_steps(recent)  # the mean times of a training step, by rank; none before the first step
    shown_ranks = _choose_ranks(recent, steps, height)
    lines: list[RenderableType] = [
        Text(_format_heading(run, start, recent)),
        _make_table(start, recent, steps, shown_ranks),
    ]
    if len(shown_ranks) < len(recent):
        lines.append(Text(f"and {len(recent) - len(shown_ranks)} more ranks, which wait at least as long", style="dim"))
    messages = [
        waits.describe_waits(recent, steps, start.hosts),
        *_list_silent(start, recent, time.time() if now is None else now),
    ]
    messages += [_describe_other_load(start, recent)]
    lines += [Text(text) for text in messages if text]
    return Group(*lines)


def describe_run(run: Run) -> str:
    """The status of the run in one line."""
    start = run.starts[-1]
    recent = _read_recent(start)
    if not recent:
        return f"{progress.describe_command(start)}, {progress.describe_ranks(start)}: no sample yet"
    waiting = waits.describe_waits(recent, waits.compute_mean_steps(recent), start.hosts)
    return _format_heading(run, start, recent) + (f"; {waiting}" if waiting else "")


def _read_recent(start: Start) -> dict[int, Series]:
    """The samples of each rank over which displayed numbers are averaged."""
    return read_recent(start, max(WINDOW, 3 * start.seconds))


def has_ended(run: Run) -> bool:
    """Whether the run is over: `matex run`, which may restart ranks, has ended; without it, all ranks have ended."""
    if run.events:
        return "end" in run.events[-1]
    start = run.starts[-1]
    recent = read_recent(start, 0)
    return len(recent) == start.size and all(series.ended for series in recent.values())


def has_ended_to_restart(run: Run) -> bool:
    """Whether the run ended in order to be restarted, for example near its time limit."""
    return bool(run.events) and run.events[-1].get("end") == exit_codes.EXIT_REQUEUE


def _format_heading(run: Run, start: Start, recent: Mapping[int, Series]) -> str:
    """The first line: command, progress and speed."""
    first_rank = recent.get(0) or next(iter(recent.values()))
    parts = [progress.describe_command(start), progress.describe_ranks(start)]
    if len(run.starts) > 1:
        parts.append(f"start {start.number}")
    epochs = progress.list_epochs(start.events)
    if epochs:
        last_epoch = epochs[-1]
        parts.append(f"epoch {last_epoch.number}" + (f" of {last_epoch.of}" if last_epoch.of else "") + " done")
    parts.append(f"{int(first_rank['up'][-1])} updates")
    if updates_per_second := progress.compute_mean_rate(first_rank, "up"):
        parts.append(f"{1e3 / updates_per_second:.1f} ms an update")
    if rows_per_second := progress.compute_mean_rate(first_rank, "rows"):
        parts.append(f"{rows_per_second:,.0f} rows/s")
    if epochs:
        parts += [f"{name} {value:.4g}" for name, value in epochs[-1].logs.items()]
    if first_rank.ended:
        parts.append(first_rank.ended)
    elif seconds_left := progress.estimate_seconds_left(epochs, start.about["at"]):
        parts.append(f"left {progress.format_seconds(seconds_left)}")
    return ", ".join(parts)


def _choose_ranks(recent: Mapping[int, Series], steps: Mapping[int, balance.Step], height: int) -> list[int]:
    """The displayed ranks: all; or, if they do not fit, ranks without a recent sample and ranks that wait least."""
    ranks = list(recent)
    max_ranks = max(height - _OTHER_LINES, 3)
    if not height or len(ranks) <= max_ranks:
        return ranks
    newest_time = max(series["t"][-1] for series in recent.values())
    # First ranks without a recent sample, because False is less than True; then by their waiting time.
    ordered_ranks = sorted(
        ranks, key=lambda rank: (recent[rank]["t"][-1] > newest_time - WINDOW, _compute_waiting(rank, recent, steps))
    )
    return sorted(ordered_ranks[: max_ranks - 1])  # a line is left for the row of medians


def _compute_waiting(rank: int, recent: Mapping[int, Series], steps: Mapping[int, balance.Step]) -> float:
    """Seconds that the rank waits now, plus the waiting in its mean step."""
    seconds, _ = recent[rank].waits  # (seconds, place) of the present wait
    return seconds + (steps[rank].waiting if rank in steps else 0.0)


class _Column(NamedTuple):
    """How to compute the number of a rank from its samples and its mean step, and the text of the number."""

    compute: Callable[[Series, balance.Step], float]  # NaN: unknown
    format: Callable[[float], str]


def _read_rate(name: str) -> Callable[[Series, balance.Step], float]:
    """The mean growth a second of a counter."""
    return lambda series, _: math.nan if name not in series.samples[-1] else progress.compute_mean_rate(series, name)


def _read_last(name: str) -> Callable[[Series, balance.Step], float]:
    """The value in the last sample."""
    return lambda series, _: float(series[name][-1])


def _format_milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


_UNKNOWN_STEP = balance.Step(math.nan, math.nan, math.nan)
_COLUMNS = {
    "CPU": _Column(_read_rate("cpu"), "{:.0%}".format),
    "memory": _Column(_read_last("mem"), format_bytes),
    "sent/s": _Column(_read_rate("tx"), format_bytes),
    "recv/s": _Column(_read_rate("rx"), format_bytes),
    "read/s": _Column(_read_rate("read"), format_bytes),
    "compute": _Column(lambda _, step: step.compute, _format_milliseconds),
    "input": _Column(lambda _, step: step.input, _format_milliseconds),
    "waiting": _Column(lambda _, step: step.waiting, _format_milliseconds),
    "sums": _Column(lambda _, step: step.sums, _format_milliseconds),
    "GPU": _Column(_read_last("gpu"), "{:.0f}%".format),
    "GPU mem": _Column(_read_last("vram"), format_bytes),
}


@dataclass(frozen=True)
class _RankTable:
    """The table of ranks. A narrow terminal shows fewer columns, but always the rank and its waiting time."""

    names: Sequence[str]
    rows: Sequence[tuple[Sequence[str], str]]  # the texts of each row, and its style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # `wide_options` measures the width that a table has without the limit of the terminal.
        wide_options, chosen_columns = options.update(max_width=_MAX_WIDTH), list(range(len(self.names)))
        for omitted_name in ("", *_OPTIONAL_COLUMNS):  # "": first try all columns
            chosen_columns = [index for index in chosen_columns if self.names[index] != omitted_name]
            table = self._make_table(chosen_columns)
            if console.measure(table, options=wide_options).maximum <= options.max_width:
                break
        yield table

    def _make_table(self, chosen_columns: Sequence[int]) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for index in chosen_columns:
            max_width = 20 if self.names[index] == "host" else None
            justify: Literal["left", "right"] = "left" if max_width else "right"
            table.add_column(self.names[index], justify=justify, max_width=max_width, no_wrap=True)
        for texts, style in self.rows:
            table.add_row(*(texts[index] for index in chosen_columns), style=style)
        return table


def _make_table(
    start: Start, recent: Mapping[int, Series], steps: Mapping[int, balance.Step], shown_ranks: Sequence[int]
) -> _RankTable:
    has_gpu = any("gpu" in series.samples[-1] for series in recent.values())
    columns = {name: column for name, column in _COLUMNS.items() if has_gpu or not name.startswith("GPU")}
    numbers = {
        rank: [column.compute(series, steps.get(rank, _UNKNOWN_STEP)) for column in columns.values()]
        for rank, series in recent.items()
    }

    def format_row(rank: str, host: str, values: Sequence[float]) -> list[str]:
        texts = zip(values, columns.values())
        return [rank, host, *("-" if math.isnan(value) else column.format(value) for value, column in texts)]

    slowest = balance.find_slowest(steps)
    rows = []
    for rank in shown_ranks:
        host = start.hosts[rank] if rank < start.size else "?"
        style = "bold red" if slowest and slowest[0] == rank else ""
        rows.append((format_row(str(rank), host, numbers[rank]), style))
    if len(shown_ranks) < len(recent):
        values_by_column = zip(*numbers.values())  # for each column, the numbers of all ranks
        known_values = [[value for value in values if not math.isnan(value)] for values in values_by_column]
        medians = [median(values or [math.nan]) for values in known_values]
        rows.append((format_row("all", "(medians)", medians), "dim"))
    return _RankTable(["rank", "host", *columns], rows)


def _list_silent(start: Start, recent: Mapping[int, Series], now: float) -> list[str]:
    """Messages about silent ranks, and about ranks that have written nothing. A sample has the time of its host: this
    assumes that the hosts' clocks differ by less than the limit.
    """

    def find_limit(series: Series) -> float:
        """The seconds after which the rank counts as silent. Ranks of a long run sample at longer intervals."""
        return SILENT * max([start.seconds, *np.diff(series["t"][-2:])])

    lines = []
    for host, ranks in waits.group_by_host(recent, start.hosts).items():
        silent_seconds = {rank: now - recent[rank]["t"][-1] for rank in ranks if not recent[rank].ended}
        silent = [rank for rank, seconds in silent_seconds.items() if seconds > find_limit(recent[rank])]
        if silent:
            subject = f"rank {silent[0]}" if len(silent) == 1 else f"{len(silent)} ranks, the first rank {silent[0]},"
            longest_text = progress.format_seconds(max(silent_seconds[rank] for rank in silent))
            lines.append(f"nothing from {subject} ({host}) for {longest_text}")
    if len(lines) > 4:
        lines = [*lines[:3], f"nor from ranks of {len(lines) - 3} more hosts"]
    written_ranks = {rank for rank, path in start.files.items() if Path(path).stat().st_size}
    missing_ranks = [rank for rank in range(start.size) if rank not in written_ranks]
    if len(missing_ranks) == 1:
        lines.append(f"rank {missing_ranks[0]} has written nothing")
    elif missing_ranks:
        lines.append(f"{len(missing_ranks)} ranks, the first rank {missing_ranks[0]}, have written nothing")
    return lines


def _describe_other_load(start: Start, recent: Mapping[int, Series]) -> str:
    """A message about the host with the most load from processes other than ranks."""
    ranks_by_host = waits.group_by_host(recent, start.hosts)
    loads = {host: waits.count_other_cores(recent, ranks) for host, ranks in ranks_by_host.items()}
    host, cores = max(loads.items(), key=lambda host_and_load: host_and_load[1])
    return f"other processes of {host} keep {cores:.1f} of its cores busy" if cores >= 0.5 else ""
