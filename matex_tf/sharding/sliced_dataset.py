"""This rank's slices of the batches of a `tf.data` pipeline.

`slice_dataset` cuts a pipeline ahead of the training step, `take_slice` a batch within it.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from matex_tf import ops
from matex_tf.runtime import notes
from matex_tf.sharding import (
    fingerprint,
    iteration,
    py_functions,
    row_shares,
    share_arrays,
    step_weight,
)
from matex_tf.sharding.uneven import leases
from matex_tf.world import world

_passed = threading.local()
Batch = collections.namedtuple("Batch", ["data", "numbers"])
"""An element of a pipeline that was sliced ahead of the step: this rank's rows, and their "
"`step_weight.read_numbers`."""
OwnBatch = collections.namedtuple("OwnBatch", ["data", "rows"])
"""One of a pipeline over a rank's own share: only the step knows how many rows the other ranks have in it."""


def take_rows(element: Any, start: Any, stop: Any, count: Any = None) -> Any:
    """Rows `start` to `stop` of every component of `element` that has rows; `count` is how many rows a batch has."""
    import tensorflow as tf

    def cut(part: Any) -> Any:
        shape = getattr(part, "shape", None)
        if shape is None or shape.rank == 0:
            return part
        if isinstance(count, int) and isinstance(part, tf.Tensor) and shape.rank and shape[0] not in (None, count):
            return part  # not a component of rows, such as a table that a map added
        return _open_rows(row_shares.slice_rows(part, start, stop))

    return tf.nest.map_structure(cut, element)


def _open_rows(part: Any) -> Any:
    """A slice in a graph, of which the graph does not know how many rows it has, as every rank has another number."""
    import tensorflow as tf

    if not isinstance(part, tf.Tensor) or hasattr(part, "numpy") or part.shape.as_list()[:1] in ([], [None]):
        return part
    return tf.compat.v1.placeholder_with_default(part, [None, *part.shape.as_list()[1:]])


def make_zero_batch(spec: Any) -> Any:
    """A batch of zeros of a dataset's `element_spec`, for a rank that has no row to compute with weight 0."""
    import tensorflow as tf

    def make(part: Any) -> Any:
        if not isinstance(part, tf.TensorSpec) or part.shape.rank is None:
            raise TypeError(
                "batches of which a rank may have none (weak scaling, shares) are to be of dense tensors; this dataset "
                f"has a {part}"
            )
        shape = [1 if size is None else size for size in part.shape]
        return tf.zeros(shape, part.dtype) if part.dtype != tf.string else tf.fill(shape, "")

    return tf.nest.map_structure(make, spec)


def take_slice(element: Any, shares: Any) -> tuple[Any, Any]:
    """This rank's rows of a batch in a graph, and the numbers of the step (float64, shape [4])."""
    import tensorflow as tf

    count = row_shares.count_batch_rows(element)
    start, stop, has_rows = row_shares.find_slice_bounds(count, world.get_world().rank, shares)
    even, most = measure_evenness(element)
    numbers = step_weight.make_slice_tensor(has_rows, start, stop, count)
    numbers = tf.where(even, numbers, tf.constant(step_weight.list_whole_values(), tf.float64))
    start, stop = tf.where(even, start, tf.zeros_like(start)), tf.where(even, stop, most)
    return take_rows(element, start, stop), numbers


def make_slice(element: Any) -> Batch:
    """`take_slice` of an eager batch, whose number of rows is known."""
    import tensorflow as tf

    if is_uneven(element):
        say_uneven()
        return Batch(element, tf.constant(step_weight.list_whole_values(), tf.float64))
    me, count = world.get_world(), int(row_shares.count_batch_rows(element))
    start, stop, has_rows = row_shares.find_slice_bounds(count, me.rank, me.trainers)
    numbers = step_weight.list_slice_values(stop - start if has_rows else 0, count)
    return Batch(take_rows(element, start, stop), tf.constant(numbers, tf.float64))


def _count_part_rows(element: Any) -> list[Any]:
    """The number of rows of each component of a batch that has a first dimension."""
    import tensorflow as tf

    return [row_shares.count_batch_rows(part) for part in tf.nest.flatten(element) if part.shape.rank]


def measure_evenness(element: Any) -> tuple[Any, Any]:
    """Whether all components of a batch in a graph have the same number of rows, and the largest number."""
    import tensorflow as tf

    first, *others = _count_part_rows(element) or [row_shares.count_batch_rows(element)]
    if not others:
        return tf.constant(True), first
    same = [tf.equal(rows, first) for rows in others]
    return functools.reduce(tf.logical_and, same), functools.reduce(tf.maximum, others, first)


