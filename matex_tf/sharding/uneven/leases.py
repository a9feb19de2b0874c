"""By which shares a pipeline cuts each batch: by those that the ranks agreed on from a batch on that none had cut yet.

Pipelines read ahead, each rank as far as it likes. So a pipeline asks here before it cuts, for a few batches at once,
and while the ranks agree on new shares it waits: the first batch that no rank has asked for is known then.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from matex_tf.sharding import py_functions
from matex_tf.world import world

BATCHES = 4
"""For so many a pipeline asks at once, since each time it needs Python; on all ranks alike, as changes begin there."""

Shares = tuple[int, ...]
"""Of each rank: which part of their sum it has (`row_shares.deal_block`)."""

_agreed: Shares = ()


def get_agreed() -> Shares:
    """The shares that the ranks have agreed on last."""
    here = world.get_world()
    return _agreed or (1,) * here.trainers + (0,) * here.servers


def agree_on(shares: Shares) -> None:
    """From here on these are the ones. The ranks have them from each other."""
    global _agreed
    _agreed = shares


Place = tuple[int, int]
"""A batch: of which iteration, from 1, and its number there."""


class Leases:
    """The shares of the batches of one dataset, in each of its iterations.

    All ranks begin the same iterations in the same order, though not at the same time: so a place is the same on all.
    """

    def __init__(self, are_for_good: bool = False):
        """`are_for_good`: an iteration keeps the shares that it begins with."""
        self._are_for_good = are_for_good
        self._lock = threading.Lock()
        self._changes: list[tuple[Place, Shares]] = [((0, 0), get_agreed())]
        """From which place on which shares hold."""
        self._iterations = 0
        self._next: Place = (0, 0)  # the first of the last iteration that was not asked for

    @property
    def last(self) -> Shares:
        """Those of the last change."""
        return self._changes[-1][1]

    def take_lease(self, iteration: int, batch: int) -> tuple[int, Shares]:
        """The shares of `BATCHES` batches from number `batch` on, and the number of the iteration.

        That is given back with the next question; the first batch of an iteration begins one.
        """
        with self._lock:
            if batch == 0:
                self._iterations += 1
                iteration = self._iterations
                if self._are_for_good:
                    self._changes.append(((iteration, 0), get_agreed()))
            self._next = max(self._next, (iteration, batch + BATCHES))
            return iteration, [shares for start, shares in self._changes if start <= (iteration, batch)][-1]

    @contextlib.contextmanager
    def hold_pipelines(self) -> Iterator[Place]:
        """Within it no pipeline gets an answer. Gives the first place that none has asked for."""
        with self._lock:
            yield self._next

    def change_shares(self, start: Place, shares: Shares) -> None:
        """From `start` on, which no rank has asked for, `shares` hold. To be called while pipelines are held.

        An iteration before, which nobody trains on any more, goes on with those that it has: so all ranks cut it alike.
        """
        self._changes.append((start, shares))

    def ask_shares(self, state: tuple[Any, Any], batch: Any) -> tuple[Any, Any]:
        """In a pipeline: what `state`, of `make_state`, is at batch number `batch`; and its shares, the second part."""
        import tensorflow as tf

        def answer(iteration: Any, index: Any) -> tuple[Any, Any]:
            number, shares = self.take_lease(int(iteration), int(index))
            return np.int64(number), np.array(shares, np.int64)

        def asked() -> tuple[Any, Any]:
            iteration, shares = tf.numpy_function(answer, [state[0], batch], [tf.int64, tf.int64])
            return tf.ensure_shape(iteration, []), tf.ensure_shape(shares, [world.get_world().size])

        every = tf.equal(batch, 0) if self._are_for_good else tf.equal(batch % BATCHES, 0)
        return tf.cond(every, asked, lambda: state)

    @staticmethod
    def make_state() -> tuple[Any, Any]:
        """The state of a pipeline before its first batch."""
        import tensorflow as tf

        return tf.constant(0, tf.int64), tf.zeros([world.get_world().size], tf.int64)

    def make_dataset(self) -> Any:
        """A dataset of the shares of each batch, without an end."""
        import tensorflow as tf

        def step(state: tuple[Any, Any], batch: Any) -> tuple[tuple[Any, Any], Any]:
            state = self.ask_shares(state, batch)
            return state, state[1]

        numbers = tf.data.Dataset.range(np.iinfo(np.int64).max)
        return py_functions.hold_py_functions(lambda: numbers.scan(self.make_state(), step))
