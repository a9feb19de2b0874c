"""One abstract interpretation of a graph: the placement of any tensor in it, by the rules of the ops that lead to it.

It goes backwards from the tensor that is asked for, so that what nobody asks for costs nothing, and into functions,
branches and loops. Gradients are not followed through their ops: who takes them declares what they are
(`declare`), since the gradient of a partial loss with respect to a replicated variable is partial as the loss is.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from matex_tf.analysis.placement import DERIVATION, UNKNOWN, Placement, all_known, partial, replicated, unknown
from matex_tf.analysis.rules import RULES, Node, UnprovedError, arithmetic, randoms
from matex_tf.analysis.rules.registry import NeverError, settled

NO_RULE = "there is no rule for this kind of op"
SAFE = {
    "Assert",
    "NoOp",
    "CheckNumerics",
    "CheckNumericsV2",
    "ReadVariableOp",
    "LookupTableFindV2",
    "TensorListReserve",
}
"""Ops with an effect that gives nothing but a check, or gives the same for the same inputs."""

FOLLOWED = {
    "PartitionedCall", "StatefulPartitionedCall", "MatexReduceGradients", "MatexHandOverGradient", *randoms.DRAWS,
}  # fmt: skip
"""Ops of which something may be known whatever is known of an input."""

SIZED = {"ZerosLike", "OnesLike", "Shape"}
"""Ops that ask for no more than the shape of their input."""

_declared: weakref.WeakKeyDictionary[Any, dict[str, Placement]] = weakref.WeakKeyDictionary()
_accounts: weakref.WeakKeyDictionary[Any, dict[int, Any]] = weakref.WeakKeyDictionary()
_exempt: dict[int, Any] = {}
_scalars: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()


def declare(tensor: Any, placement: Placement) -> None:
    """State the placement of the tensor of a graph, whatever its op."""
    _declared.setdefault(tensor.graph, {})[tensor.name] = placement


def declared(tensor: Any) -> Placement | None:
    return _declared.get(tensor.graph, {}).get(tensor.name)


def has_declared(graph: Any) -> bool:
    """Whether anything was declared of tensors of `graph`."""
    return bool(_declared.get(graph))


def account(graph: Any, handles: Iterable[Any]) -> None:
    """State that in the variables with these handles each rank keeps its own part of a sum, in and within `graph`."""
    known = _accounts.setdefault(graph, {})
    known.update((id(handle), handle) for handle in handles)


def exempt(handle: Any) -> None:
    """State that the variable with `handle` is none of the script's: in it each rank keeps what is its own."""
    _exempt[id(handle)] = handle


def declare_scalar(tensor: Any) -> None:
    """State that the tensor of a graph, whose number of dimensions is not known there, will be a scalar."""
    _scalars.setdefault(tensor.graph, set()).add(tensor.name)


