"""The variables of a model that ranks train with `MATEX_STRATEGY=async`, each rank whole batches in turn (`turns`).

Four classes divide the variables by what happens to them within an epoch and at its end. `SharedValues` are in the
store, where all ranks change them. The variables of the other classes exist on each rank. At the end of an epoch,
`OwnValues` become the values of the rank with the newest batch, which the script alone would have trained last, and
`Sums` are added up. `Counters` are computed from the number of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from matex_tf.apart import store
from matex_tf.lazy import tf


class SharedValues:
    """TensorFlow variables that all ranks have, in the same order. They occupy the first `size` bytes of the store."""

    def __init__(self, variables: Sequence[Any]):
        self._variables = list(variables)
        self._offsets: list[int] = []
        self.size = 0
        for variable in self._variables:
            self._offsets.append(self.size)
            self.size += store.pad_bytes(variable.shape.num_elements() * variable.dtype.size)

    def view_store(self, writes: bool) -> None:
        """Move the variables to the store. `writes`: store their present values; else take the values stored there."""
        for variable, offset in zip(self._variables, self._offsets):
            store.view_variable(variable.handle, offset, writes)

    def copy_out(self) -> None:
        """Move the variables out of the store: each rank has a copy of the present values."""
        for variable in self._variables:
            variable.assign(tf.constant(np.array(variable.numpy())))


class BatchValues(NamedTuple):
    """The values of a rank's own variables while it trained a batch; batch -1: before any batch."""

    batch: int
    values: list[Any]


class OwnValues:
    """Variables that each rank has for itself, such as the learning rate, which a script may set for each batch."""

    def __init__(self, variables: Sequence[Any]):
        self._variables = list(variables)
        self.forget_batches()

    def forget_batches(self) -> None:
        """Reset at the beginning of an epoch."""
        self._newest: BatchValues | None = None

    def keep_values(self, batch: int) -> BatchValues:
        """Record the present values for this batch, if it is the newest so far. Returns the values of the newest."""
        if self._newest is None or batch > self._newest.batch:
            self._newest = BatchValues(batch, [variable.numpy() for variable in self._variables])
        return self._newest

    def assign_values(self, batch_values: BatchValues) -> None:
        for variable, value in zip(self._variables, batch_values.values):
            variable.assign(value)


class Sums:
    """TensorFlow variables to which each rank adds for its own batches, such as sums of metrics.

    `size`: the bytes of one copy of them in the store, where copies outlast a lost rank (`rescue`).
    """

    def __init__(self, variables: Sequence[Any]):
        self._variables = list(variables)
        self.size = store.pad_bytes(
            sum(variable.shape.num_elements() * variable.dtype.size for variable in self._variables)
        )
        self.begin()

    def begin(self) -> None:
        """Begin an epoch; all ranks have equal values."""
        self._start = [np.array(variable.numpy()) for variable in self._variables]

    def compute_added(self) -> list[np.ndarray]:
        """The amounts that this rank has added since `begin`."""
        return [np.asarray(variable.numpy()) - start for variable, start in zip(self._variables, self._start)]

    def add(self, amounts: Sequence[np.ndarray]) -> None:
        for variable, amount in zip(self._variables, amounts):
            variable.assign_add(amount)

    def assign_sum(self, amounts_of_ranks: Sequence[Sequence[np.ndarray]]) -> None:
        """Set the variables to their start values plus the amounts of all ranks."""
        for variable, start, *amounts in zip(self._variables, self._start, *amounts_of_ranks):
            variable.assign(sum(amounts, start))


class Counters:
    """TensorFlow variables that each step changes by a constant amount, such as states of random numbers.

    So their values at a batch, as the script alone has them, follow from its number. `amounts`: (variable, amount)
    pairs.
    """

    def __init__(self, amounts: Sequence[tuple[Any, np.ndarray]]):
        self._amounts = list(amounts)
        self.begin(0)

    def begin(self, batch: int) -> None:
        """The present values are those before this batch."""
        self._first = batch
        self._start = [np.array(variable.numpy()) for variable, _ in self._amounts]

    def move_to(self, batch: int) -> None:
        """Set the variables to their values before this batch."""
        for (variable, amount), start in zip(self._amounts, self._start):
            variable.assign((start + amount * (batch - self._first)).astype(start.dtype))
