"""`MATEX_STRATEGY=async`: each rank trains whole batches, and adds its updates to weights in shared memory.

A rank takes turns: it takes the batch with the next number that no rank has, trains it, and takes another one. With 2
ranks, rank 0 may train batches 0, 2 and 3 while rank 1 trains 1 and 4. The bound of `async:BOUND` limits the distance
between the oldest and the newest batch in training. Every rank iterates over the complete dataset, and skips the
batches of other ranks (`pipeline`).

Within an epoch there are no collectives: the weights and the optimizer's variables are in shared memory (`store`).
Between epochs each rank has its own equal copies, and a model behaves as usual. `AsyncFit` creates a `Turns` for a
call of `fit` whose step allows it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from matex_tf import errors, ops, settings
from matex_tf.apart import staleness, store, values
from matex_tf.apart.pipeline import Pipeline
from matex_tf.apart.rescue import Rescue
from matex_tf.apart.shared_step import SharedStep
from matex_tf.lazy import tf
from matex_tf.resilience import elastic
from matex_tf.resilience.fit_state import Fit
from matex_tf.runtime import notes, objects
from matex_tf.world import membership, world

OTHER_ORDER = (
    "the ranks see different rows in the same batch: data or their order differ between ranks, for instance by a "
    "shuffle without a seed. They take turns at batches by their number, so that rows were trained by several ranks or "
    "by none"
)
_OUT_OF_DATA, _STOPPED, _PAUSED = "out of data", "stopped", "the state of the run is kept"
"""Reasons for an early end of an epoch. If ranks have several reasons, the first of these applies. A paused
epoch goes on after the ranks have kept the state of the run.
"""
_WAIT_SECONDS = 0.05  # of one wait in C, after which Python handles signals


def read_bound() -> int:
    """The maximum distance between a rank's batch and the oldest batch in training."""
    return settings.get_strategy_number(settings.get_settings().strategy, max(4, 2 * (world.get_world().size - 1)))


class _EpochEnd(NamedTuple):
    """What a rank sends to the others at the end of an epoch."""

    reason: str | None
    """Why the epoch ends before its last batch; None if this rank knows no reason."""
    digest: tuple[int, int] | None
    """Number of rows and hash of the first batch, to compare the order of data."""
    newest_taken: int
    """The greatest number of a batch that this rank has taken; -1: none."""
    own_values: values.BatchValues
    added: list[np.ndarray]
    """What this rank added to the sums of metrics."""


