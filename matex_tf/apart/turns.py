"""`MATEX_STRATEGY=async`: each rank trains whole batches in turn, and adds its updates to weights in shared memory.

Within an epoch there are no collectives: the weights and the optimizer's variables are in shared memory (`store`).
    Between epochs, each rank has its own equal copies, and a model behaves as usual.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from matex_tf import errors, ops, settings
from matex_tf.apart.pipeline import Pipeline
from matex_tf.apart.rescue import Rescue
from matex_tf.apart.shared_step import SharedStep
from matex_tf.resilience import elastic
from matex_tf.runtime import notes, objects
from matex_tf.servers import store
from matex_tf.servers.turns import staleness, values
from matex_tf.world import membership, world

OTHER_ORDER = (
    "the ranks see different rows in the same batch: data or their order differ between ranks, for instance by a "
    "shuffle without a seed. They take turns at batches by their number, so that rows were trained by several ranks or "
    "by none"
)
_OUT_OF_DATA, _STOPPED, _PAUSED = "out of data", "stopped", "the state of the run is kept"
_WAIT_SECONDS = 0.05  # seconds of a wait in C, after which Python handles signals


def read_bound() -> int:
    """The maximum distance between a rank's batch and the oldest batch in training."""
    return settings.get_strategy_number(settings.get_settings().strategy, max(4, 2 * (world.get_world().size - 1)))


class _End(NamedTuple):
    """A rank's contribution to the meeting at the end of an epoch."""

    early: str | None
    first: tuple[int, int] | None
    taken: int
    told: values.Told
    counted: list[np.ndarray]


class State(Protocol):
    """Saves the state of the run between two batches."""

    def is_due(self) -> bool:
        """Whether this rank wants to save the state."""

    def keep_within(self, step: int) -> None:
        """Save the state before `step` of the epoch. Collective."""


