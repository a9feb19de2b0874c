"""`MATEX_STRATEGY=async`: each rank trains whole batches in turn, and adds its updates to weights that all share.

Within an epoch the ranks meet nowhere: the weights and the optimizer's variables lie in memory that they have in common
(`store`). Between epochs each has them for itself again, all the same, and a model is as ever.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from matex_tf import ops, settings
from matex_tf.runtime import notes, objects
from matex_tf.servers import store
from matex_tf.servers.pieces import update_costs
from matex_tf.servers.turns import protocols, staleness, values
from matex_tf.world import membership, world

OTHER_ORDER = (
    "the ranks see different rows in the same batch: data or their order differ between ranks, for instance by a "
    "shuffle without a seed. They take turns at batches by their number, so that rows were trained by several ranks or "
    "by none"
)
_OUT_OF_DATA, _STOPPED, _PAUSED = "out of data", "stopped", "the state of the run is kept"
_PATIENCE = 0.05  # seconds of a wait in C, after which Python has a look at its signals
_under_way: list[Turns] = []  # of which there is one at most, as there is one store


def is_chosen() -> bool:
    """Whether ranks are to train batches in turn where they can."""
    here = world.get_world()
    return settings.is_asynchronous(settings.get_settings().strategy) and world.is_active() and not here.is_phantom


def read_bound() -> int:
    """How many batches a rank may be ahead of the oldest that is being trained."""
    return settings.get_strategy_number(settings.get_settings().strategy, max(4, 2 * (world.get_world().size - 1)))


def is_under_way() -> bool:
    """Whether there is such a training: within an epoch, or between two."""
    return bool(_under_way)


def say_not(what: str, why: str) -> None:
    """Say once that `what` is no asynchronous training though that is chosen; note it for a plan."""
    update_costs.note_obstacle("async", why)
    if is_chosen():
        notes.print_note(f"MATEX_STRATEGY=async: {what} runs as allreduce: {why}")


class _End(NamedTuple):
    """What a rank knows at the end of an epoch."""

    early: str | None
    first: tuple[int, int] | None
    taken: int
    told: values.Told


class Turns:
    """A training in which ranks take turns at batches.

    Args:
        shared: the variables that its step adds to, in the same order on all ranks.
        told: variables that each rank has for itself, and that a script may set within an epoch, as the learning rate.
        most: how many batches an epoch has, at most.
        parts: how many additions a step has.
        rescue: what goes on without a rank that is lost, with MATEX_ELASTIC.
        state: where the state of the run is kept.
    """

    def __init__(
        self,
        shared: Sequence[Any],
        told: Sequence[Any],
        most: int,
        parts: int,
        rescue: protocols.Rescue | None,
        state: protocols.State | None,
    ):
        self._shared = values.SharedValues(shared)
        self._own = values.OwnValues(told)
        self._most, self._parts, self._rescue, self._state = most, parts, rescue, state
        self._behind = read_bound()
        self.is_within = False  # an epoch, in which ranks are at batches of their own
        self.is_outdated = True  # the store is, in which there is a place for each rank
        self._early: str | None = None  # why the epoch ends before its last batch: this rank knows first
        self._iterator: Any = None
        self._batch = -1
        self._count = self._done = self._begin = 0  # batches of the epoch; those before are trained; its first step
        self._taken = self._trained = -1  # the newest batch, and the last
        self._waited, self._made = 0.0, 0  # seconds, and updates of all ranks
        self._others: Counter[int] = Counter()

    def open_turns(self) -> bool:
        """Before the first epoch: whether ranks have memory in common. Collective."""
        if membership.attempt_collectives("making the memory in which ranks train", self._make_store):
            _under_way.append(self)
        return not self.is_outdated

    def _make_store(self) -> bool:
        """Make the memory in which ranks train; whether they can have it. Collective."""
        size = self._shared.size + (self._rescue.count_bytes() if self._rescue is not None else 0)
        self.is_outdated = not store.make_store(size, self._most, self._parts)
        return not self.is_outdated

    def iterate_epoch(self, steps: Iterable[Any], count: int, first: int, data: protocols.Data) -> Iterator[Any]:
        """Of the `count` steps of an epoch those that this rank makes. Collective at both its ends.

        Args:
            steps: each with the iterator of the pipeline last.
            first: the place of the epoch's first batch in the pipeline.
        """
        self._first, self._data = first, data
        self._taken = self._trained = -1
        self._own.forget_batches()
        self._enter_epoch(0, count)
        batch = self._begin_batch()
        for number, step in enumerate(steps):
            self._iterator = step[-1]
            self._begin = step[0] - number  # the epoch's step that batch 0 is
            while self.is_within if batch is None else batch <= number:
                if batch is None:
                    # Where the epoch is cut short, Keras makes no iterator for the next one yet: that draws a seed.
                    early = self.end_epoch()
                    if early == _STOPPED:
                        return
                    if early == _OUT_OF_DATA:
                        data.raise_end()
                    if early == _PAUSED and self._state is not None:
                        self._state.keep_within(self._begin + self._done)
                        self._enter_epoch(self._done, count)
                        self._iterator = step[-1]
                        batch = self._begin_batch()
                    continue
                given = self._fetch_batch(batch, step)
                if given is not None:
                    yield given
                batch = self._begin_batch()

    def note_trained(self) -> None:
        """The batch of the last step given is trained."""
        version = self._rescue.keep_counts() if self._rescue is not None else 0
        self._others[store.end_batch(version)] += 1
        self._trained = self._batch
        if self._state is not None and self._state.is_due():
            self._early = self._early or _PAUSED
            store.stop_batches()

    def note_end_of_data(self) -> None:
        """The pipeline had fewer batches than were to be trained. Collective."""
        self._early = _OUT_OF_DATA
        self.end_epoch()

    def forget_counts(self) -> None:
        """What metrics have counted in an epoch is told, and will not go on."""
        if self._rescue is not None:
            self._rescue.forget_counts()

    def stop_epoch(self) -> None:
        """A callback of this rank stops the epoch."""
        if self.is_within:
            self._early = _STOPPED
            store.stop_batches()

    def end_epoch(self) -> str | None:
        """At the end of an epoch: each rank has the same weights; why it ended early. Collective, unless it was met."""
        if not self.is_within:
            return None
        self._leave_epoch()
        if self._rescue is not None:
            self._rescue.end_turns()
        mine = _End(self._early, self._data.get_first(), self._taken, self._own.keep_values(self._trained))
        everyone: list[_End] = objects.allgather(mine, "the end of an epoch of asynchronous training")
        before, self._done = self._done, store.count_trained()
        self._made += self._done - before
        self._shared.take_out()
        if len({end.first for end in everyone}) > 1:
            notes.print_note(OTHER_ORDER)
        # The last that the script alone begins: where data end, one that it does not train.
        last = max(everyone, key=lambda end: end.told.batch)
        without = [end for end in everyone if end.early == _OUT_OF_DATA]
        if without:
            last = min(without, key=lambda end: end.taken)
            self._data.note_end(self._first + last.taken)
        else:
            # That of the last batch may be a rank that is lost.
            self._catch_up(max(self._done - 1, *(end.taken for end in everyone)))
        self._own.assign_values(last.told)
        self._iterator = None
        reasons = [end.early for end in everyone if end.early]
        if self._done != self._count and not reasons:
            raise world.RankError(f"{self._done} of the {self._count} batches of an epoch were trained")
        early = min(reasons, key=[_OUT_OF_DATA, _STOPPED, _PAUSED].index, default=None)
        return None if early == _PAUSED and self._done == self._count else early

    def choose_last(self, figures: Any) -> Any:
        """Of what each rank knows of its last step, that of the epoch's last batch. Collective."""
        import tensorflow as tf

        mine = tf.nest.map_structure(lambda one: one.numpy() if hasattr(one, "numpy") else one, figures)
        everyone = objects.allgather((self._trained, mine), "the figures of the last batch of an epoch")
        return max(everyone, key=lambda one: one[0])[1]

    def close_turns(self) -> None:
        """Give everything back, whether or not an epoch is under way. Not collective."""
        if self.is_within:
            self._leave_epoch()
            self._shared.take_out()
        if self._rescue is not None:
            self._rescue.close_turns()
        if self in _under_way:
            _under_way.remove(self)
            store.drop_store()

    def report_turns(self) -> None:
        """Say how the ranks did. Collective."""
        everyone = objects.allgather((self._others, self._waited), "how asynchronous training went")
        others: Counter[int] = sum((one for one, _ in everyone), Counter())
        if others:
            waited = sum(seconds for _, seconds in everyone)
            notes.print_note(staleness.describe_turns(others, waited, self._made - sum(others.values())))

    def _enter_epoch(self, first: int, count: int) -> None:
        """Have ranks take the batches from `first` on. Collective."""
        what = "the start of an epoch of asynchronous training"
        membership.attempt_collectives(what, lambda: self._begin_turns(first, count))
        self.is_within = True

    def _begin_turns(self, first: int, count: int) -> None:
        counts = objects.allgather((first, count), "the batches of an epoch of asynchronous training")
        if len(set(counts)) > 1:
            raise world.RankError(f"the ranks have other batches in the same epoch, by first and number: {counts}")
        if count > self._most:
            raise world.RankError(f"an epoch of asynchronous training has {count} batches, after {self._most} at most")
        if self.is_outdated and not self._make_store():
            raise membership.make_loss_error("they have no memory in common in which to train")
        self._done, self._count, self._early = first, count, None
        is_first = world.get_world().rank == 0
        if is_first:
            self._shared.view_store(writes=True)
            store.deal_batches(first, count)
        if self._rescue is not None:
            self._rescue.begin_turns(self._shared.size)
        objects.barrier("the weights are where all ranks train them")
        if not is_first:
            self._shared.view_store(writes=False)

    def _fetch_batch(self, batch: int, step: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """`step` for a batch of this epoch, which may be an older one of a lost rank; None if there is none."""
        if batch < self._trained:
            self._own.keep_values(self._trained)  # of the newer one that it had before
        self._batch, self._taken = batch, max(batch, self._taken)
        if self._rescue is None:
            store.want_batch(self._first + batch)
            return step
        iterator = self._rescue.fetch_batch(self._first + batch, self._iterator)
        if iterator is None:
            self._early = _OUT_OF_DATA
            store.leave_batches()
            store.stop_batches()
            return None
        return self._begin + batch, self._begin + batch, iterator

    def _catch_up(self, last: int) -> None:
        """Have the pipeline of this rank come as far as any: what it draws at random next is the same on all then."""
        if self._taken < last:
            if self._rescue is not None:
                self._rescue.fetch_batch(self._first + last, self._iterator)
            else:
                store.want_batch(self._first + last)
                self._iterator.get_next_as_optional()
                store.want_batch(-1)
            self._taken = last

    def _leave_epoch(self) -> None:
        self.is_within = False
        store.leave_batches()
        store.want_batch(-1)

    def _begin_batch(self) -> int | None:
        """The next batch of this rank, once it may be trained; None if there is none."""
        turn = store.begin_batch(self._behind, 0)
        if turn.begun == store.Begun.NOT_YET:
            start = time.perf_counter()
            whom = f"rank {turn.behind}" if turn.behind >= 0 else "another rank"
            with ops.announce_exchange(f"a batch, or an epoch's end, that comes when {whom} has trained an older one"):
                while turn.begun == store.Begun.NOT_YET:
                    if self._rescue is not None:
                        self._rescue.find_losses()
                    turn = store.begin_batch(self._behind, _PATIENCE)
            self._waited += time.perf_counter() - start
        return turn.batch if turn.begun == store.Begun.TAKEN else None
