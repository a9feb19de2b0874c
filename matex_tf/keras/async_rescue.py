"""Asynchronous ranks that go on without one that is lost (`servers.asynchronous`, with MATEX_ELASTIC).

What it had begun another rank trains: the store knows how far it was. What it had counted for metrics is in the store.
"""

from __future__ import annotations

import collections
from typing import Any

import numpy as np

from matex_tf.gradients import reduction
from matex_tf.metrics import metrics
from matex_tf.resilience import elastic, elastic_step
from matex_tf.servers import asynchronous, store, taken_batches
from matex_tf.sharding import sliced_dataset
from matex_tf.world import membership, world


class Window:
    """The batches of a pipeline by their place. The last few stay, so that they can be trained for a lost rank."""

    def __init__(self, spec: Any, most: int):
        """
        Args:
            spec: the element spec of a batch.
            most: how many stay.
        """
        self._feed = elastic_step.Feed(spec, 1, _make_taken)
        self._kept: collections.deque[Any] = collections.deque(maxlen=most)
        self._source: Any = None

    def fetch_batch(self, place: int, source: Any) -> Any:
        """An iterator that gives the batch at `place` of `source`; None if that ends before.

        A place before that of the batch that was fetched last is one of those that stay.
        """
        import tensorflow as tf

        if source is not self._source:
            self._kept.clear()
            self._source = source
        while not self._kept or int(self._kept[-1].place) < place:
            try:
                self._kept.append(source.get_next())
            except tf.errors.OutOfRangeError:
                return None
        found = next(one for one in self._kept if int(one.place) == place)
        numbers = tf.constant([place, 0, 0, 0], tf.float64)
        return self._feed.put_batches([sliced_dataset.Batch(found.data, numbers)])

    def clear_batches(self) -> None:
        self._kept.clear()
        self._source = None


def _make_taken(data: Any, numbers: Any) -> taken_batches.Taken:
    import tensorflow as tf

    return taken_batches.Taken(tf.cast(numbers[0], tf.int64), data)


class Rescue:
    """See `protocols.Rescue`."""

    def __init__(self, model: Any, spec: Any):
        self._model = model
        self._window = Window(spec, asynchronous.read_bound() + 1)
        self._turns: asynchronous.Turns | None = None
        self._place = 0
        self._version = 1
        self._ranks: list[int] = []  # those that are left, by the numbers that they have in the store
        self._lost: set[int] = set()
        self._added: set[int] = set()  # lost ranks whose counts this rank has
        self._counted: list[np.ndarray] | None = None  # where this epoch's counts still are in the metrics

    def watch_losses(self, turns: asynchronous.Turns) -> None:
        """Have `turns` go on when a rank is lost."""
        self._turns, self._ranks = turns, list(range(world.get_world().size))
        elastic.after_loss.append(self._handle_loss)

    def close_turns(self) -> None:
        if self._turns is not None:
            elastic.after_loss.remove(self._handle_loss)
            self._turns = None

    def count_bytes(self) -> int:
        return 2 * world.get_world().size * self._count_bytes()

    def begin_turns(self, place: int) -> None:
        self._place, self._version = place, 1
        me = world.get_world()
        values = self._read_counts()
        for version in (0, 1):
            self._write_counts(me.rank, version, values)
        self._ranks = list(range(me.size))
        self._lost, self._added, self._counted = set(), set(), None

    def fetch_batch(self, place: int, iterator: Any) -> Any:
        return self._window.fetch_batch(place, iterator)

    def keep_counts(self) -> int:
        self._version = 1 - self._version
        self._write_counts(world.get_world().rank, self._version, self._read_counts())
        return self._version

    def find_losses(self) -> None:
        me = world.get_world()
        for rank in world.list_lost():
            if not store.is_lost(rank):
                is_first, batch = store.note_loss(rank)
                if is_first:
                    left = me.size - sum(map(store.is_lost, range(me.size)))
                    had = (
                        "it had no batch"
                        if batch is None
                        else f"batch {batch} of the epoch, which it had, goes to another"
                    )
                    elastic.say_loss({rank: me.hosts[rank]}, left, f"within an epoch of asynchronous training; {had}")

    def end_turns(self) -> None:
        self._window.clear_batches()
        self._counted = self._read_counts()

    def forget_counts(self) -> None:
        self._counted = None

    def _handle_loss(self, became_first: bool) -> None:
        assert self._turns is not None
        self._turns.is_outdated = True
        self._lost.update(rank for place, rank in enumerate(self._ranks) if place not in membership.survivors)
        elastic.said.update(place for place, rank in enumerate(self._ranks) if store.is_lost(rank))
        self._ranks = [self._ranks[place] for place in membership.survivors]
        if self._counted is None or world.get_world().rank > 0:
            return
        for rank in self._lost - self._added:
            self._added.add(rank)
            more = self._read_slot(rank, store.read_version(rank))
            self._counted = [mine + its for mine, its in zip(self._counted, more)]
        for variable, value in zip(self._list_metrics(), self._counted):
            variable.assign(value)

    # What metrics have counted

    def _list_metrics(self) -> list[Any]:
        return list(map(reduction.find_tf_variable, metrics.list_variables(self._model)))

    def _read_counts(self) -> list[np.ndarray]:
        return [np.asarray(one.numpy()) for one in self._list_metrics()]

    def _count_bytes(self) -> int:
        """Of the counts of a rank."""
        return store.pad_bytes(sum(one.shape.num_elements() * one.dtype.size for one in self._list_metrics()))

    def _find_slot(self, rank: int, version: int) -> np.ndarray:
        size = self._count_bytes()
        first = self._place + (2 * rank + version) * size
        return store.map_bytes(first + size)[first:]

    def _write_counts(self, rank: int, version: int, values: list[np.ndarray]) -> None:
        data = np.frombuffer(b"".join(value.tobytes() for value in values), np.uint8)
        self._find_slot(rank, version)[: data.size] = data

    def _read_slot(self, rank: int, version: int) -> list[np.ndarray]:
        data, found, first = self._find_slot(rank, version).tobytes(), [], 0
        for like in self._read_counts():
            found.append(np.frombuffer(data[first : first + like.nbytes], like.dtype).reshape(like.shape))
            first += like.nbytes
        return found
