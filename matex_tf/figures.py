"""Figures that eager code makes of its slice of a batch: those of the whole batch, where the script reads them.

An accuracy, a part of the loss, a loss computed anew to be printed: each is a mean or a sum over the rows of the slice.
When it is made, how it was made and what this rank's rows weigh is noted on the tensor. When the script reads it, the
ranks put their parts together, which takes no part in the step and costs nothing where nobody reads.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from matex_tf import control, losses, reductions, steps

_PART = "_matex_part"
_state = threading.local()


class Part(NamedTuple):
    """What a figure of this rank is of the whole: its kind, this rank's weights, and how much was reduced."""

    kind: str
    mean: float
    sum: float
    rows: int
    elements: int

    @property
    def weight(self) -> float:
        return self.sum if self.kind == "sum" else self.mean


def part_of(tensor: Any) -> Part | None:
    return getattr(tensor, _PART, None)


def pass_on(result: Any, part: Part) -> None:
    """Note that `result` depends on the rows as what it was made of does."""
    setattr(result, _PART, part)


@contextlib.contextmanager
def left_alone() -> Iterator[None]:
    """Within it figures are those of the slice: what is computed is put together by other means, such as a metric."""
    before = is_left_alone()
    _state.left_alone = True
    try:
        yield
    finally:
        _state.left_alone = before


def is_left_alone() -> bool:
    return getattr(_state, "left_alone", False) or threading.current_thread() is not threading.main_thread()


def note(result: Any, source: Any, axis: Any, kind: str) -> None:
    """Note what `result`, the eager tensor `source` reduced by a sum or mean, is of the rows of the current slice.

    A tensor with as many rows as the slice of any rank is taken for one of the batch, so that all ranks take the same
    ones; that it depends on the rows at all is seen when it is read, by comparing.
    """
    before = part_of(source)
    if before is not None:
        pass_on(result, before)
        return
    now = None if is_left_alone() else steps.current_slice()
    shape = getattr(source, "shape", ())
    if now is None or not removes_rows(axis, len(shape)) or int(shape[0]) not in now.sizes:
        return
    pass_on(result, Part(kind, now.mean, now.sum, int(shape[0]), int(np.prod(shape))))


def removes_rows(axis: Any, rank: int) -> bool:
    """Whether a reduction over `axis` of something with `rank` dimensions removes the first of them."""
    if rank == 0:
        return False
    if axis is None:
        return True
    axes = axis if isinstance(axis, (list, tuple)) else [axis]
    return any(isinstance(one, (int, np.integer)) and int(one) % rank == 0 for one in axes)


def total(tensor: Any) -> Any:
    """What the scalar `tensor` is over the whole batch, or None where it is no figure of a slice. Collective.

    Where all ranks have the same bits it does not come from the rows and is as it should be; but for sums of whole
    numbers, counts, which may well agree.
    """
    part = part_of(tensor)
    if part is None or is_left_alone() or not hasattr(tensor, "numpy") or tensor.shape.rank != 0:
        return None
    import tensorflow as tf

    if not (tensor.dtype.is_floating or (tensor.dtype.is_integer and part.kind == "sum")):
        return None
    # A copy: of the tensor itself the global value would be read.
    mine = np.asarray(tf.identity(tensor))
    everyone = control.allgather((part.weight, mine), "a figure that the script reads")
    whole = mine
    if not _is_the_same(part.kind, [value for _, value in everyone]):
        whole = sum(value.astype(np.float64) * weight for weight, value in everyone if weight > 0)
    result = tf.constant(np.asarray(whole).astype(mine.dtype))
    delattr(tensor, _PART)
    losses.remember([tensor], [result])
    return result


def _is_the_same(kind: str, values: list[np.ndarray]) -> bool:
    first = values[0]
    if any(value.tobytes() != first.tobytes() for value in values):
        return False
    return kind == "mean" or bool(np.any(first.astype(np.float64) % 1))


def as_mean(tensor: Any) -> Any:
    """A sum over rows, scaled so that it weighs as a mean does beside one; as it is, where no rows are in it.

    Collective: a penalty on weights is the same on all ranks.
    """
    part = part_of(tensor)
    if part is None or part.kind != "sum":
        return tensor
    import tensorflow as tf

    mine = np.asarray(tf.identity(tensor))
    if _is_the_same("sum", control.allgather(mine, "comparing a term of the loss")):
        delattr(tensor, _PART)
        return reductions.unmark(tensor)
    scaled = tensor * (1.0 / part.mean) if part.mean > 0 else tf.identity(tensor)
    pass_on(scaled, part._replace(kind="mean"))
    return reductions.mark(scaled, "mean")


def of_whole_batch(tensor: Any) -> Any:
    """The scalar `tensor` with its value over the whole batch, and this rank's gradients; others as they are.

    So a curve of it has the slope that it has for the whole batch, and the ranks' gradients, weighed as those of a mean
    are, add up to the whole's: the chain rule. Collective.
    """
    if part_of(tensor) is None or not hasattr(tensor, "numpy") or tensor.shape.rank != 0:
        return tensor
    tensor = as_mean(tensor)
    whole = total(tensor) if tensor.dtype.is_floating else None
    if whole is None:
        return tensor
    import tensorflow as tf

    return tf.raw_ops.AddV2(x=tensor, y=tf.raw_ops.Sub(x=whole, y=tf.stop_gradient(tensor)))


def note_mean(result: Any) -> None:
    """Note on the eager scalar `result` of the slice at work that it weighs as a mean over rows does."""
    now = steps.current_slice()
    if now is not None and result.shape.rank == 0 and result.dtype.is_floating:
        pass_on(reductions.mark(result, "mean"), Part("mean", now.mean, now.sum, now.stop - now.start, 1))


def is_the_same(value: Any) -> bool:
    """Whether all ranks have the same `value`, a scalar. Collective."""
    everyone = control.allgather(float(np.asarray(value)), "comparing a factor of the loss")
    return all(other == everyone[0] for other in everyone)


def is_mean_by(part: Part, divisor: Any) -> bool | None:
    """Whether a sum over rows that is divided by the number `divisor` is a mean over them; None if it is neither.

    The size of the slice, as `len(x)` gives it, makes it one; the size of the batch, or another number that all ranks
    have, does not. Collective where the slices' sizes leave it open.
    """
    value = float(np.asarray(divisor).reshape(()))
    now = steps.current_slice()
    own = value in (part.rows, part.elements)
    certain = now is not None and value % now.of_rows == 0
    if certain or (not hasattr(divisor, "shape") and now is not None and not _may_be_own(value, part, now)):
        return False
    everyone = control.allgather((own, value), "comparing what a sum over rows is divided by")
    if all(mine for mine, _ in everyone):
        return True
    return False if len({number for _, number in everyone}) == 1 else None


def _may_be_own(value: float, part: Part, now: steps.Slice) -> bool:
    each = part.elements // max(part.rows, 1)
    return any(value in (size, size * each) for size in now.sizes)
