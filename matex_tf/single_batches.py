"""One batch of arrays that a script gives to `train_on_batch`: this rank's slice of it, where that is certain."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np

from matex_tf import comparison, control, fitting, loops, output, rehearsal, resuming, sharding, steps, world

_agreed: weakref.WeakSet = weakref.WeakSet()
_depth = 0


def inside() -> bool:
    """Whether a batch is being trained on whose numbers are set: the pipeline that hands it over is none to slice."""
    return _depth > 0


@contextlib.contextmanager
def _numbers_are_set() -> Iterator[None]:
    global _depth
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1


@contextlib.contextmanager
def training(model: Any, batch: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Around one training step of `model` on `batch` (structures of arrays by name); gives what this rank computes.

    Collective. The arrays are compared each time, because nothing else says that all ranks were given the same.
    """
    loops.shared_elsewhere()
    resuming.say_loop(goes_on=True)
    before = steps.current_values()
    if before[3]:
        # Within a loop over a dataset that trains: what it gave is a slice already.
        with _numbers_are_set():
            yield batch
        return
    call = fitting.Run("train_on_batch", model)
    mine = batch
    if call.slices and _is_ready(call, model):
        mine, numbers = _slice(model, batch)
        steps.set_values(numbers)
    else:
        # The first step of a model without variables yet is rank 0's.
        steps.set_whole()
    try:
        with _numbers_are_set():
            yield mine
    finally:
        steps.go_back_to(before)
        loops.watch_drift()


def _is_ready(call: fitting.Run, model: Any) -> bool:
    """Whether the model's variables are, or now become, the same on all ranks."""
    if model not in _agreed and call.agree():
        _agreed.add(model)
    return model in _agreed


def _slice(model: Any, batch: dict[str, Any]) -> tuple[dict[str, Any], list[float]]:
    import tensorflow as tf

    arrays = [leaf for leaf in tf.nest.flatten(batch) if leaf is not None]
    rows = {len(array) for array in arrays if _has_rows(array)}
    if len(rows) != 1 or not all(_has_rows(array) for array in arrays):
        output.note("train_on_batch is given more than arrays of one length: every rank computes the whole batch")
        return batch, steps.whole_values()
    count = rows.pop()
    shares = any(sharding.is_share(array) for array in arrays)
    total = 0
    for array in () if shares else arrays:
        total = comparison.digest(array, total)
    everyone = control.allgather((shares, count, total), "comparing the arrays given to train_on_batch")
    if shares and all(share for share, _, _ in everyone):
        return batch, steps.slice_values(count, sum(number for _, number, _ in everyone))
    if any(other != everyone[0] for other in everyone):
        output.note(
            "the arrays given to train_on_batch differ between ranks, so that rank 0's are trained on and the others "
            "compute in vain; is a generator of random numbers left without a seed?"
        )
        return batch, steps.whole_values()
    why = rehearsal.why_whole(model, "train", rehearsal.spec_of(batch), None)
    if why:
        output.note(why)
        return batch, steps.whole_values()
    me = world.current()
    start, stop, has_rows = sharding.slice_bounds(count, me.rank, me.size)
    mine = tf.nest.map_structure(lambda part: sharding.slice_rows(part, start, stop), batch)
    return mine, steps.slice_values(stop - start if has_rows else 0, count)


def _has_rows(array: Any) -> bool:
    import tensorflow as tf

    return isinstance(array, (np.ndarray, tf.Tensor)) and len(array.shape) > 0
