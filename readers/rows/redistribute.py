"""Sends the rows that were read while a data set was opened (`KeptRows`) to the ranks to which they are assigned.

To count the rows, each rank reads contiguous rows; a `Deal` for each part (training, validation or testing rows) may
assign other rows to it. For example, 2 ranks have read rows 0-2 and 3-5 of a file; with distribution="cyclic" rank 0
keeps rows 0 and 2, sends row 1, and receives row 4.

All ranks send in rounds of some rows each, and free the rows that they have sent. Only the end of an array can be
freed, so ranks send their last rows first. `loaded_rows.py` calls this module.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from matex_tf.readers.base.formats import PARTS, KeptRows, split_range
from matex_tf.readers.rows.layout import Deal
from matex_tf.readers.rows.samples import Source
from matex_tf.sharding.shard_arrays import ShardArray

_ROUND_BYTES = 1 << 20
_ROUNDS = 64  # a rank sends _ROUND_BYTES or 1/_ROUNDS of its rows in a round, whichever is larger
_MOST_BYTES = (1 << 31) - 1  # that a rank receives in a round: MPI counts in 32 bits

Arrays = dict[tuple[str, str], np.ndarray]
"""The rows of a rank by part and field."""
Spans = dict[str, tuple[int, int]]
"""By part, the indices (start, stop) of some of a rank's rows of that part."""


class _NeededRows:
    """The rows of the file that a rank needs for one part, in ascending order: its own rows.

    "The file" stands for all files of the data set, over which rows are counted; `source` knows the part of each row.
    """

    def __init__(self, source: Source, part: str, deal: Deal, rank: int):
        self._source, self._part, self._deal, self._rank = source, part, deal, rank
        # A rank without rows gets the first row of all, for use with weight 0.
        self.count = max(1, deal.count_held(rank))

    def list_rows(self, start: int, stop: int) -> np.ndarray:
        """The row numbers in the file of the rank's rows `start` to `stop`."""
        has_no_rows = self._deal.count_held(self._rank) == 0
        positions = np.zeros(1, np.int64) if has_no_rows else self._deal.list_positions(self._rank, start, stop)
        return np.asarray(self._source.find_rows(self._part, positions)[1])

    def find_between(self, first: int, end: int) -> tuple[int, int]:
        """The own rows that are among rows `first` to `end` - 1 of the file: (start, stop), indices of own rows."""
        if end <= self._find_row(0) or first > self._find_row(self.count - 1):
            return 0, 0
        indices = range(self.count)
        start = bisect.bisect_left(indices, first, key=self._find_row)
        return start, bisect.bisect_left(indices, end, lo=start, key=self._find_row)

    def _find_row(self, index: int) -> int:
        return int(self.list_rows(index, index + 1)[0])


def allot_arrays(deals: Mapping[str, Deal], rank: int, kept_rows: KeptRows) -> Arrays:
    """Allocate arrays for this rank's rows of every part. Their pages take no memory until they are written."""
    return {
        (part, field): ShardArray((max(1, deals[part].count_held(rank)), *arrays[0].shape[1:]), arrays[0].dtype)
        for part in PARTS
        if deals[part].count
        for field, arrays in kept_rows.rows.items()
    }


def view_all_rows(source: Source, kept_rows: KeptRows) -> Arrays | None:
    """The rows of every part as views, if one rank has all of them contiguously; None otherwise."""
    parts = [part for part in PARTS if source.count_samples(part)]
    if len(kept_rows.counts) > 1 or any(len(arrays) != 1 for arrays in kept_rows.rows.values()):
        return None
    if not all(source.split.is_contiguous(part) for part in parts):
        return None
    views = {}
    for part in parts:
        rows = source.find_rows(part, range(source.count_samples(part)))[1]
        for field, (array,) in kept_rows.rows.items():
            views[part, field] = array[rows.start : rows.stop]
    return views