def is_uneven(element: Any) -> bool:
    """Whether the components of an eager batch have different numbers of rows, as of datasets zipped together."""
    import tensorflow as tf

    return len({int(rows) for rows in _count_part_rows(tf.nest.flatten(element))}) > 1


def say_uneven() -> None:
    notes.print_note(
        "the parts of a batch have different numbers of rows (as of datasets with other batch sizes, zipped together), "
        "so every rank computes whole batches. The result is right, training is no faster"
    )


def make_whole_dataset(dataset: Any) -> Any:
    """A dataset of `Batch` of whole batches, which every rank computes."""
    import tensorflow as tf

    numbers = tf.data.Dataset.from_tensors(tf.constant(step_weight.list_whole_values(), tf.float64)).repeat()
    return iteration.exempt_dataset(
        iteration.read_alike(dataset, lambda whole: tf.data.Dataset.zip(Batch(whole, numbers)))
    )


def slice_dataset(
    dataset: Any, on_first: Callable[[tuple[int, int]], None], shares: leases.Leases | None = None
) -> Any:
    """A dataset of `Batch`: this rank's rows of each batch of `dataset`. Ranks have equal `shares` unless told.

    `on_first` is called, in a thread of the pipeline, with (rows, hash) of the first whole batch of each iteration.
    """
    import tensorflow as tf

    spec, equal = dataset.element_spec, world.get_world().trainers

    def show(*parts: Any) -> bool:
        element = tf.nest.pack_sequence_as(spec, parts, expand_composites=True)
        if is_uneven(element):
            say_uneven()
        on_first(fingerprint.digest_batch(element))
        return True

    def cut(index: Any, element: Any, of_batch: Any = equal) -> Batch:
        parts = tf.nest.flatten(element, expand_composites=True)
        shown = tf.cond(index == 0, lambda: tf.py_function(show, parts, tf.bool), lambda: tf.constant(True))
        with tf.control_dependencies([shown]):
            return Batch(*take_slice(tf.nest.map_structure(tf.identity, element), of_batch))

    # The call of Python in it keeps TensorFlow from making of the map a parallel one, which reads ahead.
    def cut_up(batches: Any) -> Any:
        if shares is None:
            return batches.enumerate().map(cut)
        both = tf.data.Dataset.zip((batches.enumerate(), shares.make_dataset()))
        return both.map(lambda numbered, of_batch: cut(numbered[0], numbered[1], of_batch))

    return iteration.exempt_dataset(py_functions.hold_py_functions(lambda: iteration.read_alike(dataset, cut_up)))


def find_numbers(batch: Any) -> Any:
    """The numbers of the step that computes `batch`, a `Batch` or an `OwnBatch` (then collective)."""
    import tensorflow as tf

    if isinstance(batch, Batch):
        return batch.numbers
    total = ops.allreduce(batch.rows, op="sum", name="the rows of each rank's batch")
    return step_weight.make_slice_tensor(batch.rows > 0, tf.constant(0, tf.int64), batch.rows, total)


@contextlib.contextmanager
def pass_sources(sources: Sequence[Any]) -> Iterator[None]:
    """Within it `sources`, datasets and iterators, are arguments of the function that is called.

    In the function's graph each is a bare handle; what it is made of is known only of the argument.
    """
    stack = _passed.__dict__.setdefault("stack", [])
    stack.append(sources)
    try:
        yield
    finally:
        stack.pop()


def find_argument(source: Any) -> Any:
    """The argument that `source`, a bare handle in a function's graph, stands for; any other is its own."""
    if type(source).__name__ != "_VariantDataset" and getattr(source, "_dataset", None) is not None:
        return source
    for sources in reversed(getattr(_passed, "stack", [])):
        for candidate in sources:
            if hasattr(candidate, "cardinality") == hasattr(source, "cardinality") and (
                candidate.element_spec == source.element_spec
            ):
                return candidate
    return source


def has_fixed_rows(source: Any) -> bool:
    """Whether the batches of a dataset or iterator have a number of rows that is known before any is made."""
    import tensorflow as tf

    shapes = [getattr(part, "shape", None) for part in tf.nest.flatten(source.element_spec)]
    return any(shape is not None and shape.rank and shape.as_list()[0] is not None for shape in shapes)


def has_batches_to_slice(dataset: Any) -> bool:
    """Whether a training loop over `dataset` is to work on slices of its batches, or on batches of a share."""
    if not world.is_active() or iteration.is_exempt(dataset):
        return False
    return share_arrays.is_share(dataset) or row_shares.is_batched(dataset) is True
