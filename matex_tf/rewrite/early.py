"""Orders the ops of a program so that the sums of gradients can travel while later gradients are computed.

A script computes all gradients, and then updates its variables, the first layer first. But the gradient of the last
layer is ready first. `put_early` puts each op that takes no rows, such as the product of a gradient and a rate, right
after the last op with rows that it needs.

TensorFlow runs any op whose inputs are ready. A process with one thread goes on with the op that a finished op has made
ready, and so computes the gradients of weights, for which no op waits, when it has gone through all layers. There
`list_waits` makes later ops with rows wait for each sum.
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
    """The nodes of a program, each after the nodes that it needs, and no later than after the last op with rows that it
    needs. The order of the ops with rows stays.
    """
    last: dict[int, int] = {}  # by ids of nodes: the number of the last op with rows that the node needs, or is
    for number, node in enumerate(nodes):
        last[id(node)] = (
            number if node.has_rows else max((last.get(id(each), -1) for each in _list_before(node)), default=-1)
        )
    return sorted(nodes, key=lambda node: last[id(node)])


def list_waits(nodes: Sequence[Node], sums: Container[int]) -> dict[int, list[Node]]:
    """By the ids of nodes: nodes for which each must wait in a process with one thread; none with several threads.

    Nodes with rows wait, and nodes that make sums, for all sums that are made before them. But a wait between two ops
    that TensorFlow merges would make the merged op wait for itself. So from the first to the last of ops that are
    merged, no node waits for a sum that is made after the first one.

    nodes: in the order of `put_early`.
    sums: the ids of values that are summed over the ranks.
    """
    if count_threads() > 1:
        return {}
    waits: dict[int, list[Node]] = {}
    made: list[Node] = []  # the nodes so far that make sums
    awaited: dict[int, int] = {}  # by ids of nodes: so many of the first nodes in `made` run before the node, or are it
    last_merged = {taken: node for node in nodes if (taken := _find_merged(node)) is not None}
    limits: dict[int, int] = {}  # by the id of the last of ops that are merged: the length of `made` at the first one
    for node in nodes:
        if (taken := _find_merged(node)) is not None:
            limits.setdefault(id(last_merged[taken]), len(made))
        limit = min(limits.values(), default=len(made))
        count = max((awaited.get(id(each), 0) for each in _list_before(node)), default=0)
        makes_sum = any(id(value) in sums for value in node.outputs)
        if (node.has_rows or makes_sum) and count < limit:
            last = made[limit - 1]
            waits[id(node)] = [*made[max(count, awaited[id(last)]) : limit - 1], last]
            count = limit
        if makes_sum:
            count += count == len(made)
            made.append(node)
        awaited[id(node)] = count
        limits.pop(id(node), None)
    return waits


def _find_merged(node: Node) -> int | None:
    """The id of the gradient that a node of a type in `_MERGED` takes; None for other nodes."""
    return id(node.inputs[_MERGED[node.type]]) if node.type in _MERGED else None


def count_threads() -> int:
    """The number of threads in which TensorFlow runs ops at the same time."""
    variable = os.environ.get(_THREADS, "")
    chosen = tf.config.threading.get_inter_op_parallelism_threads() or (int(variable) if variable.isdigit() else 0)
    return chosen or len(os.sched_getaffinity(0))


def can_be_early(value: Value) -> bool:
    """Whether a sum is a gradient of fixed shape, which can travel while the step computes others."""
    is_fixed = value.shape is not None and None not in value.shape
    return is_fixed and value.dtype.is_floating and is_labelled(value)


def _list_before(node: Node) -> list[Node]:
    return [*(value.node for value in node.inputs if value.node is not None), *node.controls]
