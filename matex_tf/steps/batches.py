"""The batches of steps: whole batches, and batches of iterators that ranks share, of which a rank makes only its rows.

If ranks share an iterator (`input.shared_batches`), each rank reads and decodes its rows of each batch. A step gets
these rows

- from `SharedBatches`, if the batch is taken before the call of the step;
- from *elements* in place of batches, if the graph of the step takes batches, as in a loop. An element is a tuple of
  tensors: numbers about the batch, the rank's rows, and a ticket, from which a `Dealer` makes other rows of the batch.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from matex_tf import tags
from matex_tf.lazy import tf
from matex_tf.sharding import fingerprint, slice_bounds
from matex_tf.world import world

_SHARED, _DEALT = "shares of batches", "elements of shares"  # tags of iterators and of tensors that stand for them
NUMBERS = 5
"""The number of leading tensors of an element: first, count, total, contributes, and a digest of the batch. `count` is
`Bounds.number`, `total` the rows of the batch. All are int64 scalars, except for the bool `contributes`. The rank's
rows follow.
"""


class Bounds(NamedTuple):
    """A rank's rows of a batch: the index of the first row, and their number.

    contributes: false if the batch has no row for this rank, which then computes a duplicate of another rank's row.
    """

    first: int
    number: int
    contributes: bool


def find_bounds(total: int, ratios: Any = None) -> Bounds:
    """This rank's rows of a batch of `total` rows. ratios: see `slice_bounds.deal_block`; default: equal slices."""
    me = world.get_world()
    start, stop, has_rows = slice_bounds.find_slice_bounds(total, me.rank, me.trainers if ratios is None else ratios)
    return Bounds(int(start), int(stop - start), bool(has_rows))


class Batch(Protocol):
    """A batch that has been taken from its source.

    total: the number of rows of the batch.
    is_even: all components with rows have equally many rows.
    """

    total: int
    is_even: bool

    def take_slice(self, ratios: Any = None) -> list[Any]:
        """The flat tensors with this rank's rows, then first, count, total, contributes (see `NUMBERS`).

        Collective if rows are padded to the longest row of the batch. ratios: see `find_bounds`.
        """

    def take_whole(self) -> list[Any]:
        """The flat tensors with all rows."""

    def digest(self) -> tuple[int, int] | None:
        """The number of rows and a hash, by which ranks find out whether they have the same batch.

        None if the batch cannot be computed: the shared step raises the error when it takes the rows.
        """


class LostBatch:
    """A batch that this rank failed to take. `error` is raised where its rows are needed."""

    total, is_even = 1, True  # the call goes on to the place where rows are needed, so all ranks reach the error

    def __init__(self, error: Exception):
        self._error = error

    def take_slice(self, ratios: Any = None) -> list[Any]:
        raise self._error

    def take_whole(self) -> list[Any]:
        raise self._error

    def digest(self) -> None:
        return None


class WholeBatch:
    """A batch that this rank holds whole. are_rows: which of its flat tensors have rows."""

    def __init__(self, tensors: Sequence[Any], are_rows: Sequence[bool]):
        self.tensors, self.are_rows = list(tensors), list(are_rows)
        counts = {len(tensor) for tensor in self._list_rows()}
        self.total, self.is_even = max(counts, default=0), len(counts) < 2

    def _list_rows(self) -> list[Any]:
        return [tensor for tensor, has_rows in zip(self.tensors, self.are_rows) if has_rows]

    def take_slice(self, ratios: Any = None) -> list[Any]:
        bounds = find_bounds(self.total, ratios)
        return [*slice_rows(self.tensors, self.are_rows, bounds), *make_numbers(bounds, self.total)]

    def take_whole(self) -> list[Any]:
        return self.tensors

    def digest(self) -> tuple[int, int]:
        return self.total, digest_tensors(self._list_rows())


def slice_rows(tensors: Sequence[Any], are_rows: Sequence[bool], bounds: Bounds) -> list[Any]:
    end = bounds.first + bounds.number
    return [tensor[bounds.first : end] if has_rows else tensor for tensor, has_rows in zip(tensors, are_rows)]


@functools.lru_cache(maxsize=256)
def make_numbers(bounds: Bounds, total: int) -> tuple[Any, ...]:
    """first, count, total, contributes: eager tensors, int64 and bool."""
    numbers = (tf.constant(number, tf.int64) for number in (bounds.first, bounds.number, total))
    return *numbers, tf.constant(bounds.contributes)


def digest_tensors(tensors: Sequence[Any]) -> int:
    return functools.reduce(lambda digest, tensor: fingerprint.digest_value(tensor, digest), tensors, 0)


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
    specs: a list of the dtypes and shapes of an element's flat tensors: `NUMBERS`, the rank's rows, the ticket
        (a stand-in for the batch).
    are_rows: for each flat tensor of a batch, whether it has rows.
    pads: a dict of the padding values of the flat tensors that are padded to the longest row, by their indices.
    """

    signature: Any
    specs: Any
    are_rows: Any
    pads: Any

    def open(self, made: Sequence[Any]) -> Batch:
        """The batch of an element, from the element's flat tensors."""

    def take(self, ticket: Sequence[Any], first: Any, count: Any, total: Any) -> list[Any]:
        """In a graph: the flat tensors of any rows of a ticket's batch, selected by int64 scalars."""

    def work_on(self, ratios: Any) -> None:
        """Begin to prepare the rank's rows ahead of time. ratios: see `find_bounds`."""


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
