"""Maps of records in the functions that read files: `record_functions` takes them out, and the work applies them.

Example: of `names.interleave(lambda name: TFRecordDataset(name).map(parse))`, the map of `parse`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from matex_tf.lazy import tf

KINDS = frozenset(("MapDataset", "ParallelMapDataset", "ParallelMapDatasetV2"))
"""The ops of maps."""


class CannotBeIndexed(Exception):
    """The reason why the records that a function reads cannot be indexed."""


class Map(NamedTuple):
    """A map of records.

    function: the name of the map's function in TensorFlow's context.
    captured: further inputs: tensors outside of all graphs, and arrays.
    types, shapes: the dtypes (TensorFlow's numbers) and shapes of the flat outputs.
    is_stateful: whether the function has stateful ops.
    """

    function: str
    captured: tuple[Any, ...]
    types: tuple[int, ...]
    shapes: tuple[Any, ...]
    is_stateful: bool

    def build(self, element: Sequence[Any]) -> list[Any]:
        """The flat outputs of the map for the flat tensors of an element."""
        call = tf.raw_ops.StatefulPartitionedCall if self.is_stateful else tf.raw_ops.PartitionedCall
        arguments = [*element, *map(tf.convert_to_tensor, self.captured)]
        outputs = call(args=arguments, Tout=list(map(tf.as_dtype, self.types)), f=self.function)
        outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
        for tensor, shape in zip(outputs, self.shapes):
            tensor.set_shape(tf.TensorShape(shape))
        return outputs


def make_map(op: Any, captured: Sequence[Any]) -> Map:
    """The map of an op. captured: the values of the tensors that its function captures."""
    name = op.get_attr("f").name
    types = tuple(dtype.as_datatype_enum for dtype in op.get_attr("output_types"))
    is_stateful = op.graph._get_function(name).cached_definition.signature.is_stateful
    return Map(name, tuple(captured), types, tuple(op.get_attr("output_shapes")), is_stateful)


def is_same(first: Sequence[Map], second: Sequence[Map]) -> bool:
    """Whether two chains of maps call the same functions with the same captured objects, compared by identity."""
    keys = [[(record_map.function, *map(id, record_map.captured)) for record_map in maps] for maps in (first, second)]
    return keys[0] == keys[1]
