"""Lets gradients be ready one after the other, while the rest of the computation is still to come.

That is for a TensorFlow of one thread; `chain_gradients` says why.
"""

from __future__ import annotations

import bisect
import os
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any


def list_direct_sources(op: Any) -> list[Any]:
    """The ops that run before `op`: those of its inputs, and others that it waits for."""
    return [*(tensor.op for tensor in op.inputs), *op.control_inputs]


def chain_gradients(
    gradients: Sequence[Any],
    sources: Callable[[Any], list[Any]] = list_direct_sources,
    place: Callable[[Any], int] = lambda op: 0,
    settled: Container[Any] = (),
) -> None:
    """Make what only later made ones of these tensors need wait for those before, where one thread runs all ops.

    Of the ops that it can run such a thread takes the newest: the gradient of a weight, which nothing waits for, comes
    after all that lead to the gradients further down. With that, all are ready at the end, and there is nothing left to
    hide their sums behind.

    The tensors are those of a function that is being traced. An op waits only for gradients that were made before it
    and that do not need it, also by `sources`, so that no two ops wait for each other. It waits for none with a greater
    `place`, and not at all if it is one of those `settled`: by these a rank with one thread announces what others do.
    """
    from tensorflow.python.framework import ops

    if count_threads() > 1:
        return  # one that is free takes the oldest
    graph = ops.get_default_graph()
    number = {op: position for position, op in enumerate(graph.get_operations())}
    waits_for: dict[Any, int] = {}  # the gradients that an op runs after, as bits by their position
    made: list[Any] = []
    numbers: list[int] = []
    inside = {each.op for each in gradients if getattr(each, "graph", None) is graph}
    places = sorted({place(op) for op in inside})
    up_to = [0] * len(places)  # the gradients, as bits, that are at this place or at one before
    for gradient in sorted(inside, key=number.__getitem__):
        for op in list_ancestors(gradient, waits_for, sources):
            before = sources(op)
            bits = 0
            for each in before:
                bits |= waits_for[each]
            missing = 0
            reached = bisect.bisect_right(places, place(op))
            if before and reached and op not in settled:  # what is made of nothing costs nothing
                older = (1 << bisect.bisect_left(numbers, number[op])) - 1
                missing = older & up_to[reached - 1] & ~bits
            while missing:
                latest = made[missing.bit_length() - 1]
                op._add_control_input(latest)
                bits |= waits_for[latest]
                missing &= ~bits
            waits_for[op] = bits
        bit = 1 << len(made)
        waits_for[gradient] |= bit
        made.append(gradient)
        numbers.append(number[gradient])
        at = bisect.bisect_left(places, place(gradient))
        up_to[at:] = [bits | bit for bits in up_to[at:]]


def count_threads() -> int:
    """How many threads TensorFlow runs ops on, side by side."""
    import tensorflow as tf

    return tf.config.threading.get_inter_op_parallelism_threads() or len(os.sched_getaffinity(0))


def list_ancestors(op: Any, known: Container[Any], sources: Callable[[Any], list[Any]]) -> Iterator[Any]:
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
