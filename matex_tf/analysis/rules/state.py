"""Variables, and ops that leave something behind."""

from __future__ import annotations

from matex_tf.analysis.placement import Placement, make_partial, make_replicated
from matex_tf.analysis.rules.registry import Node, UnprovedError, register_rule


@register_rule("ReadVariableOp", "_ReadVariablesOp")
def read(node: Node) -> Placement:
    """A variable is the same on all ranks, but for one in which each keeps its own part of a sum."""
    return node.interpreter.find_variable_placement(node.tensors[0])


@register_rule("VarHandleOp", "VariableV2", "Variable", "VarIsInitializedOp", "NoOp")
def handle(node: Node) -> Placement | list[Placement]:
    if not node.op.outputs:
        return []
    return make_replicated()


@register_rule("MatexReduceGradients", "MatexReduceOnDevice", "MatexHandOverGradient")
def reduced(node: Node) -> list[Placement]:
    """Whether what goes in is a part of a sum is seen to where gradients are reduced."""
    return [make_replicated()] * len(node.op.outputs)


@register_rule("MatexAllreduce", "MatexBroadcast")
def made_global(node: Node) -> Placement:
    """Alone it gives what it is given, so that it is that of the whole batch where it is a sum of the ranks' parts."""
    one = node.inputs[0]
    adds = node.type == "MatexAllreduce" and node.read_attribute("reduction") == b"sum"
    if (one == make_partial(0) and adds) or (one.is_same and not adds):
        return make_replicated()
    raise UnprovedError("the script puts ranks' parts together by itself")


@register_rule("PyFunc", "EagerPyFunc", "PyFuncStateless")
def call_python(node: Node) -> list[Placement]:
    raise UnprovedError("it calls Python, which cannot be seen into")
