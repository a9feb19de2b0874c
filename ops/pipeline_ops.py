"""Ops of dataset pipelines: the rows of a batch that this rank computes, and the position of a seed generator."""

from __future__ import annotations

from typing import Any, NamedTuple

from .library import get_library


class RankRows(NamedTuple):
    """The rows of a batch that this rank computes. All fields are scalar tensors."""

    first: Any  # int64: the first row
    count: Any  # int64: the number of rows
    total: Any  # int64: the rows of the whole batch
    has_rows: Any  # bool: whether the rank has rows of a divided batch; if not, it computes the first row in vain


def deal_rows(counts: Any, dealt: Any) -> RankRows:
    """This rank's rows of a batch, equal to `sharding/slice_bounds.find_slice_bounds`.

    Args:
        counts: int64 tensor of shape [k]: the number of rows of each component of the batch. If these numbers differ,
            or if batches are not divided, the rank computes all rows. `total` is the number of the first component.
        dealt: int64 tensor of shape [2 + ranks]: whether batches are divided (0 or 1), the number of this rank, and the
            share of each rank.
    """
    return RankRows(*get_library().ops.matex_deal_rows(counts=counts, dealt=dealt))


def seek_seeds(generator: Any, drawn: Any = -1) -> Any:
    """Read or set the position of the seed generator of a shuffled dataset. Returns the position, an int64 scalar.

    The generator draws seeds for each pass over the data. Its position is the number of values that it has drawn: it is
    saved with a run, and set in a continued run.

    drawn: the position to set; -1: the position stays.
    """
    return get_library().ops.matex_seek_seeds(generator=generator, drawn=drawn)
