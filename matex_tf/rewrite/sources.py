"""Ops that give a batch inside of a step: each rank goes on with its rows of the batch."""

from __future__ import annotations

from typing import Any

from matex_tf.rewrite.functions import has_op
from matex_tf.rewrite.nodes import Decision, Node
from matex_tf.rewrite.placement import BATCH, WHOLE
from matex_tf.rewrite.rules.sizes import mark_taker

SOURCES = ("IteratorGetNext", "IteratorGetNextSync", "OptionalGetValue")


def has_open_rows(shape: Any) -> bool:
    """Whether a tensor of this static shape may have any number of rows."""
    return bool(shape.rank) and shape.as_list()[0] is None


def are_in(graph: Any) -> bool:
    """Whether such an op is in a graph, or in a function that it calls."""
    return any(op.type in SOURCES or has_op(op, SOURCES) for op in graph.get_operations())


def place_batch(node: Node) -> Decision:
    """Every component with an open number of rows is sliced. A batch whose components have different numbers of rows
    is computed by every rank, and the first rank's results count.
    """
    rows = [has_open_rows(tensor.shape) for tensor in node.op.outputs]

    def emit(copy: Any, *inputs: Any) -> list[Any]:
        return take_rows(copy, copy.create_op(node, inputs), rows)

    gives = [BATCH if one else WHOLE for one in rows]
    return Decision([WHOLE] * len(node.inputs), gives, mark_taker(emit))


def is_batch(node: Node) -> bool:
    """Whether a node that was read gives the batch of its program."""
    return node.type in SOURCES and any(one.is_sharded for one in node.decision.gives)


def take_rows(copy: Any, tensors: list[Any], are_rows: list[bool]) -> list[Any]:
    """This rank's rows of those of the whole `tensors` that have rows; the copy goes on with the rank's share of them.

    A copy without a way to make shares is one whose tensors are the rank's rows already.
    """
    import tensorflow as tf

    if copy.make_share is None or not any(are_rows):
        return tensors
    copy.share = share = copy.make_share([tensor for tensor, one in zip(tensors, are_rows) if one])
    found = []
    for tensor, one in zip(tensors, are_rows):
        if one:
            # Where the components have different numbers of rows the share is the whole of each.
            end = tf.where(share.is_split, share.first + share.count, tf.shape(tensor, tf.int64)[0])
            static = tensor.shape[1:]
            tensor = tensor[share.first : end]
            tensor.set_shape([None, *static])
        found.append(tensor)
    return found
