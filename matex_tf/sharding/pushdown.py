"""Rows chosen before work is done on them: pipelines whose steps are taken apart so that ranks share that work, too.

`deal_arrays` and `deal_rows` are for the two shapes that are recognised; whatever is not is left to
`sliced_dataset.slice_dataset`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from matex_tf.analysis import pipeline_shapes
from matex_tf.sharding import fingerprint, iteration, py_functions, row_shares, sliced_dataset, step_weight
from matex_tf.sharding.uneven import leases
from matex_tf.world import world

OnFirst = Callable[[tuple[int, int] | None], None]
"""Called with (rows, hash) of the first whole batch of an iteration, and with None where that is not known."""
_ROWS = 1 << 32
"""More than twice the rows of any batch: what is in a key beside the number of a batch."""


def push_down_slices(
    dataset: Any, are_arrays: bool, on_first: OnFirst, shares: leases.Leases | None = None
) -> tuple[Any, str | None]:
    """A dataset of `Batch` of this rank's rows of each batch of `dataset`, chosen as early as can be.

    Also gives why every rank runs the whole of a script's own pipeline; None where the work on rows is sharded.

    Args:
        are_arrays: it is Keras' pipeline over arrays.
        on_first: called with (rows, hash) of the first whole batch of each iteration, or of what its rows are chosen
            by.
        shares: of the ranks in each batch; equal ones unless told.
    """
    if are_arrays:
        return deal_arrays(dataset, on_first, shares) or sliced_dataset.slice_dataset(dataset, on_first, shares), None
    why = pipeline_shapes.find_obstacle(dataset)
    if why is None:
        return deal_rows(dataset, on_first, shares), None
    return sliced_dataset.slice_dataset(dataset, on_first, shares), why


def deal_arrays(dataset: Any, on_first: Callable[[tuple[int, int]], None], shares: leases.Leases | None = None) -> Any:
    """A dataset of `Batch` for Keras' pipeline over arrays, cut at its indices; None if `dataset` is not of its shape.

    There a batch begins as a vector of indices: it is cut before rows are gathered.

    `on_first` is called with (rows, hash) of the indices of each iteration's first whole batch; `shares` as in
    `slices`.
    """
    import tensorflow as tf

    parts = pipeline_shapes.match_arrays(dataset)
    if parts is None:
        return None
    indices, data, grab = parts

    def batch(chosen: sliced_dataset.Batch, arrays: Any) -> sliced_dataset.Batch:
        return sliced_dataset.Batch(grab(chosen.data, arrays), chosen.numbers)

    chosen = sliced_dataset.slice_dataset(indices, on_first, shares)
    result = tf.data.Dataset.zip((chosen, data)).map(batch, num_parallel_calls=tf.data.AUTOTUNE)
    return iteration.exempt_dataset(result.with_options(dataset.options()).prefetch(tf.data.AUTOTUNE))


def deal_rows(dataset: Any, on_first: OnFirst, shares: leases.Leases | None = None) -> Any:
    """A dataset of `Batch` for a pipeline that maps rows and then batches them: one of which `find_obstacle` gives
    None.

    Rows are dropped ahead of the maps by the ranks that do not compute them.

    The maps are parallel ones, which says that they are worth sharing, and give the same for a row whatever its
    neighbours; the number of rows is known, for the last batch. The arguments are those of `slices`.
    """
    import tensorflow as tf

    batching, above = pipeline_shapes.find_batching(dataset)
    maps, source = pipeline_shapes.list_maps(batching)
    plan = _Plan(int(source.cardinality()), int(batching._batch_size), bool(batching._drop_remainder))
    first = _First(plan.first_batch, on_first)

    def look(iteration: Any, element: tuple[Any, Any]) -> Any:
        position, row = element
        parts = tf.nest.flatten(row, expand_composites=True)
        iteration = tf.cond(
            position < plan.first_batch,
            lambda: tf.ensure_shape(tf.py_function(first.see_row, [iteration, position, *parts], tf.int64), []),
            lambda: iteration,
        )
        return iteration, element

    seen = py_functions.hold_py_functions(lambda: source.enumerate().scan(tf.constant(0, tf.int64), look))
    # -1: without an end.
    repeats = [int(step._count) for step in reversed(above) if pipeline_shapes.name_kind(step) == "RepeatDataset"]
    if shares is None:
        result = _choose_by_plan(seen, maps, plan).apply(tf.data.experimental.assert_cardinality(plan.batches))
        for count in repeats:
            result = result.repeat(count)
    else:
        for count in repeats:
            seen = seen.repeat(count)  # batches are numbered through, as they are read ahead
        number = -1 if -1 in repeats else plan.batches * prod(repeats)
        result = _choose_by_shares(seen, maps, plan, shares).apply(tf.data.experimental.assert_cardinality(number))
    return iteration.exempt_dataset(result.with_options(dataset.options()).prefetch(tf.data.AUTOTUNE))


def _choose_by_plan(numbered: Any, maps: list[Any], plan: _Plan) -> Any:
    """The batches of (position, row) where a rank has the same share of each."""
    result = numbered.filter(lambda position, _: plan.is_own_row(position)).map(lambda position, row: row)
    for step in maps:
        result = result.map(step._map_func._func, **_list_options(step))
    return (
        result.batch(plan.own_rows)
        .enumerate()
        .map(lambda number, data: sliced_dataset.Batch(data, plan.compute_numbers(number)), num_parallel_calls=1)
    )


def _choose_by_shares(numbered: Any, maps: list[Any], plan: _Plan, shares: leases.Leases) -> Any:
    """The same where shares change. Rows go through the maps beside a key of their batch: its number, how many of its
    rows are here, and whether they count.
    """
    import tensorflow as tf

    def begin_batch(state: Any, of_rows: Any) -> Any:
        number, lease, _ = state
        lease = shares.ask_shares(lease, number)
        start, stop, has_rows = row_shares.find_slice_bounds(of_rows, world.get_world().rank, lease[1])
        key = number * _ROWS + 2 * (stop - start) + tf.cast(has_rows, tf.int64)
        return number + 1, lease, tf.stack([start, stop, key])

    def choose(state: Any, element: tuple[Any, Any]) -> Any:
        position, row = element
        number, within = position // plan.batch_size, position % plan.batch_size
        is_batch = number < plan.batches  # and not a remainder that is dropped
        begins = is_batch & tf.equal(within, 0)
        state = tf.cond(begins, lambda: begin_batch(state, plan.count_rows(number)), lambda: state)
        start, stop, key = tf.unstack(state[2], num=3)
        return state, (is_batch & (within >= start) & (within < stop), key, row)

    def mapped(step: Any) -> Callable[[Any, Any], Any]:
        work = step._map_func._func
        return lambda key, row: (key, work(*row) if type(row) is tuple else work(row))

    def batch(keys: Any, data: Any) -> sliced_dataset.Batch:
        number, rows = keys[0] // _ROWS % plan.batches, keys[0] % _ROWS
        return sliced_dataset.Batch(
            data, step_weight.make_slice_tensor(rows % 2 > 0, 0, rows // 2, plan.count_rows(number))
        )

    nothing = tf.constant(0, tf.int64), shares.make_state(), tf.zeros([3], tf.int64)
    result = py_functions.hold_py_functions(lambda: numbered.scan(nothing, choose))
    result = result.filter(lambda mine, *_: mine).map(lambda _, key, row: (key, row))
    for step in maps:
        result = result.map(mapped(step), **_list_options(step))
    result = result.group_by_window(
        key_func=lambda key, _: key,
        reduce_func=lambda key, rows: rows.batch(key % _ROWS // 2),
        window_size_func=lambda key: key % _ROWS // 2,
    )
    return result.map(batch, num_parallel_calls=1)


def _list_options(step: Any) -> dict[str, Any]:
    """How a map of the script's is made: by how many threads, and whether in order."""
    calls = getattr(step, "_num_parallel_calls", None)
    exact = {"true": True, "false": False}.get(getattr(step, "_deterministic", "default"))
    return {} if calls is None else {"num_parallel_calls": calls, "deterministic": exact}


