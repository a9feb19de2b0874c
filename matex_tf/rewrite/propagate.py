"""Placements, forward: a graph is read op by op, the ops of a called function in the place of the call."""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterable, Sequence
from typing import Any

from matex_tf.rewrite import control
from matex_tf.rewrite.constants import find_constants, find_shapes, note_sizes
from matex_tf.rewrite.functions import Callee, find_callee, has_op
from matex_tf.rewrite.nodes import Decision, Expansion, Node, NoRuleError, Value
from matex_tf.rewrite.parts import list_inputs
from matex_tf.rewrite.placement import ANY, LIST, PARTIAL, REPLICATED, WHOLE, Placement
from matex_tf.rewrite.rules import RULES
from matex_tf.rewrite.sources import SOURCES, place_batch

ALIASES = ("Identity", "IdentityN", "StopGradient", "PreventGradient", "Snapshot")
"""Identity ops: the copy of the graph leaves them out."""
CALLS = ("PartitionedCall", "StatefulPartitionedCall")


class Program:
    """The ops of a graph, in an order in which they can run, with the placements of their tensors.

    inputs, outputs: the values of the graph's.
    effects: the nodes that run although no output needs them.
    takes_batch: whether it takes the batch by itself, of which ranks have shares.
    """

    def __init__(
        self,
        nodes: list[Node],
        inputs: list[Value],
        outputs: list[Value],
        effects: list[Node],
        takes_batch: bool = False,
    ):
        self.nodes, self.inputs, self.outputs, self.effects = nodes, inputs, outputs, effects
        self.takes_batch = takes_batch

    @property
    def has_collectives(self) -> bool:
        exchanges = any(
            need is not None and control.needs_exchange(value.placement, need)
            for node in self.nodes
            for value, need in zip(node.inputs, node.decision.needs)
        )
        return exchanges or any(body.has_collectives for node in self.nodes for body in node.bodies)


