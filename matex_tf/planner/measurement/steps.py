"""Extracts the steps of a process from the events that its engine recorded (`ops/records.py`)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from matex_tf.costs.pieces import UPDATED
from matex_tf.ops import records
from matex_tf.planner.plan_file import Collective, Gradient

FIRST = 3
"""Updates that do not count: they trace, allocate, and wake up threads."""
_OTHERS = ("collective", "allgather", "broadcast", "message", "announcement")


@dataclass(frozen=True)
class Steps:
    """Times in seconds; for gradients and collectives, medians from the start of a step; bytes of collectives.

    Steps are alike if they have the same gradients, and collectives of the same kinds in the same order. The bytes of a
    collective may differ between steps, as for a sparse gradient.
    """

    seconds: tuple[float, ...]
    rows: int
    """Rows of the global batch; 0 if no update recorded them."""
    gradients: tuple[Gradient, ...]
    ready: tuple[float, ...]
    collectives: tuple[Collective, ...]
    at: tuple[float, ...]
    bytes: tuple[int, ...] = ()
    update: float = 0.0
    """Seconds of a step from the sums of gradients to the end of the optimizers' updates; 0: not recorded."""
    share: float = 1.0
    """The share of all updates that end such a step: a script may train several models in a step."""

    @property
    def form(self) -> tuple[tuple[Gradient, ...], tuple[str, ...]]:
        """The common properties of steps that are alike."""
        return self.gradients, list_kinds(self.collectives)


def list_kinds(collectives: Sequence[Collective]) -> tuple[str, ...]:
    """The kind of each collective, in the order of the step."""
    return tuple(one.kind for one in collectives)


@dataclass
class _Step:
    seconds: float
    rows: int
    gradients: tuple[Gradient, ...]
    ready: list[float]
    collectives: tuple[Collective, ...]
    at: list[float]
    update: float


def find_steps(events: np.ndarray, labels: Sequence[str], called: Sequence[int] = ()) -> Steps | None:
    """The steps among `events` (dtype `records.EVENT`): each from the end of an update to the end of the next update of
    the same label, the most common one. None if there are none after the first updates.

    Args:
        called: the end of each training call, in nanoseconds by the clock of events, ascending.
    """
    kinds = np.array(records.ACTIVITIES)[events["activity"]]
    ends = events["start"] + events["duration"]
    is_update = (kinds == "exposed") | ((kinds == "update") & (events["lane"] == 0))
    places = Counter(events["label"][is_update].tolist())
    if not places:
        return None
    place = places.most_common(1)[0][0]
    is_border = is_update & (events["label"] == place)
    order = np.argsort(ends[is_border])[FIRST:]
    borders, is_beside = ends[is_border][order], kinds[is_border][order] == "exposed"
    script = np.where(is_beside, _find_ends_of_calls(borders, called), borders)
    pauses = events["start"][kinds == "between steps"]
    found = []
    for begin, end, first, past in zip(borders, borders[1:], script, script[1:]):
        if not np.any((pauses > begin) & (pauses <= end)):
            inside = (events["start"] >= first) & (events["start"] < past)
            reduced = ends[is_update & (ends >= begin)]
            found.append(_read_step(events[inside], kinds[inside], labels, int(begin), int(end), reduced))
    alike = _keep_most_common(found, lambda step: step.gradients)
    if not alike:
        return None
    shown = _keep_most_common(alike, lambda step: list_kinds(step.collectives))
    return Steps(
        tuple(step.seconds for step in alike), max(step.rows for step in alike), shown[0].gradients,
        _compute_medians([step.ready for step in shown]), shown[0].collectives,
        _compute_medians([step.at for step in shown]),
        tuple(round(size) for size in _compute_medians([[one.bytes for one in step.collectives] for step in shown])),
        float(np.median([step.update for step in alike])),
        places[place] / sum(places.values()),
    )  # fmt: skip


def _find_ends_of_calls(borders: np.ndarray, called: Sequence[int]) -> np.ndarray:
    """For updates that end at `borders`, the ends of their steps on the script's thread.

    A collective that an overlapped update does not need, such as the sum of a sparse gradient, may begin before or
    after the end of the update. It belongs to the call of the update. If a call has several updates, only the borders
    are known, except for the last update.
    """
    never = np.iinfo(np.int64).max
    found = np.append(np.asarray(called, np.int64), never)[np.searchsorted(called, borders)]
    return np.where(found < np.append(borders[1:], never), found, borders)


def _read_step(
    events: np.ndarray, kinds: np.ndarray, labels: Sequence[str], begin: int, end: int, reduced: np.ndarray
) -> _Step:
    """The step between two times. `reduced`: ends of the gradients' sums, from the beginning of the step on."""
    handed_over = defaultdict(list)
    entries, others, rows, update = [], [], 0, 0.0
    for event, kind in sorted(zip(events.tolist(), kinds), key=lambda pair: pair[0][0]):
        start, _, size, label = event[:4]
        since = (start - begin) * 1e-9
        if kind == "entry":
            entries.append((labels[label], size, since))
        elif kind == "ready":
            handed_over[labels[label]].append(since)
        elif kind == "collective" and labels[label].endswith(f"'{UPDATED}'"):
            update += (start - np.max(reduced[reduced <= start])) * 1e-9
        elif kind in _OTHERS:
            others.append((Collective(str(kind), labels[label], size), since))
        elif kind == "rows":
            rows = max(rows, size)
    # Gradients of an update without overlap are ready when it begins.
    ready = [handed_over[name].pop(0) if handed_over[name] else since for name, _, since in entries]
    return _Step(
        (end - begin) * 1e-9, rows, tuple(Gradient(name, size) for name, size, _ in entries), ready,
        tuple(other for other, _ in others), [since for _, since in others], update,
    )  # fmt: skip


def _keep_most_common(steps: list[_Step], of: Callable[[_Step], Any]) -> list[_Step]:
    """The steps with the most common value of `of`."""
    if not steps:
        return []
    common = Counter(map(of, steps)).most_common(1)[0][0]
    return [step for step in steps if of(step) == common]


def _compute_medians(rows: Sequence[Sequence[float]]) -> tuple[float, ...]:
    return tuple(np.median(np.array(rows), axis=0).tolist()) if rows and rows[0] else ()
