"""Finds the placements of a graph's tensors: reads its ops in order, with called functions inlined, into a `Program`.

An op's outputs get their placements from its inputs' placements, by the rule for its type. One decision needs the ops
that follow. The op `s * s` needs the partial sum s whole, the op `2 * s` could take it as it is. If a graph has both,
s is best all-reduced once, where it arises. So `read_program` finds such sums in the program, and reads the graph
again with these sums converted, until it finds no new sum. Each further reading keeps the nodes of the last reading
whose inputs have not changed.
"""

from __future__ import annotations

import dataclasses
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
from matex_tf.rewrite.whole_sums import CONVERTED_SUM, find_needed_sums

ALIASES = frozenset(("Identity", "IdentityN", "StopGradient", "PreventGradient", "Snapshot"))
"""Ops whose outputs are their inputs. The copy of a graph leaves them out."""


@dataclasses.dataclass(eq=False, repr=False)
class _Reading:
    """What the last reading of a graph at one call path has found.

    The call path consists of the names of the ops that call the graph, the outermost first.

    controls: the nodes that the call of the graph waits for.
    values: the values of tensors, by the ids of the tensors.
    nodes: all nodes that were read for an op, by the op's id: several, for example, if a call's function is inlined.
    ends: the nodes that must have run when an op has run, by the op's id. An op with a control edge from that op waits
        for these nodes.
    """

    graph: Any
    controls: list[Node] = dataclasses.field(default_factory=list)
    values: dict[int, Value] = dataclasses.field(default_factory=dict)
    nodes: dict[int, list[Node]] = dataclasses.field(default_factory=dict)
    ends: dict[int, list[Node]] = dataclasses.field(default_factory=dict)


