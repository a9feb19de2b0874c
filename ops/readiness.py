"""Lets gradients be ready one after the other, while the rest of the computation is still to come.

Where TensorFlow runs the ops of a step on one thread, of those that can run it takes the newest: the gradient of a
weight, which nothing waits for, comes after all that lead to the gradients further down. With that, all are ready at
the end, and there is nothing left to hide their sums behind.
"""

from __future__ import annotations

import bisect
import os
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any


def made_of(op: Any) -> list[Any]:
    """The ops that run before `op`: those of its inputs, and others that it waits for."""
    return [*(tensor.op for tensor in op.inputs), *op.control_inputs]


def in_their_order(
    gradients: Sequence[Any],
    sources: Callable[[Any], list[Any]] = made_of,
    settled: Container[Any] = (),
) -> None:
    """Make what only later made ones of these tensors need wait for those before, where one thread runs all ops.

    The tensors are those of a function that is being traced. An op waits only for gradients that were made before it
    and that do not need it, also by `sources`, so that no two ops wait for each other; and only if it is none of those
    `settled`, of which another update's gradients are made.
    """
    from tensorflow.python.framework import ops

    if threads() > 1:
        return  # one that is free takes the oldest
    graph = ops.get_default_graph()
    number = {op: position for position, op in enumerate(graph.get_operations())}
    waits_for: dict[Any, int] = {}  # the gradients that an op runs after, as bits by their position
    made: list[Any] = []
    numbers: list[int] = []
    for gradient in sorted(
        {each.op for each in gradients if getattr(each, "graph", None) is graph}, key=number.__getitem__
    ):
        for op in ancestors(gradient, waits_for, sources):
            before = sources(op)
            bits = 0
            for each in before:
                bits |= waits_for[each]
            missing = ((1 << bisect.bisect_left(numbers, number[op])) - 1) & ~bits
            if not before or op in settled:  # what is made of nothing costs nothing
                missing = 0
            while missing:
                latest = made[missing.bit_length() - 1]
                op._add_control_input(latest)
                bits |= waits_for[latest]
                missing &= ~bits
            waits_for[op] = bits
        waits_for[gradient] |= 1 << len(made)
        made.append(gradient)
        numbers.append(number[gradient])


def threads() -> int:
    """How many threads TensorFlow runs ops on, side by side."""
    import tensorflow as tf

    return tf.config.threading.get_inter_op_parallelism_threads() or len(os.sched_getaffinity(0))


def ancestors(op: Any, known: Container[Any], sources: Callable[[Any], list[Any]]) -> Iterator[Any]:
    """The op, its `sources`, theirs and so on, but for those `known`; each after its own sources."""
    if op in known:
        return
    path, seen = [(op, iter(sources(op)))], {op}
    while path:
        current, rest = path[-1]
        following = next((each for each in rest if each not in known and each not in seen), None)
        if following is None:
            yield current
            path.pop()
        else:
            seen.add(following)
            path.append((following, iter(sources(following))))
