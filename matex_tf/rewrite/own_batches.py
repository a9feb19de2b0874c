"""Own batches: each rank has rows of its own, for instance from an iterator over the rank's part of the data.

The script's batch is the concatenation of the ranks' rows. With each batch the ranks exchange their numbers of rows.
When the data of one rank have ended, the rank goes on without rows until the data of all ranks have ended. Ops need not
accept 0 rows, so a rank without rows computes one row of zeros, and adds 0 to every sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from matex_tf.lazy import tf
from matex_tf.rewrite.graph_ops import has_op
from matex_tf.rewrite.nodes import Decision, Node
from matex_tf.rewrite.placement import BATCH, REPLICATED, WHOLE, Placement
from matex_tf.rewrite.sharing import Request
from matex_tf.rewrite.sources import SOURCES

HANDLES = ("resource", "variant")
"""Dtypes of tensors that stand for an object, such as an iterator or a dataset."""


class OwnRowsError(Exception):
    """A step uses rows of the ranks in a way for which the ranks cannot compute the script's result."""


class OwnRows(NamedTuple):
    """A batch, after the ranks have exchanged their numbers of rows.

    batch_slice: this rank's slice, a `sharing.Slice`.
    any_has_batch: a scalar bool: at least one rank has a batch.
    sizes: for each component, a vector of int64: the largest sizes among the ranks, without the number of rows.
    """

    batch_slice: Any
    any_has_batch: Any
    sizes: Sequence[Any]


def takes_rows(node: Node) -> bool:
    """Whether an op that takes an iterator, a dataset or an optional returns data from it, itself or in a function that
    the op calls. Other ops return handles only.
    """
    return has_op(node.op, SOURCES) or any(tensor.dtype.name not in HANDLES for tensor in node.op.outputs)


class OwnFeed:
    """The `feeds.Feed` of own batches: it decides on the ops that take an iterator over a rank's part of the data."""

    def place_batch(self, node: Node, is_divided: bool) -> Decision:
        outputs = node.op.outputs
        check_components([(tensor.dtype, tensor.shape) for tensor in outputs])
        if any(tensor.shape.as_list()[0] is not None for tensor in outputs):
            raise OwnRowsError("its trace, made before the call, holds the number of one rank's rows")

        def emit(copy: Any, handle: Any) -> list[Any]:
            tensors, own = take_own_rows(copy.make_own_slice, node.type, handle, outputs)
            if not is_divided:  # the program computes whole tensors from this batch
                return gather_rows(copy.exchanger, tensors, own.batch_slice)
            copy.batch_slice = own.batch_slice
            return tensors

        return Decision([WHOLE], [BATCH if is_divided else WHOLE] * len(outputs), emit, communicates=True)

    def place_end(self, node: Node) -> Decision:
        """Decide on `OptionalHasValue`: the copy gives True on all ranks as long as any rank has a batch."""

        def emit(copy: Any, optional: Any) -> list[Any]:
            has_batch = tf.cast(tf.raw_ops.OptionalHasValue(optional=optional), tf.int32)
            (has_any,) = copy.exchanger.exchange([Request("max", has_batch)], copy.batch_slice.of_all())
            return [tf.cast(has_any, tf.bool)]

        return Decision([WHOLE], [WHOLE], emit, communicates=True)

    def pass_on(self, node: Node, placement: Placement) -> Decision:
        if node.type == "MakeIterator":
            node.inputs[1].placement = placement  # the iterator gives the batches of this dataset from now on
        if takes_rows(node):
            raise OwnRowsError(f"{node.type} '{node.op.name}' takes rows out of their dataset by itself")
        return Decision([WHOLE] * len(node.inputs), [placement] * len(node.outputs))


OWN = Placement(REPLICATED, feed=OwnFeed())
"""The placement of an iterator over a rank's part of the data."""


def check_components(components: Sequence[tuple[Any, Any]]) -> None:
    """Raise OwnRowsError if a component, a dtype and a shape, is no dense tensor with rows."""
    for dtype, shape in components:
        if dtype.name in HANDLES or not shape.rank:
            kind = "is sparse, ragged or a dataset" if dtype.name in HANDLES else "has no rows"
            raise OwnRowsError(f"a component of the batches ({dtype.name}, shape {shape}) {kind}")


def take_own_rows(make_own_slice: Any, kind: str, handle: Any, outputs: Sequence[Any]) -> tuple[list[Any], OwnRows]:
    """The components of the next batch with this rank's rows, or one row of zeros if it has none; and the `OwnRows`.

    kind: the type of the op that returns the batch: OptionalGetValue, or an op that takes the next batch of an iterator
        and raises the end-of-data error. The copy raises this error once no rank has a batch.
    handle: the input of that op, an optional or an iterator.
    outputs: the components of the batch, tensors or specs.
    make_own_slice: see `emit.Copy`.
    """
    specs = {"output_types": [each.dtype for each in outputs], "output_shapes": [each.shape for each in outputs]}
    is_optional = kind == "OptionalGetValue"
    optional = handle if is_optional else tf.raw_ops.IteratorGetNextAsOptional(iterator=handle, **specs)
    has_batch = tf.raw_ops.OptionalHasValue(optional=optional)

    def make_no_rows() -> list[Any]:
        return [tf.zeros([0, *(size or 0 for size in output.shape.as_list()[1:])], output.dtype) for output in outputs]

    rows = _choose(has_batch, lambda: tf.raw_ops.OptionalGetValue(optional=optional, **specs), make_no_rows, outputs)
    own = make_own_slice(rows, has_batch)
    if not is_optional:
        # When the data of all ranks have ended, IteratorGetNext raises the end-of-data error, as in the script. The
        # ops of the step need the slice, and the slice waits for the rows. So no op has an effect before the error.
        rows = _choose(
            own.any_has_batch, lambda: rows, lambda: tf.raw_ops.IteratorGetNext(iterator=handle, **specs), outputs
        )
        with tf.control_dependencies(rows):
            own = own._replace(batch_slice=own.batch_slice.map(tf.identity))
    return fill_rows(rows, own), own


def fill_rows(rows: Sequence[Any], own: OwnRows) -> list[Any]:
    """The components of this rank's rows, or one row of zeros if it has none."""

    def make_row() -> list[Any]:
        shapes = [tf.concat([[tf.constant(1, tf.int64)], sizes], 0) for sizes in own.sizes]
        return [tf.zeros(shape, component.dtype) for shape, component in zip(shapes, rows)]

    return _choose(own.batch_slice.contributes, lambda: list(rows), make_row, rows)


def _choose(condition: Any, first: Any, second: Any, outputs: Sequence[Any]) -> list[Any]:
    """The results of `tf.cond`, as a list. Their static shapes are the shapes of `outputs` with any number of rows."""
    chosen = tf.cond(condition, first, second)
    chosen = list(chosen) if isinstance(chosen, (list, tuple)) else [chosen]
    for tensor, output in zip(chosen, outputs):
        tensor.set_shape([None, *output.shape[1:]])
    return chosen


def gather_rows(exchanger: Any, tensors: Sequence[Any], batch_slice: Any) -> list[Any]:
    """The rows of all ranks, concatenated."""
    return list(exchanger.exchange([Request("gather", tensor) for tensor in tensors], batch_slice))
