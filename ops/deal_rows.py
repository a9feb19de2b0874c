"""The rows of a batch that this rank computes, as an op, for pipelines whose batches differ in size."""

from __future__ import annotations

from typing import Any, NamedTuple

from .library import get_library


class Dealt(NamedTuple):
    """Scalar tensors: first row, number of rows, rows of the whole batch (int64); whether the rank has rows (bool)."""

    first: Any
    count: Any
    total: Any
    has_rows: Any


def deal_rows(counts: Any, dealt: Any) -> Dealt:
    """This rank's rows of a batch, equal to `sharding/slice_bounds.find_slice_bounds`.

    Args:
        counts: int64 tensor of shape [k]: the number of rows of each component of the batch. If these differ, or if
            batches are whole, the rank has all rows; `total` is the number of the first component.
        dealt: int64 tensor of shape [2 + ranks]: 0 for whole batches or 1, the rank, and the share of each rank.
    """
    return Dealt(*get_library().ops.matex_deal_rows(counts=counts, dealt=dealt))
