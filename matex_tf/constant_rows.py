"""Tensors with as many rows as the whole batch, that meet a rank's slice of it in eager code.

A script may make labels, noise or masks for a batch by a constant (`tf.ones((BATCH_SIZE, 1))`). Where such a tensor
meets one with the rows of the slice, row by row, its rows are those of the batch, of which this rank has its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from matex_tf import output, steps


def aligned(parts: Sequence[Any], repeats: bool) -> list[Any]:
    """`parts`, eager tensors that an operation takes row by row, with those of the whole batch cut to this rank's rows.

    Unchanged where no slice is being worked on, or where all or none of them have its rows. `repeats`: the operation
    would repeat a single row, or what has fewer dimensions, so that only what it would refuse is cut.
    """
    now = steps.current_slice()
    if now is None:
        return list(parts)
    times = [_batches_in(part, now) for part in parts]
    of_slice = [rows for rows in map(_rows, parts) if _is_of_slice(rows, now, times)]
    if not of_slice:
        return list(parts)
    if repeats:
        if len({len(part.shape) for part in parts if _rows(part) is not None}) > 1:
            return list(parts)
        if 1 in now.sizes:
            output.note(
                "a tensor with as many rows as the batch meets a rank's slice of a single row, which is repeated: "
                "the result is not exact. Larger batches, or fewer ranks, are cut row by row"
            )
            return list(parts)
    # Two slices below one another may have as many rows as the batch: what has the rows already is not cut.
    wanted, size = min(of_slice), now.stop - now.start
    fits = [number > 0 and _rows(part) != wanted == number * size for part, number in zip(parts, times)]
    return [_cut(part, number, now) if fit else part for part, number, fit in zip(parts, times, fits)]


def joined(parts: Sequence[Any], axis: Any) -> list[Any]:
    """`aligned` for tensors that are joined along `axis`: beside one another, or one batch below another."""
    now = steps.current_slice()
    if now is None or axis != 0:
        return aligned(parts, repeats=False)
    shapes = [getattr(part, "shape", ()) for part in parts]
    # Vectors that are put together are parameters as often as rows.
    rows = len({tuple(shape[1:]) for shape in shapes}) == 1 and len(shapes[0]) > 1 and 1 not in now.sizes
    return aligned(parts, repeats=False) if rows else list(parts)


def _rows(part: Any) -> int | None:
    """The rows of an eager tensor or array; None for anything else, such as a variable."""
    if not isinstance(part, np.ndarray) and (not hasattr(part, "numpy") or hasattr(part, "assign")):
        return None
    shape = getattr(part, "shape", ())
    return int(shape[0]) if len(shape) else None


def _batches_in(part: Any, now: steps.Slice) -> int:
    """How many whole batches stand below one another in `part` (one, or several that were joined); 0 for none."""
    rows = _rows(part)
    size = now.stop - now.start
    if not rows or now.of_rows == size or rows % now.of_rows:
        return 0
    return rows // now.of_rows


def _is_of_slice(rows: int | None, now: steps.Slice, times: Sequence[int]) -> bool:
    """Whether a tensor of so many rows stands for as many slices as another of the parts does for batches."""
    return rows is not None and any(number and rows == number * (now.stop - now.start) for number in times)


def _cut(part: Any, times: int, now: steps.Slice) -> Any:
    if times == 1:
        return part[now.start : now.stop]
    import tensorflow as tf

    blocks = tf.reshape(part, [times, now.of_rows, *part.shape[1:]])[:, now.start : now.stop]
    return tf.reshape(blocks, [times * (now.stop - now.start), *part.shape[1:]])
