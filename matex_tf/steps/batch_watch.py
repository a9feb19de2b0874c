"""Compares batches between ranks: all ranks must have the same batch, of which each computes its slice.

A comparison costs time. So only some batches are compared: the first batch of each iterator, and the batches of the
1st, 2nd, 4th, 8th, ... call. A batch that is known before the call is compared before it. If the graph takes the batch
by itself, as in a loop, a flag tells the graph to keep its next batch, which is compared after the call.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from matex_tf.lazy import tf
from matex_tf.rewrite.sharing import Slice
from matex_tf.sharding import fingerprint
from matex_tf.steps import slices
from matex_tf.steps.batches import Batch, WholeBatch


class BatchWatch:
    """The comparisons of one step. what: names the step's batch in messages.

    _flag: a bool variable. If it is true, the graph keeps its next batch, and sets the flag to false. None: no graph
        takes batches by itself.
    _calls: the number of calls so far.
    _sources: weak references to the iterators and datasets of the last comparison.
    _kept: the batch that the graph has kept.
    """

    def __init__(self, what: str):
        self.what = what
        self._flag: Any = None
        self._calls = 0
        self._sources: list[Any] = []
        self._kept: Batch | None = None

    def make_slice(self, components: Sequence[Any], slice_ratios: slices.SliceRatios | None = None) -> Slice:
        """The slice of a batch that is taken within the graph. The graph keeps the batch if the flag is set.

        components: the tensors of the batch that have rows.
        slice_ratios: the ranks' shares of a batch; None if they are equal.
        """
        readable_components = [tensor for tensor in components if tensor.dtype.name not in ("variant", "resource")]
        self.keep_if_asked(readable_components, lambda *rows: WholeBatch(rows, are_rows=[True] * len(rows)))
        return slices.make_checked_slice(components, slice_ratios)

    def keep_if_asked(self, tensors: Sequence[Any], make: Callable[..., Batch]) -> None:
        """Add ops to the graph that keep a batch if the flag is set. `make` makes the batch of the values of `tensors`.

        The ops must call no function of the graph. The thread that runs the ops would wait for the function, and may be
        the only thread that could compute it.
        """
        from tensorflow.python.ops.resource_variable_ops import ResourceVariable

        if self._flag is None:
            # Not tf.Variable: a function that creates one in its trace is traced twice.
            with tf.init_scope():
                self._flag = ResourceVariable(False, trainable=False, name="compares_batch")

        def keep_batch(*values: Any) -> Any:
            self._kept = make(*values)
            return tf.constant(False)  # the new value of the flag

        def keep_and_reset() -> Any:
            flag = tf.py_function(keep_batch, tensors, tf.bool)
            return self._flag.assign(tf.ensure_shape(flag, []), read_value=False)

        tf.cond(self._flag, keep_and_reset, tf.no_op)

    def is_same(self, batch: Batch) -> bool:
        """Whether all ranks have this batch. Collective."""
        return fingerprint.is_batch_of_all(batch.digest(), self.what)

    @contextlib.contextmanager
    def compare_batches(self, sources: Sequence[Any], batch: Batch | None) -> Iterator[None]:
        """Compare the batch of a call, in a context around the call. Collective if a batch is due.

        sources: the iterators and datasets from which the step may take batches.
        batch: None if the graph takes it.

        Raises BatchError on every rank if the numbers of rows differ.
        """
        self._calls += 1
        is_new = [id(reference()) for reference in self._sources] != list(map(id, sources))
        should_compare = is_new or self._calls & (self._calls - 1) == 0  # a power of 2
        if should_compare:
            self._sources = [weakref.ref(source) for source in sources]
            self._kept = None
            if batch is not None:
                fingerprint.compare_batch(batch.digest(), self.what)
            elif self._flag is not None:
                self._flag.assign(True)
        yield
        if should_compare and batch is None and self._flag is not None:
            fingerprint.compare_batch(None if self._kept is None else self._kept.digest(), self.what)
            self._kept = None
