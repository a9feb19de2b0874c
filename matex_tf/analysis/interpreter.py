"""One abstract interpretation of a graph: the placement of any tensor in it, by the rules of the ops that lead to it.

It goes backwards from the tensor that is asked for, into functions, branches and loops. Who takes gradients declares
theirs: that of a partial loss with respect to a replicated variable is partial, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from matex_tf.analysis import declarations, function_graphs
from matex_tf.analysis.declarations import find_declared
from matex_tf.analysis.placement import (
    DERIVATION,
    UNKNOWN,
    Placement,
    make_partial,
    make_replicated,
    make_unknown,
    require_known,
)
from matex_tf.analysis.rules import RULES, Node, UnprovedError, arithmetic, randoms
from matex_tf.analysis.rules.registry import NeverError, settle_placement

NO_RULE = "there is no rule for this kind of op"
OTHER_ROWS = "a function is called with other rows than it was traced for"
OWN_GRADIENT = "of a function with a gradient function of its own (tf.custom_gradient) that is not proved"
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
    "PartitionedCall", "StatefulPartitionedCall", *randoms.DRAWS,
    "MatexReduceGradients", "MatexReduceOnDevice", "MatexHandOverGradient",
}  # fmt: skip
"""Ops of which something may be known whatever is known of an input."""

SIZED = {"ZerosLike", "OnesLike", "Shape"}
"""Ops that ask for no more than the shape of their input."""


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
        self._outside: dict[int, Any] = {}
        self._learn_captures()
        if inputs is not None and len(inputs) == len(given):
            self._captured = {id(tensor.op): placement for tensor, placement in zip(given, inputs)}

    def _learn_captures(self) -> None:
        captures = list(getattr(self.graph, "captures", ()) or ())
        self._outside.update((id(inner.op), external) for external, inner in captures)

    def find_placement(self, tensor: Any) -> Placement:
        """The placement of `tensor`, which belongs to this graph: what nobody asks for costs nothing."""
        pending = [tensor.op]
        while pending:
            op = pending[-1]
            if op in self._known:
                pending.pop()
                continue
            if self._is_declared(op):
                self._known[op] = [find_declared(made) or make_replicated() for made in op.outputs]
                pending.pop()
                continue
            needed = [one.source for one in declarations.list_conditions(op)] or op.inputs
            missing = [made.op for made in needed if made.op not in self._known and find_declared(made) is None]
            if missing and not self._is_input(op):
                if any(one in pending for one in missing[:1]) and _is_cycle(op, missing[0]):
                    self._known[op] = [make_unknown(op, "it is in a loop of tf.compat.v1")] * len(op.outputs)
                    continue
                pending.extend(missing)
                continue
            self._known[op] = self._compute_placements(op)
            pending.pop()
        return find_declared(tensor) or self._known[tensor.op][tensor.value_index]

    def list_output_placements(self) -> list[Placement]:
        return [self.find_placement(tensor) for tensor in self.graph.outputs]

    def find_variable_placement(self, handle: Any) -> Placement:
        """The placement of what is read of the variable with `handle`, a tensor of this graph."""
        origin = self.find_origin(handle)
        interpreter: Interpreter | None = self
        if declarations.is_exempt(origin):
            return make_partial(0)
        while interpreter is not None:
            if declarations.is_account(interpreter.graph, origin):
                return make_partial(0)
            interpreter = interpreter.outer
        return make_replicated()

    def find_shape(self, tensor: Any) -> list[int | None] | None:
        """The static shape of a tensor, None where its number of dimensions is not known.

        Where the graph does not know it because of a declared scalar, it is that of what is taken with it.
        """
        if tensor.shape.rank is not None:
            return tensor.shape.as_list()
        known = declarations.list_scalars(tensor.graph)
        if tensor.name in known:
            return []
        if not known or tensor.op.type not in arithmetic.ENTRYWISE:
            return None
        shapes = require_known(self.find_shape(part) for part in tensor.op.inputs)
        if shapes is None:
            return None
        longest = max(map(len, shapes))
        padded = [[*[1] * (longest - len(shape)), *shape] for shape in shapes]
        # Of sizes that are not fixed nothing is known, but those of 1 are repeated.
        return [next((size for size in sizes if size != 1), 1) for sizes in zip(*padded)]

    def find_origin(self, tensor: Any) -> Any:
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

    def interpret_function(self, name: str, inputs: Sequence[Placement], op: Any) -> Interpreter:
        """The interpreter of the function `name` that `op` calls with inputs of these placements.

        Raises:
            UnprovedError: its graph cannot be read.
        """
        key = (name, tuple(inputs))
        if key not in self._functions:
            graph = function_graphs.find_graph(self.graph, name, inputs, op)
            for tensor, placement in zip(graph.inputs, inputs):
                traced_for = find_declared(tensor)
                if traced_for is not None and traced_for.form != placement.form:
                    raise UnprovedError(OTHER_ROWS)
            if not declarations.are_own_gradients_proved(graph, inputs):
                raise UnprovedError(OWN_GRADIENT)
            made = Interpreter(graph, inputs, self)
            arguments = list(op.inputs)[-len(graph.inputs) :] if graph.inputs else []
            made._handles = {id(inner.op): outer for inner, outer in zip(graph.inputs, arguments)}
            self._functions[key] = made
        return self._functions[key]

    def _is_input(self, op: Any) -> bool:
        return id(op) in self._captured or id(op) in self._outside

    def _is_declared(self, op: Any) -> bool:
        return bool(op.outputs) and all(find_declared(made) is not None for made in op.outputs)

    def _compute_placements(self, op: Any) -> list[Placement]:
        count = len(op.outputs)
        conditions = declarations.list_conditions(op)
        if conditions:
            holds = all(
                one.holds(find_declared(one.source) or self._known[one.source.op][one.source.value_index])
                for one in conditions
            )
            return [conditions[0].placement if holds else make_unknown(op, conditions[0].why)] * count
        if id(op) in self._captured:
            return [self._captured[id(op)]]
        if op.type == "Placeholder" and id(op) not in self._outside:
            self._learn_captures()  # it may have come since, while the graph is being built
        if id(op) in self._outside:
            return [self._find_outer_placement(self._outside[id(op)])]
        tensors = list(op.inputs)
        inputs = [find_declared(tensor) or self._known[tensor.op][tensor.value_index] for tensor in tensors]
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
                # A function's graph has more outputs once a gradient was taken through another call of it.
                return [settle_placement(op, index, one) for index, one in enumerate(found[:count])]
            except NeverError as error:
                return [make_unknown(op, str(error))] * count
            except UnprovedError as error:
                why = str(error)
        elif is_same or not inputs:
            if not is_stateful(op) or op.type in SAFE:
                return [make_replicated()] * count
            return [make_unknown(op, "it has an effect, and there is no rule for it")] * count
        if inputs and all(one.is_figure for one in inputs) and not is_stateful(op):
            return [settle_placement(op, index, make_replicated() if is_same else DERIVATION) for index in range(count)]
        return [make_unknown(op, why)] * count

    def _find_outer_placement(self, external: Any) -> Placement:
        """The placement of what the graph captures of an outer one."""
        graph = getattr(external, "graph", None) if not hasattr(external, "numpy") else None
        if graph is None:
            return make_replicated()
        if self.outer is not None and self.outer.graph is graph:
            return self.outer.find_placement(external)
        return make_interpreter(graph).find_placement(external)


def make_interpreter(graph: Any) -> Interpreter:
    """A new interpreter of a graph by itself. Ops that are added later are new to it."""
    return Interpreter(graph)


def find_placement(tensor: Any) -> Placement:
    """The placement of a tensor in the graph that it belongs to."""
    return Interpreter(tensor.graph).find_placement(tensor)


def is_stateful(op: Any) -> bool:
    return op.op_def is None or op.op_def.is_stateful


def _is_cycle(op: Any, other: Any) -> bool:
    """Whether `op` and `other` lead to each other, as in the loops of graphs of `tf.compat.v1`."""
    return op.type in ("Merge", "RefMerge", "NextIteration", "Switch", "Enter", "Exit", "LoopCond") or other.type in (
        "Merge", "NextIteration",
    )  # fmt: skip
