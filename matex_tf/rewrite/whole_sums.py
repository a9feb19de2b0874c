"""Sums that some op needs whole and another takes as they are: they are made whole once, where they arise."""

from __future__ import annotations

from typing import Any

from matex_tf.rewrite.placement import PARTIAL
from matex_tf.rewrite.programs import Program


class Whole:
    """Stands for the op of a node that the script's graph does not have: a sum made whole."""

    type = "Whole"
    name = "whole"
    device = ""
    op_def = None

    def __init__(self, tensor: Any):
        from tensorflow.core.framework import node_def_pb2

        self.outputs = [tensor]
        self.node_def = node_def_pb2.NodeDef()


def find_sums_needed_whole(program: Program) -> set[tuple[Any, ...]]:
    """The keys of sums that some op needs whole and another takes as they are: making them whole once is enough."""
    needed: set[tuple[Any, ...]] = set()
    kept: set[tuple[Any, ...]] = set()
    for node in program.nodes:
        for value, need in zip(node.inputs, node.decision.needs):
            if value.placement.kind == PARTIAL and node.type != Whole.type:
                (kept if need is None else needed).add(value.key)
    needed |= {value.key for value in program.outputs if value.placement.kind == PARTIAL}
    bodies = [find_sums_needed_whole(body) for node in program.nodes for body in node.bodies]
    return (needed & kept).union(*bodies)
