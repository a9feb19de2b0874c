"""When an overlapped update is announced: no gradient travels before.

Where TensorFlow runs all ops on one thread it takes the newest first, and nothing that a step computes needs the
announcement: it may well come last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from . import readiness


def bring_forward(announcement: Any, gradients: Sequence[Any]) -> None:
    """Have the op `announcement`, the newest of its function, run before the `gradients` that it need not wait for.

    Those that come after the last collective that was made before it: it never passes one (docs/protocol.md).
    """
    if readiness.threads() > 1:
        return  # one that is free takes the oldest
    graph = announcement.graph
    needed = _needed(announcement)
    for gradient in gradients:
        if gradient.graph is graph and gradient.op not in needed:
            gradient.op._add_control_input(announcement)


def _needed(last: Any) -> set[Any]:
    """The op `last` and all that runs before it, also by what TensorFlow adds when the function is made.

    That is an order of the ops which share a resource, and of those with effects on none that it knows; here any of
    them that is older counts.
    """
    number, users, lonely = {}, defaultdict(list), []
    for position, op in enumerate(last.graph.get_operations()):
        number[op] = position
        resources = set(_resources(op))
        for resource in resources:
            users[resource].append(op)
        if not resources and op._is_stateful:
            lonely.append(op)
    pending, found = [last], set()
    while pending:
        op = pending.pop()
        if op in found:
            continue
        found.add(op)
        pending += readiness.made_of(op)
        shared = [user for resource in _resources(op) for user in users[resource]]
        if not shared and op._is_stateful:
            shared = lonely
        pending += [other for other in shared if number[other] < number[op]]
    return found


def _resources(op: Any) -> Iterable[str]:
    return (tensor.name for tensor in op.inputs if tensor.dtype.name == "resource")
