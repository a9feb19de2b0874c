"""Own batches: each rank reads rows of its own, for instance from an iterator over the rank's part of the data.

The script's batch is the concatenation of the ranks' rows. With each batch the ranks exchange their numbers of rows.
When the data of one rank have ended, the rank goes on without rows until the data of all ranks have ended. Some ops
fail with 0 rows, so a rank without rows computes one row of zeros, and adds 0 to every sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from matex_tf.lazy import tf
from matex_tf.rewrite.graph_ops import HANDLES, has_op
from matex_tf.rewrite.nodes import Decision, Node
from matex_tf.rewrite.placement import BATCH, WHOLE, FedHandle, Placement
from matex_tf.rewrite.sharing import Request, Slice
from matex_tf.rewrite.sources import SOURCES


class OwnRowsError(Exception):
    """A step uses rows of the ranks in a way for which the ranks cannot compute the script's result."""


class OwnRows(NamedTuple):
    """What a rank knows of a batch when the ranks have exchanged their numbers of rows.

    batch_slice: this rank's slice, a `sharing.Slice`.
    any_has_batch: a scalar bool: at least one rank has a batch.
    sizes: for each component, a vector of int64: the sizes of a row, each the largest among the ranks. A rank without
        rows makes its row of zeros of these sizes.
    """

    batch_slice: Any
    any_has_batch: Any
    sizes: Sequence[Any]


def takes_rows(node: Node) -> bool:
    """Whether an op whose input is an iterator, a dataset or an optional returns data from it, itself or in a function
    that it calls. Any other op returns handles only.
    """
    return has_op(node.op, SOURCES) or any(tensor.dtype.name not in HANDLES for tensor in node.op.outputs)


class OwnFeed:
    """The `feeds.Feed` of own batches: it decides on the ops whose input is an iterator over a rank's own data."""

    def place_batch(self, node: Node, is_sliced: bool) -> Decision:
        """is_sliced: the op returns this rank's rows; else the rows of all ranks, since ranks divide another batch."""
        outputs = node.op.outputs
        check_components([(tensor.dtype, tensor.shape) for tensor in outputs])
        if any(tensor.shape.as_list()[0] is not None for tensor in outputs):  # the number of rows is fixed
            raise OwnRowsError("its trace, made before the call, holds the number of one rank's rows")

        def emit(copy: Any, handle: Any) -> list[Any]:
            tensors, own_rows = take_own_rows(copy.make_own_slice, node.type, handle, outputs)
            if not is_sliced:  # the program computes with the rows of all ranks
                return gather_rows(copy.exchanger, tensors, own_rows.batch_slice)
            copy.batch_slice = own_rows.batch_slice
            return tensors

        return Decision([WHOLE], [BATCH if is_sliced else WHOLE] * len(outputs), emit, communicates=True)

    def place_end_check(self, node: Node) -> Decision:
        """Decide on `OptionalHasValue`: in the copy it returns True on all ranks as long as any rank has a batch."""

        def emit(copy: Any, optional: Any) -> list[Any]:
            has_batch = tf.cast(tf.raw_ops.OptionalHasValue(optional=optional), tf.int32)
            # `owned`: ranks without rows take part, too.
            (any_has_batch,) = copy.exchanger.exchange([Request("max", has_batch, owned=True)], copy.batch_slice)
            return [tf.cast(any_has_batch, tf.bool)]

        return Decision([WHOLE], [WHOLE], emit, communicates=True)

    def place_other(self, node: Node, placement: Placement) -> Decision:
        """Decide on another op with an iterator, dataset or optional of this `placement` as input."""
        if node.type == "MakeIterator":  # (dataset, iterator): the iterator gets the placement of the dataset
            node.inputs[1].placement = placement
        if takes_rows(node):
            raise OwnRowsError(f"{node.type} '{node.op.name}' takes rows out of their dataset by itself")
        return Decision([WHOLE] * len(node.inputs), [placement] * len(node.outputs))


