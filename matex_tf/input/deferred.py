"""The elements of a `tf.data` pipeline as tickets and deferred work; `splitting` finds both, step by step.

A ticket is a cheap stand-in for an element. Every rank takes all tickets, and works only on the rows that it needs. Of
`from_tensor_slices(paths).shuffle(100).map(load).batch(32)` the ticket of a row is its path, and the ticket of a batch
has 32 paths; the work is `load`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from matex_tf.input.tickets import Tensors, flatten_specs
from matex_tf.lazy import tf
from matex_tf.rewrite import sources
from matex_tf.rewrite.sharing import Slice


class Deferred(NamedTuple):
    """The elements of a dataset, which are rows or batches, as tickets and work.

    tickets: the dataset of the tickets.
    compute, count_rows: these compute in a graph, from the flat tensors of a ticket:
        compute: the flat tensors of the element. Its second argument is the `Slice` of a batch that the result has (its
            first row and number of rows); None for a row.
        count_rows: the row counts of a batch's components; int64 scalars.
    spec: of an element.
    are_rows: which flat tensors of an element have the rows of a batch.
    is_work: there is something to compute or to check after the tickets.
    passed: for each flat tensor of an element, the index of the ticket's tensor that it equals; None if it is computed,
        as all rows of batches are.
    windows: the specs of the ticket's tensors that are windows, datasets of the tickets of a batch's rows, by their
        indices.
    pads: the padding values of the tensors that are padded to the longest row, by their indices.
    causes: why some work is in the tickets, which every rank makes for each element: texts for `--explain`.
    files: the datasets of indexed records, whose files are indexed again if they change between iterations.
    caches: the datasets of caches that are replaced by caches of tickets.
    """

    tickets: Any
    compute: Callable[[Tensors, Any], Tensors]
    count_rows: Callable[[Tensors], Tensors]
    spec: Any
    are_rows: list[bool]
    is_work: bool
    passed: Sequence[int | None]
    windows: dict[int, Any] = {}
    pads: dict[int, Any] = {}
    causes: tuple[str, ...] = ()
    files: tuple[Any, ...] = ()
    caches: tuple[Any, ...] = ()


def make_whole(dataset: Any, are_batches: bool, causes: Iterable[str] = ()) -> Deferred:
    """The elements as their own tickets: every rank computes them whole. causes: see `Deferred`."""
    specs = flatten_specs(dataset.element_spec)
    are_rows = sources.find_components([shape for _, shape in specs]) if are_batches else [False] * len(specs)

    def compute(element: Tensors, batch_slice: Slice | None) -> Tensors:
        return element if batch_slice is None else slice_rows(element, are_rows, batch_slice)

    return Deferred(
        tickets=dataset,
        compute=compute,
        count_rows=lambda batch: [tf.shape(tensor, tf.int64)[0] for tensor, is_rows in zip(batch, are_rows) if is_rows],
        spec=dataset.element_spec,
        are_rows=are_rows,
        is_work=False,
        passed=[None] * len(specs) if are_batches else range(len(specs)),
        causes=tuple(causes),
    )


def slice_rows(tensors: Tensors, are_rows: Sequence[bool], batch_slice: Slice) -> Tensors:
    """The tensors of a batch; a tensor that has rows (`are_rows`) with the rows of a slice only."""
    first = tf.reshape(batch_slice.first, [1])
    last = first + batch_slice.count
    return [tf.strided_slice(tensor, first, last) if is_rows else tensor for tensor, is_rows in zip(tensors, are_rows)]
