"""Parts of a graph, which a reader takes as it takes the graph of a function."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

FLOW = tuple(
    prefix + name for prefix in ("", "Ref") for name in ("Switch", "Merge", "Enter", "Exit", "NextIteration")
) + ("LoopCond",)
"""Ops of branches and loops; what one branch or turn has is not there in another."""
_LOOPS = tuple(name for name in FLOW if not name.endswith(("Switch", "Merge")))
_WAY_BACK = ("NextIteration", "RefNextIteration")
_CALLS = ("StatefulPartitionedCall",)


class GraphPart:
    """The ops of the graph `of` between given tensors and those that are asked for."""

    building_function = False

    def __init__(self, of: Any, inputs: Sequence[Any], outputs: Sequence[Any], control_outputs: Sequence[Any]):
        self.of, self.inputs, self.outputs = of, list(inputs), list(outputs)
        self.control_outputs = list(control_outputs)

    def get_operations(self) -> list[Any]:
        operations: list[Any] = self.of.get_operations()
        return operations


class Part(GraphPart):
    """What is computed of a graph when the tensors `given` are there and `tensors` and `operations` are asked for.

    inputs: the tensors that ranks divide, then the other given ones.
    needed: the ops that run, as they were made.
    reused: those of them that do not depend on what ranks divide.
    outputs, control_outputs: what is asked for and does depend on it; the calls of functions with effects, too.
    """

    def __init__(
        self,
        needed: Sequence[Any],
        given: Sequence[Any],
        rows: Sequence[Any],
        tensors: Iterable[Any],
        operations: Iterable[Any],
        roots: Iterable[Any] = (),
    ):
        """needed: see `list_needed`. rows: what ranks divide. roots: ops that are made again with their dependents."""
        names = {tensor.name for tensor in rows}
        fed = {tensor.name for tensor in given}
        tensors, operations = list(tensors), list(operations)
        self.needed = list(needed)
        copied = _list_dependents(needed, fed, names, roots)
        self.reused = set(self.needed) - copied
        outputs = [tensor for tensor in tensors if tensor.op in copied and tensor.name not in fed | names]
        effects = [op for op in operations if op in copied]
        effects += [op for op in self.needed if op in copied and op.type in _CALLS]
        inputs = [*rows, *(tensor for tensor in given if tensor.name not in names)]
        super().__init__(self.needed[0].graph if self.needed else None, inputs, outputs, effects)
        self.copied = [op for op in self.needed if op in copied]

    def get_operations(self) -> list[Any]:
        return self.needed

    def find_loop(self) -> Any:
        """An op of a loop that depends on what ranks divide; None if there is none."""
        return next((op for op in self.copied if op.type in _LOOPS), None)


def list_inputs(op: Any) -> Sequence[Any]:
    """The tensors that an op takes, but for what a loop hands to its next turn."""
    return () if op.type in _WAY_BACK else op.inputs


def list_needed(graph: Any, given: set[str], tensors: Iterable[Any], operations: Iterable[Any]) -> list[Any]:
    """The ops that run, as they were made, when the tensors with the names `given` are there."""
    pending = [tensor.op for tensor in tensors if tensor.name not in given] + list(operations)
    found: set[Any] = set()
    while pending:
        op = pending.pop()
        if op not in found:
            found.add(op)
            pending += [tensor.op for tensor in op.inputs if tensor.name not in given]
            pending += op.control_inputs
    return [op for op in graph.get_operations() if op in found]


def _list_dependents(ops: Iterable[Any], given: set[str], names: set[str], roots: Iterable[Any]) -> set[Any]:
    """Those of `ops` that depend on the tensors `names`, also by waiting for one that does, and the roots."""
    users: dict[Any, list[Any]] = {}
    pending = list(roots)
    for op in ops:
        for tensor in op.inputs:
            if tensor.name in names:
                pending.append(op)
            elif tensor.name not in given:
                users.setdefault(tensor.op, []).append(op)
        for one in op.control_inputs:
            users.setdefault(one, []).append(op)
    found: set[Any] = set()
    while pending:
        op = pending.pop()
        if op not in found:
            found.add(op)
            pending += users.get(op, ())
    return found
