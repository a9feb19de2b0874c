"""This rank's rows of each part of a data set, in memory: read at their first use, or while the data set is opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from matex_tf.readers.base.formats import FIELDS
from matex_tf.readers.rows import redistribute, scaling
from matex_tf.readers.rows.layout import Deal
from matex_tf.readers.rows.samples import Source
from matex_tf.sharding import shard_arrays, slice_bounds
from matex_tf.world import world


@dataclass(frozen=True)
class Shard:
    """This process reads the rows of rank `rank` of `size` ranks. `alone`: given by the script, so no rank
    communicates.
    """

    rank: int
    size: int
    alone: bool


class HeldRows:
    """This rank's rows of every part and field of `source`, assigned by `deals`.

    `together(action, doing)` runs an action on every rank, and raises on all ranks if it fails on one.
    """

    def __init__(
        self,
        name: str,
        source: Source,
        deals: dict[str, Deal],
        share: Shard,
        normalize: bool | str,
        together: Callable[..., Any],
    ):
        self._name, self._source, self._deals, self._share = name, source, deals, share
        self._normalize, self._together = normalize, together
        self._finished: dict[tuple[str, str], np.ndarray] = {}
        # Rows that were read during opening, before scaling and the search for missing values.
        self._unfinished: dict[tuple[str, str], np.ndarray] = self._allot_arrays()
        self.came_in_opening = bool(self._unfinished)

    def _allot_arrays(self) -> dict[tuple[str, str], np.ndarray]:
        """This rank's rows of every part and field, if they were read during opening; {} otherwise."""
        source = self._source
        held, source.format.held = source.format.held, None
        if held is None:
            return {}
        arrays = redistribute.take_whole(source, held)
        if arrays is not None:
            return arrays
        doing = f"distributing the rows of {self._name}"
        arrays = self._together(lambda: redistribute.allot_arrays(source, self._deals, self._share.rank, held), doing)
        communicator = world.get_communicator("readers") if self._share.size > 1 else None
        redistribute.send_rows(source, self._deals, self._share.rank, held, arrays, communicator)
        return arrays

    def get_rows(self, part: str, field: str) -> np.ndarray:
        """This rank's rows, read at the first use. A rank without rows gets the first row of all, for use with weight
        0.
        """
        if (part, field) not in self._finished:
            deal = self._deals[part]
            count = deal.count_held(self._share.rank)
            positions = self._list_positions(deal, 0, count) if count else range(1)
            self.set_scale()
            doing = f"reading {part}_{field} of {self._name}"
            if self.came_in_opening:
                rows = self._together(lambda: self._source.scale_rows(field, self._finish_rows(part, field)), doing)
                self._finished[part, field] = shard_arrays.as_shard(rows)
                del self._unfinished[part, field]
            elif self._source.window is not None and not self._source.format.labelled:
                both = self._read_together(lambda: self._source.read_both(part, positions), doing)
                self._finished.update({(part, name): shard_arrays.as_shard(rows) for name, rows in zip(FIELDS, both)})
            else:
                rows = self._read_together(lambda: self._source.read_samples(part, field, positions), doing)
                self._finished[part, field] = shard_arrays.as_shard(rows)
        return self._finished[part, field]

    def _read_together(self, action: Callable[[], Any], doing: str) -> Any:
        return self._together(lambda: self._source.format.together(action), doing)

    def _finish_rows(self, part: str, field: str) -> np.ndarray:
        """Rows that were read during opening, with missing values replaced."""
        rows, deal = self._unfinished[part, field], self._deals[part]
        count = deal.count_held(self._share.rank)
        self._source.settle_missing(part, field, rows, self._list_positions(deal, 0, count) if count else range(1))
        return rows

    def _list_positions(self, deal: Deal, start: int, stop: int) -> Any:
        if deal.distribution == "block":
            first = slice_bounds.deal_block(deal.count, self._share.rank, deal.size)[0]
            return range(first + start, first + stop)
        return deal.list_positions(self._share.rank, start, stop)

    def set_scale(self) -> Any:
        """Set and return the function that scales data. For "standard", each rank computes the sums of its rows.
        Collective.
        """
        source = self._source
        if source.scale is None and self._normalize:
            if self._normalize == "standard":
                sums: list[Any] = []
                self._together(self._compute_moments, f"scaling the data of {self._name}", into=sums)
                source.scale = scaling.make_standard(sums)
            else:
                source.scale = scaling.scale_by_type
        return source.scale

    def _compute_moments(self) -> Any:
        """The moments of this rank's slice of the training rows."""
        if self.came_in_opening:
            mine = self._finish_rows("training", "data")[: self._deals["training"].count_held(self._share.rank)]
            return scaling.compute_moments_in_pieces(mine)
        size, rank = (1, 0) if self._share.alone else (self._share.size, self._share.rank)
        return self._source.compute_training_moments(
            *slice_bounds.deal_block(self._source.count_training_rows(), rank, size)
        )