class Reader:
    """Reads graphs into programs.

    whole: the keys of sums that are made whole where they arise, because they are needed whole anyway.
    takes_batches: whether ops inside may give the batch (`sources`). The first such op of a program does, unless the
        program is given rows of a batch; what others give is whole.
    kept: of a part of a session's graph, the ops that are not made again. Nothing there runs in the order in which it
        was made; None: for a function that eager code calls.
    """

    def __init__(
        self, whole: Iterable[tuple[Any, ...]] = (), takes_batches: bool = True, kept: Container[Any] | None = None
    ):
        self.whole, self.takes_batches, self.kept = set(whole), takes_batches, kept
        self._have_batch: list[bool] = []  # of the programs that are being read, the outermost first

    def read(
        self, graph: Any, placements: Sequence[Placement], key: tuple[Any, ...] = (), constants: Sequence[Any] = ()
    ) -> Program:
        """The program of a function's graph whose inputs have these placements; `constants`: and these fixed values."""
        inputs = [
            Value(tensor, (*key, tensor.op.name, 0), one) for tensor, one in zip(graph.inputs, placements, strict=True)
        ]
        for value, constant in zip(inputs, constants):
            value.constant = constant
        nodes: list[Node] = []
        has_batch = (self._have_batch[-1:] or [False])[0] or _is_split(inputs)
        self._have_batch.append(has_batch)
        try:
            outputs, effects = self._read_into(nodes, graph, inputs, key, [])
            takes_batch = not has_batch and self._have_batch[-1]
        finally:
            self._have_batch.pop()
        return Program(_drop_unneeded(nodes, outputs, effects), inputs, outputs, effects, takes_batch)

    def _read_into(
        self, nodes: list[Node], graph: Any, inputs: list[Value], key: tuple[Any, ...], controls: list[Node]
    ) -> tuple[list[Value], list[Node]]:
        """The values of the outputs of `graph`, and the nodes that must have run after it."""
        values = {tensor.name: value for tensor, value in zip(graph.inputs, inputs)}
        made: dict[str, list[Node]] = {}  # by the name of an op, the nodes that stand for it
        run = list(graph.control_outputs)
        if self.kept is not None and graph.building_function:  # all of these run, though nothing waits for them
            run += [op for op in graph.get_operations() if op.op_def.is_stateful and op not in run]
        for op in _order_ops(graph, run):
            before = [node for one in op.control_inputs for node in made.get(one.name, ())]
            taken = [values[tensor.name] for tensor in list_inputs(op)]
            stateful = op.op_def is None or op.op_def.is_stateful
            found, made[op.name] = self._read_op(
                nodes, op, taken, (*key, op.name), before + (controls if stateful else [])
            )
            for tensor, value in zip(op.outputs, found):
                values.setdefault(tensor.name, value)  # an input of the graph may be what one of its ops gives
        effects = [node for op in run for node in made.get(op.name, ())]
        return [values[tensor.name] for tensor in graph.outputs], effects

    def _read_op(
        self, nodes: list[Node], op: Any, inputs: list[Value], key: tuple[Any, ...], controls: list[Node]
    ) -> tuple[list[Value], list[Node]]:
        if op.type in CALLS and self.is_shared(op, inputs):
            callee = find_callee(op, op.get_attr("f").name)
            return self._read_into(nodes, callee.graph, inputs, key, controls)
        if op.type in ALIASES and self.kept is None:  # elsewhere it has a place in an order or a branch
            return inputs, controls + [value.node for value in inputs if value.node is not None]
        node = Node(op, key, inputs, controls)
        node.outputs = [Value(tensor, (*key, index), WHOLE, node) for index, tensor in enumerate(op.outputs)]
        find_constants(node)
        node.is_kept = self.kept is not None and op in self.kept
        decision = node.decide_whole() if node.is_kept else self._decide(node)
        if isinstance(decision, Expansion):
            inner = Callee.trace(decision.function, inputs)
            outputs, _ = self._read_into(nodes, inner.graph, inputs, key, controls)
            return outputs, [value.node for value in outputs if value.node is not None]
        node.decision = decision
        for index, value in enumerate(node.outputs):
            value.placement = decision.gives[index]
            if value.constant is None and index < len(decision.constants):
                value.constant = decision.constants[index]
            if value.placement.is_replicated and value.placement.sizes:
                note_sizes(value)
        for value, shape in zip(node.outputs, decision.shapes or find_shapes(node)):
            if shape is not None:
                value.set_shape(shape)
        nodes.append(node)
        outputs = [self._make_whole(nodes, value) for value in node.outputs]
        return outputs, [node]

    def _make_whole(self, nodes: list[Node], value: Value) -> Value:
        """A sum that is needed whole is whole for all that follow."""
        if value.key not in self.whole or value.placement.kind != PARTIAL:
            return value
        node = Node(_Whole(value.tensor), (*value.key, "whole"), [value], [])
        node.outputs = [Value(value.tensor, (*value.key, "whole"), WHOLE, node)]
        if value.shape is not None:
            node.outputs[0].set_shape(value.shape)
        node.decision = Decision([WHOLE], [WHOLE], lambda tensor: [tensor])
        nodes.append(node)
        return node.outputs[0]

    def is_shared(self, op: Any, inputs: Iterable[Value]) -> bool:
        """Whether the functions that `op` calls are to be read: they take rows, or a batch by themselves."""
        return _is_split(inputs) or (self.takes_batches and not self._have_batch[-1] and has_op(op, SOURCES))

    def _decide(self, node: Node) -> Decision | Expansion:
        if (
            node.type in SOURCES
            and self.takes_batches
            and not self._have_batch[-1]
            and all(one.is_replicated for one in node.placements)
        ):
            decision = place_batch(node)
            self._have_batch[-1] = any(one.is_sharded for one in decision.gives)
            return decision
        if node.type in ALIASES:
            return Decision([None] * len(node.inputs), node.placements)
        try:
            if node.type in control.FLOW and self.is_shared(node.op, node.inputs):
                return control.FLOW[node.type](self, node)
            if node.type in RULES:
                return RULES[node.type](node)
        except NoRuleError:
            node.bodies = []
        return node.decide_whole()


