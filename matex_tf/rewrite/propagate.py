"""Finds the placements of a graph's tensors: reads its ops in order, with called functions inlined, into a `Program`.

An op's outputs get their placements from its inputs' placements, by the rule for its type. One decision needs the ops
that follow. The op `s * s` needs the partial sum s whole, the op `2 * s` could take it as it is. If a graph has both,
s is best all-reduced once, where it arises. So `read_program` finds such sums in the program, and reads the graph
again with these sums converted, until it finds no new sum. An op is read again only if what it depends on has changed.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from matex_tf.rewrite import compiled, pieces
from matex_tf.rewrite.constants import find_constants, find_shapes, note_sizes
from matex_tf.rewrite.deciding import ALIASES, Decider
from matex_tf.rewrite.functions import OpRecord, find_callee, list_ops, trace_expansion
from matex_tf.rewrite.graph_ops import find_definition, is_stateful
from matex_tf.rewrite.labels import get_labels
from matex_tf.rewrite.nodes import USUAL_SIZE, Decision, Expansion, Node, StandIn, Value, has_same_outputs
from matex_tf.rewrite.pauses import pause_collection
from matex_tf.rewrite.placement import HALF, WHOLE, ItemList, Partial, Placement, Sizes
from matex_tf.rewrite.programs import Program, drop_unneeded
from matex_tf.rewrite.sources import is_batch, put_first
from matex_tf.rewrite.spreading import spread_rows
from matex_tf.rewrite.whole_sums import CONVERTED_SUM, find_needed_sums


class _OpReading(NamedTuple):
    """The last reading of an op: what the op depends on (`op`, `inputs`, `controls`), and what was found.

    inputs: the values of the op's inputs.
    controls: the nodes that must run before the op, besides the makers of its inputs.
    nodes: all nodes that were read for the op: several, for example, if a call's function is inlined.
    outputs: the values of the op's outputs.
    ends: the nodes that must have run when the op has run. An op with a control edge from this op waits for them.
    """

    op: Any
    inputs: list[Value]
    controls: list[Node]
    nodes: list[Node]
    outputs: list[Value]
    ends: list[Node]


class Reader(Decider):
    """Reads graphs into programs. A further reading repeats only what has changed.

    rows: the number of rows of the batch in cost estimates; it changes no result.
    reused: of a session's graph, the ops whose outputs the copy takes from the script's graph.
    converted: the placements to which partial sums are converted where they arise, by the keys of the sums.

    _inputs: the values of programs' inputs, by their keys.
    _readings: the last reading of each op, by its key: the names of the calling ops, the outermost first, and its own.
    _ops: for each graph that was read, by its id: the graph, its effects (`_list_effects`) and its ops in order.
    """

    def __init__(self, takes_batches: bool = True, rows: int = USUAL_SIZE, reused: Container[Any] | None = None):
        """reused: None if the graph is not of a session."""
        super().__init__(takes_batches, in_session=reused is not None)
        self.rows, self.reused = rows, reused or ()
        self.converted: dict[tuple[Any, ...], Placement] = {}
        self._inputs: dict[tuple[Any, ...], Value] = {}
        self._readings: dict[tuple[Any, ...], _OpReading] = {}
        self._ops: dict[int, tuple[Any, list[Any], list[OpRecord]]] = {}

    def read(
        self, graph: Any, placements: Sequence[Placement], key: tuple[Any, ...] = (), constants: Sequence[Any] = (),
        repeats: bool = False,
    ) -> Program:  # fmt: skip
        """The program of a function's graph for inputs of these placements.

        key: the call path; empty for the outermost graph.
        constants: for each input, its fixed value or None.
        repeats: the graph is the body of a loop.
        """
        inputs = [
            self._read_input(tensor, (*key, tensor.op.name, tensor.value_index), placement, constant)
            for (tensor, placement), constant in zip_longest(zip(graph.inputs, placements, strict=True), constants)
        ]
        nodes: list[Node] = []
        is_outermost = not self.have_batch
        with self.enter(inputs, repeats) as had_batch:
            outputs, effects = self._read_into(nodes, graph, inputs, key, [])
            takes_batch = self.have_batch[-1] and not had_batch
        if takes_batch or is_outermost:
            _wrap_whole(nodes, outputs)
        # The op that takes the batch is needed even if only its number of rows is used, which no op makes (`counts`).
        sources = [node for node in nodes if takes_batch and is_batch(node)]
        needed_nodes = drop_unneeded(nodes, outputs, [*effects, *sources])
        return Program(put_first(needed_nodes) if takes_batch else needed_nodes, inputs, outputs, effects, takes_batch)

    def convert_sums(self, needed: dict[tuple[Any, ...], Placement]) -> bool:
        """Convert these sums where they arise. Returns whether any is new, so that a further reading is needed."""
        new_needs = {key: need for key, need in needed.items() if self.converted.get(key) != need}
        # The ops that make these sums, and the calls around them, are read again: their last readings are of no op.
        stale_keys = self._readings.keys() & {key[:length] for key in new_needs for length in range(1, len(key))}
        self._readings |= {key: self._readings[key]._replace(op=None) for key in stale_keys}
        self.converted |= new_needs
        return bool(new_needs)

    def _read_into(
        self, nodes: list[Node], graph: Any, inputs: list[Value], key: tuple[Any, ...], controls: list[Node]
    ) -> tuple[list[Value], list[Node]]:
        """Read a graph at the call path `key`, and append its nodes to `nodes`. controls: nodes that its ops wait for.

        Returns the values of the outputs of `graph`, and the nodes that must run before ops that wait for the graph.
        """
        if id(graph) not in self._ops:
            effects = self._list_effects(graph)
            self._ops[id(graph)] = graph, effects, list_ops(graph, effects, has_loops=self.in_session)
        _, effects, records = self._ops[id(graph)]
        labels = get_labels(graph)
        values = {id(tensor): value for tensor, value in zip(graph.inputs, inputs)}
        input_ids = set(values)
        ends: dict[int, list[Node]] = {}  # the nodes that must have run when an op has run, by the op's id
        for record in records:
            if not self.in_session and record.outputs and record.outputs[0] in input_ids:
                continue  # the placeholder of an input
            predecessors = [node for op_id in record.controls for node in ends.get(op_id, ())]
            if record.is_stateful:
                predecessors += controls
            reading = self._find_reading(record, (*key, record.name), predecessors, values)
            nodes += reading.nodes
            ends[record.id] = reading.ends
            for tensor_id, value in zip(record.outputs, reading.outputs):
                if tensor_id not in input_ids:
                    values[tensor_id] = value
                if tensor_id in labels:
                    _, value.label = labels[tensor_id]  # the gradient to which a sum belongs
        all_ends = [node for op in effects for node in ends.get(id(op), ())]
        return [values[id(tensor)] for tensor in graph.outputs], all_ends

    def _find_reading(
        self, record: OpRecord, key: tuple[Any, ...], controls: list[Node], values: dict[int, Value]
    ) -> _OpReading:
        """The reading of an op: the last one, if nothing that the op depends on has changed; else a new one.

        values: the values of tensors so far, by the ids of the tensors.
        """
        inputs = [values[tensor_id] for tensor_id in record.inputs]
        last_reading = self._readings.pop(key, None)  # put back at the end: a reading that fails must not be used again
        if (
            last_reading is not None
            and last_reading[:3] == (record.op, inputs, controls)  # what the op depends on
            and not _has_old_inputs(last_reading.nodes, values)
        ):
            for node in filter(is_batch, last_reading.nodes):
                self.note_batch(node.outputs)
            self._readings[key] = last_reading
            return last_reading
        nodes, last_nodes = list[Node](), last_reading.nodes if last_reading else ()
        outputs, ends = self._read_op(nodes, record, list(inputs), key, controls, last_nodes)
        self._readings[key] = _OpReading(record.op, inputs, controls, nodes, outputs, ends)
        return self._readings[key]

    def _list_effects(self, graph: Any) -> list[Any]:
        """The ops that run although no output needs them."""
        effects = list(graph.control_outputs)
        if self.in_session and graph.building_function:  # a session runs all stateful ops of a function
            effects += [op for op in graph.get_operations() if is_stateful(op.type) and op not in effects]
        return effects

    def _read_op(
        self, nodes: list[Node], record: OpRecord, inputs: list[Value], key: tuple[Any, ...], controls: list[Node],
        last_nodes: Sequence[Node],
    ) -> tuple[list[Value], list[Node]]:  # fmt: skip
        """Read an op, and append its nodes to `nodes`. last_nodes: the nodes of the last reading of the op.

        Returns the values of the op's outputs, and the nodes for which an op waits if this op is its control input.
        """
        op = record.op
        # Calls of functions are inlined. An op without a definition calls the function that its type names.
        if find_definition(record.type) is None and op not in self.reused:
            return self._read_into(nodes, find_callee(op, op.type), inputs, key, controls)
        if record.type in compiled.CALLS and not compiled.is_compiled(op) and self.reads_functions(op, inputs):
            return self._read_into(nodes, find_callee(op, op.get_attr("f").name), inputs, key, controls)
        # Aliases are left out, except in a session's graph, where an alias orders ops, or ends a branch.
        if record.type in ALIASES and not self.in_session:
            return inputs, controls + [value.node for value in inputs if value.node is not None]
        # Any other op becomes a node, or is replaced by the ops of its rule's `Expansion`.
        node = Node(op, key, inputs, controls, self.rows, self.batch_rows, repeats=bool(self.loops))
        node.outputs = [Value(tensor, (*key, index), WHOLE, node) for index, tensor in enumerate(op.outputs)]
        find_constants(node)
        node.is_reused = op in self.reused
        # An op that is reused takes the script's own tensors, whatever the placements of the inputs are.
        reused_decision = Decision([None] * len(inputs), [WHOLE] * len(node.outputs))
        decision = reused_decision if node.is_reused else self.decide(node)
        if isinstance(decision, Expansion):
            outputs, _ = self._read_into(nodes, trace_expansion(decision, inputs), inputs, key, controls)
            return outputs, [value.node for value in outputs if value.node is not None]
        node.decide_on(decision)
        if not self.in_session:  # a rank repeats a row for its own rows only, see `spreading`
            nodes += spread_rows(node, self.decide)
        for value in node.outputs:
            if isinstance(value.placement, Sizes) and not value.placement.counts_rows:
                note_sizes(value, value.placement.sizes)
        if not decision.shapes and any(value.has_more_shape for value in inputs):
            node.set_shapes(find_shapes(node))
        for value in node.outputs:
            if value.counts is not None:  # the copy computes the numbers from the slice, without this op
                value.node = None
        # The last reading may have been of another op with this key, if a rule replaced the op by other ops than now.
        last_node = next((candidate for candidate in last_nodes if candidate.key == key and candidate.op is op), None)
        if last_node is not None and has_same_outputs(last_node, node):
            # Keep the node of the last reading. Later ops take its values as before, and need not be read again.
            last_node.update_from(node)
            node = last_node
        nodes.append(node)
        return [self._convert_sum(nodes, value) for value in node.outputs], [node]

    def _read_input(self, tensor: Any, key: tuple[Any, ...], placement: Placement, constant: Any) -> Value:
        value = self._inputs.get(key)
        if value is None or value.placement != placement or value.constant is not constant:
            value = self._inputs[key] = Value(tensor, key, placement)
            value.constant = constant
        return value

    def _convert_sum(self, nodes: list[Node], value: Value) -> Value:
        """The value that later ops take: the converted sum, if `value` is a sum that is converted where it arises."""
        if not isinstance(value.placement, Partial):
            return value
        is_rounded = value.dtype.name in HALF and not self.loops  # see `HALF`
        need = self.converted.get(value.key, WHOLE if is_rounded else None)
        if need is None:
            return value
        key = (*value.key, "whole")
        node = Node(StandIn(CONVERTED_SUM, [value.tensor]), key, [value], [])
        node.outputs = [Value(value.tensor, key, WHOLE, node)]
        node.decide_on(node.decide([need], need, emit=lambda _, tensor: [tensor], shapes=[value.shape]))
        nodes.append(node)
        return node.outputs[0]


def _has_old_inputs(nodes: Sequence[Node], values: dict[int, Value]) -> bool:
    """Whether nodes that were added before an op's own node take values that a later reading has replaced.

    nodes: the nodes that were read for the op.
    values: the values of tensors, by the ids of the tensors.

    `spread_rows` adds nodes that repeat earlier ops. Their inputs may have changed although the op's inputs have not.
    If the op is a call whose function is inlined, these nodes are the function's, and take values of the function's own
    reading. Then the call is read again, and the function's reading repeats only what has changed.
    """
    added_nodes = nodes[:-1]  # the last node is the op's own, or converts its result
    own_value_ids = {id(value) for node in added_nodes for value in node.outputs}
    inputs = (value for node in added_nodes for value in node.inputs if id(value) not in own_value_ids)
    return any(values.get(id(value.tensor)) is not value for value in inputs)


def _wrap_whole(nodes: list[Node], outputs: Iterable[Value]) -> None:
    """Make values whole before an op wraps them in optionals that are outputs of a program.

    An example is a residual of a branch, which code outside of the program takes. If an op of the program takes the
    optional, too, the optional stays as it is.
    """
    for value in outputs:
        node = value.node
        if node is not None and node.type == "OptionalFromValue" and all(value not in user.inputs for user in nodes):
            value.placement = ItemList(WHOLE)
            node.decision = Decision([WHOLE] * len(node.inputs), [value.placement])


def read_program(
    graph: Any, placements: Sequence[Placement], takes_batches: bool = True, rows: int = USUAL_SIZE,
    constants: Sequence[Any] = (), reused: Container[Any] | None = None,
) -> Program:  # fmt: skip
    """The program of `graph`, with each partial sum converted once; it returns whole outputs. For the arguments see
    `Reader` and `Reader.read`.

    Raises PiecesRefusedError if `placements` has variables in pieces that some op takes whole.
    """
    reader = Reader(takes_batches, rows, reused)
    with pause_collection():
        while True:
            program = reader.read(graph, placements, constants=constants)
            if reader.refused:
                raise pieces.PiecesRefusedError(reader.refused)
            if not reader.convert_sums(find_needed_sums(program)):
                program.gives = [WHOLE] * len(program.outputs)
                return program
