"""The iterator of a rank's slices of batches, `SharedBatches`, which gives each as a `Batch`.

With 2 ranks, the iterator of rank 0 makes rows 0-15 of each batch of 32 ahead (`shared_batches`). Its element also has
the *ticket* of the batch, a stand-in from which a rank can make any rows. If a step needs other rows than were made,
`Batch` makes them from the ticket.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matex_tf import ops
from matex_tf.input import tickets
from matex_tf.lazy import tf
from matex_tf.steps import batches

_STATE = "_STATE"  # TensorFlow's key of the state of an iterator, a vector of variants
_OTHER_ITERATOR = (
    "the checkpoint holds an iterator of another pipeline, or one that the script saved alone: matex_tf restores an "
    "iterator that was saved under ranks, of any number. Restore the checkpoint without its iterator"
)


class SharedBatches:
    """The iterator of slices beneath an iterator of whole batches. See `batches.SharedBatches`.

    source: the `shared_batches.Source` of the dataset.
    iterator: TensorFlow's iterator of the dataset of slices.
    """

    def __init__(self, source: Any, iterator: Any):
        self.source, self.iterator = source, iterator

    def take(self) -> Batch:
        """The next batch. Raises tf.errors.OutOfRangeError at the end."""
        return Batch(self.source, tickets.take_next(self.iterator._iterator_resource, self.source.specs))

    def save(self) -> dict[str, Any]:
        """The state of the iterator and of the seed generators of its shuffles: what `_serialize_to_tensors` of the
        iterator of whole batches returns.

        The generator of a `shuffle` draws a seed for each pass over the data. TensorFlow saves the number of its draws
        only with an iterator of the `shuffle`, and after the last batch of a pass there may be none.
        """
        while True:  # until no pass has begun during `save`: other threads read a few batches ahead
            draw_counts = self._count_draws()
            state = self.iterator._serialize_to_tensors()[_STATE]
            if draw_counts == self._count_draws():
                break
        # The state is a vector of variants. As a TensorList, the counts are one more variant.
        saved_counts = tf.raw_ops.TensorListFromTensor(
            tensor=tf.constant(draw_counts, tf.int64), element_shape=tf.zeros([0], tf.int32)
        )
        return {_STATE: tf.stack([*tf.unstack(state), saved_counts])}

    def _count_draws(self) -> list[int]:
        return [int(ops.seek_seeds(generator)) for generator in tickets.list_generators(self.source.dataset)]

    def restore(self, tensors: dict[str, Any]) -> Any:
        """Continue after a saved state: `_restore_from_tensors` of the iterator of whole batches.

        Raises tf.errors.NotFoundError for a state of another kind of iterator.
        """
        generators = tickets.list_generators(self.source.dataset)
        try:
            draw_counts = tf.raw_ops.TensorListStack(
                input_handle=tensors[_STATE][-1], element_shape=tf.zeros([0], tf.int32), element_dtype=tf.int64
            )
            if len(draw_counts) != len(generators):
                text = f"{len(draw_counts)} shuffles are saved, the pipeline has {len(generators)}"
                raise tf.errors.NotFoundError(None, None, text)
            result = self.iterator._restore_from_tensors({_STATE: tensors[_STATE][:-1]})
        except tf.errors.OpError as error:  # for instance, the state has no counts
            raise tf.errors.NotFoundError(None, None, f"{_OTHER_ITERATOR} ({error.message})") from error
        for generator, count in zip(generators, draw_counts):
            ops.seek_seeds(generator, count)
        return result


class Batch:
    """A batch of which this rank has made its slice, or all rows; it makes other rows on demand. See `batches.Batch`.

    element: the flat tensors of an element of the iterator of slices: first, count, total, contributes (false if the
        batch has no row for this rank) and digest (see `batches.NUMBERS`), the rows that were made, the ticket.
    ticket_digest: a hash of the ticket.
    is_even: all components of the batch have equally many rows. If not, this rank has made all rows. Callers then take
        the batch whole: it has no slices.

    _rows, _bounds: the rows that were made, and which they are. _has_all_rows: they are all rows of the batch.
    _whole: the whole batch, once it is made.
    _error: the error of `digest`, which `take_slice` raises.
    """

    def __init__(self, source: Any, element: Sequence[Any]):
        self.source = source
        first, count, total, contributes, self.ticket_digest = (
            number.numpy().item() for number in element[: batches.NUMBERS]
        )
        rows_end = batches.NUMBERS + len(source.batch_specs)
        self._rows, self._ticket = list(element[batches.NUMBERS : rows_end]), list(element[rows_end:])
        self._whole: list[Any] | None = None
        self._error: Exception | None = None
        row_counts = {tensor.shape.as_list()[0] for tensor, is_rows in zip(self._rows, source.are_rows) if is_rows}
        self.is_even = len(row_counts) == 1
        # `total` and `count` are those of the ticket, whose components may have other lengths than these rows: a map
        # may have dropped a component. `deal_rows` then makes all rows.
        self._has_all_rows = first == 0 and count >= total
        self.total = max(row_counts) if self._has_all_rows else total
        self._bounds = batches.Bounds(first, self.total if self._has_all_rows else count, contributes)

    def take_slice(self, ratios: Any = None) -> list[Any]:
        """This rank's rows and their numbers, see `batches.Batch`. Collective if the script pads the batch: then
        `pad_alike` pads rows to the longest row of all ranks.

        ratios: each rank's share of a batch; None: equal shares. The iterator makes slices of these ratios from now on.
        """
        if self._error is not None:
            raise self._error
        self.source.work_on(ratios)
        bounds = batches.find_bounds(self.total, ratios)
        rows = self._rows if bounds == self._bounds else self._make(bounds)
        return [*self.source.pad_alike(rows), *batches.make_numbers(bounds, self.total)]

    def _make(self, bounds: batches.Bounds) -> list[Any]:
        """The flat tensors with other rows than were made."""
        if self._has_all_rows:
            return batches.slice_rows(self._rows, self.source.are_rows, bounds)
        return self.source.make_again(self._ticket, bounds.first, bounds.number, self.total)

    def take_whole(self) -> list[Any]:
        if self._has_all_rows:
            return self._rows
        if self._whole is None:
            self._whole = self._make(batches.Bounds(0, self.total, True))
        return self._whole

    def digest(self) -> tuple[int, int] | None:
        """The number of rows and a hash, for a comparison between ranks.

        The first batch of a dataset is made whole, and its rows are hashed: files, or functions without a seed, may
        give each rank other rows for the same ticket. Of later batches the ticket is hashed, which costs nothing and
        shows another order of the data.

        Of a batch that cannot be made the result is None. The error waits for `take_slice`: a rank that raises it here
        would be missing in the comparison, which is collective.
        """
        if self.source.is_compared:
            return self.total, self.ticket_digest
        self.source.is_compared = True
        try:
            return self.total, batches.digest_tensors(self.take_whole())
        except tf.errors.OpError as error:
            self._error = error
            return None
