"""DataSet: the one line that gives each rank its share of the data on disk."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from typing import Any

import numpy as np

from matex_tf import sharding, world
from matex_tf.readers.agreement import on_all_ranks
from matex_tf.readers.formats import Format, ReaderError, open_format


class DataSet:
    """A data set on disk, of which this rank reads, decodes and holds only its share.

        data = DataSet("MNIST", "examples/data/mnist")
        model.fit(data.training_data, data.training_labels, batch_size=128)

    `format` is the name of a registered format ("MNIST"), `path` its folder or file. `normalize=True` gives integer
    data as float32, divided by the largest value of their type (uint8: 0 to 1); labels, and data stored as floats,
    are left as stored. `rank` and `size` choose the share by hand, for use without mpirun; then nothing is asked of
    other ranks. Further options are the format's own.

    Shares are contiguous blocks of rows, balanced to one row. Files are opened and checked at once; data and labels
    are read at their first use. Both are collective under mpirun: every rank does them at the same place in the
    script, and an error on one rank is raised on all. Raises FileNotFoundError, ReaderError (file, expected, found),
    and ValueError for an unknown format.
    """

    def __init__(
        self,
        format: str,
        path: str | PathLike,
        *,
        normalize: bool = False,
        rank: int | None = None,
        size: int | None = None,
        **options: Any,
    ):
        self._name = f"DataSet({format!r}, {str(path)!r})"
        self._alone = rank is not None or size is not None
        self._normalize = normalize
        here = world.World() if self._alone else world.current()
        self.rank = here.rank if rank is None else rank
        self.size = here.size if size is None else size
        if not 0 <= self.rank < self.size:
            raise ValueError(f"{self._name}: rank has to be 0 to size - 1; given rank={self.rank}, size={self.size}")
        self._format: Format = self._together(
            lambda: self._open(format, path, options), f"opening {self._name}", lambda opened: opened.describe()
        )
        self._held: dict[tuple[str, str], np.ndarray] = {}
        self._taken = 0

    def _open(self, name: str, path: str | PathLike, options: dict[str, Any]) -> Format:
        opened = open_format(name, path, options)
        if opened.count("training") < 1:
            raise ReaderError(f"{self._name}: expected at least one training row, found none")
        return opened

    def _together(self, action: Callable[[], Any], what: str, describe: Callable[[Any], str] | None = None) -> Any:
        return action() if self._alone else on_all_ranks(action, what, describe)

    @property
    def training_data(self) -> sharding.ShareArray:
        """This rank's rows of the training data."""
        return self._share("training", "data")

    @property
    def training_labels(self) -> sharding.ShareArray:
        """The labels of `training_data`."""
        return self._share("training", "labels")

    @property
    def testing_data(self) -> sharding.ShareArray:
        """This rank's rows of the testing data."""
        return self._share("testing", "data")

    @property
    def testing_labels(self) -> sharding.ShareArray:
        """The labels of `testing_data`."""
        return self._share("testing", "labels")

    @property
    def global_size(self) -> int:
        """The number of training rows of all ranks."""
        return self._format.count("training")

    @property
    def local_slice(self) -> slice:
        """Which of the `global_size` training rows are this rank's."""
        return slice(*self._bounds("training", self.rank))

    def next_train_batch(self, n: int) -> tuple[sharding.ShareArray, sharding.ShareArray]:
        """(data, labels) of this rank's rows of the next global batch of `n` training rows.

        Every row is used once an epoch; the last batch of an epoch has the rows that are left, and the next call
        begins the next epoch. A rank takes its own rows in order, in proportion to what it holds. A rank that has
        none in a step (n is less than the number of ranks) gets one row, which counts for nothing in the gradient.
        """
        if n < 1:
            raise ValueError(f"next_train_batch: expected a batch of 1 row or more; given {n}")
        counts = [stop - start for start, stop in (self._bounds("training", rank) for rank in range(self.size))]
        total = self.global_size
        first, last = self._taken, min(self._taken + n, total)
        start, stop = (sharding.share_rows_taken(counts, rows)[self.rank] for rows in (first, last))
        rows = slice(start, stop) if stop > start else slice(0, 1)
        batch = tuple(sharding.as_share(self._hold("training", field)[rows]) for field in ("data", "labels"))
        self._taken = last % total
        if not self._alone and world.is_active():
            from matex_tf import steps

            steps.announce_rows(stop - start, last - first)
        return batch  # type: ignore[return-value]

    def _bounds(self, part: str, rank: int) -> tuple[int, int]:
        return sharding.rows_of(self._format.count(part), rank, self.size)

    def _share(self, part: str, field: str) -> sharding.ShareArray:
        start, stop = self._bounds(part, self.rank)
        return self._hold(part, field)[: stop - start]  # type: ignore[return-value]

    def _hold(self, part: str, field: str) -> np.ndarray:
        """This rank's rows, read at the first use; a rank without any has the first of all, for weight 0."""
        if (part, field) not in self._held:
            start, stop = self._bounds(part, self.rank)
            if stop == start:
                start, stop = 0, 1
            rows = self._together(
                lambda: self._read(part, field, start, stop), f"reading {part}_{field} of {self._name}"
            )
            self._held[part, field] = rows
        return self._held[part, field]

    def _read(self, part: str, field: str, start: int, stop: int) -> np.ndarray:
        rows = sharding.as_share(self._format.read(part, field, start, stop))
        if self._normalize and field == "data" and np.issubdtype(rows.dtype, np.integer):
            largest = np.iinfo(rows.dtype).max
            rows = rows.astype(np.float32)
            rows /= np.float32(largest)
        return rows

    def __repr__(self) -> str:
        rows = self.local_slice
        return (
            f"{self._name}: {self.global_size} training and {self._format.count('testing')} testing rows, "
            f"rank {self.rank} of {self.size} holds training rows {rows.start} to {rows.stop}"
        )
