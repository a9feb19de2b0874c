"""Builds the copy of one program: the ops of level 0, the collectives of wave 0, the ops of level 1, and so on.

If each rank has computed a piece of a weight's new value, a *publication* brings all pieces into the variables of all
ranks. Without it, an all-gather would make the new value whole, and an op would assign the whole value.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, cast

from matex_tf.lazy import tf
from matex_tf.rewrite import early, labels, waves
from matex_tf.rewrite.gathering import prepare
from matex_tf.rewrite.kept import Kept
from matex_tf.rewrite.nodes import Node, Value
from matex_tf.rewrite.pieces import ASSIGNS
from matex_tf.rewrite.placement import WHOLE, Piece, Placement
from matex_tf.rewrite.programs import Program
from matex_tf.rewrite.sharing import Publication
from matex_tf.rewrite.tensors import SAME, Tensors, find_path, is_constant


class Body:
    """The copy of one program in one graph.

    copy: the `emit.Copy` of the step.
    kept: the ops that the copy keeps unchanged.
    publications: the nodes that publications replace, assignments to variables, by the ids of the assigned pieces.

    `build` fills the tables level by level, and sets `after` in the end.

    tensors: the tensors of values.
    operations: for each node, by its id, the operations after which it has run.
    waits: for nodes that must wait for further nodes, by their ids, these nodes (`early`).
    last: the operations that the next collective must wait for.
    after: the operations after which all effects of the program have happened.
    """

    def __init__(self, copy: Any, program: Program):
        self.copy, self.program = copy, program
        self.kept = Kept(tf.compat.v1.get_default_graph())
        self.tensors = Tensors(copy, self.kept)
        self.operations: dict[int, list[Any]] = {}
        self.waits: dict[int, list[Node]] = {}
        self.publications: dict[int, Node] = {}
        self.last: list[Any] = []
        self.after: list[Any] = []

    def build(self, inputs: Sequence[Any]) -> list[Any]:
        """The outputs of the program for these inputs. `after` is set, too."""
        self.tensors.own.update((id(value), tensor) for value, tensor in zip(self.program.inputs, inputs))
        if self.copy.is_ordered:  # the graph of a session is not ordered, and has no publications
            self.publications = {
                piece_id: node
                for piece_id, node in _find_publications(self.program).items()
                if self.copy.exchanger.can_publish(self.tensors.find(node.inputs[0]), node.inputs[1].dtype)
            }
        # An op without rows comes right after the last op with rows that it needs. If `sums_early`, each sum of a
        # gradient runs as soon as the gradient is computed, while the step computes other gradients.
        self.program = dataclasses.replace(self.program, nodes=early.put_early(self.program.nodes))
        sums_early = self.copy.exchanger.sums_early
        is_early_sum = early.can_be_early if sums_early else None
        published_ids = {id(node) for node in self.publications.values()}
        # This also sets the level of each node.
        exchanges = waves.schedule(self.program, published_ids, is_early_sum=is_early_sum)
        self.program.nodes.sort(key=lambda node: node.level)
        if sums_early:
            sum_ids = {
                id(exchange.value) for wave in exchanges for exchange in wave if exchange.value.placement.is_row_sum
            }
            self.waits = early.list_waits(self.program.nodes, sum_ids)
        return self.build_levels(exchanges)

    def build_levels(self, exchanges: Sequence[Sequence[waves.Exchange]]) -> list[Any]:
        """The outputs, after the ops of each level and the exchanges of each wave. The nodes are sorted by level."""
        # Divide each wave into publications and other exchanges. An exchange of a gradient gets a label.
        published_pieces = [
            [exchange.value for exchange in wave if id(exchange.value) in self.publications] for wave in exchanges
        ]
        other_exchanges = [
            [exchange for exchange in wave if id(exchange.value) not in self.publications] for wave in exchanges
        ]
        labels.label_waves(self.program, other_exchanges)
        has_labels = [any(exchange.label is not None for exchange in wave) for wave in other_exchanges]
        # Build level by level. Constants are left out here: kept ops and created ops each get a constant at their first
        # use of it, so a large constant is not twice in the copy if only one of both kinds uses it.
        published_ids = {id(node) for node in self.publications.values()}
        nodes = (node for node in self.program.nodes if id(node) not in published_ids and not is_constant(node))
        nodes_of_levels = {level: list(group) for level, group in itertools.groupby(nodes, lambda node: node.level)}
        for level in range(len(exchanges) + 1):
            for node in nodes_of_levels.get(level, ()):
                if self.kept.can_keep(node):
                    self._keep(node)
                else:
                    self._build_node(node)
            if level < len(exchanges):
                is_last = has_labels[level] and not any(has_labels[level + 1 :])
                self._exchange(other_exchanges[level], is_last)
                self._publish(published_pieces[level])
        outputs = [self.tensors.bring(value, need) for value, need in zip(self.program.outputs, self.program.gives)]
        for tensor, value, need in zip(outputs, self.program.outputs, self.program.gives):
            shape = self.tensors.find_shape(value, need)
            if shape is not None:
                tensor.set_shape(shape)
        # Effects of kept ops have happened when the operation that `finish` returns has run.
        kept_effects = [node for node in self.program.effects if node in self.kept]
        self.after = self._wait_for([node for node in self.program.effects if node not in self.kept])
        self.after += self.kept.finish(kept_effects)
        return outputs

    def _build_node(self, node: Node) -> None:
        """Create the op of a node, or what its decision emits in place of it."""
        if node.is_reused:  # the copy is in the script's own graph, and takes the script's op
            self.tensors.own.update((id(value), value.tensor) for value in node.outputs)
            self.operations[id(node)] = [node.op]
            return
        inputs = [self.tensors.bring(value, need) for value, need in zip(node.inputs, node.decision.needs)]
        operations_before = self._wait_for(self._list_controls(node))
        # All ranks must run collectives in the same order, so an op with collectives waits for the last one. In a
        # session, where ops have no other order, any branch or loop waits. Such an op returns at least one tensor.
        has_collectives = node.decision.communicates or any(body.has_collectives for body in node.bodies)
        is_in_sequence = has_collectives or (bool(node.bodies) and not self.copy.is_ordered)
        if is_in_sequence:
            operations_before += self.last
        with tf.control_dependencies(operations_before) if operations_before else contextlib.nullcontext():
            emit = node.decision.emit
            tensors = self.copy.create_op(node, inputs) if emit is None else emit(self.copy, *inputs)
        self.tensors.own.update((id(value), tensor) for value, tensor in zip(node.outputs, tensors))
        if tensors:
            self.operations[id(node)] = [tensors[0].op]
        elif emit is None:  # an op without outputs: the last one that was created
            self.operations[id(node)] = [tf.compat.v1.get_default_graph().get_operations()[-1]]
        if is_in_sequence:
            self.last = [tensors[0].op]

    def _list_controls(self, node: Node) -> list[Node]:
        """The nodes that must have run before a node, besides the makers of its inputs."""
        return [*node.controls, *self.waits.get(id(node), ())]

    def _wait_for(self, nodes: Sequence[Node]) -> list[Any]:
        """The operations of the graph after which the ops of these nodes have run."""
        created = [op for node in nodes for op in self.operations.get(id(node), ())]
        return created + self.kept.wait_for([node for node in nodes if node in self.kept])

    def _keep(self, node: Node) -> None:
        """Add an op to the copy unchanged."""
        inputs = [self._find_input(value, need) for value, need in zip(node.inputs, node.decision.needs)]
        controls = self._list_controls(node)
        kept_controls = [control for control in controls if control in self.kept]
        operations = [op for control in controls for op in self.operations.get(id(control), ())]
        self.kept.add(node, inputs, kept_controls + operations)

    def _find_input(self, value: Value, need: Placement | None) -> Any:
        """The tensor that a kept op takes; the value itself if another kept op computes it."""
        if find_path(value, need) != SAME:
            return self.tensors.bring(value, need)
        node = value.node
        # A constant is added where it is used first.
        if node is not None and is_constant(node) and node not in self.kept and self.kept.can_keep(node):
            self.kept.add(node, [], [])
        return value if value in self.kept else self.tensors.bring(value, need)

    def _exchange(self, wave: Sequence[waves.Exchange], is_last: bool) -> None:
        """Run the exchanges of one wave, after the wave before it.

        is_last: of the waves with gradients, which have labels, it is the last, so it ends the update of the weights.
        """
        if not wave:
            return
        exchanger = self.copy.exchanger
        prepared_exchanges = [
            prepare(self.copy, exchange.value, self.tensors.find(exchange.value), exchange.find_piece())
            for exchange in wave
        ]
        # One value may need several requests, because rows are gathered block by block.
        requests = [
            request._replace(label=exchange.label, can_wait=exchanger.sums_early and exchange.can_wait)
            for exchange, prepared in zip(wave, prepared_exchanges)
            for request in prepared.requests
        ]
        with tf.control_dependencies(self.last):
            results = exchanger.exchange(requests, self.copy.batch_slice, is_last) if requests else []
        # The next collective waits for the results that are needed at once. In an ordered copy collectives run in the
        # order of their creation anyway, so one of these results is enough.
        needed_results = [result for request, result in zip(requests, results, strict=True) if not request.can_wait]
        if needed_results:
            self.last = [needed_results[-1].op] if self.copy.is_ordered else [tf.group(*results)]
        remaining_results = iter(results)
        for exchange, prepared in zip(wave, prepared_exchanges):
            own_results = list(itertools.islice(remaining_results, len(prepared.requests)))
            self.tensors.brought[id(exchange.value), exchange.find_piece() or WHOLE] = prepared.finish(own_results)

    def _publish(self, values: Sequence[Value]) -> None:
        """Assign pieces to variables, and publish the new values to all ranks."""
        if not values:
            return
        publications = []
        for value in values:
            node = self.publications[id(value)]
            handle, piece = self.tensors.find(node.inputs[0]), self.tensors.find(value)
            operations_before = self._wait_for(node.controls)
            cuts = cast(Piece, value.placement).cuts
            publications.append(Publication(node.type, handle, piece, cuts, operations_before))
        with tf.control_dependencies(self.last):
            self.last = self.copy.exchanger.publish(publications)
        self.operations.update((id(self.publications[id(value)]), self.last) for value in values)


def _find_publications(program: Program) -> dict[int, Node]:
    """The nodes that a publication can replace, by the id of the assigned piece.

    Such a node assigns a piece to a whole variable, and no other op needs the piece as a whole tensor.
    """
    users: dict[int, list[Node | None]] = {}  # of each piece that is needed whole: assignments; None: another use
    for value, need, node in program.iterate_needs():
        if isinstance(value.placement, Piece) and value.placement.needs_exchange(need):
            is_assigned = node is not None and node.type in ASSIGNS and node.inputs[1] is value
            users.setdefault(id(value), []).append(node if is_assigned else None)
    return {piece_id: nodes[0] for piece_id, nodes in users.items() if len(nodes) == 1 and nodes[0] is not None}
