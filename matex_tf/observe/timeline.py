"""A timeline of all ranks for Perfetto or chrome://tracing: computation, waits, copies and transfers, with their times.

The engine, the C++ library that executes collectives, records events in lanes (threads of a rank). The kinds of events
are `records.ACTIVITIES`. An update is the sum of a step's gradients over the ranks; an overlapped update begins while
the step still computes gradients. `list_bars` makes the bars of a rank's lanes. At the end rank 0 gathers the parts of
all ranks into one file, in the trace event format; if an error ends the job, each rank writes its part into a separate
file. Times: rank 0's clock (`clocks`).
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from matex_tf import errors, settings
from matex_tf.observe import clocks
from matex_tf.ops import records
from matex_tf.runtime import atomic, notes, objects, real_files, shutdown
from matex_tf.world import terminal, world

CAPACITY = 1 << 17
"""The number of events kept for each rank; older events are dropped."""

# The name and category of the bars of some kinds of events. Bars of `_LABELLED` kinds have the label of the event after
# a prefix as their name, and the kind as their category. Events of other kinds have no bars of their own: `list_bars`
# uses "gap", "between steps" and "exposed".
_NAMES = {
    "meet": ("wait for other ranks", "wait"),
    "copy in": ("copy in", "copy"),
    "transfer": ("transfer", "transfer"),
    "copy out": ("copy out", "copy"),
    "own gradients": ("gradients are still computed", "wait"),
    "choice": ("choose buckets", "transfer"),
}
_LABELLED = dict.fromkeys(("update", "collective", "allgather", "broadcast", "message"), "")
_LABELLED |= {"bucket": "bucket: ", "announcement": "announce ", "pull": "pull: "}


class Bar(NamedTuple):
    """A bar of the timeline. Times are nanoseconds since rank 0 began to record."""

    lane: int  # an index of `records.LANES`; 0: the script's
    name: str
    category: str
    begin: int
    end: int
    bytes: int = 0


def start_timeline() -> None:
    """Start recording, if `MATEX_TIMELINE` names a file. Collective.

    Raises:
        SetupError: on all ranks, if rank 0 cannot write the file.
    """
    path = settings.get_settings().timeline
    if not path:
        return
    path = os.path.abspath(path)
    problem = objects.broadcast(_find_problem(path) if world.get_world().rank == 0 else "", "whether it can be written")
    if problem:
        raise errors.SetupError(problem)
    timeline = Timeline(path)
    shutdown.at_end.append(timeline.finish_timeline)
    shutdown.before_abort.append(timeline.write_part)
    records.set_recording(records.EVENTS, CAPACITY)


def _find_problem(path: str) -> str:
    """Why the file cannot be written, and what to do; "" if it can."""
    folder = os.path.dirname(path)
    try:
        with real_files.use_real_files(), open(path, "a"):
            return ""
    except OSError as error:
        remedy = "Make that folder first" if not os.path.isdir(folder) else "Name a file that can be written"
        return f"MATEX_TIMELINE={path}: rank 0 cannot write it ({error.strerror}). {remedy}."


class Timeline:
    """The recording of this rank."""

    def __init__(self, path: str):
        self.path = path
        self.clocks = clocks.Clocks()
        self.offsets = self.clocks.measure_offsets()  # of each rank's clock from rank 0's, at the start
        self.zero = world.get_communicator("control").bcast(records.read_clock())  # rank 0's time at the start, in ns
        self.is_over = False  # the file or this rank's part is written, or being written

    def finish_timeline(self) -> None:
        """Write the file at the end of the script. Collective."""
        self.is_over = True
        me, communicator = world.get_world(), world.get_communicator("control")
        ends = self.clocks.measure_offsets()
        events, dropped_count = records.read_events()
        own_part = self._format_own_part(events, ends)
        dropped_by_rank = communicator.gather(dropped_count)
        if me.rank > 0:
            communicator.send(own_part, 0)
            return
        parts = itertools.chain([own_part], (communicator.recv(source=rank) for rank in range(1, me.size)))
        try:
            write_file(self.path, parts, self._make_remarks(dropped_by_rank, ends))
        except OSError as error:
            for _ in parts:  # receive the parts that the other ranks send in any case
                pass
            terminal.write_text(f"matex_tf: the timeline could not be written to {self.path}: {error.strerror}\n")
            return
        limit_text = ""
        if any(dropped_by_rank):
            limit_text = f"; of {sum(map(bool, dropped_by_rank))} ranks only the last {CAPACITY} events"
        notes.print_note(
            f"the timeline is in {self.path}{limit_text}: open it at https://ui.perfetto.dev or chrome://tracing"
        )

    def write_part(self) -> None:
        """Write this rank's part into a separate file, because the job ends now without further communication."""
        if self.is_over:
            return
        self.is_over = True
        me = world.get_world()
        stem, extension = os.path.splitext(self.path)
        path = f"{stem}.rank-{me.rank}{extension}"
        events, dropped_count = records.read_events()
        own_part = self._format_own_part(events, self.offsets)
        write_file(path, [own_part], self._make_remarks([dropped_count], self.offsets))
        terminal.write_text(f"matex_tf: the timeline of rank {me.rank} up to here is in {path}\n")

    def _format_own_part(self, events: np.ndarray, ends: Sequence[clocks.Offset]) -> str:
        """The part of this rank. `ends`: the offsets of all ranks' clocks at the end."""
        me = world.get_world()
        times = np.stack([events["start"], events["start"] + events["duration"]])
        times = clocks.convert_to_rank_0_time(times, self.offsets[me.rank], ends[me.rank]) - self.zero
        return format_part(events, records.read_event_labels(), me.rank, me.host, times)

    def _make_remarks(self, dropped_by_rank: Sequence[int], ends: Sequence[clocks.Offset]) -> dict[str, Any]:
        hosts = world.get_world().hosts
        clock_offsets = {
            hosts[rank]: f"{(end.ahead - start.ahead) / 1e3:+.1f} us from start to end; known to "
            f"{max(start.error, end.error) / 1e3:.1f} us"
            for rank, (start, end) in enumerate(zip(self.offsets, ends))
            if start.at  # 0: rank 0's own clock
        }
        return {
            "clock": "that of rank 0",
            "clocks of other hosts": clock_offsets,
            "events not kept": list(dropped_by_rank),
        }


