"""Makes gradients ready one after another while the backward pass continues, if TensorFlow runs ops in a single thread.

`announcing.py` calls it while a function is traced. `chain_gradients` adds control dependencies between ops, and gives
the reason. The other functions walk the graph of ops.
"""

from __future__ import annotations

import bisect
import os
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any


def list_direct_sources(op: Any) -> list[Any]:
    """The ops that must run before `op`: those of its inputs, and its control inputs."""
    return [*(tensor.op for tensor in op.inputs), *op.control_inputs]


def chain_gradients(
    gradients: Sequence[Any],
    sources: Callable[[Any], list[Any]] = list_direct_sources,
    place: Callable[[Any], int] = lambda op: 0,
    independent: Container[Any] = (),
) -> None:
    """Make ops that only later gradients need wait for earlier gradients, if a single thread runs all ops.

    Such a thread takes the newest runnable op. No op waits for the gradient of a weight, so it would run after all ops
    that lead to the gradients of lower layers. Then all gradients would be ready at the end, and no computation would
    be left to hide their sums.

    The gradients are tensors of a function that is being traced. An op waits only for gradients that were created
    before it and do not depend on it, also by `sources`, so there are no cycles.

    Args:
        gradients: the tensors.
        sources: the ops that run before an op.
        place: the position of an op in the sequence of collectives. An op waits for no gradient of a greater place.
        independent: ops that wait for no gradient.
    """
    from tensorflow.python.framework import ops

    if count_threads() > 1:
        return  # an idle thread takes the oldest op
    graph = ops.get_default_graph()
    number = {op: position for position, op in enumerate(graph.get_operations())}
    # Sets of gradients are integers: bit i stands for gradient i in the order of creation.
    waits_for: dict[Any, int] = {}  # for each op: the gradients that precede it
    chained: list[Any] = []  # the gradients so far
    numbers: list[int] = []  # their positions in the graph
    inside = {each.op for each in gradients if getattr(each, "graph", None) is graph}
    places = sorted({place(op) for op in inside})
    up_to = [0] * len(places)  # for each place: the gradients of this place or an earlier one
    for gradient in sorted(inside, key=number.__getitem__):
        for op in list_ancestors(gradient, waits_for, sources):
            before = sources(op)
            bits = 0
            for each in before:
                bits |= waits_for[each]
            missing = 0
            reached = bisect.bisect_right(places, place(op))
            if before and reached and op not in independent:  # an op without sources costs nothing and need not wait
                older = (1 << bisect.bisect_left(numbers, number[op])) - 1
                missing = older & up_to[reached - 1] & ~bits
            while missing:
                latest = chained[missing.bit_length() - 1]
                op._add_control_input(latest)
                bits |= waits_for[latest]
                missing &= ~bits
            waits_for[op] = bits
        bit = 1 << len(chained)
        waits_for[gradient] |= bit
        chained.append(gradient)
        numbers.append(number[gradient])
        at = bisect.bisect_left(places, place(gradient))
        up_to[at:] = [bits | bit for bits in up_to[at:]]


def count_threads() -> int:
    """The number of threads on which TensorFlow runs ops concurrently."""
    import tensorflow as tf

    return tf.config.threading.get_inter_op_parallelism_threads() or len(os.sched_getaffinity(0))


def list_ancestors(op: Any, known: Container[Any], sources: Callable[[Any], list[Any]]) -> Iterator[Any]:
    """The op and all its ancestors by `sources`, except those in `known`; each after its own sources."""
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
