"""The memory of a pipeline's `cache()` if its work is deferred: a rank keeps the rows that it has worked on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def can_keep(specs: Sequence[tuple[Any, Any]]) -> bool:
    """Whether tensors of these types and shapes can be kept; datasets, ragged and sparse tensors cannot."""
    return bool(specs) and not any(dtype.name in ("variant", "resource") for dtype, _ in specs)


class Memory:
    """Tensors by the number of their ticket. specs: their types and shapes."""

    def __init__(self, specs: Sequence[tuple[Any, Any]]):
        import tensorflow as tf

        self._specs = list(specs)
        with tf.init_scope():
            self._kept = tf.lookup.experimental.MutableHashTable(tf.int64, tf.string, [""] * (1 + len(self._specs)))

    def recall(self, number: Any, rows: Sequence[Any], work: Callable[[], list[Any]]) -> list[Any]:
        """In a graph: the kept tensors of `number`; if there are none, or for other `rows`, `work` makes them."""
        import tensorflow as tf

        name = tf.strings.join(["rows", *map(tf.strings.as_string, rows)], ":")
        found = self._kept.lookup(number)

        def read() -> list[Any]:
            return [tf.io.parse_tensor(found[1 + at], dtype) for at, (dtype, _) in enumerate(self._specs)]

        def make() -> list[Any]:
            made = work()
            kept = tf.stack([name, *map(tf.io.serialize_tensor, made)])
            with tf.control_dependencies([self._kept.insert(number, kept)]):
                return [tf.identity(one) for one in made]

        tensors = tf.cond(tf.equal(found[0], name), read, make)
        tensors = list(tensors) if isinstance(tensors, (list, tuple)) else [tensors]
        return [tf.ensure_shape(one, shape) for one, (_, shape) in zip(tensors, self._specs)]