class Reader:
    """Reads graphs into programs. A further reading repeats only what has changed.

    takes_batches: an op inside may return the batch (`sources`). If no input of a program has rows, the first such op
        returns the batch that the ranks divide; any further op returns whole tensors.
    rows: the number of rows of the batch in cost estimates; it changes no result.
    reused: for a part of a session's graph (`subgraphs`): the ops whose outputs the copy takes from the script's graph.
        Ops of a session may run in any order. None: the graph is the function of a call in eager code.
    converted: the placements to which partial sums are converted where they arise, by the keys of the sums.
    refused: an op that takes a variable whole which ranks would hold in pieces, by the number of the variable.
    loops: the number of loops around the op that is being read.
    batch_rows: the number of rows of the batch of the program that is being read, if it is fixed.

    _have_batch: for each program that is being read, the outermost first, whether it has a batch so far.
    _changed_keys: the keys of the sums whose conversion is new in the next reading, and all prefixes of these keys.
    _inputs: the values of programs' inputs, by their keys.
    _readings: the last readings, by their call paths.
    _ops: for each graph that was read, by its id: the graph, its effects (`_list_effects`) and its ops in order.
    """

    def __init__(self, takes_batches: bool = True, rows: int = USUAL_SIZE, reused: Container[Any] | None = None):
        self.takes_batches, self.rows, self.reused, self.loops = takes_batches, rows, reused, 0
        self.batch_rows: int | None = None
        self.converted: dict[tuple[Any, ...], Placement] = {}
        self.refused: dict[int, Any] = {}
        self._have_batch: list[bool] = []
        self._changed_keys: set[tuple[Any, ...]] = set()
        self._inputs: dict[tuple[Any, ...], Value] = {}
        self._readings: dict[tuple[Any, ...], _Reading] = {}
        self._ops: dict[int, tuple[Any, list[Any], list[OpRecord]]] = {}

    def read(
        self, graph: Any, placements: Sequence[Placement], key: tuple[Any, ...] = (), constants: Sequence[Any] = ()
    ) -> Program:
        """The program of a function's graph for inputs of these placements.

        key: the call path; empty for the outermost graph.
        constants: for each input, its fixed value or None.
        """
        inputs = [
            self._read_input(tensor, (*key, tensor.op.name, tensor.value_index), placement, constant)
            for (tensor, placement), constant in zip_longest(zip(graph.inputs, placements, strict=True), constants)
        ]
        nodes: list[Node] = []
        # A program has a batch if one of its inputs has rows, or if the program around it has one. Otherwise one of its
        # ops may take the batch (`takes_batch`).
        is_outermost, outer_rows = not self._have_batch, self.batch_rows
        has_batch = _has_parts(inputs) or (not is_outermost and self._have_batch[-1])
        if has_batch and is_outermost:
            self.batch_rows = count_rows(inputs)
        self._have_batch.append(has_batch)
        try:
            outputs, effects = self._read_into(nodes, graph, inputs, key, [])
            takes_batch = not has_batch and self._have_batch[-1]
        finally:
            self._have_batch.pop()
            self.batch_rows = outer_rows
        if takes_batch or is_outermost:
            _wrap_whole(nodes, outputs)
        needed = drop_unneeded(nodes, outputs, effects)
        takes_batch = takes_batch and any(map(is_batch, needed))
        return Program(put_first(needed) if takes_batch else needed, inputs, outputs, effects, takes_batch)

    def convert_sums(self, needed: dict[tuple[Any, ...], Placement]) -> bool:
        """Convert these sums where they arise. Returns whether any is new, so that a further reading is needed."""
        new = {key: need for key, need in needed.items() if self.converted.get(key) != need}
        self._changed_keys = {key[:length] for key in new for length in range(1, len(key) + 1)}
        self.converted |= new
        return bool(new)

    def read_turn(self, *arguments: Any) -> Program:
        """`read` for the body of a loop."""
        self.loops += 1
        try:
            return self.read(*arguments)
        finally:
            self.loops -= 1

    def _read_into(
        self, nodes: list[Node], graph: Any, inputs: list[Value], key: tuple[Any, ...], controls: list[Node]
    ) -> tuple[list[Value], list[Node]]:
        """Read a graph at the call path `key`, and append its nodes to `nodes`. controls: nodes that its ops wait for.

        Returns the values of the outputs of `graph`, and the nodes that must run before ops that wait for the graph.
        """
        if id(graph) not in self._ops:
            effects = self._list_effects(graph)
            self._ops[id(graph)] = graph, effects, list_ops(graph, effects, self.reused is not None)
        _, effects, records = self._ops[id(graph)]
        last = self._readings.pop(key, None)  # put back at the end: a reading that fails must not be used again
        reading = last if last is not None and last.graph is graph else _Reading(graph)
        changed: set[int] = set()  # the ids of tensors and ops that differ from the last reading
        for tensor, value in zip(graph.inputs, inputs):
            if reading.values.get(id(tensor)) is not value:
                reading.values[id(tensor)] = value
                changed.add(id(tensor))
        input_ids, labels = {id(tensor) for tensor in graph.inputs}, get_labels(graph)
        have_controls_changed, reading.controls = reading.controls != controls, controls
        for record in records:
            if self.reused is None and record.outputs and record.outputs[0] in input_ids:
                continue  # the placeholder of an input
            op_key = (*key, record.name)
            # If nothing that the op depends on has changed, its nodes of the last reading stay. It depends on its
            # inputs, on conversions of sums inside of it, and, if it has effects, on the nodes before the call.
            is_affected = not changed.isdisjoint(record.dependencies) or op_key in self._changed_keys
            is_affected = is_affected or (have_controls_changed and record.is_stateful)
            if record.id in reading.nodes and not is_affected and not _has_old_inputs(reading, record.id):
                nodes += reading.nodes[record.id]
                for node in filter(is_batch, reading.nodes[record.id]):
                    self._have_batch[-1], self.batch_rows = True, count_rows(node.outputs)
                continue
            # Otherwise read the op. If one of its results changes, the ops that take the result are read again, too.
            before = [node for op_id in record.controls for node in reading.ends.get(op_id, ())]
            if record.is_stateful:
                before += controls
            values = [reading.values[tensor_id] for tensor_id in record.inputs]
            op_nodes: list[Node] = []
            last_nodes = reading.nodes.get(record.id, ())
            outputs, ends = self._read_op(op_nodes, record, values, op_key, before, last_nodes)
            if reading.ends.get(record.id) != ends:
                reading.ends[record.id] = ends
                changed.add(record.id)
            for tensor_id, value in zip(record.outputs, outputs):
                if tensor_id not in input_ids and reading.values.get(tensor_id) is not value:
                    reading.values[tensor_id] = value
                    changed.add(tensor_id)
                if tensor_id in labels:
                    _, value.label = labels[tensor_id]  # the gradient to which a sum belongs
            reading.nodes[record.id] = op_nodes
            nodes += op_nodes
        self._readings[key] = reading
        all_ends = [node for op in effects for node in reading.ends.get(id(op), ())]
        return [reading.values[id(tensor)] for tensor in graph.outputs], all_ends

    def _list_effects(self, graph: Any) -> list[Any]:
        """The ops that run although no output needs them."""
        effects = list(graph.control_outputs)
        if self.reused is not None and graph.building_function:  # a session runs all stateful ops of a function
            effects += [op for op in graph.get_operations() if is_stateful(op) and op not in effects]
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
        if op.op_def is None and op not in (self.reused or ()):
            return self._read_into(nodes, find_callee(op, op.type), inputs, key, controls)
        if record.type in compiled.CALLS and not compiled.is_compiled(op) and self.reads_functions(op, inputs):
            return self._read_into(nodes, find_callee(op, op.get_attr("f").name), inputs, key, controls)
        # Aliases are left out, except in a session's graph, where an alias orders ops, or ends a branch.
        if record.type in ALIASES and self.reused is None:
            return inputs, controls + [value.node for value in inputs if value.node is not None]
        # Any other op becomes a node, or is replaced by the ops of its rule's `Expansion`.
        node = Node(op, key, inputs, controls, self.rows, self.batch_rows, repeats=bool(self.loops))
        node.outputs = [Value(tensor, (*key, index), WHOLE, node) for index, tensor in enumerate(op.outputs)]
        find_constants(node)
        node.is_reused = self.reused is not None and op in self.reused
        # An op that is reused takes the script's own tensors, whatever the placements of the inputs are.
        given = Decision([None] * len(inputs), [WHOLE] * len(node.outputs))
        decision = given if node.is_reused else self._decide(node)
        if isinstance(decision, Expansion):
            outputs, _ = self._read_into(nodes, trace_expansion(decision, inputs), inputs, key, controls)
            return outputs, [value.node for value in outputs if value.node is not None]
        node.decide_on(decision)
        if self.reused is None:  # a rank repeats a row for its own rows only, see `spreading`
            nodes += spread_rows(node, self._decide)
        for value in node.outputs:
            if value.placement.sizes and value.placement.is_replicated:
                note_sizes(value)
        if not decision.shapes and any(value.has_more_shape for value in inputs):
            node.set_shapes(find_shapes(node))
        last_node = next((each for each in last_nodes if each.key == key), None)
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
        if value.placement.kind != PARTIAL:
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

    def reads_functions(self, op: Any, inputs: Iterable[Value]) -> bool:
        """Whether the functions that `op` calls must be read: an input is not whole, or they may take the batch."""
        if _has_parts(inputs) or any(value.placement.feed or value.placement.is_piece_handle for value in inputs):
            return True
        return self.takes_batches and not self._have_batch[-1] and has_op(op, SOURCES)

    def _decide(self, node: Node) -> Decision | Expansion:
        """The placements that an op needs and gives, by the first of these that applies: the feed of an input, the
        bodies of a branch or loop, pieces of variables, compilation, the rule of the op's type; else whole inputs.
        """
        special = [value.placement for value in node.inputs if value.placement is not WHOLE]
        # The placement of an input with a feed: an iterator, dataset or optional of batches that ranks share (`feeds`).
        fed = next((placement for placement in special if placement.feed is not None), None)
        if node.type in SOURCES:
            is_sliced = self.takes_batches and not self._have_batch[-1]
            if fed or (is_sliced and all(placement.is_replicated for placement in special)):
                return self._decide_on_source(node, fed, is_sliced)
        if fed and node.type == "OptionalHasValue":
            return fed.feed.place_end_check(node)
        if node.type in ALIASES:
            return Decision([None] * len(node.inputs), node.placements)
        try:  # the rules, each of which may raise NoRuleError
            if node.type in control.FLOW and self.reads_functions(node.op, node.inputs):
                return control.FLOW[node.type](self, node)
            if any(placement.is_piece_handle or placement.is_piece for placement in special):
                return pieces.place(node)
            # A session cannot run collectives in a compiled function. There each rank calls the function with all rows.
            if special and self.reused is None and compiled.is_compiled(node.op) and _has_parts(node.inputs):
                return compiled.place_call(self, node)
            if node.type in RULES:
                return RULES[node.type](node)
        except NoRuleError:
            node.bodies = []  # a rule that failed may have set them
        # No rule applies: the op takes whole inputs.
        for placement in special:
            if placement.is_piece_handle:
                self.refused.setdefault(placement.variable, node.op)
        if fed:
            return fed.feed.place_other(node, fed)
        # All ranks use the random numbers of one rank. They travel as a sum, and there are no sums of strings.
        is_drawn = has_no_seed(node.op) and not any(value.dtype.name == "string" for value in node.outputs)
        return draw_once(node) if is_drawn else decide_without_rule(node)

    def _decide_on_source(self, node: Node, fed: Placement | None, is_sliced: bool) -> Decision:
        """Decide on an op that returns a batch.

        fed: the placement of the op's input, if this placement has a feed.
        is_sliced: this is the batch that the ranks divide in the program; any other batch has the rows of all ranks.
        """
        decision = fed.feed.place_batch(node, is_sliced) if fed else place_batch(node)
        if is_sliced:
            self._have_batch[-1] = any(placement.is_sharded for placement in decision.gives)
            for value, placement in zip(node.outputs, decision.gives):
                value.placement = placement
            self.batch_rows = count_rows(node.outputs)
        return decision


