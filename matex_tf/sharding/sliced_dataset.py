"""This rank's slices of the batches of a `tf.data` pipeline.

`Batch` is an element of a pipeline that was sliced ahead of the training step: the rows of this rank and the four
numbers of `step_weight` that go with them. `OwnBatch` is one of a pipeline over a rank's own share: how many rows the
other ranks have in the same step is only known in the step.
"""

from __future__ import annotations

import collections
import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from matex_tf import ops
from matex_tf.runtime import notes
from matex_tf.sharding import fingerprint, py_functions, row_shares, step_weight
from matex_tf.world import world

_passed = threading.local()
Batch = collections.namedtuple("Batch", ["data", "numbers"])
OwnBatch = collections.namedtuple("OwnBatch", ["data", "rows"])


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


def my_slice(element: Any) -> tuple[Any, Any]:
    """This rank's rows of a batch in a graph, and the numbers of the step (float64, shape [4])."""
    import tensorflow as tf

    me = world.current()
    count = row_shares.batch_rows(element)
    start, stop, has_rows = row_shares.slice_bounds(count, me.rank, me.size)
    even, most = evenness(element)
    numbers = step_weight.slice_tensor(has_rows, start, stop, count)
    numbers = tf.where(even, numbers, tf.constant(step_weight.whole_values(), tf.float64))
    start, stop = tf.where(even, start, tf.zeros_like(start)), tf.where(even, stop, most)
    return take_rows(element, start, stop), numbers


def slice_of(element: Any) -> Batch:
    """`my_slice` of an eager batch, whose number of rows is known."""
    import tensorflow as tf

    if is_uneven(element):
        say_uneven()
        return Batch(element, tf.constant(step_weight.whole_values(), tf.float64))
    me, count = world.current(), int(row_shares.batch_rows(element))
    start, stop, has_rows = row_shares.slice_bounds(count, me.rank, me.size)
    numbers = step_weight.slice_values(stop - start if has_rows else 0, count)
    return Batch(take_rows(element, start, stop), tf.constant(numbers, tf.float64))


def _rows_of_parts(element: Any) -> list[Any]:
    """The number of rows of each component of a batch that has a first dimension."""
    import tensorflow as tf

    return [row_shares.batch_rows(part) for part in tf.nest.flatten(element) if part.shape.rank]


def evenness(element: Any) -> tuple[Any, Any]:
    """Whether all components of a batch in a graph have the same number of rows, and the largest number."""
    import tensorflow as tf

    rows = _rows_of_parts(element) or [row_shares.batch_rows(element)]
    rows = tf.stack([tf.cast(number, tf.int64) for number in rows])
    return tf.reduce_all(tf.equal(rows, rows[0])), tf.reduce_max(rows)


def is_uneven(element: Any) -> bool:
    """Whether the components of an eager batch have different numbers of rows, as of datasets zipped together."""
    import tensorflow as tf

    return len({int(rows) for rows in _rows_of_parts(tf.nest.flatten(element))}) > 1


def say_uneven() -> None:
    notes.note(
        "the parts of a batch have different numbers of rows (as of datasets with other batch sizes, zipped together), "
        "so every rank computes whole batches: right, but not faster"
    )


def whole(dataset: Any) -> Any:
    """A dataset of `Batch` of whole batches, which every rank computes."""
    import tensorflow as tf

    def batch(*element: Any) -> Batch:
        return Batch(element if len(element) > 1 else element[0], tf.constant(step_weight.whole_values(), tf.float64))

    return exempt(dataset.map(batch, num_parallel_calls=1).prefetch(tf.data.AUTOTUNE))


def sliced(dataset: Any, on_first: Callable[[tuple[int, int]], None]) -> Any:
    """A dataset of `Batch`: this rank's rows of each batch of `dataset`.

    `on_first` is called, in a thread of the pipeline, with (rows, hash) of the first whole batch of each iteration.
    """
    import tensorflow as tf

    spec = dataset.element_spec

    def show(*parts: Any) -> bool:
        element = tf.nest.pack_sequence_as(spec, parts, expand_composites=True)
        if is_uneven(element):
            say_uneven()
        on_first(fingerprint.batch_digest(element))
        return True

    def cut(index: Any, element: Any) -> Batch:
        parts = tf.nest.flatten(element, expand_composites=True)
        shown = tf.cond(index == 0, lambda: tf.py_function(show, parts, tf.bool), lambda: tf.constant(True))
        with tf.control_dependencies([shown]):
            return Batch(*my_slice(tf.nest.map_structure(tf.identity, element)))

    cut_up = py_functions.held(lambda: dataset.enumerate().map(cut, num_parallel_calls=1))
    return exempt(cut_up.prefetch(tf.data.AUTOTUNE))


