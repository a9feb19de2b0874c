"""Parts of a graph. The reader takes a part as it takes the graph of a function."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

FLOW = tuple(
    prefix + name for prefix in ("", "Ref") for name in ("Switch", "Merge", "Enter", "Exit", "NextIteration")
) + ("LoopCond",)
"""Ops of branches and loops of tf.compat.v1: a tensor of one branch or turn does not exist in another."""
_LOOPS = tuple(name for name in FLOW if not name.endswith(("Switch", "Merge")))
_WAY_BACK = ("NextIteration", "RefNextIteration")
_CALLS = ("StatefulPartitionedCall",)


class Subgraph:
    """The ops of the graph `of` between its given tensors and its requested ones."""

    building_function = False

    def __init__(self, of: Any, inputs: Sequence[Any], outputs: Sequence[Any], control_outputs: Sequence[Any]):
        self.of, self.inputs, self.outputs = of, list(inputs), list(outputs)
        self.control_outputs = list(control_outputs)

    def get_operations(self) -> list[Any]:
        operations: list[Any] = self.of.get_operations()
        return operations


class SessionSubgraph(Subgraph):
    """The ops that run when the tensors `given` are fed, and `tensors` and `operations` are fetched.

    inputs: the tensors that ranks slice, then the other given ones.
    needed: the ops that run, in the order of their creation.
    reused: the ops among them that do not depend on the sliced tensors.
    outputs, control_outputs: the fetches that depend on the sliced tensors; calls of functions with effects are
        included.
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
        """needed: see `list_needed`. rows: the tensors that ranks slice. roots: ops that are copied with all their
        dependents.
        """
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
        """An op of a loop that depends on the sliced tensors; None if there is none."""
        return next((op for op in self.copied if op.type in _LOOPS), None)


def list_inputs(op: Any) -> Sequence[Any]:
    """The inputs of an op, without the back edges of loops."""
    return () if op.type in _WAY_BACK else op.inputs


def list_needed(graph: Any, given: set[str], tensors: Iterable[Any], operations: Iterable[Any]) -> list[Any]:
    """The ops that run when the tensors with the names `given` are fed, in the order of their creation."""
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
    """The ops among `ops` that depend on the tensors `names`, by data or control edges, and the roots."""
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
