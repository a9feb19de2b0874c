"""`MATEX_STRATEGY=async`: each rank trains whole batches in turn, and adds its updates to weights that all share.

Within an epoch the ranks meet nowhere: the weights and the optimizer's variables lie in memory that they have in common
(`store`). Between epochs each has them for itself again, all the same, and a model is as ever.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from matex_tf import ops, settings
from matex_tf.runtime import notes, objects
from matex_tf.servers import store
from matex_tf.servers.pieces import update_costs
from matex_tf.servers.variable_swap import find_inner
from matex_tf.world import world

OTHER_ORDER = (
    "the ranks see different rows in the same batch: data or their order differ between ranks, for instance by a "
    "shuffle without a seed. They take turns at batches by their number, so that rows were trained by several ranks or "
    "by none"
)
_OUT_OF_DATA, _STOPPED = "out of data", "stopped"
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


class Data(Protocol):
    """The pipeline that an epoch's batches come from."""

    def get_first(self) -> tuple[int, int] | None:
        """The rows and the hash of the epoch's first batch, if the pipeline began with it."""

    def note_end(self, place: int) -> None:
        """There is no batch at this place of the pipeline: the first that is wanting."""

    def raise_end(self) -> None:
        """Raise what a step raises where its pipeline has ended."""


class _End(NamedTuple):
    """What a rank knows at the end of an epoch."""

    early: str | None
    first: tuple[int, int] | None
    taken: int
    trained: int
    told: list[Any]