def grouped(dataset: Any) -> Any:
    """A dataset of `Batch` for weak scaling: of each group of as many batches as there are ranks, this rank's own.

    In the last group some ranks may have no batch of their own; they get the group's first with weight 0.
    """
    import tensorflow as tf

    me = world.current()

    def count(element: Any) -> Any:
        return row_shares.batch_rows(element)

    def pack(*element: Any) -> Any:
        return element if len(element) > 1 else element[0]

    real = dataset.map(lambda *element: (pack(*element), True))
    padding = dataset.take(1).map(lambda *element: (pack(*element), False)).repeat(me.size - 1)

    def step(state: Any, item: Any) -> Any:
        position, rows_of_group, numbers_of_mine, mine = state
        element, is_real = item
        rows = tf.where(is_real, tf.cast(count(element), tf.int64), tf.constant(0, tf.int64))
        first = position == 0
        rows_of_group = tf.where(first, rows, rows_of_group + rows)
        take = tf.logical_or(first, tf.logical_and(is_real, position == me.rank))
        own = rows * tf.cast(position == me.rank, tf.int64)
        numbers_of_mine = tf.where(first, own, numbers_of_mine + own)
        mine = tf.cond(take, lambda: element, lambda: mine)
        last = position == me.size - 1
        result = (mine, numbers_of_mine, rows_of_group, last)
        return (tf.where(last, tf.constant(0, tf.int64), position + 1), rows_of_group, numbers_of_mine, mine), result

    spec = dataset.element_spec
    start = tf.nest.map_structure(_empty, spec)
    zero = tf.constant(0, tf.int64)
    groups = real.concatenate(padding).scan((zero, zero, zero, start), step)
    groups = groups.filter(lambda mine, own, rows, last: tf.logical_and(last, rows > 0))

    def batch(mine: Any, own: Any, rows: Any, last: Any) -> Batch:
        has_rows = own > 0
        first_row = take_rows(mine, zero, tf.constant(1, tf.int64))
        data = tf.cond(has_rows, lambda: mine, lambda: first_row)
        return Batch(data, step_weight.slice_tensor(has_rows, zero, own, rows))

    result = groups.map(batch, num_parallel_calls=1)
    total = int(dataset.cardinality())
    if total >= 0:
        result = result.apply(tf.data.experimental.assert_cardinality(-(-total // me.size)))
    elif total == tf.data.INFINITE_CARDINALITY:
        result = result.apply(tf.data.experimental.assert_cardinality(total))
    return exempt(result.prefetch(tf.data.AUTOTUNE))


def _empty(spec: Any) -> Any:
    """A value of a dataset's component without rows, to begin with."""
    import tensorflow as tf

    if not isinstance(spec, tf.TensorSpec):
        raise TypeError(f"MATEX_SCALING=weak groups batches of dense tensors only; this dataset has a {spec}")
    shape = [0 if size is None else size for size in spec.shape]
    return tf.zeros(shape, spec.dtype) if spec.dtype != tf.string else tf.fill(shape, "")


def shares(
    inputs: Any, counts: Sequence[int], batch_size: int, shuffle: bool, dealt: row_shares.Dealt, epochs: int = 1
) -> Any:
    """A dataset of `Batch` over this rank's own rows.

    Args:
        inputs: a structure of arrays, all of this rank's `counts[rank]` rows.
        counts: the rows of each rank.
        batch_size: rows over all ranks in each step; the last step takes what is left.
        shuffle: whether this rank's rows come in a new order in each epoch.
        dealt: how the rows came to the ranks.
        epochs: how many epochs one iteration goes through.
    """
    import numpy as np
    import tensorflow as tf

    me = world.current()
    number = -(-sum(counts) // batch_size)
    taken = np.array([row_shares.share_step_rows(counts, step, batch_size, dealt.batch_size) for step in range(number)])
    taken = taken.reshape(-1, me.size)
    mine, totals = taken[:, me.rank].astype(np.int64), taken.sum(axis=1).astype(np.int64)
    starts = np.concatenate([[0], np.cumsum(mine)[:-1]]).astype(np.int64)
    plan = tf.data.Dataset.from_tensor_slices((starts, mine, totals))
    take, before_epoch = _rows_of(inputs, counts, dealt.reshuffle)

    def order(_: Any) -> Any:
        rows = tf.range(counts[me.rank], dtype=tf.int64)
        return tf.random.shuffle(rows) if shuffle else rows

    def steps_of(rows: Any) -> Any:
        return plan.map(lambda start, own, total: (rows[start : start + tf.maximum(own, 1)], own, total))

    def gather(rows: Any, own: Any, total: Any) -> Batch:
        # Past the last row of a rank without rows there is none to compute with weight 0; take its first.
        rows = tf.cond(tf.size(rows) > 0, lambda: rows, lambda: tf.zeros([1], tf.int64))
        return Batch(take(rows), step_weight.slice_tensor(own > 0, tf.constant(0, tf.int64), own, total))

    chosen = tf.data.Dataset.range(epochs).map(order).flat_map(steps_of)
    dataset = py_functions.held(lambda: chosen.map(gather, num_parallel_calls=tf.data.AUTOTUNE))
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(number * epochs))
    dataset = exempt(dataset.prefetch(tf.data.AUTOTUNE))
    dataset._matex_before_epoch = before_epoch
    return dataset


def _rows_of(inputs: Any, counts: Sequence[int], reshuffle: int | None) -> tuple[Callable[[Any], Any], Any]:
    """A function that gives chosen rows of `inputs`, and what is to be called before each epoch (None if nothing)."""
    import numpy as np
    import tensorflow as tf

    rows = counts[world.current().rank]
    # A rank without rows computes one of zeros, with weight 0.
    arrays = tf.nest.map_structure(
        lambda array: np.asarray(array) if rows else np.zeros((1, *array.shape[1:]), array.dtype), inputs
    )
    if reshuffle is None:
        tensors = tf.nest.map_structure(tf.convert_to_tensor, arrays)
        return lambda chosen: tf.nest.map_structure(lambda tensor: tf.gather(tensor, chosen), tensors), None

    from matex_tf.sharding.exchange import BeforeEpoch

    # Tensors would be copies; the arrays change from epoch to epoch.
    flat = [array if array.flags.writeable else array.copy() for array in tf.nest.flatten(arrays)]

    def take(chosen: Any) -> Any:
        parts = tf.numpy_function(lambda index: [array[index] for array in flat], [chosen], [a.dtype for a in flat])
        for part, array in zip(parts, flat, strict=True):
            part.set_shape([None, *array.shape[1:]])
        return tf.nest.pack_sequence_as(arrays, parts)

    return take, BeforeEpoch([array[:rows] for array in flat], reshuffle)


def before_epoch(dataset: Any) -> None:
    """What has to be done, on all ranks, before `dataset` is iterated anew."""
    for step in row_shares.pipeline_of(dataset):
        action = getattr(step, "_matex_before_epoch", None)
        if action is not None:
            action()


def own_batches(dataset: Any, number: int | None) -> Any:
    """A dataset of `OwnBatch` over a rank's own batches, `number` of them; None for one that does not end.

    A rank that has fewer batches goes on with its first row, which counts 0.
    """
    import tensorflow as tf

    def own(*element: Any) -> OwnBatch:
        data = element if len(element) > 1 else element[0]
        return OwnBatch(data, row_shares.batch_rows(data))

    def nothing(*element: Any) -> OwnBatch:
        data = element if len(element) > 1 else element[0]
        return OwnBatch(take_rows(data, tf.constant(0), tf.constant(1)), tf.constant(0, tf.int64))

    result = dataset.map(own, num_parallel_calls=1)
    if number is not None:
        padding = dataset.take(1).map(nothing).repeat()
        result = result.concatenate(padding).take(number)
    return exempt(result.prefetch(tf.data.AUTOTUNE))


def numbers_of(batch: Any) -> Any:
    """The numbers of the step that computes `batch`, a `Batch` or an `OwnBatch` (then collective)."""
    import tensorflow as tf

    if isinstance(batch, Batch):
        return batch.numbers
    total = ops.allreduce(batch.rows, op="sum", name="the rows of each rank's batch")
    return step_weight.slice_tensor(batch.rows > 0, tf.constant(0, tf.int64), batch.rows, total)


_instead: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def iterate_instead(dataset: Any, other: Any) -> None:
    """Whoever iterates `dataset`, or a map of it, from now on gets the elements of `other`."""
    _instead[dataset] = other


def before_iteration(dataset: Any, work: Callable[[], None]) -> None:
    """Whoever first iterates `dataset`, or a map of it, has `work` done before.

    The dataset holds `work`, which may hold the dataset: both go where nobody iterates it.
    """
    dataset._matex_before = work


def in_place_of(dataset: Any) -> Any:
    """What is to be iterated in place of a dataset."""
    for one in (dataset, getattr(dataset, "_input_dataset", None)):
        work = getattr(one, "_matex_before", None)
        if work is not None:
            del one._matex_before
            work()
    function = getattr(getattr(dataset, "_map_func", None), "_func", None)
    source = getattr(dataset, "_input_dataset", None)
    if function is not None and source is not None and source in _instead:
        return exempt(_instead[source].map(function))
    return _instead.get(dataset, dataset)


def exempt(dataset: Any) -> Any:
    """Mark a dataset as one whose batches are not to be sliced (again) where it is iterated."""
    dataset._matex_exempt = True
    return dataset


def is_exempt(dataset: Any) -> bool:
    return getattr(dataset, "_matex_exempt", False) or any(
        getattr(source, "_matex_exempt", False) for source in row_shares.pipeline_of(dataset)
    )


@contextlib.contextmanager
def passed(sources: Sequence[Any]) -> Iterator[None]:
    """Within it `sources`, datasets and iterators, are arguments of the function that is called.

    In the function's graph each is a bare handle; what it is made of is known only of the argument.
    """
    stack = _passed.__dict__.setdefault("stack", [])
    stack.append(sources)
    try:
        yield
    finally:
        stack.pop()


def argument_behind(source: Any) -> Any:
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


def yields_batches_to_slice(dataset: Any) -> bool:
    """Whether a training loop over `dataset` is to work on slices of its batches, or on batches of a share."""
    if not world.is_active() or is_exempt(dataset):
        return False
    return row_shares.is_share(dataset) or row_shares.is_batched(dataset) is True
