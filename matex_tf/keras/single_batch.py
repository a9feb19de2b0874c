"""`train_on_batch`: one step on arrays that a script gives; its rows are cut where it begins (`function_step`)."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np

from matex_tf.adapt import executor
from matex_tf.gradients import drift
from matex_tf.keras import fit_call, step_check
from matex_tf.loops import explain
from matex_tf.resilience import elastic_step, script_loops
from matex_tf.runtime import objects
from matex_tf.servers import local_sgd
from matex_tf.sharding import share_arrays, sliced_dataset, step_weight

_agreed: weakref.WeakSet = weakref.WeakSet()
_feeds: weakref.WeakKeyDictionary[Any, dict[Any, tuple[elastic_step.Feed, str]]] = weakref.WeakKeyDictionary()
_current: list[Any] = []


@contextlib.contextmanager
def enter_step(model: Any, batch: dict[str, Any]) -> Iterator[None]:
    """Around one training step of `model` on `batch`, structures of arrays by name. Collective."""
    local_sgd.say_only_fit("train_on_batch")
    before = step_weight.read_values()
    _current.append(model)
    try:
        if not before[3]:  # else it stands within a loop whose batches are slices already
            # The first step of a model without variables yet is rank 0's.
            if model not in _agreed and fit_call.Run("train_on_batch", model).agree_on_variables():
                _agreed.add(model)
            step_weight.set_values(_compute_numbers(batch))
        with script_loops.permit_fewer_ranks():
            script_loops.say_loop()
            yield
    finally:
        _current.pop()
        step_weight.go_back_to(before)
        drift.watch_updates()


def _compute_numbers(batch: dict[str, Any]) -> list[float]:
    """The numbers of a step: of a batch that is each rank's share those of its rows, else of a whole batch."""
    import tensorflow as tf

    arrays = [leaf for leaf in tf.nest.flatten(batch) if isinstance(leaf, (np.ndarray, tf.Tensor)) and len(leaf.shape)]
    mine = (any(share_arrays.is_share(array) for array in arrays), len(arrays[0]) if arrays else 0)
    everyone = objects.allgather(mine, "comparing the arrays given to train_on_batch")
    if all(share for share, _ in everyone):
        return step_weight.list_slice_values(mine[1], sum(rows for _, rows in everyone))
    return step_weight.list_whole_values()


def feed_slice(iterator: Any) -> Any:
    """In place of Keras 2's iterator over the one batch of `train_on_batch` one over this rank's part of it."""
    import tensorflow as tf

    model = _current[-1] if _current else None
    if model is None:
        return iterator
    element = next(iterator)
    spec = tf.nest.map_structure(elastic_step.open_rows, iterator.element_spec)
    known = _feeds.setdefault(model, {})
    function = model.make_train_function()
    key = repr(spec), id(function)
    if key not in known:
        of_step = sliced_dataset.Batch(spec, tf.TensorSpec([4], tf.float64))
        mine = step_check.find_obstacle(model, "train", getattr(function, "plain", function), of_step, is_fixed=True)
        reasons = [why for why in objects.allgather(mine, "whether ranks can share a training step") if why]
        known[key] = elastic_step.Feed(spec, 1), reasons[0] if reasons else ""
        if reasons:
            explain.say_whole(reasons[0])
    made, why = known[key]
    if why or step_weight.is_sliced():
        return made.put_batches([sliced_dataset.Batch(element, tf.constant(step_weight.read_values(), tf.float64))])
    executor.say_even("train_on_batch of Keras 2", executor.MEASURED)
    return made.put_batches([sliced_dataset.make_slice(element)])
