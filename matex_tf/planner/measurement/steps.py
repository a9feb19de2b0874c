"""Extracts the steps of a process from the events that its engine recorded (`ops/records.py`).

The engine calls the sums of a model's gradients an update. A step lasts from the end of one update to the end of the
next update of the same model, so it begins with the optimizer's work. The ends of updates are called borders.
`find_steps` finds them, reads the events between two borders (`_read_step`), and keeps the steps that are alike.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from matex_tf.costs.pieces import UPDATE_END
from matex_tf.ops import records
from matex_tf.planner.plan_file import Collective, Gradient

FIRST = 3
"""The number of first updates that do not count: they trace, allocate, and wake up threads."""
_OTHERS = ("collective", "allgather", "broadcast", "message", "announcement")
"""The kinds of events that become `Steps.collectives`."""


@dataclass(frozen=True)
class Steps:
    """The steps of a process that are alike: with the same gradients, and the same kinds of collectives in order.

    The bytes of a collective may differ between steps, as for a sparse gradient.
    """

    seconds: tuple[float, ...]
    """The duration of each step with these gradients, also of steps with other collectives."""
    rows: int
    """Rows of the global batch; 0 if no update recorded them."""
    gradients: tuple[Gradient, ...]
    ready: tuple[float, ...]
    """For each gradient, the median seconds from the start of a step until it is ready."""
    collectives: tuple[Collective, ...]
    """The other collectives."""
    at: tuple[float, ...]
    """For each collective, the median seconds from the start of a step until it begins."""
    bytes: tuple[int, ...] = ()
    """For each collective, the median bytes of this rank."""
    update: float = 0.0
    """Seconds of a step from the sums of gradients to the end of the optimizers' updates; 0: not recorded."""
    share: float = 1.0
    """The share of all updates that end such a step: a script may train several models in a step."""

    @property
    def form(self) -> tuple[tuple[Gradient, ...], tuple[str, ...]]:
        """The properties by which steps are alike."""
        return self.gradients, list_kinds(self.collectives)


def list_kinds(collectives: Sequence[Collective]) -> tuple[str, ...]:
    """The kind of each collective, in the order of the step."""
    return tuple(collective.kind for collective in collectives)


@dataclass
class _Step:
    """One step, with fields as in `Steps`."""

    seconds: float
    rows: int
    gradients: tuple[Gradient, ...]
    ready: list[float]
    collectives: tuple[Collective, ...]
    at: list[float]
    update: float


def find_steps(events: np.ndarray, labels: Sequence[str], call_ends: Sequence[int] = ()) -> Steps | None:
    """The steps among `events` (dtype `records.EVENT`), between updates of the most common label, which names a model.

    None if there are no steps after the first updates.

    Args:
        call_ends: the end of each training call, in nanoseconds by the clock of events, ascending.
    """
    kinds = np.array(records.ACTIVITIES)[events["activity"]]
    ends = events["start"] + events["duration"]
    # An overlapped update ends with the event "exposed", another update with "update" on lane 0, the script's thread.
    is_update = (kinds == "exposed") | ((kinds == "update") & (events["lane"] == 0))
    updates_by_label = Counter(events["label"][is_update].tolist())
    if not updates_by_label:
        return None
    label = updates_by_label.most_common(1)[0][0]
    is_border = is_update & (events["label"] == label)
    order = np.argsort(ends[is_border])[FIRST:]
    borders, is_overlapped = ends[is_border][order], kinds[is_border][order] == "exposed"
    script_ends = np.where(is_overlapped, _find_ends_of_calls(borders, call_ends), borders)
    pause_starts = events["start"][kinds == "between steps"]
    steps = []
    # A step lasts from border `begin` to border `end`, on the script's thread from `script_begin` to `script_end`
    # (nanoseconds). A step with a pause, such as a validation between epochs, does not count: it is longer.
    for begin, end, script_begin, script_end in zip(borders, borders[1:], script_ends, script_ends[1:]):
        if not np.any((pause_starts > begin) & (pause_starts <= end)):
            is_inside = (events["start"] >= script_begin) & (events["start"] < script_end)
            sum_ends = ends[is_update & (ends >= begin)]
            steps.append(_read_step(events[is_inside], kinds[is_inside], labels, int(begin), int(end), sum_ends))
    same_gradient_steps = _keep_most_common(steps, lambda step: step.gradients)
    if not same_gradient_steps:
        return None
    same_kind_steps = _keep_most_common(same_gradient_steps, lambda step: list_kinds(step.collectives))
    collective_bytes = [[collective.bytes for collective in step.collectives] for step in same_kind_steps]
    return Steps(
        seconds=tuple(step.seconds for step in same_gradient_steps),
        rows=max(step.rows for step in same_gradient_steps),
        gradients=same_kind_steps[0].gradients, ready=_compute_medians([step.ready for step in same_kind_steps]),
        collectives=same_kind_steps[0].collectives, at=_compute_medians([step.at for step in same_kind_steps]),
        bytes=tuple(round(size) for size in _compute_medians(collective_bytes)),
        update=float(np.median([step.update for step in same_gradient_steps])),
        share=updates_by_label[label] / sum(updates_by_label.values()),
    )  # fmt: skip


