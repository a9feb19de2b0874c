"""Variables whose values lie in the store while ranks take turns, and in each rank's own memory else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from matex_tf.servers import store
from matex_tf.servers.variable_swap import find_inner


class SharedValues:
    """Those of `shared`, in the same order on all ranks. They take the first `size` bytes of the store."""

    def __init__(self, shared: Sequence[Any]):
        self._variables = [find_inner(one) for one in shared]
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
