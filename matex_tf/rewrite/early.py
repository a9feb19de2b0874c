"""Orders the ops of a program so that the sums of gradients can travel while later gradients are computed.

A script computes all gradients, and then updates its variables, the first layer first. But the gradient of the last
layer is ready first. `put_early` puts each op that takes no rows, such as the product of a gradient and a rate, right
after the last op with rows that it needs.

TensorFlow runs any op whose inputs are ready. With one thread, it goes on with an op that the finished op has made
ready. So it goes back through all layers first, and then computes the gradients of weights, since no other layer needs
them. `list_waits` prevents this: later ops with rows wait for each gradient that is summed.
"""

from __future__ import annotations

import os
from collections.abc import Container, Sequence

from matex_tf.lazy import tf
from matex_tf.rewrite.labels import is_labelled
from matex_tf.rewrite.nodes import Node, Value

_THREADS = "TF_NUM_INTEROP_THREADS"
"""The environment variable from which TensorFlow takes the number of threads, unless a script sets it."""
_MERGED = {"BiasAddGrad": 0, "Conv2DBackpropFilter": 2}
"""Ops that TensorFlow's oneDNN pass merges into one op if they take the same gradient; the number of this input."""


def put_early(nodes: Sequence[Node]) -> list[Node]:
    """The nodes of a program, reordered: a node without rows comes right after the last node with rows that it needs.

    The order of the nodes with rows stays.
    """
    # By ids of nodes: the index of the last node with rows among the nodes that it needs and the node itself.
    last_with_rows: dict[int, int] = {}
    for index, node in enumerate(nodes):
        needed_indices = (last_with_rows.get(id(predecessor), -1) for predecessor in node.predecessors)
        last_with_rows[id(node)] = index if node.has_rows else max(needed_indices, default=-1)
    return sorted(nodes, key=lambda node: last_with_rows[id(node)])


def list_waits(nodes: Sequence[Node], sums: Container[int]) -> dict[int, list[Node]]:
    """For each node that must wait for nodes besides its inputs, by its id, these other nodes.

    With one thread, nodes with rows and nodes that make sums wait for all sums that are made before them. Of nodes s, t
    and n, in this order, s and t make sums, and n has rows: t waits for s, and n for t. With several threads, no node
    waits.

    A wait between two ops that TensorFlow merges would make the merged op wait for itself. So from the first to the
    last of ops that are merged, no node waits for a sum that is made after the first one.

    nodes: in the order of `put_early`.
    sums: the ids of values that are summed over the ranks.
    """
    if count_threads() > 1:
        return {}
    waits: dict[int, list[Node]] = {}
    makers: list[Node] = []  # the nodes so far that make sums
    counts: dict[int, int] = {}  # by ids of nodes: how many of the first `makers` have run when the node has run
    last_merged = {gradient: node for node in nodes if (gradient := _find_merged(node)) is not None}
    # For each group of nodes that are merged, from its first to its last node: the number of makers before the first
    # node, by the id of the last node.
    limits: dict[int, int] = {}
    for node in nodes:
        if (gradient := _find_merged(node)) is not None:
            limits.setdefault(id(last_merged[gradient]), len(makers))
        limit = min(limits.values(), default=len(makers))
        count = max((counts.get(id(predecessor), 0) for predecessor in node.predecessors), default=0)
        makes_sum = any(id(value) in sums for value in node.outputs)
        if (node.has_rows or makes_sum) and count < limit:
            # A wait for `last_maker` includes a wait for the first `counts[id(last_maker)]` makers, which run before.
            last_maker = makers[limit - 1]
            waits[id(node)] = [*makers[max(count, counts[id(last_maker)]) : limit - 1], last_maker]
            count = limit
        if makes_sum:
            if count == len(makers):  # all makers before this node have run, so that it is the next of the first ones
                count += 1
            makers.append(node)
        counts[id(node)] = count
        limits.pop(id(node), None)
    return waits


def _find_merged(node: Node) -> int | None:
    """The id of the gradient that a node of a type in `_MERGED` takes: nodes with the same id are merged. Else None."""
    return id(node.inputs[_MERGED[node.type]]) if node.type in _MERGED else None


def count_threads() -> int:
    """The number of threads in which TensorFlow runs ops at the same time."""
    setting = os.environ.get(_THREADS, "")
    thread_count = tf.config.threading.get_inter_op_parallelism_threads() or (int(setting) if setting.isdigit() else 0)
    return thread_count or len(os.sched_getaffinity(0))


def can_be_early(value: Value) -> bool:
    """Whether a sum is a gradient of fixed shape, which can travel while the step computes other gradients."""
    is_fixed = value.shape is not None and None not in value.shape
    return is_fixed and value.dtype.is_floating and is_labelled(value)
