"""Rungs (ASHA, arXiv 1810.05934, algorithm 2).

For example, with rungs 1,3,9 each trial pauses after its first epoch. A trial continues to epoch 3 as soon as it is in
the best third of all trials that have reached epoch 1. `Record.rungs` has the objective of a trial at each rung that
the trial has reached.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from matex_tf.tune.database import Record
from matex_tf.tune.objective import Objective
from matex_tf.tune.trials.trial import DONE, PAUSED

REDUCTION = 3  # one in this number of the trials that reached a rung continues


def read_rungs(text: str) -> tuple[int, ...]:
    """Parse rungs such as `1,3,9`. Raises ValueError."""
    items = text.replace(" ", "").split(",")
    if not all(item.isascii() and item.isdigit() for item in items):
        raise ValueError(f"expected rungs to be epochs, such as 1,3,9; given {text!r}")
    return check_rungs([int(item) for item in items])


def check_rungs(epochs: Sequence[int]) -> tuple[int, ...]:
    """Check rungs, and return them as a tuple. Raises ValueError unless they are at least 1 and strictly increasing."""
    if any(later <= earlier for earlier, later in zip([0, *epochs], epochs)):
        raise ValueError(f"expected rungs to be epochs, 1 or more, each above the one before; given {list(epochs)}")
    return tuple(epochs)


class Rungs:
    """The rungs of a search at `epochs`, in ascending order: where a trial pauses, and which paused one continues."""

    def __init__(self, epochs: Sequence[int], objective: Objective):
        self._epochs, self._objective = tuple(epochs), objective
        self.saves_states = bool(epochs)
        """Whether trials save their states. They still do after `give_up`, because paused trials continue."""

    def find_next(self, record: Record) -> int:
        """The epochs after which the trial pauses next; 0: it runs to its end."""
        return next(iter(self._epochs[len(record.rungs) :]), 0)

    def give_up(self) -> None:
        """Let further trials run to their ends: their values are known there only."""
        self._epochs = ()

    def choose_promoted(self, trials: Iterable[Record], is_end: bool = False) -> Record | None:
        """The paused trial to continue; None if there is none.

        1. At the highest possible rung, the best paused trial in the best third of those that have reached the rung.
           Trials that still run towards the rung do not count: otherwise a free slot would wait for them.
        2. At the end of the search, if no trial is complete: the best paused one, so that one trains for all epochs.
        """
        records = list(trials)
        rung_count = max((len(record.rungs) for record in records), default=0)
        for rung in reversed(range(rung_count)):
            reached_records = [record for record in records if len(record.rungs) > rung]
            reached_records.sort(key=lambda record: (self._objective.compute_cost(record.rungs[rung]), record.number))
            for record in reached_records[: len(reached_records) // REDUCTION]:
                if record.state == PAUSED and len(record.rungs) == rung + 1:  # it has paused at this rung
                    return record
        if not is_end or any(record.state == DONE for record in records):
            return None
        paused_records = (record for record in records if record.state == PAUSED)
        return next(iter(sort_trials(paused_records, self._objective)), None)


def sort_trials(trials: Iterable[Record], objective: Objective) -> list[Record]:
    """The trials with a value, best first: complete trials, then by highest rung, then by cost.

    A trial that paused at a rung has trained less.
    """

    def make_key(record: Record) -> tuple[float, float]:
        rung_count = math.inf if record.state == DONE else len(record.rungs)
        return -rung_count, objective.compute_cost(record.value or 0.0)

    return sorted((record for record in trials if record.value is not None), key=make_key)
