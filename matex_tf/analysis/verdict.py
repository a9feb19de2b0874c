"""May ranks share a traced step? All that it leaves behind must be whole on every rank, or the reason is given."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from matex_tf.analysis import declarations
from matex_tf.analysis.interpreter import Interpreter, is_stateful, make_interpreter
from matex_tf.analysis.placement import EMPTY, PARTIAL, UNKNOWN, Placement
from matex_tf.analysis.rules import Node, UnprovedError, control

_ASSIGNS = ("Assign", "ResourceScatter", "ResourceApply", "ResourceSparseApply", "Scatter", "Apply", "SparseApply")
_CALLS = {"PartitionedCall": ("f",), "StatefulPartitionedCall": ("f",), "If": ("then_branch", "else_branch"),
          "StatelessIf": ("then_branch", "else_branch"), "While": ("body", "cond"), "StatelessWhile": ("body", "cond"),
          "Case": ("branches",), "StatelessCase": ("branches",)}  # fmt: skip
_HARMLESS = ("Random", "Stateless", "Matex", "ReadVariable", "Assert", "VarHandle", "VarIsInitialized",
             "LookupTableFind", "LookupTableSize", "LookupTableExport",
             "NoOp", "Multinomial", "TruncatedNormal", "Iterator", "Placeholder", "TensorList", "ResourceGather",
             "DestroyTemporary", "Timestamp", "Optional", "CheckNumerics", "Variable", "HashTable", "Const",
             "StatefulUniform", "StatefulStandardNormal", "DisableCopyOnRead", "AnonymousSeed")  # fmt: skip
"""Beginnings of the types of ops that are called stateful but leave nothing of the rows behind."""

_failures: weakref.WeakKeyDictionary[Any, Reason] = weakref.WeakKeyDictionary()


class Reason:
    """Why a step cannot be sharded: a clause, and the op that it is about, if one is known."""

    def __init__(self, clause: str, op: Any = None):
        self.clause = clause
        self._place = _find_place(op)

    def __str__(self) -> str:
        return f"{self.clause}{self._place}"


def note_failure(graph: Any, reason: Reason) -> None:
    """Note that what `graph` does cannot be put together of the ranks' parts."""
    while graph is not None:
        _failures.setdefault(graph, reason)
        graph = getattr(graph, "outer_graph", None)


def find_failure(graph: Any) -> Reason | None:
    return _failures.get(graph)


def find_reason(placement: Placement) -> Reason:
    """Why nothing is proved of a tensor with this placement, which is unknown."""
    op, clause = placement.why or (None, "nothing is proved of it")
    return Reason(clause, op)


def find_obstacle(graph: Any, outputs: Sequence[Any]) -> Reason | None:
    """Why the step that `graph` is cannot be sharded; None where it is proved that it can.

    Args:
        outputs: tensors that it hands on as they are: they must be the same on all ranks.
    """
    if find_failure(graph) is not None:
        return find_failure(graph)
    found = make_interpreter(graph)
    for tensor in outputs:
        placement = found.find_placement(tensor)
        if placement.kind == UNKNOWN:
            return find_reason(placement)
        if not placement.is_same:
            return Reason(f"what it returns is {placement.kind}", tensor.op)
    return find_side_effect(found, graph.get_operations())


def find_side_effect(found: Interpreter, operations: Iterable[Any]) -> Reason | None:
    """Why what `operations` leave behind, in variables or elsewhere, is not that of the whole batch; None if it is."""
    for op in operations:
        if op.type in _CALLS:
            try:
                reason = _find_inner_effect(found, op)
            except UnprovedError as error:
                reason = Reason(str(error), op)
        elif is_stateful(op) and not op.type.startswith(_HARMLESS):
            reason = _find_effect(found, op)
        else:
            continue
        if reason is not None:
            return reason
    return None


