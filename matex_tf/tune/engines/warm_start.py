"""Warm start: finds earlier tasks that are similar to a new one, and initial configurations (XAI,
4.1). Pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matex_tf.tune.objective import Objective
from matex_tf.tune.rungs import make_sort_key
from matex_tf.tune.space import Config, Space, make_key

TASKS = 4
"""The largest number of earlier searches that provide initial configurations."""
MAX_DISTANCE = 1.0
"""The largest distance of similar tasks, in mean powers of ten over the features."""
_SIZES = ("rows", "columns", "classes", "parameters")
_MIN_SIZES = 2


@dataclass(frozen=True)
class Start:
    """An initial configuration, the best one of an earlier search, and the distance of that search's task."""

    config: Config
    search: int
    distance: float


def compute_task_distance(task: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """The distance of two tasks: root mean square of the differences of their sizes, in powers of ten.

    Infinite if their losses differ, or if too few sizes are known.
    """
    if task["loss"] is None or task["loss"] != other["loss"]:
        return math.inf
    known = [(task[name], other[name]) for name in _SIZES if task[name] and other[name]]
    if len(known) < _MIN_SIZES:
        return math.inf
    return math.sqrt(sum(math.log10(a / b) ** 2 for a, b in known) / len(known))


def choose_starts(
    task: Mapping[str, Any], others: Mapping[int, Mapping[str, Any]], best: Mapping[int, Sequence[Config]], space: Space
) -> list[Start]:
    """Initial configurations, nearest task first: for each similar task, its best configuration that `space` allows.

    Args:
        best: for each earlier search, its configurations, best first.
    """
    starts: dict[str, Start] = {}
    by_distance = sorted((compute_task_distance(task, features), -number) for number, features in others.items())
    for distance, number in by_distance:
        if distance > MAX_DISTANCE or len(starts) == TASKS:
            break
        for config in best.get(-number, ()):
            if space.allows(config):
                starts.setdefault(make_key(config), Start(config, -number, distance))
                break
    return list(starts.values())


def sort_best_first(trials: Sequence[Any], objective: Objective) -> list[Config]:
    """The configurations of trials with a value, best first; paused trials come last, because
    others had more epochs.
    """
    with_value = [record for record in trials if record.value is not None]
    return [record.config for record in sorted(with_value, key=lambda record: make_sort_key(record, objective))]
