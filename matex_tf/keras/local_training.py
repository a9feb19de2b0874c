"""Whether ranks can train by themselves for some steps of a call of `fit` (`servers.local_sgd`), and that training."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from matex_tf.resilience import elastic
from matex_tf.servers import local_sgd
from matex_tf.servers.pieces import update_costs

_trained: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()


def list_trained(model: Any) -> list[Any]:
    """The variables of TensorFlow that the steps of `model` that were traced train on each rank by itself."""
    return _trained.setdefault(model, [])


def begin_averaging(model: Any, has: Callable[[], Sequence[Any]]) -> local_sgd.Averaging | None:
    """The training of `model` by ranks of which each is by itself for some steps, if that is chosen and can be.

    Args:
        has: gives the variables of the model and its optimizer.
    """
    if not local_sgd.is_chosen() and not update_costs.are_measured():
        return None
    why = _find_obstacle(model)
    if why is not None:
        local_sgd.say_not(f"fit on '{model.name}'", why)
    if why is not None or not local_sgd.is_chosen():
        return None
    return local_sgd.Averaging(list_trained(model), has)


def _find_obstacle(model: Any) -> str | None:
    optimizer = getattr(model, "optimizer", None)
    if elastic.is_on():
        return "with MATEX_ELASTIC all ranks have the weights that those who are left go on with"
    if getattr(model, "run_eagerly", False):
        return "its step is not traced (run_eagerly=True)"
    steps = getattr(model, "steps_per_execution", None)
    steps = getattr(model, "_steps_per_execution", 1) if steps is None else steps  # a variable in Keras 2
    if steps is not None and int(steps) != 1:
        return "it makes several steps at once (steps_per_execution)"
    if getattr(optimizer, "gradient_accumulation_steps", None):
        return "its optimizer accumulates gradients"
    if hasattr(optimizer, "inner_optimizer"):
        return "its optimizer skips steps in which gradients overflow, which all ranks are to skip (LossScaleOptimizer)"
    return None
