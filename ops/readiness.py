"""Makes gradients ready one after another while the backward pass continues, if TensorFlow runs ops in a single thread.

Otherwise a single thread would compute all gradients at the end, so no computation would be left to hide their sums
over ranks. `chain_gradients` adds control dependencies between ops; the other functions walk the graph of ops.
`announcing.py` calls this module while a function is traced.
"""

from __future__ import annotations

import bisect
import functools
import operator
import os
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any


def list_direct_sources(op: Any) -> list[Any]:
    """The ops that must run before `op`: those of its inputs, and its control inputs."""
    return [*(tensor.op for tensor in op.inputs), *op.control_inputs]


def chain_gradients(
    gradients: Sequence[Any],
    sources: Callable[[Any], list[Any]] = list_direct_sources,
    find_position: Callable[[Any], int] = lambda op: 0,
    independent: Container[Any] = (),
) -> None:
    """Make ops that only later gradients need wait for earlier gradients, if a single thread runs all ops.

    Such a thread takes the newest runnable op. Each op of the backward pass makes a newer op of the next lower layer
    runnable. So the op that computes a weight's gradient, for which no op waits, would run after the backward pass of
    all lower layers.

    The gradients are tensors of a function that is being traced. An op waits only for gradients that were created
    before it and do not depend on it, also by `sources`, so there are no cycles.

    Args:
        gradients: the tensors.
        sources: the ops that run before an op.
        find_position: the position, in the sequence of collectives, of the last collective that an op depends on. An
            op waits for no gradient with a greater position.
        independent: ops that wait for no gradient.
    """
    from tensorflow.python.framework import ops

    if count_threads() > 1:
        return  # an idle thread takes the oldest op
    graph = ops.get_default_graph()
    number = {op: position for position, op in enumerate(graph.get_operations())}
    inside = {each.op for each in gradients if getattr(each, "graph", None) is graph}
    positions = sorted({find_position(op) for op in inside})
    # Sets of gradients are integers: bit i stands for gradient i in the order of creation, `chained[i]`.
    preceding: dict[Any, int] = {}  # for each op: the set of gradients that run before it, and itself if it is one
    chained: list[Any] = []  # the ops of the gradients so far
    chained_numbers: list[int] = []  # their numbers in the graph
    up_to = [0] * len(positions)  # for each position: the set of chained gradients of this position or an earlier one

    def list_allowed(op: Any) -> int:
        """The set of chained gradients for which `op` may wait."""
        count = bisect.bisect_right(positions, find_position(op))  # of positions that are not greater
        if not count or op in independent:
            return 0
        # The lowest n bits: the n gradients that were created before the op.
        older = (1 << bisect.bisect_left(chained_numbers, number[op])) - 1
        return older & up_to[count - 1]

    for gradient in sorted(inside, key=number.__getitem__):
        for op in list_ancestors(gradient, preceding, sources):
            op_sources = sources(op)
            before = functools.reduce(operator.or_, (preceding[source] for source in op_sources), 0)
            # An op without sources costs nothing and need not wait.
            missing = list_allowed(op) & ~before if op_sources else 0
            while missing:
                # The highest bit is the latest gradient. Most others run before it and need no dependency of their own.
                latest = chained[missing.bit_length() - 1]
                op._add_control_input(latest)
                before |= preceding[latest]
                missing &= ~before
            preceding[op] = before
        bit = 1 << len(chained)
        preceding[gradient] |= bit
        chained.append(gradient)
        chained_numbers.append(number[gradient])
        first = bisect.bisect_left(positions, find_position(gradient))
        up_to[first:] = [bits | bit for bits in up_to[first:]]


def count_threads() -> int:
    """The number of threads on which TensorFlow runs ops concurrently."""
    import tensorflow as tf

    return tf.config.threading.get_inter_op_parallelism_threads() or len(os.sched_getaffinity(0))


def list_ancestors(op: Any, known: Container[Any], sources: Callable[[Any], list[Any]]) -> Iterator[Any]:
    """The op and all its ancestors by `sources`, except those in `known`; each after its own sources.

    A depth-first search without recursion, because graphs are deep.
    """
    if op in known:
        return
    path, seen = [(op, iter(sources(op)))], {op}
    while path:
        current, unvisited = path[-1]
        following = next((each for each in unvisited if each not in known and each not in seen), None)
        if following is None:
            yield current
            path.pop()
        else:
            seen.add(following)
            path.append((following, iter(sources(following))))