class Turns:
    """A training in which ranks take turns at batches. `AsyncFit` calls `open_turns`; for each epoch it iterates over
    `iterate_epoch`, and `run_step` trains each batch that this yields; at last it calls `close_turns`.

    step: the step of the model.
    max_batches: the maximum number of batches in an epoch.
    state: saves the state of the run between two batches; None if the state is not saved.
    note_meeting: called after the ranks have met at the end of an epoch, or of a part of one; with whether a
        callback of some rank has stopped the epoch.
    """

    def __init__(self, step: SharedStep, max_batches: int, state: Fit | None, note_meeting: Callable[[bool], None]):
        self._step, self._max_batches, self._state, self._note_meeting = step, max_batches, state, note_meeting
        self._shared_values = values.SharedValues(step.shared)  # in the store: weights, variables of the optimizer
        self._own_values = values.OwnValues(step.own)  # of each rank, such as the learning rate
        self._sums = values.Sums(step.sums)  # of each rank, added up at the end of an epoch: metrics
        self._counters = values.Counters(step.counters)  # changed by a constant amount in each step
        self._bound = read_bound()
        self._rescue = Rescue(self._sums) if elastic.is_on() else None
        self._pipeline = Pipeline(step.take_batch, self._bound + 1)
        self.is_within = False  # the epoch is running, and ranks are at different batches
        self.is_outdated = True  # the store does not exist, or has no place for each rank
        self.newest = -1  # the newest batch of the epoch that this rank has trained; -1: none
        self._is_open = False
        self._reason: str | None = None  # why this rank ends the epoch before its last batch
        self._batch = -1  # the present batch of this rank; -1: none
        self._newest_taken = -1  # the newest batch that this rank has taken in this epoch; -1: none
        self._trained = 0  # the number of batches of the epoch that all ranks have trained
        self._batches = 0  # the number of batches of the epoch
        self._updates = 0  # the number of updates of all ranks in all epochs
        self._waited_seconds = 0.0
        self._staleness_counts: Counter[int] = Counter()

    def open_turns(self) -> bool:
        """Prepare the first epoch. Returns whether the ranks have shared memory. Collective."""
        self._is_open = membership.attempt_collectives("making the memory in which ranks train", self._make_store)
        if self._is_open and self._rescue is not None:
            self._rescue.watch_losses(self)
        return self._is_open

    def _make_store(self) -> bool:
        """Create the shared memory. Returns whether the ranks have it. Collective."""
        size = self._shared_values.size + (self._rescue.count_bytes() if self._rescue is not None else 0)
        self.is_outdated = not store.make_store(size, self._max_batches, len(self._step.parts))
        return not self.is_outdated

    def iterate_epoch(self, steps: Iterable[tuple[int, int, Any]], count: int) -> Iterator[Any]:
        """The steps of this rank, among the `count` steps of an epoch. Collective at the beginning and the end.

        `steps`: all steps of the epoch, as Keras yields them: the numbers of the first and of the last batch of the
        step, here equal, and the iterator of the pipeline. A restarted run begins with a number greater than 0; batches
        are counted from there.
        """
        self._newest_taken = self.newest = -1
        self._own_values.forget_batches()
        self._enter_epoch(0, count)
        batch = self._begin_batch()
        # `steps` are consumed one by one, as the script alone would; `number` counts them. This rank yields only its
        # own batches. `batch` is its next one (None: no batch is left), which is yielded when `number` has reached it.
        for number, (step, _, iterator) in enumerate(steps):
            first_step = step - number
            if number == 0:
                self._pipeline.begin_epoch(iterator)
            while True:
                while batch is not None and batch <= number:  # less than `number`: the batch of a lost rank
                    self._set_batch(batch)
                    yield first_step + batch, first_step + batch, iterator
                    batch = self._begin_batch()
                if batch is not None or not self.is_within:
                    break  # the batch comes with a later step; or the epoch has ended: consume the other steps
                # No batch is left for this rank. After an early end `steps` is not consumed: at its end Keras would
                # create the iterator of the next epoch, which draws a seed.
                reason = self.end_epoch()
                if reason == _STOPPED:
                    return
                if reason == _OUT_OF_DATA:
                    raise _make_end()
                if reason == _PAUSED and self._state is not None:
                    self._state.keep_within(first_step + self._trained)
                    self._enter_epoch(self._trained, count)
                    batch = self._begin_batch()
        self.end_epoch()

    def run_step(self, iterator: Any) -> Any:
        """Compute the step on this rank's batch. Raises OutOfRangeError if the data end before it: collective then."""
        batch = self._pipeline.fetch_batch(self._batch)
        if batch is None:
            self._reason = _OUT_OF_DATA
            store.leave_batches()
            store.stop_batches()
            self.end_epoch()
            raise _make_end()
        self._counters.move_to(self._batch)
        result = self._step.call(iterator, batch)
        self._staleness_counts[store.end_batch(self._rescue.keep_sums() if self._rescue is not None else 0)] += 1
        self.newest = max(self._batch, self.newest)
        if self._state is not None and self._state.is_due():
            self._reason = self._reason or _PAUSED
            store.stop_batches()
        return result

    def stop_epoch(self) -> None:
        """Stop the epoch on behalf of a callback of this rank."""
        if self.is_within:
            self._reason = _STOPPED
            store.stop_batches()

    def end_epoch(self) -> str | None:
        """End an epoch, after which all ranks have the same weights. Returns the reason for an early end. Collective,
        unless the epoch has ended before: then it returns None.
        """
        if not self.is_within:
            return None
        self._leave_epoch()
        ends = self._gather_ends()
        trained_before, self._trained = self._trained, store.count_trained()
        self._updates += self._trained - trained_before
        # Weights and metrics: from the store, and added up.
        self._shared_values.copy_out()
        self._sums.assign_sum([end.added for end in ends])
        if len({end.digest for end in ends if end.digest}) > 1:
            notes.print_note(OTHER_ORDER)
        ends_out_of_data = [end for end in ends if end.reason == _OUT_OF_DATA]
        if not ends_out_of_data:
            # All pipelines advance to the same batch, so that their next random draws are equal. The newest batch may
            # be one that no rank in `ends` has taken, if the rank with that batch was lost.
            self._pipeline.fetch_batch(max(self._trained - 1, *(end.newest_taken for end in ends)))
        # The other variables get the values that the script alone would have now, after its last step. If the data
        # have ended, its last step is the first step that found no batch.
        if ends_out_of_data:
            last_end = min(ends_out_of_data, key=lambda end: end.newest_taken)
        else:
            last_end = max(ends, key=lambda end: end.own_values.batch)
        self._own_values.assign_values(last_end.own_values)
        self._counters.move_to(self._trained)
        reasons = [end.reason for end in ends if end.reason]
        if self._trained != self._batches and not reasons:
            raise errors.RankError(f"{self._trained} of the {self._batches} batches of an epoch were trained")
        self._note_meeting(_STOPPED in reasons)
        reason = min(reasons, key=[_OUT_OF_DATA, _STOPPED, _PAUSED].index, default=None)
        if reason == _PAUSED and self._trained == self._batches:
            return None  # the pause was asked for in the last batch
        return reason

    def _gather_ends(self) -> list[_EpochEnd]:
        """The ends of all ranks, which include the sums of lost ranks. Collective."""
        operation = "the end of an epoch of asynchronous training"

        def gather() -> list[_EpochEnd]:
            own_values, added = self._own_values.keep_values(self.newest), self._sums.compute_added()
            end = _EpochEnd(self._reason, self._pipeline.digest, self._newest_taken, own_values, added)
            return objects.allgather(end, operation)

        if self._rescue is None:
            return gather()
        self._rescue.is_meeting = True
        try:
            ends: list[_EpochEnd] = membership.attempt_collectives(operation, gather)
        finally:
            self._rescue.is_meeting = False
        return ends

    def close_turns(self) -> None:
        """Release all resources, also within an epoch. Not collective."""
        if self.is_within:
            self._leave_epoch()
            self._shared_values.copy_out()
        if self._rescue is not None:
            self._rescue.close_turns()
        if self._is_open:
            self._is_open = False
            store.drop_store()

    def report_turns(self) -> None:
        """Report statistics of the turns. Collective."""
        statistics = objects.allgather((self._staleness_counts, self._waited_seconds), "how asynchronous training went")
        counts: Counter[int] = sum((counts_of_rank for counts_of_rank, _ in statistics), Counter())
        if counts:
            waited_seconds = sum(seconds for _, seconds in statistics)
            notes.print_note(staleness.describe_turns(counts, waited_seconds, self._updates - sum(counts.values())))

    def _enter_epoch(self, first: int, count: int) -> None:
        """Let ranks take the batches of an epoch from number `first` on. Collective."""
        operation = "the start of an epoch of asynchronous training"
        membership.attempt_collectives(operation, lambda: self._begin_turns(first, count))
        self.is_within = True

    def _begin_turns(self, first: int, count: int) -> None:
        """Check that all ranks have these batches, and move the shared variables to the store. Collective."""
        counts = objects.allgather((first, count), "the batches of an epoch of asynchronous training")
        if len(set(counts)) > 1:
            raise errors.MismatchError(f"the ranks have other batches in the same epoch, by first and number: {counts}")
        if count > self._max_batches:
            raise errors.RankError(
                f"an epoch of asynchronous training has {count} batches, after {self._max_batches} at most"
            )
        if self.is_outdated and not self._make_store():
            raise membership.make_loss_error("they have no memory in common in which to train")
        self._trained, self._batches, self._reason = first, count, None
        self._sums.begin()
        self._counters.begin(first)
        # Rank 0 writes the weights to the store; after the barrier the other ranks read them there.
        is_writer = world.get_world().rank == 0
        if is_writer:
            self._shared_values.view_store(writes=True)
            store.deal_batches(first, count)
        if self._rescue is not None:
            self._rescue.begin_turns(self._shared_values.size)
        objects.barrier("the weights are where all ranks train them")
        if not is_writer:
            self._shared_values.view_store(writes=False)

    def _set_batch(self, batch: int) -> None:
        """Set the next batch of this rank, which may be an older batch of a lost rank."""
        if batch < self.newest:
            self._own_values.keep_values(self.newest)  # before callbacks set the values of the older batch
        self._batch, self._newest_taken = batch, max(batch, self._newest_taken)

    def _leave_epoch(self) -> None:
        self.is_within = False
        store.leave_batches()

    def _begin_batch(self) -> int | None:
        """The next batch of this rank, after a wait until it may be trained; None if there is none."""
        turn = store.begin_batch(self._bound, 0)
        if turn.status == store.TurnStatus.NOT_YET:
            start = time.perf_counter()
            awaited_rank = f"rank {turn.oldest_rank}" if turn.oldest_rank >= 0 else "another rank"
            with ops.announce_exchange(
                f"a batch, or an epoch's end, that comes when {awaited_rank} has trained an older one"
            ):
                while turn.status == store.TurnStatus.NOT_YET:
                    if self._rescue is not None:
                        self._rescue.find_losses()
                    turn = store.begin_batch(self._bound, _WAIT_SECONDS)
            self._waited_seconds += time.perf_counter() - start
        return turn.batch if turn.status == store.TurnStatus.TAKEN else None


def _make_end() -> Exception:
    error: Exception = tf.errors.OutOfRangeError(None, None, "the ranks together have come to the end of the data")
    return error
