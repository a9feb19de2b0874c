"""Whether an update of variables is elementwise: what it makes of pieces is then the pieces of what it makes of all.

`find_obstacle` compares a trace for whole variables with one for flat pieces of them of any length.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matex_tf.analysis import interpreter
from matex_tf.analysis.rules.arithmetic import ENTRYWISE

ASSIGNS = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")

_ENTRYWISE = (ENTRYWISE - {"Bitcast"}) | {"Neg", "AddN", "ZerosLike", "OnesLike", "ClipByValue", "MulNoNan"}
_OF_SHAPES = {"shape", "container", "shared_name", "validate_shape"}

Roles = Mapping[int, Any]
"""By the id of what a trace captures, the same key in both traces; an int is that of the variable whose piece it is."""


def find_obstacle(whole: Any, whole_roles: Roles, pieces: Any, pieces_roles: Roles) -> str | None:
    """Why an update is not proved to be elementwise; None if it is.

    It is if both traces have the same ops, constants and wires, each of which takes single entries of one variable, of
    its slots and of its gradient, beside scalars. So nothing that the optimizer's Python knows of shapes or lengths can
    have a part in it.

    Args:
        whole: its graph for whole variables, whose first inputs are the gradients of variable 0, 1, ...
        pieces: its graph for flat pieces of them, likewise.
        whole_roles, pieces_roles: what the graphs capture of these variables and of their slots.
    """
    return _describe_difference(_describe_ops(whole, whole_roles), _describe_ops(pieces, pieces_roles)) or _find_mixing(
        whole, whole_roles
    )


def _map_inputs(graph: Any, roles: Roles) -> dict[str, Any]:
    """By the names of a graph's inputs what each is: ("gradient", i), or what `roles` says, or another tensor."""
    captured = {inner.op.name: roles.get(id(outer), ("other", id(outer))) for outer, inner in graph.captures}
    given = [tensor.op.name for tensor in graph.inputs if tensor.op.name not in captured]
    return {**captured, **{name: ("gradient", index) for index, name in enumerate(given)}}


def _describe_ops(graph: Any, roles: Roles) -> list[tuple[Any, ...]]:
    inputs, numbers, found = _map_inputs(graph, roles), {}, []
    for number, op in enumerate(graph.get_operations()):
        numbers[op.name] = number
        attributes = {
            name: _normalize_attribute(graph, value)
            for name, value in op.node_def.attr.items()
            if name[0] != "_" and name not in _OF_SHAPES
        }
        wires = [(numbers[tensor.op.name], tensor.value_index) for tensor in op.inputs]
        after = sorted(numbers[before.name] for before in op.control_inputs)
        found.append((op.type, inputs.get(op.name), wires, after, attributes))
    return found


def _normalize_attribute(graph: Any, value: Any) -> Any:
    """The value of an attribute, for a function what that computes: its name is another in each trace."""
    if not value.HasField("func"):
        return value.SerializeToString(deterministic=True)
    function = graph._get_function(value.func.name).cached_definition
    nodes = [
        (
            node.op,
            node.name,
            list(node.input),
            [(key, _normalize_attribute(graph, node.attr[key])) for key in sorted(node.attr)],
        )
        for node in function.node_def
    ]
    return nodes, sorted(function.ret.items())


def _describe_difference(whole: list[tuple[Any, ...]], pieces: list[tuple[Any, ...]]) -> str | None:
    different = next((one[0] for one, other in zip(whole, pieces) if one != other), None)
    if different is None and len(whole) != len(pieces):
        different = max(whole, pieces, key=len)[min(len(whole), len(pieces))][0]
    return different and f"its update depends on shapes ({different})"


def _find_mixing(graph: Any, roles: Roles) -> str | None:
    inputs = _map_inputs(graph, roles)
    of: dict[str, int | None] = {}  # by the name of a tensor, the variable whose entries it has
    for op in graph.get_operations():
        if op.name in inputs:
            role = inputs[op.name]
            of[op.outputs[0].name] = role[1] if role[0] in ("gradient", "slot", "variable") else None
            continue
        if op.type == "IdentityN":
            of.update({made.name: of[tensor.name] for made, tensor in zip(op.outputs, op.inputs)})
            continue
        owners = {of[tensor.name] for tensor in op.inputs} - {None}
        if op.type in ASSIGNS:
            if len({of[tensor.name] for tensor in op.inputs}) > 1:
                return f"its update assigns to one variable what it makes of another ({op.type})"
        elif not owners:
            if interpreter.is_stateful(op) and op.type not in interpreter.SAFE:
                return f"its update has an op with an effect ({op.type})"
        elif op.type != "ReadVariableOp" and (op.type not in _ENTRYWISE or len(owners) > 1):
            return f"its update is not elementwise ({op.type})"
        elif any(of[tensor.name] is None and tensor.shape.rank != 0 for tensor in op.inputs):
            return f"its update takes a tensor of other entries ({op.type})"
        for made in op.outputs:
            of[made.name] = owners.copy().pop() if owners else None
    return None
