"""Which rows of a batch a rank makes, dealt by an op: a pipeline deals them for each batch."""

from __future__ import annotations

from typing import Any, NamedTuple

from .library import get_library


class Dealt(NamedTuple):
    """Scalar tensors: the first row and how many, of how many in all (int64), and whether the rank has any (bool)."""

    first: Any
    count: Any
    total: Any
    has_rows: Any


def deal_rows(counts: Any, dealt: Any) -> Dealt:
    """This rank's rows of a batch, as `sharding/slice_bounds.find_slice_bounds` finds them.

    Args:
        counts: int64 tensor of shape [k], how many rows each of the batch's components has. Where these differ, or
            batches are made whole, the rank has all rows; `total` is the number of the first component.
        dealt: int64 tensor of shape [2 + ranks]: 0 for whole batches or 1, the rank, and the share of each rank.
    """
    return Dealt(*get_library().ops.matex_deal_rows(counts=counts, dealt=dealt))
