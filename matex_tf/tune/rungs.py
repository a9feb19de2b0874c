"""Rungs: trials pause after some epochs, and the best continue (ASHA, arXiv 1810.05934, algorithm
2). Pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from matex_tf.tune.database import Record
from matex_tf.tune.objective import Objective
from matex_tf.tune.trials.trial import DONE, PAUSED

SHARE = 3
"""One of this number of trials that reached a rung continues."""


def read_rungs(text: str) -> tuple[int, ...]:
    """Parse rungs such as `1,3,9`. Raises ValueError."""
    words = text.replace(" ", "").split(",")
    if not all(word.isascii() and word.isdigit() for word in words):
        raise ValueError(f"expected rungs to be epochs, such as 1,3,9; given {text!r}")
    return check_rungs([int(word) for word in words])


def check_rungs(epochs: Sequence[int]) -> tuple[int, ...]:
    """Check rungs, and return them as a tuple. Raises ValueError unless they are at least 1 and strictly increasing."""
    if any(after <= before for before, after in zip([0, *epochs], epochs)):
        raise ValueError(f"expected rungs to be epochs, 1 or more, each above the one before; given {list(epochs)}")
    return tuple(epochs)


def choose_promoted(trials: Iterable[Record], objective: Objective) -> Record | None:
    """The paused trial to continue: from the highest rung at which a paused trial is in the best third; None if none
    is.

    Running trials are not waited for, so no slot is idle while rungs fill.
    """
    everyone = list(trials)
    for rung in reversed(range(max((len(one.rungs) for one in everyone), default=0))):
        seen = [one for one in everyone if len(one.rungs) > rung]
        best = sorted(seen, key=lambda one: (objective.compute_cost(one.rungs[rung]), one.number))[: len(seen) // SHARE]
        for one in best:
            if one.state == PAUSED and len(one.rungs) == rung + 1:
                return one
    return None


def choose_last(trials: Iterable[Record], objective: Objective) -> Record | None:
    """The paused trial to continue if no trial is complete and nothing else is left to do: the best one."""
    return min(
        (one for one in trials if one.state == PAUSED), key=lambda one: make_sort_key(one, objective), default=None
    )


def make_sort_key(record: Record, objective: Objective) -> tuple[float, float]:
    """The sort key of trials, best first: complete trials, then by highest rung, then by cost."""
    depth = math.inf if record.state == DONE else len(record.rungs)
    return -depth, objective.compute_cost(math.inf if record.value is None else record.value)