def _find_inner_effect(found: Interpreter, op: Any) -> Reason | None:
    """What is left behind by the functions that `op` calls."""
    if not is_stateful(op):
        return None
    inputs = [found.find_placement(tensor) for tensor in op.inputs]
    if all(one.is_same for one in inputs) and not declarations.has_own_gradients():
        return None
    given = inputs
    if op.type in ("If", "StatelessIf", "Case", "StatelessCase"):
        given = inputs[1:]
        if not inputs[0].is_same and any(map(_has_effects, _list_functions(found, op, given))):
            return Reason("the rows decide which branch is taken", op)
    elif op.type.endswith("While"):
        given = control.settle_loop(Node(op, list(op.inputs), inputs, found))
    for inner in _list_functions(found, op, given):
        reduces = any(one.type.startswith("Matex") for one in inner.graph.get_operations())
        if op.type.endswith("While") and reduces and not _is_as_assumed(inner.graph, given):
            return Reason("a gradient is taken in a loop that hands on what it makes of the rows", op)
        reason = find_failure(inner.graph) or find_side_effect(inner, inner.graph.get_operations())
        if reason is not None:
            return reason
    return None


def _list_functions(found: Interpreter, op: Any, given: Sequence[Placement]) -> list[Any]:
    """The interpreters of the functions that `op` calls with inputs of these placements."""
    values = [op.node_def.attr[attribute] for attribute in _CALLS[op.type]]
    names = [
        name
        for value in values
        for name in ([value.func.name] if value.HasField("func") else [function.name for function in value.list.func])
    ]
    return [found.interpret_function(name, given, op) for name in names]


def _has_effects(inner: Interpreter) -> bool:
    """Whether a function does more than to check: it assigns, prints or communicates."""
    for op in inner.graph.get_operations():
        if op.type.startswith("Matex"):
            return True
        if op.type in _CALLS:
            inputs = [inner.find_placement(tensor) for tensor in op.inputs]
            branches = op.type in ("If", "StatelessIf", "Case", "StatelessCase")
            if is_stateful(op) and any(
                map(_has_effects, _list_functions(inner, op, inputs[1:] if branches else inputs))
            ):
                return True
        elif is_stateful(op) and not op.type.startswith(_HARMLESS):
            return True
    return False


def _is_as_assumed(graph: Any, given: Sequence[Placement]) -> bool:
    """Whether what a loop hands on is what it was taken for when gradients in its body were traced: the same on all."""
    captured = {id(tensor) for tensor in graph.internal_captures}
    handed_on = [placement for tensor, placement in zip(graph.inputs, given) if id(tensor) not in captured]
    return all(placement.is_same or placement.kind == EMPTY for placement in handed_on)


def _find_effect(found: Interpreter, op: Any) -> Reason | None:
    inputs = list(op.inputs)
    if op.type.startswith(_ASSIGNS):
        if inputs and found.find_variable_placement(inputs[0]).kind == PARTIAL:
            return None  # each rank keeps its part of a sum
        inputs = inputs[1:]
        what = "it keeps in a variable what it makes of the rows"
    else:
        what = "it hands on what it makes of the rows, to be printed or written"
    for tensor in inputs:
        placement = found.find_placement(tensor)
        if placement.kind == UNKNOWN:
            return find_reason(placement)
        if not placement.is_same:
            return Reason(what, op)
    return None


def _find_place(op: Any) -> str:
    """Which op it is, and the line of the script that made it."""
    if op is None:
        return ""
    frames = getattr(op, "traceback", None) or []
    roots = _list_library_roots()
    for frame in reversed(list(frames)):
        if not frame.filename.startswith(roots) and not frame.filename.startswith("<"):
            return f" ({op.type}, {os.path.basename(frame.filename)} line {frame.lineno})"
    return f" ({op.type}, '{op.name}')"


def _list_library_roots() -> tuple[str, ...]:
    """The folders of the libraries that make ops on behalf of a script: for messages alone."""
    found = [
        os.path.dirname(os.path.abspath(file))
        for name in ("tensorflow", "keras", "tf_keras", "matex_tf", "matex_tf.ops", "runpy")
        if (file := getattr(sys.modules.get(name), "__file__", None))
    ]
    return tuple(found) or ("\0",)
