"""DataSet, the public class of the readers: gives each rank its shard of the data on disk.

A part is "training", "validation" or "testing"; a field is "data" or "labels". `rows/opening.py` opens the files,
`rows/loaded_rows.py` has the arrays of this rank, and `rows/streaming.py` reads while a dataset is iterated. A `Deal`
(`rows/layout.py`) says which rows of a part each rank has. `Together` runs a function on all ranks, and raises an error
of one rank on all.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any

import numpy as np

from matex_tf import arguments
from matex_tf.readers.base.agreement import Together
from matex_tf.readers.base.formats import FIELDS, PARTS, Ranks
from matex_tf.readers.rows import batches, loaded_rows, opening, scaling, streaming
from matex_tf.readers.rows import missing as missing_values
from matex_tf.readers.rows.layout import Deal
from matex_tf.readers.rows.samples import Source
from matex_tf.sharding import exchange, shard_arrays, slice_bounds
from matex_tf.world import world

Batch = tuple[np.ndarray, "np.ndarray | None"]


class DataSet:
    """A data set on disk, of which this rank reads, decodes and holds only its shard.

        data = DataSet("NETCDF", "run_*.nc", data="t2m", labels="label", validation_fraction=0.1)
        model.fit(data.training_data, data.training_labels, batch_size=128)

    `format` is the name of a registered format ("NETCDF", "HDF5", "ZARR", "CSV", "PARQUET", "TFRECORD", "MNIST",
    "CIFAR10", "CIFAR100", or your own) and `path` its file or folder, a pattern, or a list; the path alone will do
    where the files tell their format. Further options are the format's own.

    Args:
        normalize: True gives integer data as float32 divided by the largest value of their type (uint8: 0 to 1) and
            leaves others; "standard" gives mean 0 and deviation 1 over all training rows (by column, for tables).
        missing: treatment of missing values: "error", "nan", or a number that replaces them.
        validation_fraction, test_fraction: cut from the rows: the same rows whatever the number of ranks.
        split: "last", the last rows of the file, or "spread", rows at equal distances in it.
        window, horizon: a sample is `window` consecutive rows, its label the `horizon` rows that follow.
        distribution: "block" (contiguous rows), "cyclic" (row i to rank i mod size), or "batch" with `batch_size`:
            each step of an unshuffled run has the rows of the single-process run.
        reshuffle: "epoch" exchanges rows between the ranks from epoch to epoch, by `seed`.
        rank, size: the shard by hand, for use without a launcher; then ranks do not communicate.

    Opening and the first use of data and labels are collective under mpirun: every rank does them at the same place in
    the script, and an error on one rank is raised on all. Raises FileNotFoundError, ReaderError (file, place, expected,
    found), and ValueError or TypeError for arguments that are wrong.
    """

    def __init__(
        self,
        format: str | PathLike[str] | Sequence[Any],
        path: str | PathLike[str] | Sequence[Any] | None = None,
        *,
        normalize: bool | str = False,
        missing: str | float = "error",
        validation_fraction: float = 0.0,
        test_fraction: float = 0.0,
        split: str = "last",
        window: int | None = None,
        horizon: int = 1,
        distribution: str = "block",
        batch_size: int | None = None,
        reshuffle: str | None = None,
        seed: int = 0,
        rank: int | None = None,
        size: int | None = None,
        **options: Any,
    ):
        self._name = f"DataSet({str(format)!r})" if path is None else f"DataSet({format!r}, {str(path)!r})"
        self._alone = rank is not None or size is not None  # the script divides the rows without other ranks
        current_world = world.World() if self._alone else world.get_world()
        self.rank = current_world.rank if rank is None else rank
        self.size = current_world.size if size is None else size
        opening.check_share(self._name, self.rank, self.size)
        self._together = Together(self._alone)

        def check_arguments() -> str:
            missing_values.check_missing(missing)
            opening.check_arguments(normalize, window, horizon, reshuffle, distribution, seed)
            Deal(1, self.size, distribution, batch_size)  # raises for invalid arguments
            if self._alone:
                opening.check_alone(options.get("parallel"), reshuffle, self.size)
            return f"{normalize=}, {missing=}, {distribution=}, {batch_size=}, {reshuffle=}, {seed=}"

        self._together(check_arguments, self._name, describe=str, difference="have different arguments")
        self._normalize = normalize
        self._order_seed = seed if reshuffle else None
        self._reshuffle_seed = self._order_seed if self.size > 1 else None  # one rank exchanges no rows
        ranks = (
            Ranks()
            if self._alone
            else Ranks(current_world.rank, current_world.size, current_world.hosts or [current_world.host])
        )
        cut = opening.Cut((validation_fraction, test_fraction, split), window, horizon)
        self._source: Source = opening.open_source(
            self._name, format, path, options, missing, cut, ranks, self.size, self._together
        )
        self._deals: dict[str, Deal] = {}
        server_count = current_world.servers  # the number of ranks that compute no rows
        for part in PARTS:
            # distribution="batch", the only one with a batch_size, is for training.
            is_batch_kept = part == "training" or batch_size is None
            part_distribution = (distribution, batch_size) if is_batch_kept else ("block", None)
            self._deals[part] = Deal(self._source.count_samples(part), self.size, *part_distribution, server_count)
        self._rows = loaded_rows.LoadedRows(
            self._name, self._source, self._deals, self.rank, ranks, normalize, self._together
        )
        self._cursors = {part: batches.BatchCursor(deal, self.rank) for part, deal in self._deals.items()}

    @property
    def training_data(self) -> shard_arrays.ShardArray:
        """This rank's rows of the training data."""
        return self._make_shard("training", "data")

    @property
    def training_labels(self) -> shard_arrays.ShardArray:
        """The labels of `training_data`."""
        return self._make_shard("training", "labels")

    @property
    def validation_data(self) -> shard_arrays.ShardArray:
        """This rank's rows of the validation data."""
        return self._make_shard("validation", "data")

    @property
    def validation_labels(self) -> shard_arrays.ShardArray:
        """The labels of `validation_data`."""
        return self._make_shard("validation", "labels")

    @property
    def testing_data(self) -> shard_arrays.ShardArray:
        """This rank's rows of the testing data."""
        return self._make_shard("testing", "data")

    @property
    def testing_labels(self) -> shard_arrays.ShardArray:
        """The labels of `testing_data`."""
        return self._make_shard("testing", "labels")

    @property
    def global_size(self) -> int:
        """The number of training rows of all ranks."""
        return self._source.count_samples("training")

    @property
    def local_slice(self) -> slice | np.ndarray:
        """The numbers of this rank's training rows, of `global_size`: a slice, or an array for "batch"."""
        return self._deals["training"].find_local(self.rank)

    @property
    def categories(self) -> dict[str, list[str]]:
        """The values of each text column, in the order of their integers."""
        return dict(self._source.format.categories)

    @property
    def scaling(self) -> scaling.Standard | None:
        """With normalize="standard", the mean and the deviation of the training data; collective at first use."""
        return self._rows.set_scale() if self._normalize == "standard" else None

    def next_train_batch(self, n: int) -> Batch:
        """The next global batch of `n` training rows, on every rank. Collective.

        Every row is used once per epoch; the last batch of an epoch may be smaller. With `rank=` and `size=` a batch
        has only the rows of that rank, at least one.

        Returns:
            (data, labels): the rows of rank 0 first, each rank's in order and in proportion to its number of rows.
            Labels are None for data without labels.
        """
        return self._take_next("next_train_batch", "training", n)

    def next_validation_batch(self, n: int) -> Batch:
        """The next global batch of `n` validation rows, as `next_train_batch`."""
        return self._take_next("next_validation_batch", "validation", n)

    def next_test_batch(self, n: int) -> Batch:
        """The next global batch of `n` testing rows, as `next_train_batch`."""
        return self._take_next("next_test_batch", "testing", n)

    def as_dataset(
        self,
        batch_size: int | None = None,
        *,
        shuffle: bool = False,
        seed: int | None = None,
        part: str = "training",
    ) -> Any:
        """Stream the data from disk: this rank's slice of each global batch. Collective.

        Some blocks of 8 MiB are in memory at a time, and the next batches are read while a step computes. With
        reshuffle="epoch" ranks read other blocks in each epoch. Eager code that iterates the dataset sees the rows of
        all ranks.

        Args:
            batch_size: rows of a global batch.
            shuffle: another order in each epoch: blocks in random order, rows mixed among four of them. With
                distribution="batch" batches are reordered instead, equally on all ranks, so the loss curve equals the
                curve of the single-process run.
            seed: of the order. With reshuffle="epoch" it is by default the seed of the data set, otherwise random.
            part: "training", "validation" or "testing".

        Returns:
            A `tf.data.Dataset` of (data, labels).
        """

        def choose_batch_size() -> int:
            self._require_part(part)
            arguments.check_flag("as_dataset", "shuffle", shuffle)
            if seed is not None:
                arguments.check_whole_number("as_dataset", "seed", seed, 0)
            rows = batch_size if batch_size is not None else self._deals[part].batch_size or 32
            return batches.check_rows("as_dataset", self._deals[part], rows)

        batch_size = self._together(
            choose_batch_size,
            f"as_dataset of {self._name}",
            describe=lambda rows: f"batch_size={rows}, {part=}, {shuffle=}, {seed=}",
            difference="have different arguments",
        )
        deal = self._deals[part]
        activity = f"streaming from {self._name}"
        is_redealt = self._reshuffle_seed is not None and part == "training"  # in each epoch, ranks read other blocks
        if seed is None and part == "training":
            seed = self._order_seed
        if seed is None:
            seeds = self._together.gather(lambda: int(np.random.SeedSequence().generate_state(1)[0]), activity)
            seed = seeds[0]  # of rank 0
        # Rows that were read in opening are in memory. If ranks exchange blocks, they read the files instead.
        order = streaming.Order(
            deal, self.rank, shuffle, seed, is_redealt, in_memory=self._rows.were_read_in_opening and not is_redealt
        )
        if order.in_memory:
            source = streaming.Memory([self._rows.get_rows(part, field) for field in self._list_fields()])
            return streaming.make_stream(source, part, order, batch_size, source.row_bytes, alone=self._alone)
        row_bytes = self._together.gather(
            lambda: sum(self._source.count_row_bytes(part, field) for field in self._list_fields()), activity
        )
        self._rows.set_scale()
        return streaming.make_stream(self._source, part, order, batch_size, max(row_bytes), alone=self._alone)

    def _take_next(self, name: str, part: str, batch_rows: int) -> Batch:
        self._require_part(part)
        self._refuse_moving_windows(part)
        deal, cursor = self._deals[part], self._cursors[part]
        batch_rows = batches.check_rows(name, deal, batch_rows)
        arrays = [self._rows.get_rows(part, field) for field in self._list_fields()]
        if part == "training" and self._reshuffle_seed is not None:
            cursor.exchange_rows(arrays, self._reshuffle_seed)
        own_rows = cursor.take_next(batch_rows)
        if not self._alone and world.is_active():
            batch = exchange.join_rows([array[own_rows] for array in arrays], f"the rows of {name} of {self._name}")
        else:
            # A rank without rows in this batch returns the first row, because a batch has at least one row.
            at_least_one = own_rows if own_rows.stop > own_rows.start else slice(0, 1)
            batch = [shard_arrays.as_shard(array[at_least_one]) for array in arrays]
        return batch[0], batch[1] if len(batch) > 1 else None

    def _refuse_moving_windows(self, part: str) -> None:
        """Raises ValueError if samples that would move between ranks are windows, which are views of shared rows."""
        if part == "training" and self._reshuffle_seed is not None and self._source.window is not None:
            raise ValueError(
                f'{self._name}: windows share their rows and cannot be exchanged (reshuffle="epoch"); as_dataset reads '
                "them again from disk"
            )

    def _list_fields(self) -> tuple[str, ...]:
        return FIELDS if self._source.labelled else FIELDS[:1]

    def _require_part(self, part: str, field: str = "data") -> None:
        """Raises ValueError if the data set has no such rows or labels."""
        arguments.check_choice(self._name, "part", part, PARTS)
        if not self._source.count_samples(part):
            option = {"validation": "validation_fraction", "testing": "test_fraction"}[part]
            raise ValueError(f"{self._name} has no {part} rows; {option}= cuts some from the file's")
        if field == "labels" and not self._source.labelled:
            raise ValueError(f"{self._name} has no labels; labels= names them")

    def _make_shard(self, part: str, field: str) -> shard_arrays.ShardArray:
        self._require_part(part, field)
        self._refuse_moving_windows(part)
        deal = self._deals[part]
        shard = self._rows.get_rows(part, field)[: deal.count_held(self.rank)].view(shard_arrays.ShardArray)
        if part == "training":  # tells training steps whether the rows are slices of batches, and move between ranks
            shard.dealt = shard_arrays.Dealt(deal.batch_size, self._reshuffle_seed)
        return shard

    def __repr__(self) -> str:
        deal = self._deals["training"]
        part_counts = [(part, self._source.count_samples(part)) for part in PARTS]
        rows = " and ".join(f"{count} {part}" for part, count in part_counts if count)
        held_count = deal.count_held(self.rank)
        if deal.distribution == "block":
            start, stop = slice_bounds.deal_block(deal.count, self.rank, deal.size)
            held_rows = f"training rows {start} to {stop}"
        elif deal.distribution == "cyclic":
            held_rows = f"{held_count} training rows, one in {deal.size} from row {self.rank} on"
        else:
            held_rows = f"{held_count} training rows, its slices of batches of {deal.batch_size}"
        return f"{self._name}: {rows} rows, rank {self.rank} of {self.size} holds {held_rows}"