class Turns:
    """A training in which ranks take turns at batches.

    Args:
        step: the step of the model.
        most: the maximum number of batches in an epoch.
        state: saves the state of the run; None if it is not saved.
    """

    def __init__(self, step: SharedStep, most: int, state: State | None):
        self._step, self._most, self._state = step, most, state
        self._shared = values.SharedValues(step.shared)
        self._own = values.OwnValues(step.told)
        self._sums = values.Sums(step.sums)
        self._counters = values.Counters(step.counters)
        self._behind = read_bound()
        self._rescue = Rescue(self._sums) if elastic.is_on() else None
        self._pipeline = Pipeline(step.take_batch, self._behind + 1)
        self.is_within = False  # the epoch is running, and ranks are at different batches
        self.is_outdated = True  # the store must be created before it has a place for each rank
        self.meetings = 0  # number of meetings of the ranks
        self.is_stopped = False  # a callback of some rank has stopped the epoch
        self.newest = -1  # the last batch of the epoch that this rank has trained
        self._is_open = False
        self._early: str | None = None  # why the epoch ends before its last batch; this rank knows first
        self._batch = self._taken = -1  # the present batch of this rank, and the newest that it took in this epoch
        self._done = self._count = 0  # trained batches of the epoch, and all batches
        self._waited, self._made = 0.0, 0  # seconds, and updates of all ranks
        self._staleness_counts: Counter[int] = Counter()

    def open_turns(self) -> bool:
        """Prepare the first epoch. Returns whether the ranks have shared memory. Collective."""
        self._is_open = membership.attempt_collectives("making the memory in which ranks train", self._make_store)
        if self._is_open and self._rescue is not None:
            self._rescue.watch_losses(self)
        return self._is_open

    def _make_store(self) -> bool:
        """Create the shared memory. Returns whether the ranks have it. Collective."""
        size = self._shared.size + (self._rescue.count_bytes() if self._rescue is not None else 0)
        self.is_outdated = not store.make_store(size, self._most, len(self._step.parts))
        return not self.is_outdated

    def iterate_epoch(self, steps: Iterable[tuple[int, int, Any]], count: int) -> Iterator[Any]:
        """The steps of this rank, among the `count` steps of an epoch. Collective at the beginning and the end.

        Args:
            steps: the number of each step, twice, and the iterator of the pipeline.
        """
        self._taken = self.newest = -1
        self._own.forget_batches()
        self._enter_epoch(0, count)
        batch, began = self._begin_batch(), False
        for number, (first, _, iterator) in enumerate(steps):
            if not began:
                self._pipeline.begin_epoch(iterator)
                began = True
            while self.is_within if batch is None else batch <= number:
                if batch is None:
                    # If the epoch is cut short, Keras must not yet create the next epoch's iterator, because that draws
                    # a seed.
                    early = self.end_epoch()
                    if early == _STOPPED:
                        return
                    if early == _OUT_OF_DATA:
                        raise _make_end()
                    if early == _PAUSED and self._state is not None:
                        self._state.keep_within(first - number + self._done)
                        self._enter_epoch(self._done, count)
                        batch = self._begin_batch()
                    continue
                self._take_batch(batch)
                yield first - number + batch, first - number + batch, iterator
                batch = self._begin_batch()
        self.end_epoch()

    def run_step(self, iterator: Any) -> Any:
        """Compute the step on this rank's batch. Raises the end of the data if there is no batch;
        that is collective.
        """
        batch = self._pipeline.fetch_batch(self._batch)
        if batch is None:
            self._early = _OUT_OF_DATA
            store.leave_batches()
            store.stop_batches()
            self.end_epoch()
            raise _make_end()
        self._counters.move_to(self._batch)
        result = self._step.call(iterator, batch)
        self._staleness_counts[store.end_batch(self._rescue.keep_counts() if self._rescue is not None else 0)] += 1
        self.newest = max(self._batch, self.newest)
        if self._state is not None and self._state.is_due():
            self._early = self._early or _PAUSED
            store.stop_batches()
        return result

    def stop_epoch(self) -> None:
        """Stop the epoch on behalf of a callback of this rank."""
        if self.is_within:
            self._early = _STOPPED
            store.stop_batches()

    def end_epoch(self) -> str | None:
        """End an epoch, after which all ranks have the same weights. Returns the reason for an early end. Collective,
        unless it was already called.
        """
        if not self.is_within:
            return None
        self._leave_epoch()
        ends = self._meet_ranks()
        before, self._done = self._done, store.count_trained()
        self._made += self._done - before
        self._shared.take_out()
        self._sums.assign_sum([end.counted for end in ends])
        if len({end.first for end in ends if end.first}) > 1:
            notes.print_note(OTHER_ORDER)
        # The last step of the script alone: if the data end, that is a step without a batch.
        last = max(ends, key=lambda end: end.told.batch)
        without = [end for end in ends if end.early == _OUT_OF_DATA]
        if without:
            last = min(without, key=lambda end: end.taken)
        else:
            # The pipelines' next random draws are then the same on all ranks; the rank with the last batch may be lost.
            self._pipeline.fetch_batch(max(self._done - 1, *(end.taken for end in ends)))
        self._own.assign_values(last.told)
        self._counters.move_to(self._done)
        reasons = [end.early for end in ends if end.early]
        if self._done != self._count and not reasons:
            raise errors.RankError(f"{self._done} of the {self._count} batches of an epoch were trained")
        self.meetings += 1
        self.is_stopped = _STOPPED in reasons
        early = min(reasons, key=[_OUT_OF_DATA, _STOPPED, _PAUSED].index, default=None)
        return None if early == _PAUSED and self._done == self._count else early

    def _meet_ranks(self) -> list[_End]:
        """Gather the ranks' contributions, including the counts of lost ranks. Collective."""
        what = "the end of an epoch of asynchronous training"

        def tell() -> list[_End]:
            told = self._own.keep_values(self.newest)
            own_end = _End(self._early, self._pipeline.digest, self._taken, told, self._sums.read())
            return objects.allgather(own_end, what)

        if self._rescue is None:
            return tell()
        self._rescue.is_meeting = True
        try:
            ends: list[_End] = membership.attempt_collectives(what, tell)
        finally:
            self._rescue.is_meeting = False
        return ends

    def close_turns(self) -> None:
        """Release all resources, also within an epoch. Not collective."""
        if self.is_within:
            self._leave_epoch()
            self._shared.take_out()
        if self._rescue is not None:
            self._rescue.close_turns()
        if self._is_open:
            self._is_open = False
            store.drop_store()

    def report_turns(self) -> None:
        """Report statistics of the turns. Collective."""
        ends = objects.allgather((self._staleness_counts, self._waited), "how asynchronous training went")
        others: Counter[int] = sum((one for one, _ in ends), Counter())
        if others:
            waited = sum(seconds for _, seconds in ends)
            notes.print_note(staleness.describe_turns(others, waited, self._made - sum(others.values())))

    def _enter_epoch(self, first: int, count: int) -> None:
        """Let ranks take the batches of an epoch from number `first` on. Collective."""
        what = "the start of an epoch of asynchronous training"
        membership.attempt_collectives(what, lambda: self._begin_turns(first, count))
        self.is_within = True

    def _begin_turns(self, first: int, count: int) -> None:
        counts = objects.allgather((first, count), "the batches of an epoch of asynchronous training")
        if len(set(counts)) > 1:
            raise errors.MismatchError(f"the ranks have other batches in the same epoch, by first and number: {counts}")
        if count > self._most:
            raise errors.RankError(f"an epoch of asynchronous training has {count} batches, after {self._most} at most")
        if self.is_outdated and not self._make_store():
            raise membership.make_loss_error("they have no memory in common in which to train")
        self._done, self._count, self._early, self.is_stopped = first, count, None, False
        self._sums.begin()
        self._counters.begin(first)
        is_first = world.get_world().rank == 0
        if is_first:
            self._shared.view_store(writes=True)
            store.deal_batches(first, count)
        if self._rescue is not None:
            self._rescue.begin_turns(self._shared.size)
        objects.barrier("the weights are where all ranks train them")
        if not is_first:
            self._shared.view_store(writes=False)

    def _take_batch(self, batch: int) -> None:
        """Set the next batch of this rank, which may be an older batch of a lost rank."""
        if batch < self.newest:
            self._own.keep_values(self.newest)  # the values of its newest batch
        self._batch, self._taken = batch, max(batch, self._taken)

    def _leave_epoch(self) -> None:
        self.is_within = False
        store.leave_batches()

    def _begin_batch(self) -> int | None:
        """The next batch of this rank, after a wait until it may be trained; None if there is none."""
        turn = store.begin_batch(self._behind, 0)
        if turn.begun == store.Begun.NOT_YET:
            start = time.perf_counter()
            whom = f"rank {turn.behind}" if turn.behind >= 0 else "another rank"
            with ops.announce_exchange(f"a batch, or an epoch's end, that comes when {whom} has trained an older one"):
                while turn.begun == store.Begun.NOT_YET:
                    if self._rescue is not None:
                        self._rescue.find_losses()
                    turn = store.begin_batch(self._behind, _WAIT_SECONDS)
            self._waited += time.perf_counter() - start
        return turn.batch if turn.begun == store.Begun.TAKEN else None


def _make_end() -> Exception:
    import tensorflow as tf

    error: Exception = tf.errors.OutOfRangeError(None, None, "the ranks together have come to the end of the data")
    return error
