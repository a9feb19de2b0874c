"""This rank's rows of each part of a data set, in memory: read at their first use, or while the data set is opened.

A part is "training", "validation" or "testing", a field "data" or "labels". `DataSet` calls this module for its arrays
and batches; streams read by themselves (`streaming.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from matex_tf.readers.base.agreement import Together
from matex_tf.readers.base.formats import FIELDS, Ranks
from matex_tf.readers.rows import redistribute, scaling
from matex_tf.readers.rows.layout import Deal
from matex_tf.readers.rows.samples import Source
from matex_tf.sharding import shard_arrays, slice_bounds
from matex_tf.world import world


class LoadedRows:
    """The rows of every part and field of `source` that `deals` assign to rank `rank`.

    At its first use, `get_rows` finishes the rows that were read during opening; if there are none, it reads the files.

    Args:
        ranks: the ranks that read the files together; only this process, if the script has given rank= or size=.
        together: runs an action on every rank, and raises its error on all ranks.
    """

    def __init__(
        self,
        name: str,
        source: Source,
        deals: dict[str, Deal],
        rank: int,
        ranks: Ranks,
        normalize: bool | str,
        together: Together,
    ):
        self._name, self._source, self._deals, self._rank, self._ranks = name, source, deals, rank, ranks
        self._normalize, self._together = normalize, together
        self._finished: dict[tuple[str, str], np.ndarray] = {}
        # Rows that were read during opening. They are neither scaled nor searched for missing values yet.
        self._unfinished: dict[tuple[str, str], np.ndarray] = self._take_kept_rows()
        self.were_read_in_opening = bool(self._unfinished)

    def _take_kept_rows(self) -> dict[tuple[str, str], np.ndarray]:
        """This rank's rows of every part and field, if rows were read during opening; {} otherwise. Collective."""
        source = self._source
        # The format gives up the rows, because `send_rows` frees the rows that it has sent.
        kept_rows, source.format.kept = source.format.kept, None
        if kept_rows is None:
            return {}
        arrays = redistribute.view_all_rows(source, kept_rows)
        if arrays is not None:  # there is one rank, and its parts are ranges of the rows that it has read
            return arrays
        activity = f"distributing the rows of {self._name}"
        arrays = self._together(lambda: redistribute.allot_arrays(self._deals, self._rank, kept_rows), activity)
        communicator = world.get_communicator("readers") if self._ranks.size > 1 else None
        redistribute.send_rows(source, self._deals, self._rank, kept_rows, arrays, communicator)
        return arrays

    def get_rows(self, part: str, field: str) -> np.ndarray:
        """This rank's rows, read at the first use; a rank without rows gets the first row, to use with weight 0."""
        if (part, field) not in self._finished:
            positions = self._list_positions(part)
            self.set_scale()
            activity = f"reading {part}_{field} of {self._name}"
            if self.were_read_in_opening:
                rows = self._together(lambda: self._source.scale_rows(field, self._finish_rows(part, field)), activity)
                self._finished[part, field] = shard_arrays.as_shard(rows)
                del self._unfinished[part, field]
            elif self._source.window is not None and not self._source.format.labelled:
                # Labels are later rows of the data, so data and labels are views of the same rows.
                data_and_labels = self._read_together(lambda: self._source.read_both(part, positions), activity)
                self._finished.update(
                    {(part, name): shard_arrays.as_shard(rows) for name, rows in zip(FIELDS, data_and_labels)}
                )
            else:
                rows = self._read_together(lambda: self._source.read_samples(part, field, positions), activity)
                self._finished[part, field] = shard_arrays.as_shard(rows)
        return self._finished[part, field]

    def _read_together(self, action: Callable[[], Any], activity: str) -> Any:
        return self._together(lambda: self._source.format.read_together(action), activity)

    def _finish_rows(self, part: str, field: str) -> np.ndarray:
        """Rows that were read during opening, with missing values replaced."""
        rows = self._unfinished[part, field]
        self._source.replace_missing(part, field, rows, self._list_positions(part))
        return rows

    def _list_positions(self, part: str) -> Any:
        """The positions of this rank's rows in the part; the first position if it has no rows."""
        deal = self._deals[part]
        count = deal.count_held(self._rank)
        return deal.list_positions(self._rank, 0, count) if count else range(1)

    def set_scale(self) -> Any:
        """Set and return the function that scales data; for "standard" from the moments of all ranks. Collective."""
        source = self._source
        if source.scale is None and self._normalize:
            if self._normalize == "standard":
                moments = self._together.gather(self._compute_moments, f"scaling the data of {self._name}")
                source.scale = scaling.make_standard(moments)
            else:
                source.scale = scaling.scale_by_type
        return source.scale

    def _compute_moments(self) -> Any:
        """The moments of this rank's slice of the training rows."""
        if self.were_read_in_opening:
            own_rows = self._finish_rows("training", "data")[: self._deals["training"].count_held(self._rank)]
            return scaling.compute_moments_in_pieces(own_rows)
        count = self._source.count_training_rows()
        return self._source.compute_training_moments(
            *slice_bounds.deal_block(count, self._ranks.rank, self._ranks.size)
        )
