"""Parts of a graph, in which `propagate` finds placements as in the graph of a function.

There are three uses:

- a step's function without the op that takes the batch, if the batch is taken before the call;
- a function that a tape differentiates: its residuals, the tensors that its gradient needs, are further outputs;
- one run of a session.

A run of a session gives values to some tensors, which are *fed*, and returns the values of other tensors, the
*fetches*. Ranks slice the fed tensors that have the rows of the batch. The ops that depend on *sliced* tensors are
*copied*. The other ops that the run needs are *reused*: the copy takes their outputs from the script's graph. In
`session.run([loss, rate], {x: batch})` the ops from `x` to `loss` are copied, and an op that computes `rate` from a
step counter is reused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from matex_tf.rewrite.graph_ops import is_stateful

V1_FLOW = tuple(
    prefix + name for prefix in ("", "Ref") for name in ("Switch", "Merge", "Enter", "Exit", "NextIteration")
) + ("LoopCond",)
"""Ops of branches and loops of tf.compat.v1: a tensor of one branch or turn does not exist in another."""
_LOOPS = tuple(name for name in V1_FLOW if not name.endswith(("Switch", "Merge")))
_WAY_BACK = ("NextIteration", "RefNextIteration")
"""Ops that pass a value from one turn of a loop to the next. The edges to them are back edges, which close a cycle."""
_CALLS = ("StatefulPartitionedCall",)  # calls of functions with effects

_Item = TypeVar("_Item")


class Subgraph:
    """The ops of `whole_graph` between `inputs` and `outputs`, and the ops `control_outputs`, which run in any case.

    `propagate` reads it like a FuncGraph, whose attributes of these names it has.
    """

    building_function = False

    def __init__(self, whole_graph: Any, inputs: Sequence[Any], outputs: Sequence[Any], control_outputs: Sequence[Any]):
        self.whole_graph, self.inputs, self.outputs = whole_graph, list(inputs), list(outputs)
        self.control_outputs = list(control_outputs)

    def get_operations(self) -> list[Any]:
        return list(self.whole_graph.get_operations())


class SessionSubgraph(Subgraph):
    """The ops of one run of a session.

    inputs: the sliced tensors, then the other fed tensors.
    outputs: the fetched tensors that are copied.
    control_outputs: the fetched operations that are copied, and the copied calls of functions with effects.
    needed: the ops that run, in the order of their creation.
    copied, reused: these ops, divided as the module describes.
    """

    def __init__(
        self, needed: Sequence[Any], fed: Sequence[Any], sliced: Sequence[Any], tensors: Iterable[Any],
        operations: Iterable[Any], roots: Iterable[Any], not_copied: Iterable[Any] = (),
    ):  # fmt: skip
        """Divide the ops `needed` (see `list_needed`) of a run with the fetches `tensors` and `operations`.

        roots: ops that are copied with all their dependents, as if they depended on sliced tensors.
        not_copied: ops that are reused, although they depend on sliced tensors. The ops before them then run twice: as
            the script's own ops, and as copies. An op with a state must not run twice, so an op of `not_copied` that
            depends on a copied op with a state is copied nevertheless.
        """
        sliced_names = {tensor.name for tensor in sliced}
        fed_names = {tensor.name for tensor in fed}
        copied = _find_dependents(needed, fed_names, sliced_names, roots)
        for op in not_copied:
            copied_ancestors = [
                ancestor for ancestor in _list_ancestors([op], fed_names) if ancestor in copied and ancestor is not op
            ]
            if not any(is_stateful(ancestor.type) for ancestor in copied_ancestors):
                copied.discard(op)
        self.needed = list(needed)
        self.copied = [op for op in needed if op in copied]
        self.reused = set(needed) - copied
        outputs = [tensor for tensor in tensors if tensor.op in copied and tensor.name not in fed_names | sliced_names]
        effects = [op for op in operations if op in copied]
        effects += [op for op in self.copied if op.type in _CALLS]
        inputs = [*sliced, *(tensor for tensor in fed if tensor.name not in sliced_names)]
        super().__init__(needed[0].graph if needed else None, inputs, outputs, effects)

    def get_operations(self) -> list[Any]:
        return self.needed

    def find_loop(self) -> Any:
        """An op of a loop that depends on the sliced tensors; None if there is none."""
        return next((op for op in self.copied if op.type in _LOOPS), None)


def list_inputs(op: Any) -> Sequence[Any]:
    """The inputs of an op, without the back edges of loops."""
    return () if op.type in _WAY_BACK else op.inputs


def reach(starts: Iterable[_Item], list_next: Callable[[_Item], Iterable[_Item]]) -> list[_Item]:
    """The items that are reached from `starts`, each once. `list_next(item)`: the items to which an item leads."""
    reached: dict[int, _Item] = {}
    pending = list(starts)
    while pending:
        item = pending.pop()
        if id(item) not in reached:
            reached[id(item)] = item
            pending += list_next(item)
    return list(reached.values())


def list_consumers(op: Any) -> list[Any]:
    """The ops that take a result of an op."""
    return [consumer for output in op.outputs for consumer in output.consumers()]


def list_needed(graph: Any, fed: set[str], tensors: Iterable[Any], operations: Iterable[Any]) -> list[Any]:
    """The ops that a run with these fetches needs, in the order of their creation. fed: the names of fed tensors."""
    makers = [tensor.op for tensor in tensors if tensor.name not in fed]
    needed_ops = set(_list_ancestors([*makers, *operations], fed))
    return [op for op in graph.get_operations() if op in needed_ops]


def _list_ancestors(ops: Iterable[Any], fed: set[str]) -> list[Any]:
    """These ops, and all ops that they depend on by data or control edges. fed: the names of fed tensors."""
    return reach(ops, lambda op: [tensor.op for tensor in op.inputs if tensor.name not in fed] + op.control_inputs)


def _find_dependents(ops: Iterable[Any], fed: set[str], sliced: set[str], roots: Iterable[Any]) -> set[Any]:
    """The ops among `ops` that depend on a sliced tensor or a root, by data or control edges, and the roots.

    fed, sliced: names of tensors.
    """
    users: dict[Any, list[Any]] = {}
    starts = list(roots)
    for op in ops:
        for tensor in op.inputs:
            if tensor.name in sliced:
                starts.append(op)
            elif tensor.name not in fed:
                users.setdefault(tensor.op, []).append(op)
        for control in op.control_inputs:
            users.setdefault(control, []).append(op)
    return set(reach(starts, lambda op: users.get(op, ())))