def _has_old_inputs(reading: _Reading, op_id: int) -> bool:
    """Whether nodes that were added before the op's own node take values that a later reading has replaced.

    `spread_rows` adds nodes that repeat earlier ops. Their inputs may have changed although the op's inputs have not.
    If the op is a call whose function is inlined, these nodes are the function's, and take values of the function's own
    reading. Then the call is read again, and the function's reading repeats only what has changed.
    """
    added = reading.nodes[op_id][:-1]  # the last node is the op's own, or converts its result
    own = {id(value) for node in added for value in node.outputs}
    inputs = (value for node in added for value in node.inputs if id(value) not in own)
    return any(reading.values.get(id(value.tensor)) is not value for value in inputs)


def _has_parts(inputs: Iterable[Value]) -> bool:
    """Whether a rank has only a part of an input, such as its rows, so that a function with these inputs is copied."""
    return any(
        value.placement.kind not in (REPLICATED, ANY)
        and not (value.placement.kind == LIST and (value.placement.item or WHOLE).is_replicated)
        for value in inputs
    )


def _wrap_whole(nodes: list[Node], outputs: Iterable[Value]) -> None:
    """Make values whole before an op wraps them in optionals that are outputs of a program.

    An example is a residual of a branch, which code outside of the program takes. If an op of the program takes the
    optional, too, the optional stays as it is.
    """
    for value in outputs:
        node = value.node
        if node is not None and node.type == "OptionalFromValue" and all(value not in user.inputs for user in nodes):
            value.placement = list_of(WHOLE)
            node.decision = Decision([WHOLE] * len(node.inputs), [value.placement])


def read_program(
    graph: Any, placements: Sequence[Placement], takes_batches: bool = True, rows: int = USUAL_SIZE,
    constants: Sequence[Any] = (), reused: Container[Any] | None = None,
) -> Program:  # fmt: skip
    """The program of `graph`, with each partial sum converted once. For the arguments see `Reader` and `Reader.read`.

    Raises PiecesRefusedError if `placements` has variables in pieces that some op takes whole.
    """
    reader = Reader(takes_batches, rows, reused)
    with pause_collection():
        while True:
            program = reader.read(graph, placements, constants=constants)
            if reader.refused:
                raise pieces.PiecesRefusedError(reader.refused)
            if not reader.convert_sums(find_needed_sums(program)):
                return program
