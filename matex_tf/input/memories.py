"""The memory of a `cache` if the work before it is deferred: a rank keeps the results of its own rows.

The pipeline caches tickets, which have numbers. A `Memory` keeps the rows that a rank made from a ticket by its number,
so that the rank need not make them again in later passes over the data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from matex_tf.lazy import tf


def can_keep(specs: Sequence[tuple[Any, Any]]) -> bool:
    """Whether tensors of these types and shapes can be kept; datasets, ragged and sparse tensors cannot."""
    return bool(specs) and not any(dtype.name in ("variant", "resource") for dtype, _ in specs)


class Memory:
    """Tensors by the number of their ticket, in a table of TensorFlow. specs: the types and shapes of the tensors."""

    def __init__(self, specs: Sequence[tuple[Any, Any]]):
        self._specs = list(specs)
        with tf.init_scope():
            self._table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.string, [""] * (1 + len(self._specs)))

    def recall(self, number: Any, rows: Sequence[Any], work: Callable[[], list[Any]]) -> list[Any]:
        """In a graph: the tensors of the ticket `number`. If the memory has none, or other rows, `work` makes them.

        rows: scalars that tell which rows: their bounds in a batch, and a digest of the ticket, because after a pass
            that ended early the number may belong to another ticket.
        """
        rows_text = tf.strings.join(["rows", *map(tf.strings.as_string, rows)], ":")
        entry = self._table.lookup(number)  # the text of the rows, then the serialized tensors

        def read() -> list[Any]:
            return [tf.io.parse_tensor(entry[1 + index], dtype) for index, (dtype, _) in enumerate(self._specs)]

        def make() -> list[Any]:
            tensors = work()
            new_entry = tf.stack([rows_text, *map(tf.io.serialize_tensor, tensors)])
            with tf.control_dependencies([self._table.insert(number, new_entry)]):
                return [tf.identity(tensor) for tensor in tensors]

        tensors = tf.cond(tf.equal(entry[0], rows_text), read, make)
        tensors = list(tensors) if isinstance(tensors, (list, tuple)) else [tensors]
        return [tf.ensure_shape(tensor, shape) for tensor, (_, shape) in zip(tensors, self._specs)]
