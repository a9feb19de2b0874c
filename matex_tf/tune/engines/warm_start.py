"""Warm start: first configurations from earlier searches of similar tasks. Pure functions.

The method is that of section 4.1 of the paper XAI (`planner.papers.xai`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matex_tf.tune.space import Config, Space

TASKS = 4  # the largest number of earlier searches that provide initial configurations
MAX_DISTANCE = 1.0  # the largest distance of similar tasks (`compute_task_distance`)
_SIZES = ("rows", "columns", "classes", "parameters")  # the features of a task that are numbers
_MIN_SIZES = 2  # the number of sizes that must be known of both tasks


def compute_task_distance(task: Mapping[str, Any], other_task: Mapping[str, Any]) -> float:
    """The root mean square of the differences of two tasks' sizes, in powers of ten: 1 if all sizes differ tenfold.

    Infinite if the losses differ or are unknown, or if too few sizes are known.
    """
    if task["loss"] is None or task["loss"] != other_task["loss"]:
        return math.inf
    known_sizes = [(task[name], other_task[name]) for name in _SIZES if task[name] and other_task[name]]
    if len(known_sizes) < _MIN_SIZES:
        return math.inf
    return math.sqrt(sum(math.log10(a / b) ** 2 for a, b in known_sizes) / len(known_sizes))


def choose_starts(
    task: Mapping[str, Any],
    other_tasks: Mapping[int, Mapping[str, Any]],
    best_configs: Mapping[int, Sequence[Config]],
    space: Space,
) -> dict[int, Config]:
    """Initial configurations, each with the number of the earlier search that provides it, nearest task first. A search
    provides the best of its configurations that `space` allows.

    Args:
        other_tasks: for each earlier search, by its number, its task.
        best_configs: for each earlier search, its configurations, best first.
    """
    starts: dict[int, Config] = {}
    distances = {number: compute_task_distance(task, other_task) for number, other_task in other_tasks.items()}
    for number in sorted(distances, key=lambda number: (distances[number], -number)):  # ties: the latest first
        if distances[number] > MAX_DISTANCE or len(starts) == TASKS:
            break
        config = next((config for config in best_configs.get(number, ()) if space.allows(config)), None)
        if config is not None and config not in starts.values():
            starts[number] = config
    return starts
