"""Variables, and ops that leave something behind."""

from __future__ import annotations

from matex_tf.analysis.placement import Placement, partial, replicated
from matex_tf.analysis.rules.registry import Node, UnprovedError, rule


@rule("ReadVariableOp", "_ReadVariablesOp")
def read(node: Node) -> Placement:
    """A variable is the same on all ranks, but for one in which each keeps its own part of a sum."""
    return node.interpreter.variable(node.tensors[0])


@rule("VarHandleOp", "VariableV2", "Variable", "VarIsInitializedOp", "NoOp")
def handle(node: Node) -> Placement | list[Placement]:
    if not node.op.outputs:
        return []
    return replicated()


@rule("MatexReduceGradients", "MatexHandOverGradient")
def reduced(node: Node) -> list[Placement]:
    """Whether what goes in is a part of a sum is seen to where gradients are reduced."""
    return [replicated()] * len(node.op.outputs)


@rule("MatexAllreduce", "MatexBroadcast")
def made_global(node: Node) -> Placement:
    """Alone it gives what it is given, so that it is that of the whole batch where it is a sum of the ranks' parts."""
    one = node.inputs[0]
    adds = node.type == "MatexAllreduce" and node.attr("reduction") == b"sum"
    if (one == partial(0) and adds) or (one.is_same and not adds):
        return replicated()
    raise UnprovedError("the script puts ranks' parts together by itself")


@rule("PyFunc", "EagerPyFunc", "PyFuncStateless")
def call_python(node: Node) -> list[Placement]:
    raise UnprovedError("it calls Python, which cannot be seen into")
