"""What of an optimizer's update ranks could have in pieces; in a phantom rank (`matex plan`) also how long it takes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from matex_tf import ops, settings
from matex_tf.costs.pieces import UPDATED
from matex_tf.ops.announcing import HAND_OVER
from matex_tf.servers.pieces import noted_slots, owners
from matex_tf.servers.pieces.owners import measure_bytes
from matex_tf.servers.pieces.sharded_slots import Part
from matex_tf.world import world

_SUMS = ("MatexReduceGradients", HAND_OVER)


@dataclass(frozen=True)
class _Shares:
    """Bytes of one optimizer that ranks could have in pieces: of gradients, weights and slots; and why no others."""

    gradients: int
    weights: int
    slots: int
    why_not: str


_noted: weakref.WeakKeyDictionary[Any, _Shares] = weakref.WeakKeyDictionary()
_obstacles: dict[str, str] = {}


def are_measured() -> bool:
    """Whether this rank is one of which `matex plan` measures the steps."""
    return world.get_world().is_phantom and settings.get_settings().plan is not None


def are_noted() -> bool:
    """Whether what ranks could have in pieces is noted."""
    return are_measured() or owners.are_compared()


def note_obstacle(strategy: str, why: str) -> None:
    """Note why ranks could not train by this strategy, without its number; the first reason counts."""
    if are_measured():
        _obstacles.setdefault(strategy, why)


def note_shares(optimizer: Any, gradients: Sequence[Any], parts: Sequence[Part | None], why_not: str | None) -> None:
    """Note what ranks could have in pieces of an update.

    Args:
        parts: of each variable what a rank would have of it; None, or none at all, where that stays whole.
    """
    of = [(part, gradient) for part, gradient in zip(parts, gradients) if part is not None]
    slots = [slot for part, _ in of for slot, _ in part.slots]
    taken = [part.variable for part, gradient in of if gradient.op.type in _SUMS]
    weights = [part.variable for part, _ in of]
    _noted[optimizer] = _Shares(measure_bytes(taken), measure_bytes(weights), measure_bytes(slots), why_not or "")


def measure_update(apply: Callable[[list[Any], list[Any]], Any], gradients: list[Any], variables: list[Any]) -> Any:
    """What `apply(gradients, variables)` gives; in a graph the update begins and ends where events tell of it."""
    import tensorflow as tf

    # On one host all gradients are there at once; a phantom has each as soon as it is computed.
    with tf.control_dependencies(gradients):
        given = [one if isinstance(one, tf.IndexedSlices) else tf.identity(one) for one in gradients]
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    result = apply(given, variables)
    with tf.control_dependencies(graph.get_operations()[before:]):
        ops.barrier(UPDATED)
    return result


def count_bytes(optimizer: Any) -> tuple[int, int]:
    """The bytes of an optimizer that ranks could have in pieces, as traced on this one: of weights and of slots."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return next(((shares.weights, shares.slots) for one, shares in _noted.items() if one is inner), (0, 0))


def describe_updates() -> dict[str, Any]:
    """What was noted of all optimizers, by the fields of `planner.plan_file.Update`."""
    shares = list(_noted.values())
    why_not = "; ".join(dict.fromkeys(one.why_not for one in shares if one.why_not))
    slots = sum(one.slots for one in shares)
    return {
        "gradients": sum(one.gradients for one in shares),
        "weights": sum(one.weights for one in shares),
        "slots": slots,
        "whole": measure_bytes(noted_slots.list_noted()) - slots,
        "why_not": why_not or _obstacles.get("sharded", ""),
        "not_async": _obstacles.get("async", ""),
        "not_local": _obstacles.get("local", ""),
    }
