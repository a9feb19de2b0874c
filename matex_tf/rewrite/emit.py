"""Builds the copy of a step: its ops on this rank's rows, with collectives between them.

A step has a program for its graph, and one for each branch and loop body. `Copy.build` makes the ops of one program.
"""

from __future__ import annotations

import contextlib
import copy as copies
from collections.abc import Callable, Sequence
from typing import Any

from matex_tf.lazy import tf
from matex_tf.rewrite import ordered_sums
from matex_tf.rewrite.bodies import Body
from matex_tf.rewrite.compiled import MUST_COMPILE
from matex_tf.rewrite.nodes import Node
from matex_tf.rewrite.own_batches import OwnRows
from matex_tf.rewrite.pauses import pause_collection
from matex_tf.rewrite.placement import Sharded, Sizes
from matex_tf.rewrite.programs import Program
from matex_tf.rewrite.sharing import Exchanger, Slice


class Copy:
    """Builds the copies of all programs of one step.

    batch_slice: this rank's slice of the batch that the inputs hold. If an op of the program takes the batch, such as
        from an iterator, this op sets the attribute.
    exchanger: executes the collectives of the copy.
    make_slice: `make_slice(components)` returns this rank's slice of a batch that an op of the program takes.
    make_own_slice: `make_own_slice(components, has_batch)` returns the `OwnRows` of a batch of which each rank has read
        rows of its own. has_batch: whether this rank has read any; False when its data have ended.
    transform: `transform(program)` returns the program that is built in place of `program`; None: `program` itself is
        built. `microbatches` sets it.
    """

    is_ordered = True
    """Whether ops with effects run in the order of their creation, as in functions that eager code calls."""

    def __init__(
        self, batch_slice: Slice, exchanger: Exchanger, make_slice: Callable[[Sequence[Any]], Slice] | None = None,
        make_own_slice: Callable[[Sequence[Any], Any], OwnRows] | None = None,
    ):  # fmt: skip
        self.batch_slice, self.exchanger = batch_slice, exchanger
        self.make_slice, self.make_own_slice = make_slice, make_own_slice
        self.transform: Callable[[Program], Program] | None = None
        self._once: dict[tuple[Any, ...], tuple[Any, list[Any]]] = {}  # see `make_once`

    def build(self, program: Program, inputs: Sequence[Any]) -> list[Any]:
        """The outputs of a program for these inputs, brought to the placements `Program.gives`, after its effects."""
        # If a branch or loop body takes a batch itself, the slice of this batch is valid inside of it only.
        copy = copies.copy(self) if program.takes_batch else self
        outputs, after = copy.build_apart(program, inputs)
        with tf.control_dependencies(after):
            return [tf.identity(tensor) for tensor in outputs] if after else outputs

    def build_apart(self, program: Program, inputs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The outputs as `build` returns them, without waiting for the effects; and the operations after which all
        effects have happened.
        """
        with pause_collection():
            if self.transform is not None:
                program = self.transform(program)
            body = Body(self, program)
            outputs = body.build(inputs)
        # `body.last`: the operations that a further collective waits for. Ordered ops need no such wait.
        return outputs, body.after if self.is_ordered else body.after + body.last

    def keep_once(self, tensor: Any) -> Any:
        """This rank's term of a sum that equals a replicated tensor: the tensor on one rank, 0 on the others."""
        return tf.where(self.batch_slice.keeps, tensor, tf.zeros_like(tensor))

    def make_once(self, key_parts: Sequence[Any], make: Callable[[], list[Any]]) -> list[Any]:
        """The tensors that `make` creates, once for each graph and equal `key_parts`: a tensor and hashable values."""
        tensor, *rest = key_parts
        key = id(tf.compat.v1.get_default_graph()), id(tensor), *rest
        if key not in self._once:
            with tf.control_dependencies(None):  # without the first caller's dependencies, as others use the tensors
                self._once[key] = tensor, make()  # keeps the tensor alive, so that its id stays unique
        return self._once[key][1]

    def find_first(self, count: Any) -> Any:
        """The index, int64, of this rank's first entry along an axis. `count`: the number of the rank's entries, which
        are contiguous (`Rows.is_contiguous`).
        """
        # Each row has `count // batch_slice.count` entries.
        return tf.cast(count, tf.int64) // self.batch_slice.count * self.batch_slice.first

    def find_total(self, count: Any) -> Any:
        """The length, int64, that the axis of `find_first` has in the single-process run."""
        return tf.cast(count, tf.int64) // self.batch_slice.count * self.batch_slice.total

    def create_op(self, node: Node, inputs: Sequence[Any], **changes: Any) -> list[Any]:
        """Create the op of a node with other inputs. `changes`: new values of attributes that are dtypes, by name."""
        from tensorflow.core.framework import attr_value_pb2

        if ordered_sums.is_unordered(node):  # TensorFlow may add the terms in another order on each rank
            return [ordered_sums.add_in_order(inputs)]
        # Private attributes describe the script's graph, such as its shapes, and ops beside which an op runs.
        attributes = {
            name: value
            for name, value in node.definition.attr.items()
            if not name.startswith("_") or name == MUST_COMPILE
        }
        for name, value in changes.items():
            attributes[name] = attr_value_pb2.AttrValue(type=value.as_datatype_enum)
        attributes |= ordered_sums.list_marks(node)  # by them Grappler merges no Add ops into an unordered AddN
        dtypes = [value.dtype for value in node.outputs]
        name = node.op.name.rsplit("/", 1)[-1].lstrip("_")
        graph = tf.compat.v1.get_default_graph()
        captured_inputs = [graph.capture(tensor) if tensor.graph is not graph else tensor for tensor in inputs]
        with tf.device(node.op.device) if node.op.device else contextlib.nullcontext():
            # The public create_op checks for deprecated arguments, which takes a third of the time.
            op = graph._create_op_internal(node.type, captured_inputs, dtypes, name=name or node.type, attrs=attributes)
        return list(op.outputs)

    def slice_rows(self, tensor: Any, placement: Sharded) -> Any:
        """This rank's rows of a replicated tensor; the tensor itself if the axis has one entry for all rows."""
        batch_slice, blocks = self.batch_slice, placement.rows.blocks
        sizes = tf.shape(tensor, tf.int64)
        length, is_axis = sizes[placement.axis], tf.equal(tf.range(tf.rank(tensor)), placement.axis)
        known_length = None if tensor.shape.rank is None else tensor.shape.as_list()[placement.axis]
        # A block, such as one of two concatenated batches, has all rows of the batch, and `unit` entries for each row.
        # The rank takes its rows of each block.
        block_start, block_slices = tf.constant(0, tf.int64), []
        for index, block in enumerate(blocks):
            # The unit of a single block may be unknown before the graph runs.
            unit = length // batch_slice.total if len(blocks) == 1 else tf.constant(block, tf.int64)
            first_entry, count = block_start + unit * batch_slice.first, unit * batch_slice.count
            # The axis may have one entry for all rows, which is taken once, with the first block.
            if known_length is None:
                is_single = tf.equal(length, 1)
                first_entry = tf.where(is_single, tf.zeros_like(first_entry), first_entry)
                count = tf.where(is_single, tf.constant(int(index == 0), tf.int64), count)
            start = tf.where(is_axis, first_entry, tf.zeros_like(sizes))
            block_slices.append(tf.slice(tensor, start, tf.where(is_axis, count, sizes)))
            block_start += unit * batch_slice.total
        rows = block_slices[0] if len(block_slices) == 1 else tf.concat(block_slices, placement.axis)
        if tensor.shape.rank is not None:
            rows.set_shape([None if axis == placement.axis else size for axis, size in enumerate(tensor.shape)])
        return rows

    def make_sizes_whole(self, tensor: Any, placement: Sizes) -> Any:
        """Turn sizes of this rank's slice into sizes of the batch: 6 entries of 2 rows become 15 entries of 5 rows."""
        count, total = (tf.cast(number, tensor.dtype) for number in (self.batch_slice.count, self.batch_slice.total))
        are_counts = [size.rows is not None and not size.counts_chosen for size in placement.sizes]
        mask = are_counts[0] if tensor.shape.rank == 0 else are_counts
        # -1 stands for any size. Numbers of rows that a mask selects (`chosen`) are whole already: a collective has
        # added them up.
        counts_rows = tf.logical_and(tf.constant(mask), tensor >= 0)
        return tf.where(counts_rows, tensor // count * total, tensor)
