"""Variables of ranks that take turns: some lie in the store meanwhile, others each rank has for itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from matex_tf.servers import store
from matex_tf.steps.variables import find_tf_variable


class SharedValues:
    """Those of `shared`, in the same order on all ranks. They take the first `size` bytes of the store."""

    def __init__(self, shared: Sequence[Any]):
        self._variables = [find_tf_variable(one) for one in shared]
        self._places: list[int] = []
        self.size = 0
        for one in self._variables:
            self._places.append(self.size)
            self.size += store.pad_bytes(one.shape.num_elements() * one.dtype.size)

    def view_store(self, writes: bool) -> None:
        """From now on they lie in the store. `writes`: what they are now is put there."""
        for one, place in zip(self._variables, self._places):
            store.view_variable(one.handle, place, writes)

    def take_out(self) -> None:
        """From now on each rank has them for itself, as they are."""
        import tensorflow as tf

        for one in self._variables:
            one.assign(tf.constant(np.array(one.numpy())))


class Told(NamedTuple):
    """What a rank's own variables were with a batch; -1: with none."""

    batch: int
    values: list[Any]


class OwnValues:
    """Those of `told`, which each rank has for itself and a script may set for each batch, as the learning rate."""

    def __init__(self, told: Sequence[Any]):
        self._variables = list(told)
        self.forget_batches()

    def forget_batches(self) -> None:
        """An epoch begins."""
        self._newest: Told | None = None

    def keep_values(self, batch: int) -> Told:
        """What they are now they are with this batch; gives what they were with the newest so far."""
        if self._newest is None or batch > self._newest.batch:
            self._newest = Told(batch, [one.numpy() for one in self._variables])
        return self._newest

    def assign_values(self, told: Told) -> None:
        for one, value in zip(self._variables, told.values):
            one.assign(value)


class Sums:
    """Variables of TensorFlow to which each rank adds for its own batches; `size`: their bytes in the store."""

    def __init__(self, variables: Sequence[Any]):
        self._variables = list(variables)
        self.size = store.pad_bytes(sum(one.shape.num_elements() * one.dtype.size for one in self._variables))
        self.begin()

    def begin(self) -> None:
        """Ranks begin to add; all have the same."""
        self._start = [np.array(one.numpy()) for one in self._variables]

    def read(self) -> list[np.ndarray]:
        """What this rank has added."""
        return [np.asarray(one.numpy()) - start for one, start in zip(self._variables, self._start)]

    def add(self, parts: Sequence[np.ndarray]) -> None:
        for one, part in zip(self._variables, parts):
            one.assign_add(part)

    def assign_sum(self, everyone: Sequence[Sequence[np.ndarray]]) -> None:
        """From now on all have what all have added."""
        for one, start, *parts in zip(self._variables, self._start, *everyone):
            one.assign(sum(parts, start))


class Counters:
    """Variables of TensorFlow that each step moves by a fixed amount: with a batch they are what they are alone."""

    def __init__(self, amounts: Sequence[tuple[Any, np.ndarray]]):
        self._amounts = list(amounts)
        self.begin(0)

    def begin(self, batch: int) -> None:
        """They are now as they are before this batch."""
        self._first = batch
        self._start = [np.array(one.numpy()) for one, _ in self._amounts]

    def move_to(self, batch: int) -> None:
        """What they are before this batch."""
        for (one, amount), start in zip(self._amounts, self._start):
            one.assign((start + amount * (batch - self._first)).astype(start.dtype))