class Turns:
    """A training in which ranks take turns at batches.

    Args:
        shared: the variables that its step adds to, in the same order on all ranks.
        places: where each of them lies in the store.
        told: variables that each rank has for itself, and that a script may set within an epoch, as the learning rate.
    """

    def __init__(self, shared: Sequence[Any], places: Sequence[int], told: Sequence[Any]):
        self._shared = [find_inner(one) for one in shared]
        self._places = places
        self._told = list(told)
        self._behind = read_bound()
        self.is_within = False  # an epoch, in which ranks are at batches of their own
        self._early: str | None = None  # why the epoch ends before its last batch: this rank knows first
        self._iterator: Any = None
        self._taken = self._trained = -1  # the last batch
        self._waited = 0.0
        self._others: Counter[int] = Counter()

    def iterate_epoch(self, steps: Iterable[Any], count: int, first: int, data: Data) -> Iterator[Any]:
        """Of the `count` steps of an epoch those that this rank makes. Collective at both its ends.

        Args:
            steps: each with the iterator of the pipeline last.
            first: the place of the epoch's first batch in the pipeline.
        """
        self._enter_epoch(count)
        self._first, self._data = first, data
        self._taken = self._trained = -1
        batch = self._begin_batch()
        for number, step in enumerate(steps):
            *_, self._iterator = step
            if number == batch:
                store.want_batch(first + number)
                self._taken = number
                yield step
                batch = self._begin_batch()
            if batch is None and self.is_within:
                # Where the epoch is cut short, Keras makes no iterator for the next one yet: that draws a seed.
                early = self.end_epoch()
                if early == _STOPPED:
                    return
                if early == _OUT_OF_DATA:
                    data.raise_end()

    def note_trained(self) -> None:
        """The batch of the last step given is trained."""
        self._others[store.end_batch()] += 1
        self._trained = self._taken

    def note_end_of_data(self) -> None:
        """The pipeline had fewer batches than were to be trained. Collective."""
        self._early = _OUT_OF_DATA
        self.end_epoch()

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
        told = [one.numpy() for one in self._told]
        mine = _End(self._early, self._data.get_first(), self._taken, self._trained, told)
        everyone = [
            _End(*one) for one in objects.allgather(tuple(mine), "the end of an epoch of asynchronous training")
        ]
        trained = store.count_trained()
        self._take_out()
        if len({end.first for end in everyone}) > 1:
            notes.print_note(OTHER_ORDER)
        # The last that the script alone begins: where data end, one that it does not train.
        last = max(everyone, key=lambda end: end.trained)
        without = [end for end in everyone if end.early == _OUT_OF_DATA]
        if without:
            last = min(without, key=lambda end: end.taken)
            self._data.note_end(self._first + last.taken)
        else:
            self._catch_up(max(end.taken for end in everyone))
        for one, value in zip(self._told, last.told):
            one.assign(value)
        self._iterator = None
        reasons = [end.early for end in everyone if end.early]
        if trained != self._count and not reasons:
            raise world.RankError(f"{trained} of the {self._count} batches of an epoch were trained")
        return min(reasons, default=None)

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
            self._take_out()
        if self in _under_way:
            _under_way.remove(self)
            store.drop_store()

    def report_turns(self) -> None:
        """Say how the ranks did. Collective."""
        everyone = objects.allgather((self._others, self._waited), "how asynchronous training went")
        others: Counter[int] = sum((one for one, _ in everyone), Counter())
        if others:
            waited = sum(seconds for _, seconds in everyone)
            notes.print_note(
                f"asynchronous: {_describe_staleness(others)}; {waited:.1f} s waited at the bound by all ranks together"
            )

    def _enter_epoch(self, count: int) -> None:
        counts = objects.allgather(count, "the batches of an epoch of asynchronous training")
        if len(set(counts)) > 1:
            raise world.RankError(f"the ranks have other numbers of batches in the same epoch: {counts}")
        self._count, self._early = count, None
        is_first = world.get_world().rank == 0
        if is_first:
            self._view_store(writes=True)
            store.deal_batches(count)
        objects.barrier("the weights are where all ranks train them")
        if not is_first:
            self._view_store(writes=False)
        self.is_within = True

    def _catch_up(self, last: int) -> None:
        """Have the pipeline of this rank come as far as any: what it draws at random next is the same on all then."""
        if self._taken < last:
            store.want_batch(self._first + last)
            self._iterator.get_next_as_optional()
            store.want_batch(-1)

    def _view_store(self, writes: bool) -> None:
        for one, place in zip(self._shared, self._places):
            store.view_variable(one.handle, place, writes)

    def _take_out(self) -> None:
        import tensorflow as tf

        for one in self._shared:
            one.assign(tf.constant(np.array(one.numpy())))

    def _leave_epoch(self) -> None:
        self.is_within = False
        store.leave_batches()
        store.want_batch(-1)

    def _begin_batch(self) -> int | None:
        """The next batch of this rank, once it may be trained; None if there is none."""
        turn = store.begin_batch(self._behind, 0)
        if turn.begun == store.Begun.NOT_YET:
            start = time.perf_counter()
            with ops.announce_exchange(f"a batch that may be begun once rank {turn.behind} has trained an older one"):
                while turn.begun == store.Begun.NOT_YET:
                    turn = store.begin_batch(self._behind, _PATIENCE)
            self._waited += time.perf_counter() - start
        return turn.batch if turn.begun == store.Begun.TAKEN else None


def make_turns(shared: Sequence[Any], told: Sequence[Any]) -> Turns | None:
    """A training that adds to `shared`, as `Turns`; None if the ranks have no memory in common. Collective."""
    places, size = [], 0
    for one in map(find_inner, shared):
        places.append(size)
        size += -(-one.shape.num_elements() * one.dtype.size // store.ALIGNED) * store.ALIGNED
    if not store.make_store(size):
        return None
    _under_way.append(Turns(shared, places, told))
    return _under_way[-1]


def _describe_staleness(others: Counter[int]) -> str:
    """Updates, and how many of others' each lacked: those made while it was."""
    updates = sum(others.values())
    mean = sum(late * times for late, times in others.items()) / updates
    seen = 0
    for late in sorted(others):
        seen += others[late]
        if seen >= 0.99 * updates:
            break
    return f"{updates} updates; staleness {mean:.2f} on average, {late} at the 99th percentile, at most {max(others)}"
