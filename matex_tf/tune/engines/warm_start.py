"""Which earlier tasks are near a new one, and what is begun with because of them (XAI, section 4.1). Pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matex_tf.tune.objective import Objective
from matex_tf.tune.rungs import make_sort_key
from matex_tf.tune.space import Config, Space, make_key

TASKS = 4
"""How many earlier searches are begun with, at most."""
FAR = 1.0
"""Powers of ten, on average over the features: tasks that are as far apart are not alike."""
_SIZES = ("rows", "columns", "classes", "parameters")
_NEEDED = 2


@dataclass(frozen=True)
class Start:
    """A configuration to begin with, and the search that it was the best of."""

    config: Config
    search: int
    distance: float


def compute_task_distance(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """How far apart two tasks are: by how many powers of ten their sizes differ, as a root of the mean square.

    Infinite where their losses differ, or too little is known of them.
    """
    if one["loss"] is None or one["loss"] != other["loss"]:
        return math.inf
    known = [(one[name], other[name]) for name in _SIZES if one[name] and other[name]]
    if len(known) < _NEEDED:
        return math.inf
    return math.sqrt(sum(math.log10(a / b) ** 2 for a, b in known) / len(known))


def choose_starts(
    task: Mapping[str, Any], others: Mapping[int, Mapping[str, Any]], best: Mapping[int, Sequence[Config]], space: Space
) -> list[Start]:
    """What to begin with, nearest first: of each near task the best configuration that `space` allows.

    Args:
        best: of each earlier search its configurations, best first.
    """
    found: dict[str, Start] = {}
    near = sorted((compute_task_distance(task, features), -number) for number, features in others.items())
    for apart, number in near:
        if apart > FAR or len(found) == TASKS:
            break
        for config in best.get(-number, ()):
            if space.allows(config):
                found.setdefault(make_key(config), Start(config, -number, apart))
                break
    return list(found.values())


def sort_best_first(trials: Sequence[Any], objective: Objective) -> list[Config]:
    """The configurations of the trials that have a value; of those that have paused last, as others had more epochs."""
    done = [one for one in trials if one.value is not None]
    return [one.config for one in sorted(done, key=lambda one: make_sort_key(one, objective))]