def write_file(path: str, parts: Iterable[str], remarks: dict[str, Any]) -> None:
    """Write the parts of the ranks to the file `path`, atomically."""
    with real_files.use_real_files(), atomic.write_beside(path) as temporary_path, open(temporary_path, "w") as file:
        file.write('{"traceEvents": [')
        file.writelines((",\n" if part_number else "\n") + part for part_number, part in enumerate(parts))
        file.write(f'],\n"displayTimeUnit": "ms",\n"otherData": {json.dumps(remarks)}}}\n')


def format_part(events: np.ndarray, labels: Sequence[str], rank: int, host: str, times: np.ndarray) -> str:
    """The events of one rank as members of a JSON array.

    Args:
        events: of dtype `records.EVENT`.
        times: begin and end of each event, of shape [2, events], in nanoseconds.
    """
    rows = [
        {"name": "process_name", "ph": "M", "pid": rank, "tid": 0, "args": {"name": f"rank {rank} ({host})"}},
        {"name": "process_sort_index", "ph": "M", "pid": rank, "tid": 0, "args": {"sort_index": rank}},
    ]
    for lane, name in enumerate(records.LANES):
        rows.append({"name": "thread_name", "ph": "M", "pid": rank, "tid": lane, "args": {"name": name}})
    texts = [json.dumps(row) for row in rows]
    prefixes: dict[tuple[str, str, int], str] = {}  # the text of a bar before its times, which many bars share
    for bar in sorted(list_bars(events, labels, times), key=lambda bar: (bar.begin, -bar.end)):
        key = (bar.name, bar.category, bar.lane)
        if key not in prefixes:
            fields = {"name": bar.name, "cat": bar.category, "ph": "X", "pid": rank, "tid": bar.lane}
            prefixes[key] = json.dumps(fields)[:-1]
        arguments = f', "args": {{"bytes": {bar.bytes}}}' if bar.bytes else ""
        microseconds = f'"ts": {bar.begin / 1e3:.3f}, "dur": {(bar.end - bar.begin) / 1e3:.3f}'
        texts.append(f"{prefixes[key]}, {microseconds}{arguments}}}")
    return ",\n".join(texts)


def list_bars(events: np.ndarray, labels: Sequence[str], times: np.ndarray) -> Iterator[Bar]:
    """The bars of one rank. For the arguments see `format_part`.

    A gap is the time between two collectives on the script's lane. Within a training step, from one update to the next,
    it is drawn as "compute". The part of it in which this rank has all gradients of an overlapped update, and only
    waits for their sums, is drawn as "wait for sums".
    """
    order = np.argsort(times[0], kind="stable")
    kinds = [records.ACTIVITIES[activity] for activity in events["activity"][order]]
    begins, ends = times[0][order].tolist(), times[1][order].tolist()
    lanes, label_numbers, sizes = (events[name][order].tolist() for name in ("lane", "label", "bytes"))
    exposed = [(begin, end) for kind, begin, end in zip(kinds, begins, ends) if kind == "exposed"]
    gaps: list[tuple[int, int]] = []  # since the last update
    is_step = False
    for kind, lane, begin, end, label_number, size in zip(kinds, lanes, begins, ends, label_numbers, sizes):
        label = labels[label_number] if label_number >= 0 else ""
        if kind == "gap":
            gaps.append((begin, end))
        elif kind == "between steps":  # a mark at a pause, such as the end of an epoch
            is_step = False
        elif kind in _LABELLED:
            yield Bar(lane, _LABELLED[kind] + label, kind, begin, end, size)
        elif kind in _NAMES:
            yield Bar(lane, *_NAMES[kind], begin, end, size)
        # An overlapped update is on another lane; the script's lane has its announcement.
        if kind in ("update", "announcement") and lane == 0:
            yield from _list_gaps(gaps, "compute" if is_step else "between steps", exposed)
            gaps, is_step = [], True  # a step lasts until the next update, unless there is a pause
    yield from _list_gaps(gaps, "between steps", exposed)


def _list_gaps(gaps: Sequence[tuple[int, int]], name: str, exposed: list[tuple[int, int]]) -> Iterator[Bar]:
    """Bars for the gaps between collectives on the script's lane, divided where the script waits for sums.

    Args:
        name: of the bars, "compute" or "between steps".
        exposed: the intervals in which the script waits for sums, ascending. Intervals that end in the gaps are
            removed, because the next call is for later gaps.
    """
    category = "compute" if name == "compute" else "other"
    for begin, end in gaps:
        while exposed and exposed[0][0] < end:
            wait_begin, wait_end = max(exposed[0][0], begin), min(exposed[0][1], end)
            if wait_end > wait_begin:
                if wait_begin > begin:
                    yield Bar(0, name, category, begin, wait_begin)
                yield Bar(0, "wait for sums", "wait", wait_begin, wait_end)
                begin = wait_end
            if exposed[0][1] > end:
                break  # this wait continues in the next gap
            exposed.pop(0)
        if end > begin:
            yield Bar(0, name, category, begin, end)
