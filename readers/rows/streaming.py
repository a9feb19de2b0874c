"""A tf.data.Dataset that reads this rank's rows of each global batch from disk while it is iterated.

`DataSet.as_dataset` calls `make_stream`. Reading single rows in random order would be slow. So an `Order` cuts the rows
of one part (training, validation or testing) into ranges of some megabytes, each of which is read with one call, and
puts the ranges in the order of an epoch. When shuffling, the rows of a few ranges are mixed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from matex_tf.lazy import tf
from matex_tf.readers.rows.layout import Deal
from matex_tf.readers.rows.samples import PIECE_BYTES, Source
from matex_tf.sharding import shard_arrays, slice_bounds
from matex_tf.world import world

_MIXED = 4  # the number of ranges whose rows are mixed when shuffling
_MIN_RUNS = 16  # a rank's rows are split into at least this many runs if they are dealt again, or if chunks are larger


class Order:
    """The order in which one rank uses its rows in each epoch.

    Args:
        deal: which rows of the part each rank has.
        redeal: whether ranks get other rows in each epoch.
        in_memory: positions are indices of the rank's array; otherwise they are row numbers of the part.
    """

    def __init__(self, deal: Deal, rank: int, shuffle: bool, seed: int, redeal: bool, in_memory: bool = False):
        self.deal, self.rank, self.shuffle, self.seed, self.redeal = deal, rank, shuffle, seed, redeal
        self.in_memory = in_memory

    def iterate_batches(self, batch_size: int, epoch: int) -> Iterator[tuple[int, int]]:
        """(first, last) of the rows of each global batch, in the order of the epoch."""
        starts = np.arange(0, self.deal.count, batch_size)
        if self.shuffles_batches:
            starts = np.random.default_rng([self.seed, epoch]).permutation(starts)
        for start in starts.tolist():
            yield start, min(start + batch_size, self.deal.count)

    @property
    def shuffles_batches(self) -> bool:
        """Whether batches are shuffled instead of rows, in the same order on all ranks."""
        return self.shuffle and self.deal.distribution == "batch"

    def iterate_ranges(self, length: int, epoch: int, chunk_rows: int = 1) -> Iterator[Any]:
        """This rank's rows in the order of an epoch, as ranges or arrays of up to `length` positions.

        A chunk of the files has `chunk_rows` rows; reading one of them costs as much as reading all. So the ranges of a
        chunk follow one another, alternating only with the ranges of a few other chunks.
        """
        if self.redeal:
            yield from self._redeal(length, epoch, chunk_rows)
            return
        # The number in the file of this rank's first row, so that ranges begin at chunks of the file.
        file_row = 0 if self.in_memory else slice_bounds.deal_block(self.deal.count, self.rank, self.deal.size)[0]
        generator = self.make_generator(epoch) if self.shuffle else None
        for first, last in _cut_ranges(self.deal.count_held(self.rank), file_row, length, chunk_rows, generator):
            yield self.list_positions(first, last)

    def list_positions(self, start: int, stop: int) -> Any:
        """The positions of the rank's rows `start` to `stop`."""
        return range(start, stop) if self.in_memory else self.deal.list_positions(self.rank, start, stop)

    def _redeal(self, length: int, epoch: int, chunk_rows: int) -> Iterator[range]:
        """This rank's block of all rows, after a shuffle of ranges that is the same on every rank."""
        length = min(length, -(-self.deal.count // (_MIN_RUNS * self.deal.size)))  # a small data set has several, too
        generator = np.random.default_rng([self.seed, epoch])
        start, stop = slice_bounds.deal_block(self.deal.count, self.rank, self.deal.size)  # in the shuffled order
        rows_before = 0  # in the ranges so far; these are not kept, because there may be millions
        for first, last in _cut_ranges(self.deal.count, 0, length, chunk_rows, generator):
            # The rows of this range that are among `start` to `stop`.
            own_first, own_last = max(start - rows_before, 0) + first, min(stop - rows_before + first, last)
            if own_first < own_last:
                yield range(own_first, own_last)
            rows_before += last - first

    def make_generator(self, epoch: int) -> np.random.Generator:
        """The random numbers of this rank in an epoch."""
        return np.random.default_rng([self.seed, epoch, self.rank])


def _cut_ranges(
    count: int, file_row: int, length: int, chunk_rows: int, generator: np.random.Generator | None
) -> Iterator[tuple[int, int]]:
    """Cut `count` rows, of which the first is row `file_row` of the file, into ranges (first, last) of up to `length`.

    Without `generator` the order is ascending. With `generator`, rows are first cut into runs of about `chunk_rows`
    rows, which come in random order, and each run into ranges. The ranges of `_MIXED` runs alternate: with runs of 4
    rows, ranges of 2 and two mixed runs, 8 rows may come as 4-6, 0-2, 6-8, 2-4.
    """
    run_length = length if generator is None else max(length, min(chunk_rows, -(-count // _MIN_RUNS)))
    # Runs longer than a range end at chunks of the files, if all chunks have `run_length` rows.
    first_run = run_length - file_row % run_length if run_length > length else run_length
    starts = np.array([0, *range(first_run, count, run_length)] if count else [], np.int64)
    ends = np.append(starts[1:], count)
    run_order = np.arange(len(starts)) if generator is None else generator.permutation(len(starts))
    mixed_runs = 1 if generator is None else _MIXED
    for group_start in range(0, len(run_order), mixed_runs):
        for offset in range(0, run_length, length):
            for run_number in run_order[group_start : group_start + mixed_runs]:
                first, last = int(starts[run_number]) + offset, int(ends[run_number])
                if first < last:
                    yield first, min(first + length, last)


class Memory:
    """The rows of one part that a rank holds, [data, labels] or [data], with the interface of a Source."""

    def __init__(self, fields: list[np.ndarray]):
        self._fields = fields
        self.labelled = len(fields) > 1
        self.row_bytes = max(1, sum(field[:1].nbytes for field in fields))

    def count_chunk_rows(self, part: str) -> int:
        return 1

    def read_both(self, part: str, positions: range) -> tuple[np.ndarray, np.ndarray | None]:
        data, *labels = (field[positions.start : positions.stop] for field in self._fields)
        return data, labels[0] if labels else None


def _iterate_groups(
    source: Source | Memory, part: str, order: Order, length: int, epoch: int
) -> Iterator[list[np.ndarray]]:
    """Yield [data, labels] of a few ranges of this rank's rows at a time, with mixed rows when shuffling."""
    ranges = order.iterate_ranges(length, epoch, source.count_chunk_rows(part))
    generator = order.make_generator(epoch)
    while position_ranges := list(itertools.islice(ranges, _MIXED if order.shuffle else 1)):
        pairs = [_read_pair(source, part, positions) for positions in position_ranges]
        fields = [np.concatenate(arrays) if len(arrays) > 1 else arrays[0] for arrays in zip(*pairs)]
        if order.shuffle:
            permutation = generator.permutation(len(fields[0]))
            fields = [field[permutation] for field in fields]
        yield fields


def _read_pair(source: Source | Memory, part: str, positions: Any) -> list[np.ndarray]:
    data, labels = source.read_both(part, positions)
    return [np.asarray(data)] if labels is None else [np.asarray(data), np.asarray(labels)]


class _Feed:
    """Cuts an iterator of [data, labels] of any lengths into arrays of the requested lengths."""

    def __init__(self, groups: Iterator[list[np.ndarray]]):
        self._groups = groups
        self._current: list[np.ndarray] | None = None  # the group whose rows are taken
        self._offset = 0  # of the next row in `_current`

    def take_rows(self, rows: int) -> list[np.ndarray]:
        """The next `rows` rows, [data, labels]."""
        pieces: list[list[np.ndarray]] = []
        while rows:
            if self._current is None or self._offset == len(self._current[0]):
                self._current, self._offset = next(self._groups), 0
            pieces.append([field[self._offset : self._offset + rows] for field in self._current])
            self._offset += len(pieces[-1][0])
            rows -= len(pieces[-1][0])
        return [np.concatenate(arrays) if len(arrays) > 1 else arrays[0] for arrays in zip(*pieces)]


def _iterate_own_batches(
    source: Source | Memory, part: str, order: Order, batch_size: int, row_bytes: int, epoch: int
) -> Iterator[tuple[list[np.ndarray], int, int]]:
    """Yield ([data, labels], own rows, rows of all ranks) for each step of an epoch.

    If this rank has no rows in a step, the arrays have one row and the number of own rows is 0.
    """
    deal = order.deal
    length = max(1, PIECE_BYTES // row_bytes // (_MIXED if order.shuffle else 1))
    feed = _Feed(_iterate_groups(source, part, order, length, epoch))
    placeholder = None
    for first, last in order.iterate_batches(batch_size, epoch):
        # The indices of this rank's rows of the batch, among its own rows in the order of consumption.
        begin, end = deal.count_taken(first)[order.rank], deal.count_taken(last)[order.rank]
        if end == begin:
            placeholder = _read_pair(source, part, range(1)) if placeholder is None else placeholder
            yield placeholder, 0, last - first
        elif order.shuffles_batches:
            yield _read_pair(source, part, order.list_positions(begin, end)), end - begin, last - first
        else:
            yield feed.take_rows(end - begin), end - begin, last - first


def make_stream(source: Source | Memory, part: str, order: Order, batch_size: int, row_bytes: int, alone: bool) -> Any:
    """Return the `tf.data.Dataset` of (data, labels), in batches of this rank's rows.

    Args:
        batch_size: the rows of a global batch.
        row_bytes: of a row of data and labels, the same number on all ranks; it determines the length of ranges.
        alone: the script has given rank= or size=, so this process computes without the other ranks.
    """
    epochs = itertools.count()  # each iteration of the dataset is an epoch
    fields = ("data", "labels") if source.labelled else ("data",)
    examples = _read_pair(source, part, range(1))
    specs = tuple(
        tf.TensorSpec((None, *example.shape[1:]), example.dtype, name=name) for name, example in zip(fields, examples)
    )
    count_spec = tf.TensorSpec((), tf.int64)

    def generate() -> Iterator[Any]:
        for rows, own_count, global_count in _iterate_own_batches(
            source, part, order, batch_size, row_bytes, next(epochs)
        ):
            yield tuple(rows), own_count, global_count

    counted_batches = tf.data.Dataset.from_generator(generate, output_signature=(specs, count_spec, count_spec))

    # Named functions, because AutoGraph warns about lambdas that it cannot distinguish.
    def has_rows(rows: Any, own_count: Any, global_count: Any) -> Any:
        return own_count > 0

    def make_element(rows: Any, own_count: Any, global_count: Any) -> Any:
        return rows if len(rows) > 1 else rows[0]

    if not alone and world.is_active():

        def cut_own_rows(rows: Any, own_count: Any, global_count: Any) -> Any:
            return make_element(tuple(field[:own_count] for field in rows), own_count, global_count)

        # Every rank has an element for every step, because a step is collective. Without own rows it is empty.
        step_count = -(-order.deal.count // batch_size)
        steps = counted_batches.map(cut_own_rows).apply(tf.data.experimental.assert_cardinality(step_count))
        return shard_arrays.mark_share(steps.prefetch(2))  # the mark: these are a rank's own rows, not a global batch

    # This process computes steps by itself, so steps without own rows are left out.
    own_steps = _count_own_steps(order, batch_size)
    steps = counted_batches.filter(has_rows).map(make_element)
    steps = steps.apply(tf.data.experimental.assert_cardinality(own_steps)).prefetch(2)
    return steps if alone else shard_arrays.mark_share(steps)


def _count_own_steps(order: Order, batch_size: int) -> int:
    """The number of steps of an epoch in which this rank has rows."""
    deal = order.deal
    if order.rank >= deal.size:
        return 0  # a rank that only serves weights
    starts, certain_steps = range(0, deal.count, batch_size), 0
    if batch_size >= 3 * deal.size:
        # A rank's rows deviate by less than one row from its proportion, so only the last step can have none.
        starts, certain_steps = starts[-1:], len(starts) - 1
    # This rank's number of rows before and after each uncertain step. It changes in the steps with own rows only.
    counts = {deal.count_taken(rows)[order.rank] for rows in (*starts, deal.count)}
    return certain_steps + len(counts) - 1
