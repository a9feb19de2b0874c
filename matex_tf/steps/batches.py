"""The batches of steps: whole batches, and batches of which a rank has made only its rows.

If ranks share an iterator (`input.shared_batches`), each rank reads and decodes its rows of each batch. A step gets
these rows

- from a `Batch` of the iterator's `SharedBatches`, if the batch is taken before the call of the step;
- from an `Element` in place of the batch, if the graph of the step takes batches, as in a loop (`shared_feeds`).

In all cases the rows that a step takes are a `Slice`. Its fields are numbers here, and tensors in graphs.
"""

from __future__ import annotations

import abc
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from matex_tf import tags
from matex_tf.lazy import tf
from matex_tf.rewrite.sharing import Slice
from matex_tf.sharding import fingerprint, slice_bounds
from matex_tf.world import world

_SHARED, _DEALT = "shares of batches", "elements of shares"  # tags of iterators and of tensors that stand for them


def find_slice(total: int, ratios: Any = None, rank: int | None = None) -> Slice:
    """The slice of a batch of `total` rows, in numbers. ratios: see `slice_bounds.deal_block`; None: equal slices.

    rank: by default this rank.
    """
    me = world.get_world()
    ratios = me.trainers if ratios is None else ratios
    start, stop, has_rows = slice_bounds.find_slice_bounds(total, me.rank if rank is None else rank, ratios)
    return Slice(int(start), int(stop - start), total, bool(has_rows))


def slice_rows(tensors: Sequence[Any], are_rows: Sequence[bool], first: Any, count: Any) -> list[Any]:
    """The tensors of a batch; a tensor that has rows (`are_rows`) with these rows only."""
    return [tensor[first : first + count] if has_rows else tensor for tensor, has_rows in zip(tensors, are_rows)]


@functools.lru_cache(maxsize=256)
def _make_numbers(batch_slice: Slice) -> tuple[Any, ...]:
    """first, count, total, contributes: eager tensors, int64 and bool."""
    return *(tf.constant(number, tf.int64) for number in batch_slice[:3]), tf.constant(batch_slice.contributes)


class Batch(abc.ABC):
    """A batch that has been taken from its source. Subclasses differ in who has made which rows.

    total: the number of rows of the batch.
    is_even: all components with rows have equally many rows. If not, callers take the batch whole: it has no slices.
    """

    total: int
    is_even: bool

    def take_slice(self, ratios: Any = None) -> list[Any]:
        """The flat tensors with this rank's rows, then first, count, total and contributes of its `Slice`.

        Collective if rows are padded to the longest row of the batch, or if one rank has made them. ratios: see
        `find_slice`.
        """
        rows = self.make_rows(ratios)  # first, since ranks may be lost meanwhile
        return [*rows, *_make_numbers(find_slice(self.total, ratios))]

    @abc.abstractmethod
    def make_rows(self, ratios: Any) -> list[Any]:
        """The flat tensors with the rows of this rank's slice."""

    @abc.abstractmethod
    def take_whole(self) -> list[Any]:
        """The flat tensors with all rows."""

    def digest(self) -> tuple[int, int] | None:
        """The number of rows and a hash, by which ranks find out whether they have the same batch.

        None if the batch cannot be computed: the shared step raises the error when it takes the rows.
        """
        return None


class LostBatch(Batch):
    """A batch that this rank failed to take. `error` is raised where its rows are needed."""

    total, is_even = 1, True  # the call goes on to the place where rows are needed, so all ranks reach the error

    def __init__(self, error: Exception):
        self._error = error

    def _raise(self, ratios: Any = None) -> list[Any]:
        raise self._error

    make_rows = take_whole = _raise


class WholeBatch(Batch):
    """A batch that this rank holds whole. are_rows: which of its flat tensors have rows."""

    def __init__(self, tensors: Sequence[Any], are_rows: Sequence[bool]):
        self.tensors, self.are_rows = list(tensors), list(are_rows)
        counts = {len(tensor) for tensor in itertools.compress(tensors, are_rows)}
        self.total, self.is_even = max(counts, default=0), len(counts) < 2

    def make_rows(self, ratios: Any) -> list[Any]:
        batch_slice = find_slice(self.total, ratios)
        return slice_rows(self.tensors, self.are_rows, batch_slice.first, batch_slice.count)

    def take_whole(self) -> list[Any]:
        return self.tensors

    def digest(self) -> tuple[int, int]:
        return self.total, digest_tensors(itertools.compress(self.tensors, self.are_rows))


def digest_tensors(tensors: Iterable[Any]) -> int:
    return functools.reduce(lambda digest, tensor: fingerprint.digest_value(tensor, digest), tensors, 0)


