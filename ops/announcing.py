"""When an overlapped update is announced: as early as can be, since no gradient travels before.

By the order in which ops are made, the announcement comes after the whole backward pass, with the collectives in that.
And where TensorFlow runs all ops on one thread it takes the newest first, so that an op which needs nothing may come
last.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from . import readiness

_in_backward_passes: weakref.WeakSet[Any] = weakref.WeakSet()
_brought_forward: weakref.WeakSet[Any] = weakref.WeakSet()


def note_in_backward_pass(tensor: Any) -> None:
    """That the collective which gives `tensor` belongs to a backward pass: updates may be announced before it."""
    import tensorflow as tf

    if not tf.is_symbolic_tensor(tensor):
        return
    _in_backward_passes.add(tensor.op)


def bring_forward(announcement: Any, gradients: Sequence[Any]) -> None:
    """Have the op `announcement`, the newest of its function, run before what needs not run before it.

    It goes before the collectives of the backward pass that has just been made, which it would else follow, and, where
    one thread runs all ops, before the first of `gradients` that it does not follow. On all ranks functions are made
    alike, so that the order of collectives is the same.
    """
    graph = announcement.graph
    order = announcement.inputs[-1].name
    earlier = [op for op in graph.get_operations() if op is not announcement and order in _resources(op)]
    behind: list[Any] = []
    while earlier and earlier[-1] in _in_backward_passes:
        behind.insert(0, earlier.pop())
    inputs = [tensor.op for tensor in announcement.inputs]
    needed = _needed([*inputs, *earlier[-1:]])
    manager = graph.experimental_acd_manager
    if manager is None or any(op in needed for op in behind):
        needed = _needed([*inputs, *earlier[-1:], *behind[-1:]])
    elif behind:
        # TensorFlow would have it after them, since all seem to write to one variable.
        manager.run_independently(announcement)
        _brought_forward.add(announcement)
        for op in reversed(earlier):
            announcement._add_control_input(op)
            if op not in _brought_forward:
                break  # the others are before it
        behind[0]._add_control_input(announcement)
    if readiness.threads() > 1:
        return
    number = {op: position for position, op in enumerate(graph.get_operations())}
    first = min(
        (one.op for one in gradients if one.graph is graph and one.op not in needed), key=number.get, default=None
    )
    if first is not None:
        first._add_control_input(announcement)


def _needed(roots: Iterable[Any]) -> Collection[Any]:
    """All that runs before `roots`, and these, also by what TensorFlow adds when the function is made.

    That is an order of the ops which share a resource, and of those with effects on none that it knows; here any of
    them that is older counts.
    """
    pending, found = list(roots), set()
    if not pending:
        return found
    number, users, lonely = {}, defaultdict(list), []
    for position, op in enumerate(pending[0].graph.get_operations()):
        number[op] = position
        resources = _resources(op)
        for resource in resources:
            users[resource].append(op)
        if not resources and op._is_stateful:
            lonely.append(op)
    while pending:
        op = pending.pop()
        if op in found or op not in number:
            continue
        found.add(op)
        pending += [*(tensor.op for tensor in op.inputs), *op.control_inputs]
        resources = _resources(op)
        shared = [user for resource in resources for user in users[resource]]
        if not resources and op._is_stateful:
            shared = lonely
        pending += [other for other in shared if number[other] < number[op]]
    return found


def _resources(op: Any) -> set[str]:
    return {tensor.name for tensor in op.inputs if tensor.dtype.name == "resource"}