def _is_split(inputs: Iterable[Value]) -> bool:
    """Whether a function that is called with these would not do what it does in the script."""
    return any(
        value.placement.kind not in (REPLICATED, ANY)
        and not (value.placement.kind == LIST and (value.placement.item or WHOLE).is_replicated)
        for value in inputs
    )


class _Whole:
    """Stands for the op of a node that the script's graph does not have: a sum made whole."""

    type = "Whole"
    name = "whole"
    device = ""

    def __init__(self, tensor: Any):
        self.outputs = [tensor]
        self.op_def = tensor.op.op_def
        self.node_def = tensor.op.node_def


def read_program(
    graph: Any, placements: Sequence[Placement], takes_batches: bool = True, kept: Container[Any] | None = None
) -> Program:
    """The program of `graph`, in which no sum is made whole in two forms."""
    whole: set[tuple[Any, ...]] = set()
    while True:
        program = Reader(whole, takes_batches, kept).read(graph, placements)
        more = find_sums_needed_whole(program) - whole
        if not more:
            return program
        whole |= more


def find_sums_needed_whole(program: Program) -> set[tuple[Any, ...]]:
    """The keys of sums that some op needs whole and another takes as they are: making them whole once is enough."""
    needed: set[tuple[Any, ...]] = set()
    kept: set[tuple[Any, ...]] = set()
    for node in program.nodes:
        for value, need in zip(node.inputs, node.decision.needs):
            if value.placement.kind == PARTIAL and node.type != _Whole.type:
                (kept if need is None else needed).add(value.key)
    needed |= {value.key for value in program.outputs if value.placement.kind == PARTIAL}
    bodies = [find_sums_needed_whole(body) for node in program.nodes for body in node.bodies]
    return (needed & kept).union(*bodies)


def _order_ops(graph: Any, run: Iterable[Any]) -> list[Any]:
    """The ops from the inputs of a graph to its outputs and to those that run besides, each after those it needs.

    Else they are in the order of their making. That order is not enough: a gradient adds what a loop keeps for it to
    the inputs of the loop.
    """
    given = {tensor.name for tensor in graph.inputs}
    pending = [tensor.op for tensor in graph.outputs if tensor.name not in given] + list(run)
    needed: dict[str, Any] = {}
    waiting: dict[str, set[str]] = {}
    users: dict[str, list[str]] = {}
    while pending:
        op = pending.pop()
        if op.name in needed:
            continue
        needed[op.name] = op
        before = [tensor.op for tensor in list_inputs(op) if tensor.name not in given] + list(op.control_inputs)
        waiting[op.name] = {one.name for one in before}
        for name in waiting[op.name]:
            users.setdefault(name, []).append(op.name)
        pending.extend(before)
    numbers = {op.name: number for number, op in enumerate(graph.get_operations())}
    ready = [(numbers[name], name) for name, before in waiting.items() if not before]
    heapq.heapify(ready)
    found = []
    while ready:
        _, name = heapq.heappop(ready)
        found.append(needed[name])
        for user in users.get(name, ()):
            waiting[user].discard(name)
            if not waiting[user]:
                heapq.heappush(ready, (numbers[user], user))
    if len(found) < len(needed):
        raise NoRuleError  # ops that need one another, as the loops of tf.compat.v1 have
    return found


def _drop_unneeded(nodes: list[Node], outputs: Iterable[Value], effects: Iterable[Node]) -> list[Node]:
    pending = [value.node for value in outputs if value.node is not None] + list(effects)
    needed: set[int] = set()
    while pending:
        node = pending.pop()
        if id(node) not in needed:
            needed.add(id(node))
            pending.extend(value.node for value in node.inputs if value.node is not None)
            pending.extend(node.controls)
    return [node for node in nodes if id(node) in needed]