class Element(NamedTuple):
    """What an iterator of shares gives in place of a batch: rows of the batch that this rank has prepared, and a ticket
    from which a `Dealer` makes other rows. All fields are tensors, or the numbers of such tensors in eager code.

    first, count: which rows are prepared: this rank's slice, or all rows. total: the number of rows of the batch.
    is_even: the components of the batch have equally many rows. If not, all rows of each are prepared, and `total` is
        the number of the longest.
    digest: a hash of the ticket.
    rows: the flat tensors of the batch, with the prepared rows.
    ticket: the flat tensors of the ticket.
    """

    first: Any
    count: Any
    total: Any
    is_even: Any
    digest: Any
    rows: Sequence[Any]
    ticket: Sequence[Any]

    def has_prepared(self, batch_slice: Slice) -> Any:
        """Whether the rows of a slice are prepared: a bool, or a tensor in a graph."""
        slice_end = batch_slice.first + batch_slice.count
        return (self.first <= batch_slice.first) & (slice_end <= self.first + self.count)


def read_element(tensors: Sequence[Any], component_count: int) -> Element:
    """The element of the flat tensors of an iterator. component_count: the number of flat tensors of the batch."""
    number_count = len(Element._fields) - 2
    ticket_start = number_count + component_count
    return Element._make([*tensors[:number_count], tensors[number_count:ticket_start], tensors[ticket_start:]])


def pad_alike(rows: Sequence[Any], pads: Mapping[int, Any], find_longest: Callable[[Any], Any]) -> list[Any]:
    """Pad the rows of each rank's slice to the longest row of the batch.

    pads: the padding values of the padded tensors, by their indices in `rows`.
    find_longest: the largest of all ranks for each number of a vector, int64. Called only if there are `pads`.
    """
    if not pads:
        return list(rows)
    sizes = {index: tf.shape(rows[index], tf.int64)[1:] for index in pads}
    longest_sizes = find_longest(tf.concat(list(sizes.values()), 0))
    padded, start = list(rows), 0  # the sizes of a tensor in `longest_sizes` begin at `start`
    for index, value in pads.items():
        end = start + rows[index].shape.rank - 1
        missing = tf.concat([[0], longest_sizes[start:end] - sizes[index]], 0)  # no rows are added
        padded[index] = tf.pad(rows[index], tf.stack([tf.zeros_like(missing), missing], 1), constant_values=value)
        start = end
    return padded


class SharedBatches(Protocol):
    """The source of an iterator whose batches ranks share."""

    def take(self) -> Batch:
        """The next batch. Raises tf.errors.OutOfRangeError at the end."""


def note_shared_batches(iterator: Any, shared: SharedBatches) -> None:
    """Record that an iterator, and the tensor that stands for it in functions, gives batches that ranks share."""
    tags.set_tag(iterator, _SHARED, shared)
    tags.set_tag(iterator._iterator_resource, _SHARED, shared)


def find_shared_batches(iterator: Any) -> Any:
    """The `SharedBatches` of an iterator, or of the tensor that stands for it; None for any other."""
    return tags.get_tag(iterator, _SHARED)


class Dealer(Protocol):
    """Makes batches from the elements of a dataset that ranks share.

    signature: hashable; equal for dealers of equal elements.
    specs: the dtypes and shapes of the flat tensors of an `Element`.
    are_rows: for each flat tensor of a batch, whether it has rows.
    pads: a dict of the padding values of the flat tensors that are padded to the longest row, by their indices.
    """

    signature: Any
    specs: Any
    are_rows: Any
    pads: Any

    def open(self, tensors: Sequence[Any]) -> Batch:
        """The batch of an element, from the element's flat tensors."""

    def take(self, ticket: Sequence[Any], batch_slice: Slice) -> list[Any]:
        """In a graph: the flat tensors of any rows of a ticket's batch."""

    def work_on(self, ratios: Any) -> None:
        """Begin to prepare the rank's rows ahead of time. ratios: see `find_slice`."""


class Dealt(NamedTuple):
    """What replaces an iterator or dataset of batches in a graph: an iterator or dataset of elements.

    dealer: makes batches from the elements.
    handle: the tensor that stands for the iterator or dataset of the elements.
    """

    dealer: Dealer
    handle: Any


def note_dealt(handle: Any, dealt: Dealt) -> None:
    tags.set_tag(handle, _DEALT, dealt)


def find_dealt(handle: Any) -> Any:
    """The `Dealt` of a tensor; None for any other."""
    return tags.get_tag(handle, _DEALT)
