"""A loop of the script's own over a `tf.data.Dataset`, in eager code: every rank gets the whole batches.

A step is shared where it is computed (`function_step`, `model_calls`). But a dataset over each rank's own rows gives
those, and in weak scaling each rank gets batches of its own, once the loop trains.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from matex_tf import ops, settings
from matex_tf.gradients import drift, reduction
from matex_tf.observe import bottlenecks, epochs
from matex_tf.resilience import script_loops
from matex_tf.runtime import notes, objects
from matex_tf.sharding import row_shares, sliced_dataset, step_weight
from matex_tf.world import world

_own: weakref.WeakSet[Any] = weakref.WeakSet()
"""The loops at work whose batches are of each rank's own rows."""

_loops: weakref.WeakKeyDictionary[Any, Loop] = weakref.WeakKeyDictionary()


def note_loop(iterator: Any, loop: Loop) -> None:
    """Have `loop` decide what `iterator` gives."""
    _loops[iterator] = loop


def find_loop(iterator: Any) -> Loop | None:
    return _loops.get(iterator)


class Loop:
    """What is known of one iterator: whose rows it gives, and whether its batches train."""

    def __init__(
        self, shares: bool, pull: Callable[[], Any], spec: Any, fixed: bool, count_batches: Callable[[], int | None]
    ):
        self.shares = shares
        self.spec = spec
        self.pull = pull
        self.fixed = fixed
        self.weak = settings.get_settings().scaling == "weak"
        self.updates: int | None = None
        self.before = reduction.count_updates()
        self.first_row: Any = None
        self.done = False
        self.epoch = epochs.make_source("the dataset of the loop that trains", count_batches)
        self.pace = bottlenecks.Pace()
        self.pace.whole_pipeline = "a loop of the script's own takes its rows out of whole batches"
        ops.records.mark_between_steps()

    def give_batch(self, element: Any) -> Any:
        """What the script gets for `element`, the next batch of the pipeline."""
        if self.epoch is not None:
            self.epoch.begin_batch()
        if self.shares:
            return self._give_share(element)
        self.pace.count_step()
        if self.weak and self._is_training():
            return self._give_one_of_group(element)
        if _own - {self}:
            step_weight.set_metrics_weight(
                step_weight.list_whole_values()[2]
            )  # the script looks at whole batches meanwhile
        return element

    def _is_training(self) -> bool:
        """Whether there was an update since the loop gave its last batch, in this turn or one before."""
        if self in _own:
            return True
        updates, self.updates = self.updates, reduction.count_updates()
        if updates is None or updates == self.updates:
            return False
        script_loops.say_loop()
        notes.print_note("weak scaling: each rank takes whole batches of its own from the loops that train")
        _own.add(self)
        return True

    def _give_one_of_group(self, element: Any) -> Any:
        """Weak scaling: of as many batches as ranks train, this rank's own, or the first with weight 0."""
        import tensorflow as tf

        drift.watch_updates()
        me = world.get_world()
        group = [element]
        while len(group) < me.trainers:
            try:
                group.append(self.pull())
            except (StopIteration, tf.errors.OutOfRangeError):
                break
        counts = [int(row_shares.count_batch_rows(batch)) for batch in group]
        if me.rank < len(group):
            step_weight.set_values(step_weight.list_slice_values(counts[me.rank], sum(counts)))
            return group[me.rank]
        step_weight.set_values(step_weight.list_slice_values(0, sum(counts)))
        return sliced_dataset.take_rows(element, 0, 1, counts[0])

    def _give_share(self, element: Any) -> Any:
        """A batch of this rank's own rows. Ranks may have other numbers of batches: they go on until all are done."""
        rows = int(row_shares.count_batch_rows(element))
        if self.first_row is None:
            self.first_row = sliced_dataset.take_rows(element, 0, 1, rows)
            _own.add(self)
        counts = objects.allgather(rows, "the rows of each rank's next batch")
        step_weight.set_values(step_weight.list_slice_values(rows, sum(counts)))
        return element

    def end_epoch(self) -> Any:
        """The iterator is exhausted. A batch to go on with, or None where all ranks are done."""
        if self.shares and not self.done:
            counts = objects.allgather(0, "the rows of each rank's next batch")
            if sum(counts) > 0:
                if self.first_row is None:
                    self.first_row = sliced_dataset.make_zero_batch(self.spec)
                    _own.add(self)
                step_weight.set_values(step_weight.list_slice_values(0, sum(counts)))
                return self.first_row
        if self.epoch is not None:
            self.epoch.end_pass()
        if reduction.count_updates() > self.before:  # one that trains, which all ranks go through
            drift.check_updates("at the end of an epoch")
        self.pace.judge_steps()
        ops.records.mark_between_steps()
        self.close_loop()
        return None

    def close_loop(self) -> None:
        """Nothing more comes from this iterator."""
        if self.done:
            return
        self.done = True
        if self in _own:
            _own.discard(self)
            if not _own:
                step_weight.set_whole()
        elif _own:
            # Back in the training loop around this one: what it gave last counts in metrics as before.
            step_weight.restore_metrics_weight()


def say_fixed() -> None:
    notes.print_note(
        "the batches of a loop in a tf.function have a fixed size (drop_remainder=True), which the script may rely on, "
        "so every rank computes them whole. The result is right, training is no faster. Without drop_remainder they "
        "are sharded"
    )
