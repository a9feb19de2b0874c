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
from collections.abc import Container, Iterable, Sequence

from matex_tf.lazy import tf
from matex_tf.rewrite.labels import is_labelled
from matex_tf.rewrite.nodes import Node, Value

_THREADS = "TF_NUM_INTEROP_THREADS"
"""The environment variable from which TensorFlow takes the number of threads, unless a script sets it."""


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


def list_waits(nodes: Iterable[Node], sums: Container[int]) -> dict[int, Node]:
    """By the ids of nodes: a node for which each must wait in a process with one thread; none with several threads.

    Nodes with rows wait, and nodes that make sums.

    nodes: in the order of `put_early`.
    sums: the ids of values that are summed over the ranks.
    """
    if count_threads() > 1:
        return {}
    waits: dict[int, Node] = {}
    made: list[Node] = []  # the nodes so far that make sums; each but the first waits for the one before
    awaited: dict[int, int] = {}  # by ids of nodes: the number of nodes in `made` that run before the node
    for node in nodes:
        count = max((awaited.get(id(each), 0) for each in _list_before(node)), default=0)
        makes_sum = any(id(value) in sums for value in node.outputs)
        if (node.has_rows or makes_sum) and count < len(made):
            waits[id(node)], count = made[-1], len(made)
        if makes_sum:
            made.append(node)
            count = len(made)
        awaited[id(node)] = count
    return waits


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