def _find_ends_of_calls(borders: np.ndarray, call_ends: Sequence[int]) -> np.ndarray:
    """For overlapped updates that end at `borders`, the ends of their steps on the script's thread.

    An overlapped update may end before the call of its step. A collective that the update does not need, such as the
    sum of a sparse gradient, may then begin after the end of the update. It belongs to the same step, so the step ends
    with the call. In a call with several updates, only the last step ends with the call; the others end at their
    borders.
    """
    never = np.iinfo(np.int64).max
    next_call_ends = np.append(np.asarray(call_ends, np.int64), never)[np.searchsorted(call_ends, borders)]
    next_borders = np.append(borders[1:], never)
    is_last_of_call = next_call_ends < next_borders
    return np.where(is_last_of_call, next_call_ends, borders)


def _read_step(
    events: np.ndarray, kinds: np.ndarray, labels: Sequence[str], begin: int, end: int, sum_ends: np.ndarray
) -> _Step:
    """The step from `begin` to `end` nanoseconds, from events of these kinds:

        entry            a gradient of an update
        ready            the gradient is ready; recorded for overlapped updates only
        rows             the rows of the global batch
        a collective     one of `_OTHERS`; the barrier `UPDATE_END` ends the optimizer's work

    sum_ends: the ends of updates of any model since the begin.
    """
    ready_times = defaultdict(list)  # by name of the gradient
    entries, other_collectives, rows, update_seconds = [], [], 0, 0.0
    for event, kind in sorted(zip(events.tolist(), kinds), key=lambda pair: pair[0][0]):
        start, _, size, label_index = event[:4]  # the fields of `records.EVENT`: nanoseconds, bytes, index of the label
        offset = (start - begin) * 1e-9
        if kind == "entry":
            entries.append((labels[label_index], size, offset))
        elif kind == "ready":
            ready_times[labels[label_index]].append(offset)
        elif kind == "collective" and labels[label_index].endswith(f"'{UPDATE_END}'"):
            # The optimizer's work lasts from the last sums to the barrier named `UPDATE_END`.
            update_seconds += (start - np.max(sum_ends[sum_ends <= start])) * 1e-9
        elif kind in _OTHERS:
            other_collectives.append((Collective(str(kind), labels[label_index], size), offset))
        elif kind == "rows":
            rows = max(rows, size)
    # A gradient without a recorded time, in an update without overlap, is ready when the update begins.
    ready = [ready_times[name].pop(0) if ready_times[name] else offset for name, _, offset in entries]
    return _Step(
        (end - begin) * 1e-9, rows, tuple(Gradient(name, size) for name, size, _ in entries), ready,
        tuple(collective for collective, _ in other_collectives), [offset for _, offset in other_collectives],
        update_seconds,
    )  # fmt: skip


def _keep_most_common(steps: list[_Step], get_key: Callable[[_Step], Any]) -> list[_Step]:
    """The steps with the most common value of `get_key`."""
    if not steps:
        return []
    most_common_key = Counter(map(get_key, steps)).most_common(1)[0][0]
    return [step for step in steps if get_key(step) == most_common_key]


def _compute_medians(rows: Sequence[Sequence[float]]) -> tuple[float, ...]:
    return tuple(np.median(np.array(rows), axis=0).tolist()) if rows and rows[0] else ()
