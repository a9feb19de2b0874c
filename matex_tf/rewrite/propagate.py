"""Propagates placements forward: reads a graph op by op, with called functions inlined."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from itertools import zip_longest
from typing import Any

from matex_tf.rewrite import compiled, control, pieces
from matex_tf.rewrite.constants import find_constants, find_shapes, note_sizes
from matex_tf.rewrite.functions import OpRecord, find_callee, is_stateful, list_ops, trace_expansion
from matex_tf.rewrite.graph_ops import has_op
from matex_tf.rewrite.labels import get_labels
from matex_tf.rewrite.nodes import USUAL_SIZE, Decision, Expansion, Node, NoRuleError, StandIn, Value, has_same_outputs
from matex_tf.rewrite.pauses import pause_collection
from matex_tf.rewrite.placement import ANY, HALF, LIST, PARTIAL, REPLICATED, WHOLE, Placement, list_of
from matex_tf.rewrite.programs import Program, drop_unneeded
from matex_tf.rewrite.rules import RULES
from matex_tf.rewrite.rules.randoms import draw_once, has_no_seed
from matex_tf.rewrite.rules.registry import decide_without_rule
from matex_tf.rewrite.sources import SOURCES, count_rows, is_batch, place_batch, put_first
from matex_tf.rewrite.spreading import spread_rows
from matex_tf.rewrite.whole_sums import WHOLE_SUM, find_needed_sums

ALIASES = frozenset(("Identity", "IdentityN", "StopGradient", "PreventGradient", "Snapshot"))
"""Identity ops, which the copy of a graph leaves out."""


class _Reading:
    """The last reading of one graph at one call path.

    values: by the ids of tensors. made: the nodes whose outputs replace those of an op, by the op's id. nodes: all
        nodes that were read for the op.
    """

    __slots__ = ("controls", "graph", "made", "nodes", "values")

    def __init__(self, graph: Any):
        self.graph = graph
        self.controls: list[Node] = []
        self.values: dict[int, Value] = {}
        self.made: dict[int, list[Node]] = {}
        self.nodes: dict[int, list[Node]] = {}


class Reader:
    """Reads graphs into programs. A further reading repeats only what has changed.

    converted: partial sums that are converted where they arise, by their keys, with the placements that they get.
    refused: ops that take a variable whole which ranks hold in pieces, by the variable's number.
    takes_batches: an op inside may give the batch (`sources`). The first such op of a program does, unless the program
        is given rows of a batch; the others give whole tensors.
    rows: the number of rows of the batch in cost estimates; it changes no result.
    reused: of a part of a session's graph, the ops that the copy takes from the script's graph. Ops there need not run
        in the order of their creation. None: the function of a call in eager code.
    loops: the number of loops around the op that is being read.
    """

    def __init__(self, takes_batches: bool = True, rows: int = USUAL_SIZE, reused: Container[Any] | None = None):
        self.takes_batches, self.rows, self.reused, self.loops = takes_batches, rows, reused, 0
        self.batch_rows: int | None = None  # of the program that is being read, if it is fixed
        self.converted: dict[tuple[Any, ...], Placement] = {}
        self.refused: dict[int, Any] = {}
        self._have_batch: list[bool] = []  # for each program that is being read, the outermost first
        self._added: set[tuple[Any, ...]] = set()  # their keys, and all prefixes of their keys
        self._inputs: dict[tuple[Any, ...], Value] = {}
        self._readings: dict[tuple[Any, ...], _Reading] = {}
        self._steps: dict[int, tuple[Any, list[Any], list[OpRecord]]] = {}

    def read(
        self, graph: Any, placements: Sequence[Placement], key: tuple[Any, ...] = (), constants: Sequence[Any] = ()
    ) -> Program:
        """The program of a function's graph for inputs of these placements. `constants`: their
        fixed values, or None.
        """
        inputs = [
            self._read_input(tensor, (*key, tensor.op.name, tensor.value_index), one, constant)
            for (tensor, one), constant in zip_longest(zip(graph.inputs, placements, strict=True), constants)
        ]
        nodes: list[Node] = []
        has_batch = (self._have_batch[-1:] or [False])[0] or _is_split(inputs)
        batch_rows = self.batch_rows
        if has_batch and not self._have_batch:
            self.batch_rows = count_rows(inputs)
        self._have_batch.append(has_batch)
        try:
            outputs, effects = self._read_into(nodes, graph, inputs, key, [])
            takes_batch = not has_batch and self._have_batch[-1]
        finally:
            self._have_batch.pop()
            self.batch_rows = batch_rows
        if takes_batch or not self._have_batch:
            _wrap_whole(nodes, outputs)
        needed = drop_unneeded(nodes, outputs, effects)
        takes_batch = takes_batch and any(map(is_batch, needed))
        return Program(put_first(needed) if takes_batch else needed, inputs, outputs, effects, takes_batch)

    def convert_sums(self, needed: dict[tuple[Any, ...], Placement]) -> bool:
        """Convert these sums, too, where they arise. Returns whether any is new; then the graph must be read again.

        That reading decides again only on ops whose inputs have changed.
        """
        new = {key: need for key, need in needed.items() if self.converted.get(key) != need}
        self._added = {key[:length] for key in new for length in range(1, len(key) + 1)}
        self.converted |= new
        return bool(new)

    def read_turn(self, *given: Any) -> Program:
        """`read` for the body of a loop."""
        self.loops += 1
        try:
            return self.read(*given)
        finally:
            self.loops -= 1

    def _read_into(
        self, nodes: list[Node], graph: Any, inputs: list[Value], key: tuple[Any, ...], controls: list[Node]
    ) -> tuple[list[Value], list[Node]]:
        """The values of the outputs of `graph`, and the nodes that must run before ops that wait for the graph."""
        if id(graph) not in self._steps:
            run = self._list_run(graph)
            self._steps[id(graph)] = graph, run, list_ops(graph, run, self.reused is not None)
        _, run, steps = self._steps[id(graph)]
        last = self._readings.pop(key, None)  # a reading that failed is not resumed
        one = last if last is not None and last.graph is graph else _Reading(graph)
        changed: set[int] = set()  # the ids of tensors and ops whose values have changed
        for tensor, value in zip(graph.inputs, inputs):
            if one.values.get(id(tensor)) is not value:
                one.values[id(tensor)] = value
                changed.add(id(tensor))
        given, labels = {id(tensor) for tensor in graph.inputs}, get_labels(graph)
        is_moved, one.controls = one.controls != controls, controls
        for step in steps:
            if self.reused is None and step.outputs and step.outputs[0] in given:
                continue
            at = (*key, step.name)
            if (step.number in one.nodes and changed.isdisjoint(step.before) and at not in self._added
                    and not (is_moved and step.is_stateful)):  # fmt: skip
                nodes += one.nodes[step.number]
                for node in filter(is_batch, one.nodes[step.number]):
                    self._have_batch[-1], self.batch_rows = True, count_rows(node.outputs)
                continue
            before = [node for number in step.controls for node in one.made.get(number, ())] if step.controls else []
            taken = [one.values[number] for number in step.inputs]
            own: list[Node] = []
            if step.is_stateful:
                before = before + controls
            found, made = self._read_op(own, step, taken, at, before, one.nodes.get(step.number, ()))
            if one.made.get(step.number) != made:
                one.made[step.number] = made
                changed.add(step.number)
            for number, value in zip(step.outputs, found):
                if number not in given and one.values.get(number) is not value:
                    one.values[number] = value
                    changed.add(number)
                if number in labels:
                    value.label = labels[number][1]
            one.nodes[step.number] = own
            nodes += own
        self._readings[key] = one
        effects = [node for op in run for node in one.made.get(id(op), ())]
        return [one.values[id(tensor)] for tensor in graph.outputs], effects

    def _list_run(self, graph: Any) -> list[Any]:
        """The ops that run although no output needs them."""
        run = list(graph.control_outputs)
        if self.reused is not None and graph.building_function:  # all of these run, though no op waits for them
            run += [op for op in graph.get_operations() if is_stateful(op) and op not in run]
        return run

    def _read_op(
        self, nodes: list[Node], step: OpRecord, inputs: list[Value], key: tuple[Any, ...], controls: list[Node],
        last: Sequence[Node],
    ) -> tuple[list[Value], list[Node]]:  # fmt: skip
        """The values of an op's outputs, and the nodes that stand for the op. `last`: the nodes of the last reading of
        the op.
        """
        op = step.op
        if op.op_def is None and op not in (self.reused or ()):  # its type is the name of the function that it calls
            return self._read_into(nodes, find_callee(op, op.type), inputs, key, controls)
        if step.type in compiled.CALLS and not compiled.is_compiled(op) and self.is_shared(op, inputs):
            return self._read_into(nodes, find_callee(op, op.get_attr("f").name), inputs, key, controls)
        if step.type in ALIASES and self.reused is None:  # in a session's graph it has a place in an order or a branch
            return inputs, controls + [value.node for value in inputs if value.node is not None]
        node = Node(op, key, inputs, controls)
        node.rows, node.batch_rows, node.repeats = self.rows, self.batch_rows, bool(self.loops)
        node.outputs = [Value(tensor, (*key, index), WHOLE, node) for index, tensor in enumerate(op.outputs)]
        find_constants(node)
        node.is_reused = self.reused is not None and op in self.reused
        decision = node.decide_whole() if node.is_reused else self._decide(node)
        if isinstance(decision, Expansion):
            outputs, _ = self._read_into(nodes, trace_expansion(decision, inputs), inputs, key, controls)
            return outputs, [value.node for value in outputs if value.node is not None]
        node.decide_on(decision)
        if self.reused is None:
            nodes += spread_rows(node, self._decide)
        for value in node.outputs:
            if value.placement.sizes and value.placement.is_replicated:
                note_sizes(value)
        if not decision.shapes and any(one.has_more_shape for one in inputs):
            for value, shape in zip(node.outputs, find_shapes(node)):
                if shape is not None:
                    value.set_shape(shape)
        before = next((one for one in last if one.key == key), None)
        if before is not None and has_same_outputs(before, node):
            node = before.become(node)
        nodes.append(node)
        return [self._convert_sum(nodes, value) for value in node.outputs], [node]

    def _read_input(self, tensor: Any, key: tuple[Any, ...], placement: Placement, constant: Any) -> Value:
        value = self._inputs.get(key)
        if value is None or value.placement != placement or value.constant is not constant:
            value = self._inputs[key] = Value(tensor, key, placement)
            value.constant = constant
        return value

    def _convert_sum(self, nodes: list[Node], value: Value) -> Value:
        """The value, or the whole sum in its place: for sums in `converted`, and those of half
        precision (see `HALF`).
        """
        if value.placement.kind != PARTIAL:
            return value
        is_rounded = value.dtype.name in HALF and not self.loops
        need = self.converted.get(value.key, WHOLE if is_rounded else None)
        if need is None:
            return value
        key = (*value.key, "whole")
        node = Node(StandIn(WHOLE_SUM, [value.tensor]), key, [value], [])
        node.outputs = [Value(value.tensor, key, WHOLE, node)]
        node.decide_on(Decision([need], [need], lambda tensor: [tensor], (), [value.shape]))
        nodes.append(node)
        return node.outputs[0]

    def is_shared(self, op: Any, inputs: Iterable[Value]) -> bool:
        """Whether the functions that `op` calls must be read: they take rows, or a batch by themselves."""
        if _is_split(inputs) or any(value.placement.feed or value.placement.is_held for value in inputs):
            return True
        return self.takes_batches and not self._have_batch[-1] and has_op(op, SOURCES)

    def _decide(self, node: Node) -> Decision | Expansion:
        special = [one.placement for one in node.inputs if one.placement is not WHOLE]
        fed = next((one for one in special if one.feed is not None), None)
        is_batch = node.type in SOURCES and self.takes_batches and not self._have_batch[-1]
        if node.type in SOURCES and (fed or (is_batch and all(one.is_replicated for one in special))):
            decision = fed.feed.place_batch(node, is_batch) if fed else place_batch(node)
            if is_batch:
                self._have_batch[-1] = any(one.is_sharded for one in decision.gives)
                for value, one in zip(node.outputs, decision.gives):
                    value.placement = one
                self.batch_rows = count_rows(node.outputs)
            return decision
        if fed and node.type == "OptionalHasValue":
            return fed.feed.place_end(node)
        if node.type in ALIASES:
            return Decision([None] * len(node.inputs), node.placements)
        try:
            if node.type in control.FLOW and self.is_shared(node.op, node.inputs):
                return control.FLOW[node.type](self, node)
            if any(one.is_held or one.is_piece for one in special):
                return pieces.place(node)
            # A session does not run collectives inside of a compiled function: all ranks call it with all rows.
            if special and self.reused is None and compiled.is_compiled(node.op) and _is_split(node.inputs):
                return compiled.place_call(self, node)
            if node.type in RULES:
                return RULES[node.type](node)
        except NoRuleError:
            node.bodies = []
        for one in special:
            if one.is_held:
                self.refused.setdefault(one.variable, node.op)
        if fed:
            return fed.feed.pass_on(node, fed)
        is_drawn = has_no_seed(node.op) and not any(one.dtype.name == "string" for one in node.outputs)
        return draw_once(node) if is_drawn else decide_without_rule(node)


def _is_split(inputs: Iterable[Value]) -> bool:
    """Whether a function that takes these inputs must be copied: it cannot run as it is."""
    return any(
        value.placement.kind not in (REPLICATED, ANY)
        and not (value.placement.kind == LIST and (value.placement.item or WHOLE).is_replicated)
        for value in inputs
    )


def _wrap_whole(nodes: list[Node], outputs: Iterable[Value]) -> None:
    """Bring optionals that leave the program to whole values before they are wrapped."""
    for value in outputs:
        node = value.node
        if node is None or node.type != "OptionalFromValue" or any(value in one.inputs for one in nodes):
            continue
        value.placement = list_of(WHOLE)
        node.decision = Decision([WHOLE] * len(node.inputs), [value.placement])


def read_program(
    graph: Any,
    placements: Sequence[Placement],
    takes_batches: bool = True,
    rows: int = USUAL_SIZE,
    constants: Sequence[Any] = (),
    reused: Container[Any] | None = None,
) -> Program:
    """The program of `graph`, with each partial sum converted once; see `Reader` and `Reader.read`.

    Raises:
        PiecesRefusedError: ops take variables whole that are given in pieces.
    """
    reader = Reader(takes_batches, rows, reused)
    with pause_collection():
        while True:
            program = reader.read(graph, placements, constants=constants)
            if reader.refused:
                raise pieces.PiecesRefusedError(reader.refused)
            if not reader.convert_sums(find_needed_sums(program)):
                return program