class _Plan:
    """Which rows of a sequence this rank computes: its slices of batches of equal size and of a smaller last one."""

    def __init__(self, rows: int, batch_size: int, drop_remainder: bool):
        me = world.get_world()
        self.batch_size = batch_size
        self.full, rest = divmod(rows, batch_size)
        rest = 0 if drop_remainder else rest
        self.batches = self.full + bool(rest)
        self.first_batch = batch_size if self.full else rest
        # (start, stop, whether its rows count, rows of the batch) of a full batch and of the last one.
        self.slices = [(*row_shares.find_slice_bounds(size, me.rank, me.trainers), size) for size in (batch_size, rest)]

    @property
    def own_rows(self) -> int:
        """How many rows a batch of this rank has, but for the last, which may have fewer."""
        start, stop, *_ = self.slices[0 if self.full else 1]
        return stop - start

    def is_own_row(self, position: Any) -> Any:
        """Whether this rank is to have row number `position`, a tensor."""
        number, within = position // self.batch_size, position % self.batch_size
        start, stop, _, _ = self._slice_batch(number)
        return (number < self.batches) & (within >= start) & (within < stop)

    def count_rows(self, number: Any) -> Any:
        """How many rows all ranks have in batch `number`, a tensor."""
        return self._slice_batch(number)[3]

    def compute_numbers(self, number: Any) -> Any:
        """The numbers of the step that computes batch `number`, a tensor."""
        start, stop, has_rows, of_rows = self._slice_batch(number)
        return step_weight.make_slice_tensor(has_rows > 0, start, stop, of_rows)

    def _slice_batch(self, number: Any) -> list[Any]:
        import tensorflow as tf

        full, last = (tf.constant([int(part) for part in slice_], tf.int64) for slice_ in self.slices)
        return tf.unstack(tf.where(number < self.full, full, last))


class _First:
    """Collects what goes into the first batch, row by row, and tells its rows and hash.

    Keras looks at a batch before it iterates, and that iterator may read on meanwhile: the last one begun counts.
    """

    def __init__(self, rows: int, on_first: OnFirst):
        self.rows = rows
        self.on_first = on_first
        self.begun = 0
        self.content = 0

    def see_row(self, iteration: Any, position: Any, *parts: Any) -> int:
        """The number of the iteration, of which a row is there."""
        if position == 0:
            self.begun, self.content = self.begun + 1, 0
            self.on_first(None)
            iteration = self.begun
        if iteration != self.begun:
            return int(iteration)
        for part in parts:
            self.content = fingerprint.digest_value(part, self.content)
        if position == self.rows - 1:
            self.on_first((self.rows, self.content))
        return int(iteration)