OWN = FedHandle(OwnFeed())
"""The placement of an iterator over a rank's part of the data."""


def check_components(components: Sequence[tuple[Any, Any]]) -> None:
    """Raise OwnRowsError if a component is no dense tensor with rows. components: pairs of dtype and shape."""
    for dtype, shape in components:
        if dtype.name in HANDLES or not shape.rank:
            problem = "is sparse, ragged or a dataset" if dtype.name in HANDLES else "has no rows"
            raise OwnRowsError(f"a component of the batches ({dtype.name}, shape {shape}) {problem}")


def take_own_rows(make_own_slice: Any, kind: str, handle: Any, outputs: Sequence[Any]) -> tuple[list[Any], OwnRows]:
    """The components of the next batch with this rank's rows, or one row of zeros if it has none; and the `OwnRows`.

    kind: the type of the script's op that returns the batch: OptionalGetValue, or an op such as IteratorGetNext, which
        raises the end-of-data error. The copy raises this error once no rank has a batch.
    handle: the input of the script's op, an optional or an iterator.
    outputs: the components of the batch, tensors or specs.
    make_own_slice: returns the `OwnRows`, from the components and whether this rank has a batch. Collective.
    """
    specs = {
        "output_types": [output.dtype for output in outputs],
        "output_shapes": [output.shape for output in outputs],
    }
    is_optional = kind == "OptionalGetValue"
    optional = handle if is_optional else tf.raw_ops.IteratorGetNextAsOptional(iterator=handle, **specs)
    has_batch = tf.raw_ops.OptionalHasValue(optional=optional)

    def make_no_rows() -> list[Any]:
        return [tf.zeros([0, *(size or 0 for size in output.shape.as_list()[1:])], output.dtype) for output in outputs]

    rows = _cond(has_batch, lambda: tf.raw_ops.OptionalGetValue(optional=optional, **specs), make_no_rows, outputs)
    own_rows = make_own_slice(rows, has_batch)
    if not is_optional:
        # When the data of all ranks have ended, IteratorGetNext raises the end-of-data error, as in the script. The
        # ops of the step need the slice, and the slice waits for the rows. So no op has an effect before the error.
        rows = _cond(
            own_rows.any_has_batch, lambda: rows, lambda: tf.raw_ops.IteratorGetNext(iterator=handle, **specs), outputs
        )
        with tf.control_dependencies(rows):
            own_rows = own_rows._replace(batch_slice=Slice(*map(tf.identity, own_rows.batch_slice)))
    return fill_rows(rows, own_rows), own_rows


def fill_rows(rows: Sequence[Any], own_rows: OwnRows) -> list[Any]:
    """The components of this rank's rows, or one row of zeros if it has none."""

    def make_row() -> list[Any]:
        shapes = [tf.concat([[tf.constant(1, tf.int64)], sizes], 0) for sizes in own_rows.sizes]
        return [tf.zeros(shape, component.dtype) for shape, component in zip(shapes, rows)]

    return _cond(own_rows.batch_slice.contributes, lambda: list(rows), make_row, rows)


def _cond(condition: Any, make_if_true: Any, make_if_false: Any, outputs: Sequence[Any]) -> list[Any]:
    """The results of `tf.cond`, as a list. Their static shapes are the shapes of `outputs` with any number of rows."""
    results = tf.cond(condition, make_if_true, make_if_false)
    results = list(results) if isinstance(results, (list, tuple)) else [results]
    for tensor, output in zip(results, outputs):
        tensor.set_shape([None, *output.shape[1:]])
    return results


def gather_rows(exchanger: Any, tensors: Sequence[Any], batch_slice: Any) -> list[Any]:
    """The rows of all ranks, concatenated."""
    return list(exchanger.exchange([Request("gather", tensor) for tensor in tensors], batch_slice))
