"""The quantities of the report, such as CPU and memory: a line for each rank, or a band if there are many ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from matex_tf.monitor import waits
from matex_tf.monitor.recording import Series, Start
from matex_tf.monitor.report.charts import Line, make_band

MAX_LINES = 16
"""For more ranks, a chart shows their range and a few of the ranks."""
_EXTREMES = 3  # ranks that are shown in addition to the band of many ranks
_GRID_POINTS = 160  # of a band

Values = Callable[[Series], "tuple[np.ndarray, np.ndarray]"]
"""Returns times (seconds since 1970) and values of a rank."""
Starts = Sequence[tuple[Start, Mapping[int, Series]]]
"""The starts of a run, with the samples of their ranks."""


@dataclass(frozen=True)
class Quantity:
    """A chart with a line for each rank."""

    title: str
    unit: str
    values: Values
    of_hosts: bool = False  # ranks of a host share the values: one line for each host
    of_rank_0: bool = False  # the values of rank 0 are those of all ranks: one line


def _make_rate(name: str, scale: float = 1.0) -> Values:
    return lambda series: (series["t"][1:], series.compute_rates(name) * scale)


def _make_level(name: str, scale: float = 1.0) -> Values:
    return lambda series: (series["t"], series[name] * scale)


def _make_step_time(name: str) -> Values:
    """The counter `name`, of seconds, as milliseconds a step; NaN between samples without a new step."""

    def compute_values(series: Series) -> tuple[np.ndarray, np.ndarray]:
        steps = np.diff(series["st"])
        with np.errstate(divide="ignore", invalid="ignore"):
            return series["t"][1:], np.where(steps > 0, np.diff(series[name]) / steps * 1e3, np.nan)

    return compute_values


# The words such as "up" and "mem" are the names of counters and values in samples (`monitor.sampler`).
QUANTITIES = (
    Quantity("Rows a second", "rows/s, all ranks together", _make_rate("rows"), of_rank_0=True),
    Quantity("Updates a second", "updates/s", _make_rate("up"), of_rank_0=True),
    Quantity("Compute", "ms a step", _make_step_time("com")),
    Quantity("Waiting for the input", "ms a step, a part of compute", _make_step_time("in")),
    Quantity(
        "Waiting for other ranks", "ms a step; the others wait for the rank that waits least", _make_step_time("wait")
    ),
    Quantity("Sums and other collectives", "ms a step, without the waiting", _make_step_time("sum")),
    Quantity("CPU", "cores", _make_rate("cpu")),
    Quantity("Memory", "GiB resident", _make_level("mem", 2**-30)),
    Quantity("Read", "MB/s, of files and pipes", _make_rate("read", 1e-6)),
    Quantity("GPU", "% of the time", _make_level("gpu")),
    Quantity("GPU memory", "GiB", _make_level("vram", 2**-30)),
    Quantity("Received", "MB/s, of the host", _make_rate("rx", 1e-6), of_hosts=True),
    Quantity("Sent", "MB/s, of the host", _make_rate("tx", 1e-6), of_hosts=True),
    Quantity("Busy cores", "cores, of the host, by all processes", _make_rate("busy"), of_hosts=True),
    Quantity("Free memory", "GiB, of the host", _make_level("free", 2**-30), of_hosts=True),
)


def draw_quantity(quantity: Quantity, starts: Starts, zero: float, end: float, chosen: Sequence[int]) -> list[Line]:
    """The lines of `quantity` with values; if there are many ranks, a band of all of them and the lines of a few.

    Args:
        zero: the time at which the horizontal axis begins.
        end: the length of that axis, in seconds.
        chosen: the ranks that are shown in addition to a band; empty: the ranks that differ most from the median.
    """
    ranks_by_name = _name_lines(quantity, starts)
    pieces_by_name = {}
    for name, rank_in_each_start in ranks_by_name.items():
        pieces = []  # of the line: one for each start with two samples or more
        for (_, series), rank in zip(starts, rank_in_each_start):
            if rank is not None and rank in series and len(series[rank]) > 1:
                t, values = quantity.values(series[rank])
                pieces.append((t - zero, values))
        if any(np.isfinite(values).any() for _, values in pieces):
            pieces_by_name[name] = pieces
    if len(pieces_by_name) <= MAX_LINES:
        order = list(ranks_by_name)  # also of lines without values, so that a rank has the same colour in all charts
        return [Line(name, colour=order.index(name), pieces=pieces) for name, pieces in pieces_by_name.items()]
    grid = np.linspace(0, end, _GRID_POINTS)
    rows = np.stack([_interpolate_on_grid(pieces, grid) for pieces in pieces_by_name.values()])
    picked = [f"rank {rank}" for rank in chosen if f"rank {rank}" in pieces_by_name]
    picked = picked or _pick_extremes(pieces_by_name, rows)
    return [*make_band(rows, grid), *(Line(name, colour, pieces_by_name[name]) for colour, name in enumerate(picked))]


def _name_lines(quantity: Quantity, starts: Starts) -> dict[str, list[int | None]]:
    """The names of the lines; for each, the rank whose samples it shows in each start, or None."""
    names: dict[str, list[int | None]] = {}
    for index, (start, ranks) in enumerate(starts):
        if quantity.of_rank_0:
            ranks_by_name = {"all ranks": 0}
        elif quantity.of_hosts:
            ranks_by_name = {
                host: host_ranks[0] for host, host_ranks in waits.group_by_host(ranks, start.hosts).items()
            }
        else:
            ranks_by_name = {f"rank {rank}": rank for rank in ranks}
        for name, rank in ranks_by_name.items():
            names.setdefault(name, [None] * len(starts))[index] = rank
    return names


def _interpolate_on_grid(pieces: Sequence[tuple[np.ndarray, np.ndarray]], grid: np.ndarray) -> np.ndarray:
    """The values of a line at the times `grid`; NaN outside of its pieces."""
    row = np.full(len(grid), np.nan)
    for t, values in pieces:
        is_finite = np.isfinite(values)
        if is_finite.any():
            inside = (grid >= t[is_finite][0]) & (grid <= t[is_finite][-1])
            row[inside] = np.interp(grid[inside], t[is_finite], values[is_finite])
    return row


def _pick_extremes(pieces_by_name: Mapping[str, object], rows: np.ndarray) -> list[str]:
    """The lines whose means differ most from the median of all lines."""
    means = np.array([row[np.isfinite(row)].mean() if np.isfinite(row).any() else np.nan for row in rows])
    distances = np.nan_to_num(np.abs(means - np.nanmedian(means)))
    return [list(pieces_by_name)[index] for index in np.argsort(-distances)[:_EXTREMES]]
