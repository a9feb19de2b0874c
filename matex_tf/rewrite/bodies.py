"""Builds the copy of one program: its ops in order, with collectives between them."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from matex_tf.lazy import tf
from matex_tf.rewrite import labels, paths, waves
from matex_tf.rewrite.control import needs_exchange
from matex_tf.rewrite.kept import Kept
from matex_tf.rewrite.nodes import Node, Value
from matex_tf.rewrite.own_batches import has_collective
from matex_tf.rewrite.pieces import ASSIGNS
from matex_tf.rewrite.placement import PARTIAL, PIECE, REPLICATED, SHARDED, SIZES, WHOLE, Placement, Size
from matex_tf.rewrite.programs import Program
from matex_tf.rewrite.sharing import Publication, cut_piece


class Body:
    """The copy of one program in one graph."""

    def __init__(self, copy: Any, program: Program, gives: Sequence[Placement]):
        self.copy, self.program, self.gives = copy, paths.drop_unused(program, gives), list(gives)
        self.kept = Kept(tf.compat.v1.get_default_graph())
        self.tensors: dict[int, Any] = {}
        self.whole: dict[int, Any] = {}
        self.brought: dict[tuple[int, Placement], Any] = {}
        self.counted: dict[tuple[Any, ...], Any] = {}
        self.operations: dict[int, list[Any]] = {}
        self.publications: dict[int, Node] = {}  # assignments of pieces to variables, by the ids of the pieces
        self.last: list[Any] = []  # operations that the next collective must wait for
        self.after: list[Any] = []  # operations after which all effects have happened

    def build(self, inputs: Sequence[Any]) -> list[Any]:
        self.tensors = {id(value): tensor for value, tensor in zip(self.program.inputs, inputs)}
        if self.copy.is_ordered:
            self.publications = {
                value: node
                for value, node in _find_publications(self.program, self.gives).items()
                if self.copy.exchanger.can_publish(self._find_tensor(node.inputs[0]), node.inputs[1].dtype)
            }
        exchanges = waves.schedule(self.program, self.gives, self._list_published())
        self.program.nodes.sort(key=lambda node: node.level)
        return self.build_levels(exchanges)

    def build_levels(self, exchanges: Sequence[Sequence[waves.Exchange]]) -> list[Any]:
        """The outputs, after the ops of each level and the exchanges of each wave. Nodes must be in the order of their
        levels.
        """
        published = self._list_published()
        values = [[one.value for one in wave if id(one.value) not in self.publications] for wave in exchanges]
        found_labels = labels.label_waves(self.program, values)
        last = max((level for level, wave in enumerate(found_labels) if any(wave)), default=None)
        nodes = (one for one in self.program.nodes if id(one) not in published and not paths.is_constant(one))
        of_level = {level: list(some) for level, some in itertools.groupby(nodes, lambda node: node.level)}
        for level in range(len(exchanges) + 1):
            for node in of_level.get(level, ()):
                if self.kept.takes(node):
                    self._keep(node)
                else:
                    self._build_node(node)
            if level < len(exchanges):
                wave = [one for one in exchanges[level] if id(one.value) not in self.publications]
                self._exchange(list(zip(wave, found_labels[level])), level == last)
                self._publish([one.value for one in exchanges[level] if id(one.value) in self.publications])
        made = [self._convert(value, need) for value, need in zip(self.program.outputs, self.gives)]
        for tensor, value, need in zip(made, self.program.outputs, self.gives):
            if (shape := self._find_shape(value, need)) is not None:
                tensor.set_shape(shape)
        kept = [one for one in self.program.effects if one in self.kept]
        self.after = self._wait_for([one for one in self.program.effects if one not in self.kept])
        self.after += self.kept.finish(kept)
        return made

    def _list_published(self) -> set[int]:
        """The ids of the nodes that a publication replaces: they assign pieces to variables."""
        return {id(node) for node in self.publications.values()}

    def _build_node(self, node: Node) -> None:
        if node.is_reused:
            self.tensors.update((id(value), value.tensor) for value in node.outputs)
            self.operations[id(node)] = [node.op]
            return
        inputs = [self._convert(value, need) for value, need in zip(node.inputs, node.decision.needs)]
        before = self._wait_for(node.controls)
        ordered = has_collective(node) or any(body.has_collectives or not self.copy.is_ordered for body in node.bodies)
        before += self.last if ordered else []
        with tf.control_dependencies(before) if before else contextlib.nullcontext():
            emit: Callable[..., Any] | None = node.decision.emit
            if emit is None:
                made = self._create(node, inputs)
            elif getattr(emit, "takes_copy", False):
                made = emit(self.copy, *inputs)
            else:
                made = emit(*inputs)
        if node.outputs:
            self.tensors.update((id(value), tensor) for value, tensor in zip(node.outputs, made))
            self.operations[id(node)] = [made[0].op]
        elif emit is not None:
            self.operations[id(node)] = [made[0].op] if made else []
        if ordered:
            self.last = [made[0].op]

    def _create(self, node: Node, inputs: Sequence[Any]) -> list[Any]:
        made = self.copy.create_op(node, inputs)
        if not made:
            self.operations[id(node)] = [tf.compat.v1.get_default_graph().get_operations()[-1]]
        return made

    def _wait_for(self, nodes: Sequence[Node]) -> list[Any]:
        """The operations of the graph after which these ops have run."""
        made = [op for one in nodes for op in self.operations.get(id(one), ())]
        return made + self.kept.wait_for([one for one in nodes if one in self.kept])

    def _keep(self, node: Node) -> None:
        """Add an op to the copy unchanged."""
        inputs = [self._find_input(value, need) for value, need in zip(node.inputs, node.decision.needs)]
        controls: list[Any] = []
        for one in node.controls:
            controls += [one] if one in self.kept else self.operations.get(id(one), ())
        self.kept.add(node, inputs, controls)

    def _find_input(self, value: Value, need: Placement | None) -> Any:
        """The tensor that a kept op takes; the value itself if another kept op computes it."""
        if paths.find_path(value, need) == paths.SAME:
            node = value.node
            if node is not None and paths.is_constant(node) and node not in self.kept and self.kept.takes(node):
                self.kept.add(node, [], [])
            if value in self.kept:
                return value
        return self._convert(value, need)

    def _find_tensor(self, value: Value) -> Any:
        """The tensor of a value in this graph."""
        if id(value) not in self.tensors:
            counts = paths.find_counts(value)
            if counts is not None:
                return self._count(value, counts, self.copy.batch_slice.count)
            if value.node is not None and paths.is_constant(value.node):
                self.tensors[id(value)] = self.copy.create_op(value.node, [])[0]
            elif value in self.kept:
                self.tensors[id(value)] = self.kept.stand_in(value, self._find_shape(value, value.placement))
        return self.tensors[id(value)]

    def _count(self, value: Value, sizes: Sequence[Size], rows: Any) -> Any:
        """The numbers of a `sizes` placement as a tensor, for this rank's number of rows."""
        key = tuple(sizes), value.dtype, value.shape == [], id(rows)
        if key not in self.counted:
            with tf.control_dependencies(None):
                entries = [
                    tf.constant(one.value, value.dtype)
                    if one.rows is None
                    else tf.cast(rows if one.rows.unit == 1 else rows * one.rows.unit, value.dtype)
                    for one in sizes
                ]
                self.counted[key] = entries[0] if value.shape == [] else tf.stack(entries)
        return self.counted[key]

    def _convert(self, value: Value, need: Placement | None) -> Any:
        """Convert the tensor of a value to another placement."""

        path = paths.find_path(value, need)
        if path == paths.SAME or need is None:
            return self._find_tensor(value)
        if path == paths.COUNTED:
            batch_slice = self.copy.batch_slice
            sizes = value.placement.sizes or need.sizes
            return self._count(value, sizes, batch_slice.total if need.kind == REPLICATED else batch_slice.count)
        key = (id(value), need)
        if key not in self.brought:
            if need.kind == PARTIAL:
                self.brought[key] = self.copy.keep_once(self._convert(value, WHOLE))
            elif need.kind == SHARDED:
                self.brought[key] = self.copy.slice_rows(self._convert(value, WHOLE), need)
            elif need.kind == PIECE:
                self.brought[key] = cut_piece(self._convert(value, WHOLE), need.cuts, self.copy.exchanger.rank)
            elif value.placement.kind == SIZES:
                tensor = self.whole[id(value)] if id(value) in self.whole else self._find_tensor(value)
                self.brought[key] = self.copy.make_sizes_whole(tensor, value.placement)
            else:
                self.brought[key] = self.whole[id(value)]
        return self.brought[key]

    def _exchange(self, wave: Sequence[tuple[waves.Exchange, Any]], is_last: bool) -> None:
        """Run the exchanges of one wave after those of the wave before. is_last: no later wave has labelled values."""

        from matex_tf.rewrite.gathering import prepare

        if not wave:
            return
        pieces = [one.find_piece() for one, _ in wave]
        values = [one.value for one, _ in wave]
        prepared = [prepare(self.copy, value, self._find_tensor(value), one) for value, one in zip(values, pieces)]
        requests = [request for one in prepared for request in one.requests]
        given = [label for (_, label), one in zip(wave, prepared) for _ in one.requests]
        with tf.control_dependencies(self.last):
            found = self.copy.exchanger.exchange(requests, self.copy.batch_slice, given, is_last)
        if found:
            self.last = [found[-1].op] if self.copy.is_ordered else [tf.group(*found)]
        for value, one, piece in zip(values, prepared, pieces):
            taken, found = found[: len(one.requests)], found[len(one.requests) :]
            if piece is None:
                self.whole[id(value)] = one.finish(taken)
            else:
                self.brought[id(value), piece] = one.finish(taken)

    def _publish(self, values: Sequence[Value]) -> None:
        """Assign pieces to variables, and publish the new values to all ranks."""
        nodes = [self.publications[id(value)] for value in values]
        before = [self._wait_for(node.controls) for node in nodes]
        given = [
            Publication(
                node.type, self._find_tensor(node.inputs[0]), self._find_tensor(value), value.placement.cuts, ops
            )
            for node, value, ops in zip(nodes, values, before)
        ]
        if given:
            with tf.control_dependencies(self.last):
                self.last = self.copy.exchanger.publish(given)
        self.operations.update((id(node), self.last) for node in nodes)

    def _find_shape(self, value: Value, placement: Placement) -> list[int | None] | None:
        """The known part of the shape that the tensor of a value has in this placement."""
        if placement.is_piece:
            first, last = placement.cuts[self.copy.exchanger.rank :][:2]
            return [last - first]
        shape, at = value.whole_shape, placement.axis if placement.is_sharded else -1
        return None if shape is None else [None if at == axis else size for axis, size in enumerate(shape)]


def _find_publications(program: Program, needs: Sequence[Placement]) -> dict[int, Node]:
    """The assignments that a publication replaces, by the id of the assigned piece.

    An assignment qualifies if no other op needs the piece as a whole tensor. Every rank holds the whole variable, so
    the ranks publish their new values to one another.
    """
    users: dict[int, list[Node | None]] = {}
    for value, need, node in program.iterate_needs(needs):
        if value.placement.is_piece and needs_exchange(value.placement, need):
            is_assigned = node is not None and node.type in ASSIGNS and node.inputs[1] is value
            users.setdefault(id(value), []).append(node if is_assigned else None)
    return {value: of[0] for value, of in users.items() if len(of) == 1 and of[0] is not None}