class Interpreter:
    """The placements of the tensors of one graph.

    Args:
        graph: a `FuncGraph`, or a graph of `tf.compat.v1`.
        inputs: the placements of its inputs where it is that of a function which is called; else they are those
            declared, and of others the same on all ranks.
        outer: the interpreter of the graph that calls it.
    """

    def __init__(self, graph: Any, inputs: Sequence[Placement] | None = None, outer: Interpreter | None = None):
        self.graph, self.outer = graph, outer
        self._known: dict[Any, list[Placement]] = {}
        self._functions: dict[Any, Interpreter] = {}
        self._captured: dict[int, Placement] = {}
        self._handles: dict[int, Any] = {}  # by the ids of its inputs' ops what the outer graph calls it with
        given = list(getattr(graph, "inputs", ()) or ())
        captures = list(getattr(graph, "captures", ()) or ())
        self._outside = {id(inner.op): external for external, inner in captures}
        if inputs is not None and len(inputs) == len(given):
            self._captured = {id(tensor.op): placement for tensor, placement in zip(given, inputs)}

    def of(self, tensor: Any) -> Placement:
        """The placement of `tensor`, which belongs to this graph."""
        pending = [tensor.op]
        while pending:
            op = pending[-1]
            if op in self._known:
                pending.pop()
                continue
            if self._is_declared(op):
                self._known[op] = [declared(made) or replicated() for made in op.outputs]
                pending.pop()
                continue
            missing = [made.op for made in op.inputs if made.op not in self._known and declared(made) is None]
            if missing and not self._is_input(op):
                if any(one in pending for one in missing[:1]) and _is_cycle(op, missing[0]):
                    self._known[op] = [unknown(op, "it is in a loop of tf.compat.v1")] * len(op.outputs)
                    continue
                pending.extend(missing)
                continue
            self._known[op] = self._placements(op)
            pending.pop()
        return declared(tensor) or self._known[tensor.op][tensor.value_index]

    def outputs(self) -> list[Placement]:
        return [self.of(tensor) for tensor in self.graph.outputs]

    def variable(self, handle: Any) -> Placement:
        """The placement of what is read of the variable with `handle`, a tensor of this graph."""
        origin = self.origin(handle)
        interpreter: Interpreter | None = self
        if id(origin) in _exempt:
            return partial(0)
        while interpreter is not None:
            graph = interpreter.graph
            while graph is not None:
                if id(origin) in _accounts.get(graph, {}):
                    return partial(0)
                graph = getattr(graph, "outer_graph", None)
            interpreter = interpreter.outer
        return replicated()

    def shape(self, tensor: Any) -> list[int | None] | None:
        """The static shape of a tensor, None where its number of dimensions is not known.

        Where the graph does not know it because of a declared scalar, it is that of what is taken with it.
        """
        if tensor.shape.rank is not None:
            return tensor.shape.as_list()
        known = _scalars.get(tensor.graph, ())
        if tensor.name in known:
            return []
        if not known or tensor.op.type not in arithmetic.ENTRYWISE:
            return None
        shapes = all_known(self.shape(part) for part in tensor.op.inputs)
        if shapes is None:
            return None
        longest = max(map(len, shapes))
        padded = [[*[1] * (longest - len(shape)), *shape] for shape in shapes]
        # Of sizes that are not fixed nothing is known, but those of 1 are repeated.
        return [next((size for size in sizes if size != 1), 1) for sizes in zip(*padded)]

    def origin(self, tensor: Any) -> Any:
        """The tensor outside of all functions that `tensor`, of this graph, stands for."""
        interpreter: Interpreter | None = self
        while interpreter is not None and hasattr(tensor, "op") and not hasattr(tensor, "numpy"):
            outer = interpreter._handles.get(id(tensor.op), interpreter._outside.get(id(tensor.op)))
            if outer is None:
                break
            tensor = outer
            graph = None if hasattr(outer, "numpy") else getattr(outer, "graph", None)
            interpreter = interpreter.outer or (None if graph is None else Interpreter(graph))
        return tensor

    def of_function(self, name: str, inputs: Sequence[Placement], op: Any) -> Interpreter:
        """The interpreter of the function `name` that `op` calls with inputs of these placements.

        Raises:
            UnprovedError: its graph cannot be read.
        """
        key = (name, tuple(inputs))
        if key not in self._functions:
            graph = graph_of(self.graph, name, inputs, op)
            for tensor, placement in zip(graph.inputs, inputs):
                traced_for = declared(tensor)
                if traced_for is not None and _form(traced_for) != _form(placement):
                    raise UnprovedError("a function is called with other rows than it was traced for")
            made = Interpreter(graph, inputs, self)
            arguments = list(op.inputs)[-len(graph.inputs) :] if graph.inputs else []
            made._handles = {id(inner.op): outer for inner, outer in zip(graph.inputs, arguments)}
            self._functions[key] = made
        return self._functions[key]

    def _is_input(self, op: Any) -> bool:
        return id(op) in self._captured or id(op) in self._outside

    def _is_declared(self, op: Any) -> bool:
        return bool(op.outputs) and all(declared(made) is not None for made in op.outputs)

    def _placements(self, op: Any) -> list[Placement]:
        count = len(op.outputs)
        if id(op) in self._captured:
            return [self._captured[id(op)]]
        if id(op) in self._outside:
            return [self._of_outside(self._outside[id(op)])]
        tensors = list(op.inputs)
        inputs = [declared(tensor) or self._known[tensor.op][tensor.value_index] for tensor in tensors]
        failed = next((one for one in inputs if one.kind == UNKNOWN), None)
        is_sized = failed is not None and failed.shape is not None and op.type in SIZED
        if failed is not None and op.type not in FOLLOWED and not is_sized:
            return [failed._replace(shape=None)] * count
        rule: Callable[..., Any] | None = RULES.get(op.type)
        why = NO_RULE
        is_same = bool(inputs) and all(one.is_same for one in inputs)
        if rule is not None:
            try:
                found = rule(Node(op, tensors, inputs, self))
                found = [found] if isinstance(found, Placement) else found
                return [settled(op, index, one) for index, one in enumerate(found)]
            except NeverError as error:
                return [unknown(op, str(error))] * count
            except UnprovedError as error:
                why = str(error)
        elif is_same or not inputs:
            if not is_stateful(op) or op.type in SAFE:
                return [replicated()] * count
            return [unknown(op, "it has an effect, and there is no rule for it")] * count
        if inputs and all(one.is_figure for one in inputs) and not is_stateful(op):
            return [settled(op, index, replicated() if is_same else DERIVATION) for index in range(count)]
        return [unknown(op, why)] * count

    def _of_outside(self, external: Any) -> Placement:
        """The placement of what the graph captures of an outer one."""
        graph = getattr(external, "graph", None) if not hasattr(external, "numpy") else None
        if graph is None:
            return replicated()
        if self.outer is not None and self.outer.graph is graph:
            return self.outer.of(external)
        return interpreter_of(graph).of(external)


def _form(placement: Placement) -> tuple[Any, ...]:
    return placement.kind, placement.axis, placement.power, placement.even, placement.blocks


def interpreter_of(graph: Any) -> Interpreter:
    """A new interpreter of a graph by itself. Ops that are added later are new to it."""
    return Interpreter(graph)


def placement_of(tensor: Any) -> Placement:
    """The placement of a tensor in the graph that it belongs to."""
    return Interpreter(tensor.graph).of(tensor)


def graph_of(graph: Any, name: str, inputs: Sequence[Placement], op: Any) -> Any:
    """The graph of the function `name` that an op of `graph` calls."""
    from tensorflow.python.eager import context
    from tensorflow.python.framework import function_def_to_graph

    function = graph._get_function(name)
    found = getattr(function, "graph", None)
    if found is not None and len(getattr(found, "inputs", None) or ()) == len(inputs):
        return found
    definition = getattr(function, "cached_definition", None) or context.context().get_function_def(name)
    if definition is None:
        raise UnprovedError("it calls a function that cannot be read")
    shapes = [tensor.shape for tensor in list(op.inputs)[-len(inputs) :]] if inputs else []
    return function_def_to_graph.function_def_to_graph(definition, input_shapes=shapes)


def is_stateful(op: Any) -> bool:
    return op.op_def is None or op.op_def.is_stateful


def _is_cycle(op: Any, other: Any) -> bool:
    """Whether `op` and `other` lead to each other, as in the loops of graphs of `tf.compat.v1`."""
    return op.type in ("Merge", "RefMerge", "NextIteration", "Switch", "Enter", "Exit", "LoopCond") or other.type in (
        "Merge", "NextIteration",
    )  # fmt: skip
