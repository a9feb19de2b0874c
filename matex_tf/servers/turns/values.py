"""Variables of asynchronous ranks: some are in the shared store, others belong to each rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from matex_tf.servers import store
from matex_tf.steps.variables import find_tf_variable


class SharedValues:
    """The variables `shared`, in the same order on all ranks. They occupy the first `size` bytes of the store."""

    def __init__(self, shared: Sequence[Any]):
        self._variables = [find_tf_variable(one) for one in shared]
        self._places: list[int] = []
        self.size = 0
        for one in self._variables:
            self._places.append(self.size)
            self.size += store.pad_bytes(one.shape.num_elements() * one.dtype.size)

    def view_store(self, writes: bool) -> None:
        """Move the variables to the store. `writes`: store their present values there."""
        for one, place in zip(self._variables, self._places):
            store.view_variable(one.handle, place, writes)

    def take_out(self) -> None:
        """Move the variables out of the store: each rank has a copy of the present values."""
        import tensorflow as tf

        for one in self._variables:
            one.assign(tf.constant(np.array(one.numpy())))


class Told(NamedTuple):
    """The values of a rank's own variables with a batch; -1: before any batch."""

    batch: int
    values: list[Any]


class OwnValues:
    """The variables `told`, which each rank has for itself and a script may set for each batch, as
    the learning rate.
    """

    def __init__(self, told: Sequence[Any]):
        self._variables = list(told)
        self.forget_batches()

    def forget_batches(self) -> None:
        """Reset at the beginning of an epoch."""
        self._newest: Told | None = None

    def keep_values(self, batch: int) -> Told:
        """Record the present values for this batch. Returns the values of the newest batch so far."""
        if self._newest is None or batch > self._newest.batch:
            self._newest = Told(batch, [one.numpy() for one in self._variables])
        return self._newest

    def assign_values(self, told: Told) -> None:
        for one, value in zip(self._variables, told.values):
            one.assign(value)


class Sums:
    """TensorFlow variables to which each rank adds for its own batches; `size`: their bytes in the store."""

    def __init__(self, variables: Sequence[Any]):
        self._variables = list(variables)
        self.size = store.pad_bytes(sum(one.shape.num_elements() * one.dtype.size for one in self._variables))
        self.begin()

    def begin(self) -> None:
        """Begin to count; all ranks have equal values."""
        self._start = [np.array(one.numpy()) for one in self._variables]

    def read(self) -> list[np.ndarray]:
        """The amounts that this rank has added."""
        return [np.asarray(one.numpy()) - start for one, start in zip(self._variables, self._start)]

    def add(self, parts: Sequence[np.ndarray]) -> None:
        for one, part in zip(self._variables, parts):
            one.assign_add(part)

    def assign_sum(self, everyone: Sequence[Sequence[np.ndarray]]) -> None:
        """Set the variables to their start values plus the amounts of all ranks."""
        for one, start, *parts in zip(self._variables, self._start, *everyone):
            one.assign(sum(parts, start))


class Counters:
    """TensorFlow variables that each step changes by a constant amount: with a batch they have the values of the script
    alone.
    """

    def __init__(self, amounts: Sequence[tuple[Any, np.ndarray]]):
        self._amounts = list(amounts)
        self.begin(0)

    def begin(self, batch: int) -> None:
        """The present values are those before this batch."""
        self._first = batch
        self._start = [np.array(one.numpy()) for one, _ in self._amounts]

    def move_to(self, batch: int) -> None:
        """Set the variables to their values before this batch."""
        for (one, amount), start in zip(self._amounts, self._start):
            one.assign((start + amount * (batch - self._first)).astype(start.dtype))
