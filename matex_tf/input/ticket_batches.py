"""The iterator that makes a rank's slices of batches ahead, `TicketBatches`, and a batch of it, `TicketBatch`.

If a step needs other rows than were made, `TicketBatch` makes them from the ticket of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from matex_tf import ops
from matex_tf.input import tickets
from matex_tf.lazy import tf
from matex_tf.rewrite.sharing import Slice
from matex_tf.runtime import objects
from matex_tf.steps import batches
from matex_tf.world import membership

_LENGTHS = "the lengths of padded rows"
_STATE = "_STATE"  # TensorFlow's key of the state of an iterator, a vector of variants
_OTHER_ITERATOR = (
    "the checkpoint holds an iterator of another pipeline, or one that the script saved alone: matex_tf restores an "
    "iterator that was saved under ranks, of any number. Restore the checkpoint without its iterator"
)


class TicketBatches:
    """The iterator of slices beneath an iterator of whole batches. See `batches.SharedBatches`.

    source: the `shared_batches.Source` of the dataset.
    iterator: TensorFlow's iterator of the dataset of slices.
    """

    def __init__(self, source: Any, iterator: Any):
        self.source, self.iterator = source, iterator

    def take(self) -> TicketBatch:
        """The next batch. Raises tf.errors.OutOfRangeError at the end."""
        return TicketBatch(self.source, tickets.take_next(self.iterator._iterator_resource, self.source.specs))

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


class TicketBatch(batches.Batch):
    """A batch of which this rank has made its slice, or all rows; it makes other rows on demand.

    element: the `batches.Element`, with numbers.
    _whole: the whole batch, once it is made.
    _error: the error of `digest`, which `make_rows` raises.
    """

    def __init__(self, source: Any, tensors: Sequence[Any]):
        element = batches.read_element(tensors, len(source.batch_specs))
        numbers = (number.numpy().item() for number in element[:-2])
        self.source, self.element = source, batches.Element._make([*numbers, element.rows, element.ticket])
        self.total, self.is_even = self.element.total, self.element.is_even
        self._whole: list[Any] | None = None
        self._error: Exception | None = None

    def make_rows(self, ratios: Any) -> list[Any]:
        """See `batches.Batch`. The iterator makes slices of these ratios from now on."""
        if self._error is not None:
            raise self._error

        def make() -> list[Any]:
            self.source.work_on(ratios)
            rows = self._make(batches.find_slice(self.total, ratios))
            return batches.pad_alike(rows, self.source.pads, _find_longest)

        # If a rank is lost while lengths are compared, the others have other slices, which they make and compare again.
        return membership.attempt_collectives(_LENGTHS, make) if self.source.pads else make()

    def _make(self, batch_slice: Slice) -> list[Any]:
        """The flat tensors with any rows: prepared ones, or made from the ticket."""
        element = self.element
        if batch_slice[:2] == element[:2]:  # first and count
            return list(element.rows)
        if element.has_prepared(batch_slice):
            first = batch_slice.first - element.first
            return batches.slice_rows(element.rows, self.source.are_rows, first, batch_slice.count)
        return self.source.make_again(element.ticket, batch_slice)

    def take_whole(self) -> list[Any]:
        if self._whole is None:
            self._whole = self._make(Slice(0, self.total, self.total, contributes=True))
        return self._whole

    def digest(self) -> tuple[int, int] | None:
        """The number of rows and a hash, for a comparison between ranks.

        The first batch of a dataset is made whole, and its rows are hashed: files, or functions without a seed, may
        give each rank other rows for the same ticket. Of later batches the ticket is hashed, which costs nothing and
        shows another order of the data.

        Of a batch that cannot be made the result is None. The error waits for `make_rows`: a rank that raises it here
        would be missing in the comparison, which is collective.
        """
        if self.source.is_compared:
            return self.total, self.element.digest
        self.source.is_compared = True
        try:
            return self.total, batches.digest_tensors(self.take_whole())
        except tf.errors.OpError as error:
            self._error = error
            return None


def _find_longest(sizes: Any) -> Any:
    """The largest of all ranks for each of these sizes of padded rows. Collective."""
    return np.max(objects.allgather(sizes.numpy().tolist(), _LENGTHS), 0)
