"""The elements of a dataset as tickets and work: the classes `Rows` and `Batches`.

Of `from_tensor_slices(paths).shuffle(100).map(load).batch(32)` the ticket of a row is its path, and the ticket of a
batch has 32 paths; the work is `load`.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from matex_tf.input.tickets import Tensors, flatten_specs, join
from matex_tf.lazy import tf
from matex_tf.rewrite import sources
from matex_tf.rewrite.sharing import Slice


@dataclasses.dataclass(frozen=True, kw_only=True)
class Deferred:
    """The elements of a dataset, by the tickets from which a rank computes them.

    tickets: the dataset of the tickets.
    spec: of an element.
    compute: in a graph: the flat tensors of an element from the flat tensors of its ticket. For `Batches` it has a
        second parameter, the `Slice` whose rows the result has.
    is_work: there is something to compute or to check after the tickets.
    passed: for each flat tensor of an element, the index of the ticket's tensor that it equals; None if it is computed,
        and for each tensor with the rows of a batch.
    causes: why some work is in the tickets, which every rank makes for each element: texts for `--explain`.
    files: the datasets of indexed records, whose files are indexed again if they change between iterations.
    caches: the datasets of caches that are replaced by caches of tickets.
    """

    tickets: Any
    spec: Any
    compute: Callable[..., Tensors]
    is_work: bool
    passed: Sequence[int | None]
    causes: Sequence[str] = ()
    files: Sequence[Any] = ()
    caches: Sequence[Any] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rows(Deferred):
    """Elements that are rows, or parts of rows."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batches(Deferred):
    """Elements that are batches. A rank computes its slice of each.

    are_rows: which flat tensors of an element have the rows of a batch.
    count_rows: in a graph: the row counts of a batch's components, int64 scalars, from the flat tensors of its ticket.
    windows: the specs of the ticket's tensors that are windows, datasets of the tickets of a batch's rows, by their
        indices.
    pads: the padding values of the tensors that are padded to the longest row, by their indices.
    """

    are_rows: Sequence[bool]
    count_rows: Callable[[Tensors], Tensors]
    windows: dict[int, Any] = dataclasses.field(default_factory=dict)
    pads: dict[int, Any] = dataclasses.field(default_factory=dict)


def inherit(*inners: Deferred) -> dict[str, Any]:
    """The fields of a stage that follow from its inputs."""
    return {
        "is_work": any(inner.is_work for inner in inners),
        "causes": join(inner.causes for inner in inners),
        "files": join(inner.files for inner in inners),
        "caches": join(inner.caches for inner in inners),
    }


def make_whole_rows(dataset: Any, causes: Iterable[str] = ()) -> Rows:
    """The rows as their own tickets: every rank computes all of them. causes: see `Deferred`."""
    return Rows(
        tickets=dataset,
        spec=dataset.element_spec,
        compute=lambda row: row,
        is_work=False,
        causes=list(causes),
        passed=range(len(flatten_specs(dataset.element_spec))),
    )


def make_whole_batches(dataset: Any, causes: Iterable[str] = ()) -> Batches:
    """The batches as their own tickets: every rank computes all rows of them. causes: see `Deferred`."""
    are_rows = sources.find_components([shape for _, shape in flatten_specs(dataset.element_spec)])
    return Batches(
        tickets=dataset,
        spec=dataset.element_spec,
        compute=lambda batch, batch_slice: slice_rows(batch, are_rows, batch_slice),
        is_work=False,
        passed=[None] * len(are_rows),
        causes=list(causes),
        are_rows=are_rows,
        count_rows=lambda batch: [tf.shape(tensor, tf.int64)[0] for tensor in itertools.compress(batch, are_rows)],
    )


def slice_rows(tensors: Tensors, are_rows: Sequence[bool], batch_slice: Slice) -> Tensors:
    """The tensors of a batch; a tensor that has rows (`are_rows`) with the rows of a slice only."""
    first = tf.reshape(batch_slice.first, [1])
    last = first + batch_slice.count
    return [tf.strided_slice(tensor, first, last) if is_rows else tensor for tensor, is_rows in zip(tensors, are_rows)]
