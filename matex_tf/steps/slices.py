"""Makes this rank's slice of a batch (`sharing.Slice`), as tensors of a graph.

Slices are equal by default: of 5 rows, rank 0 of 2 gets rows 0-2. With slice ratios, a faster rank gets more rows
(`adapt`): by the ratios 4 and 1, rank 0 gets rows 0-3.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from matex_tf import ops, settings
from matex_tf.lazy import tf
from matex_tf.rewrite.own_batches import OwnRows
from matex_tf.rewrite.sharing import Exchanger, Request, Slice
from matex_tf.runtime import excepthook
from matex_tf.sharding import slice_bounds
from matex_tf.world import world

UNEVEN = (
    "the components of a batch have different numbers of rows, as of datasets with other batch sizes, zipped together, "
    "and ranks cannot share a loop over such batches in a tf.function. Loop over the dataset in eager code and call a "
    "tf.function for each batch. The numbers:"
)

_OTHER_SIZES = (
    "the rows of the ranks' own batches have different sizes, as each rank pads to its own longest row. Pad to a fixed "
    "size. The sizes, by component and rank:"
)


class SliceRatios:
    """The slice ratios of the ranks for one step. They are equal until `adapt` sets others between calls.

    ratios: an int64 variable with a number for each rank that trains. The rank's part is its number over their sum.
    rows: the largest number of rows of a batch since `adapt` has set the variable to 0; a scalar int64 variable.
    """

    def __init__(self) -> None:
        with tf.init_scope():
            self.ratios = tf.Variable(tf.ones([world.get_world().trainers], tf.int64), trainable=False)
            self.rows = tf.Variable(tf.zeros([], tf.int64), trainable=False)

    def record_rows(self, rows: int) -> Any:
        """Record the number of rows of a batch that ranks slice. Returns the slice ratios."""
        self.rows.assign(max(rows, int(self.rows)))
        return self.list_ratios()

    def list_ratios(self) -> list[int]:
        """The slice ratio of each rank; 0 for servers, which train no rows."""
        return [*self.ratios.numpy().tolist(), *[0] * world.get_world().servers]


_may_change = False


def let_ratios_change() -> None:
    """Give `SliceRatios` to all steps that are planned from now on."""
    global _may_change
    _may_change = True


def may_change() -> bool:
    """Whether a rank's slice may change between equal batches: by `adapt`, or after a loss of ranks."""
    return _may_change or settings.get_settings().elastic


def make_ratios() -> SliceRatios | None:
    """The `SliceRatios` of a step; None if all steps have equal slices for good."""
    return SliceRatios() if _may_change else None


def make_slice(components: Sequence[Any], slice_ratios: SliceRatios | None = None) -> Slice:
    """This rank's slice of a whole batch, from its components: tensors with equally many rows."""
    return make_slice_of_rows(tf.shape(components[0], tf.int64)[0], slice_ratios)


def make_checked_slice(components: Sequence[Any], slice_ratios: SliceRatios | None = None) -> Slice:
    """This rank's slice of a whole batch that the graph takes, from its components: tensors with rows.

    If the components have different numbers of rows, all ranks raise an error.
    """
    counts = [tf.shape(component, tf.int64)[0] for component in components]
    total = counts[0]
    if len(counts) > 1:
        total = require(tf.reduce_all(tf.equal(tf.stack(counts[1:]), total)), [UNEVEN, tf.stack(counts)], total)
    return make_slice_of_rows(total, slice_ratios)


def require(condition: Any, message: Sequence[Any], tensor: Any) -> Any:
    """`tensor`, in a graph that raises InvalidArgumentError if the bool tensor `condition` does not hold."""
    check = tf.debugging.Assert(condition, message, summarize=-1)
    with tf.control_dependencies([] if check is None else [check]):  # None in eager code
        return tf.identity(tensor)


def make_slice_of_rows(total: Any, slice_ratios: SliceRatios | None = None) -> Slice:
    """This rank's slice of a batch of `total` rows, a scalar int64."""
    me = world.get_world()
    if slice_ratios is None:
        start, stop, has_rows = slice_bounds.find_slice_bounds(total, me.rank, me.trainers)
        return make_given_slice(start, stop - start, total, has_rows)
    record = slice_ratios.rows.assign(tf.maximum(slice_ratios.rows, total), read_value=False)
    with tf.control_dependencies([record]):
        is_divided_and_rank = tf.constant([1, me.rank], tf.int64)  # then the ratio of each rank
        dealt = tf.concat([is_divided_and_rank, slice_ratios.ratios, tf.zeros([me.servers], tf.int64)], 0)
    return make_given_slice(*ops.deal_rows(tf.stack([total]), dealt))


def make_given_slice(first: Any, count: Any, total: Any, contributes: Any) -> Slice:
    """The slice of these scalar tensors, see `Slice`. Rank 0 adds replicated tensors to sums (`Slice.keeps`)."""
    return Slice(first, count, total, contributes, tf.constant(world.get_world().rank == 0))


def make_own_slice(exchanger: Exchanger, components: Sequence[Any], has_batch: Any) -> OwnRows:
    """This rank's slice of a batch of which `components` are its own rows: tensors of at least one dimension.

    The ranks gather one vector of each rank: whether it has a batch, then the shapes of its components. If the
    components of a rank have different numbers of rows, or rows of two ranks different sizes, all ranks raise an error.
    """
    excepthook.refuse_after_loss("a step on each rank's own rows")
    me = world.get_world()
    own_sizes = tf.concat(
        [[tf.cast(has_batch, tf.int64)], *(tf.shape(component, tf.int64) for component in components)], 0
    )
    rank, one, size = (tf.constant(number, tf.int64) for number in (me.rank, 1, me.size))
    slice_of_ranks = make_given_slice(rank, one, size, tf.constant(True))  # a batch with one row for each rank
    (sizes_of_ranks,) = exchanger.exchange([Request("gather", own_sizes[tf.newaxis])], slice_of_ranks)
    # The shape of component k has the entries from bounds[k] to bounds[k + 1]; entry 0 is `has_batch`.
    bounds = list(itertools.accumulate([1, *(component.shape.rank for component in components)]))
    rows = tf.stack([sizes_of_ranks[:, start] for start in bounds[:-1]])  # by component and rank
    message = "the components of a rank's own batch have different numbers of rows; by component and rank:"
    counts = require(tf.reduce_all(tf.equal(rows, rows[0])), [message, rows], rows[0])
    sizes = [sizes_of_ranks[:, start + 1 : end] for start, end in itertools.pairwise(bounds)]
    largest = [tf.reduce_max(component_sizes, 0) for component_sizes in sizes]
    are_equal = tf.equal(tf.concat(sizes, 1), tf.concat(largest, 0)) | tf.equal(counts, 0)[:, tf.newaxis]
    counts = require(tf.reduce_all(are_equal), [_OTHER_SIZES, *sizes], counts)
    # A rank without rows computes one row, which does not contribute.
    count, rows_before = counts[me.rank], tf.reduce_sum(counts[: me.rank])
    has_rows = count > 0
    first = tf.where(has_rows, rows_before, tf.zeros_like(rows_before))
    batch_slice = make_given_slice(first, tf.maximum(count, 1), tf.reduce_sum(counts), has_rows)
    return OwnRows(batch_slice, tf.reduce_any(sizes_of_ranks[:, 0] > 0), largest)


def make_empty_slice() -> Slice:
    """The empty slice, before any batch: all ranks compute the same."""
    zero, one = tf.constant(0, tf.int64), tf.constant(1, tf.int64)
    return make_given_slice(zero, one, one, tf.constant(True))
