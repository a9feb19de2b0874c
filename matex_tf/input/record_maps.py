"""Maps of records in the functions that read them: applied to a record after its ticket is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

KINDS = frozenset(("MapDataset", "ParallelMapDataset", "ParallelMapDatasetV2"))
"""The ops of maps."""


class CannotBeIndexed(Exception):
    """The reason why the records that a function reads cannot be indexed."""


class Map(NamedTuple):
    """A map of records.

    function: its name in TensorFlow's context.
    captured: further inputs: tensors outside of all graphs, and arrays.
    types, shapes: of its flat outputs.
    """

    function: str
    captured: tuple[Any, ...]
    types: tuple[int, ...]
    shapes: tuple[Any, ...]
    is_stateful: bool

    def build(self, element: Sequence[Any]) -> list[Any]:
        """The flat outputs of the map for the flat tensors of an element."""
        import tensorflow as tf

        call = tf.raw_ops.StatefulPartitionedCall if self.is_stateful else tf.raw_ops.PartitionedCall
        given = [*element, *map(tf.convert_to_tensor, self.captured)]
        made = call(args=given, Tout=list(map(tf.as_dtype, self.types)), f=self.function)
        made = list(made) if isinstance(made, (list, tuple)) else [made]
        for tensor, shape in zip(made, self.shapes):
            tensor.set_shape(tf.TensorShape(shape))
        return made


def read_map(node: Any, function: Any, find: Callable[[str], Any]) -> Map:
    """The map of `node`, whose function has the definition `function`; `find` returns the values of captured tensors.

    Raises:
        CannotBeIndexed: a captured value depends on the file of the records.
    """
    data = [name for name in node.input if not name.startswith("^")]
    captured = data[1 : 1 + len(node.attr["Targuments"].list.type)]
    types, shapes = node.attr["output_types"].list.type, node.attr["output_shapes"].list.shape
    values = tuple(map(find, captured))
    return Map(function.signature.name, values, tuple(types), tuple(shapes), function.signature.is_stateful)


def is_same(some: Sequence[Map], others: Sequence[Map]) -> bool:
    """Whether two chains of maps are equal."""
    return len(some) == len(others) and all(
        one.function == other.function
        and len(one.captured) == len(other.captured)
        and all(value is another for value, another in zip(one.captured, other.captured))
        for one, other in zip(some, others)
    )