def send_rows(
    source: Source, deals: Mapping[str, Deal], rank: int, kept_rows: KeptRows, targets: Arrays, communicator: Any
) -> None:
    """Send every rank's `kept_rows` to the ranks of `deals`, and fill `targets` with this rank's rows. Collective.

    Rows are freed as they are sent, so that a rank never holds much more than its own rows.
    """
    size = len(kept_rows.counts)
    other_ranks = [other_rank for other_rank in range(size) if other_rank != rank]
    parts = [part for part in PARTS if deals[part].count]
    # By rank and part.
    needed_rows = [
        {part: _NeededRows(source, part, deals[part], other_rank) for part in parts} for other_rank in range(size)
    ]
    starts = np.concatenate([[0], np.cumsum(kept_rows.counts)]).tolist()  # the first row of each rank in the file
    row_bytes = max(1, sum(_count_row_bytes(arrays[0]) for arrays in kept_rows.rows.values()))
    # The rows of a round; the rank with the most rows determines the number of rounds.
    step = max(_ROUND_BYTES // row_bytes, max(kept_rows.counts) // _ROUNDS)
    step = max(1, min(step, _MOST_BYTES // (row_bytes * size)))
    for round_number in range(-(-max(kept_rows.counts) // step)):
        # `ranges`: the rows of the file that each rank gives away in this round. From its own range, a rank keeps the
        # rows that it needs, and sends rows that others need. From the ranges of others, it receives rows.
        ranges = [
            _find_range(starts[other_rank], kept_rows.counts[other_rank], step, round_number)
            for other_rank in range(size)
        ]
        first, end = ranges[rank]
        own_spans = _find_all_between(needed_rows[rank], first, end)
        sent_spans = {other_rank: _find_all_between(needed_rows[other_rank], first, end) for other_rank in other_ranks}
        received_spans = {
            other_rank: _find_all_between(needed_rows[rank], *ranges[other_rank]) for other_rank in other_ranks
        }
        for field, arrays in kept_rows.rows.items():
            given_rows = _slice_arrays(arrays, first - starts[rank], end - starts[rank])
            for part, (start, stop) in own_spans.items():
                targets[part, field][start:stop] = _select_rows(
                    given_rows, needed_rows[rank][part].list_rows(start, stop) - first
                )
            if size > 1:
                _exchange_round(
                    given_rows, first, needed_rows, sent_spans, received_spans, field, targets, communicator
                )
            del given_rows  # it may be a view of the memory that `_shorten_arrays` frees
            _shorten_arrays(arrays, first - starts[rank])


def _find_range(start: int, count: int, step: int, round_number: int) -> tuple[int, int]:
    """(first, end) of the rows of the file that a rank gives away in a round: its last `step` remaining rows."""
    remaining = max(0, count - round_number * step)
    return start + max(0, remaining - step), start + remaining


def _find_all_between(needed_rows: Mapping[str, _NeededRows], first: int, end: int) -> Spans:
    """`find_between` of each part, without parts that have no such rows."""
    spans = {part: part_rows.find_between(first, end) for part, part_rows in needed_rows.items() if end > first}
    return {part: (start, stop) for part, (start, stop) in spans.items() if stop > start}


def _slice_arrays(arrays: Sequence[np.ndarray], start: int, stop: int) -> np.ndarray:
    """Rows `start` to `stop` of the concatenation of `arrays`; a view if they are rows of one array."""
    pieces = [arrays[index][first:last] for index, first, last in split_range(map(len, arrays), start, stop)]
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces) if pieces else arrays[0][:0]


def _shorten_arrays(arrays: list[np.ndarray], rows: int) -> None:
    """Free the memory after the first `rows` rows. No other references to the arrays may exist."""
    total = sum(map(len, arrays))
    # Drop arrays of which no row stays, but keep one for dtype and shape; then shorten the last one.
    while total > rows and len(arrays) > 1 and total - len(arrays[-1]) >= rows:
        total -= len(arrays.pop())
    if total > rows:
        arrays[-1].resize((len(arrays[-1]) - (total - rows), *arrays[-1].shape[1:]), refcheck=False)


def _exchange_round(
    given_rows: np.ndarray,
    first_row: int,
    needed_rows: Sequence[Mapping[str, _NeededRows]],
    sent_spans: Mapping[int, Spans],
    received_spans: Mapping[int, Spans],
    field: str,
    targets: Arrays,
    communicator: Any,
) -> None:
    """One round for one field: send the other ranks their rows of `given_rows`, which begin at row `first_row` of the
    file.

    Args:
        needed_rows: the rows that each rank needs, by rank and part.
        sent_spans: for each other rank, the rows that this rank sends to it, as indices of that rank's own rows.
        received_spans: for each other rank, the rows that it sends to this rank, as indices of this rank's own rows.
    """
    # By rank; a rank sends nothing to itself.
    sent_bytes, received_bytes = [0] * len(needed_rows), [0] * len(needed_rows)
    pieces = [np.empty(0, np.uint8)]
    for other_rank, spans in sent_spans.items():
        for part, (start, stop) in spans.items():
            pieces.append(
                _view_bytes(_select_rows(given_rows, needed_rows[other_rank][part].list_rows(start, stop) - first_row))
            )
            sent_bytes[other_rank] += len(pieces[-1])
    outgoing = np.concatenate(pieces)
    del pieces
    for other_rank, spans in received_spans.items():
        received_bytes[other_rank] = _count_row_bytes(given_rows) * sum(stop - start for start, stop in spans.values())
    incoming = np.empty(sum(received_bytes), np.uint8)
    communicator.Alltoallv([outgoing, sent_bytes], [incoming, received_bytes])
    offset = 0
    for spans in received_spans.values():
        for part, (start, stop) in spans.items():
            target = targets[part, field][start:stop]
            target[...] = incoming[offset : offset + target.nbytes].view(given_rows.dtype).reshape(target.shape)
            offset += target.nbytes


def _select_rows(rows: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Select rows; a view if they are contiguous."""
    if len(indices) and indices[-1] - indices[0] + 1 == len(indices):
        return rows[int(indices[0]) : int(indices[-1]) + 1]
    return rows[indices]


def _count_row_bytes(rows: np.ndarray) -> int:
    return rows.dtype.itemsize * int(np.prod(rows.shape[1:], dtype=np.int64))


def _view_bytes(rows: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.asarray(rows)).reshape(-1).view(np.uint8)
