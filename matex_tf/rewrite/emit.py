"""The copy of a program: its ops, on this rank's rows, with collectives between them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from matex_tf.rewrite import waves
from matex_tf.rewrite.control import is_other_list
from matex_tf.rewrite.nodes import Node, Value
from matex_tf.rewrite.placement import LIST, PARTIAL, REPLICATED, SHARDED, SIZES, WHOLE, Placement, Rows
from matex_tf.rewrite.propagate import Program


class Exchanger(Protocol):
    """What ranks do together."""

    def exchange(self, requests: Sequence[tuple[str, Any]], contributes: Any) -> list[Any]:
        """The results of one wave, in order.

        Args:
            requests: what is done ("sum", "max", "min": over the ranks; "gather": the ranks' rows one after the other)
                and with which tensor; the ranks' tensors have one shape, but for the rows that are gathered.
            contributes: a scalar bool; where it is False this rank adds nothing, whatever its tensors hold.
        """


class Share:
    """Which rows of the batch a rank has; scalar tensors in the graph that is being built, or in an outer one.

    first, count, total: the number of its first row; how many rows it has, at least 1; how many there are. int64.
    contributes: whether the rows are its own: a rank that has none computes one row that others have, too.
    keeps: whether it is the one rank that keeps what is the same on all, where a sum is made of it.
    is_split: whether ranks have rows of their own; else each has the whole batch, and one rank contributes.
    """

    def __init__(self, first: Any, count: Any, total: Any, contributes: Any, keeps: Any, is_split: Any = True):
        self.first, self.count, self.total, self.contributes, self.keeps = first, count, total, contributes, keeps
        self.is_split = is_split


class Copy:
    """Makes the copy of programs of one step.

    share: of the batch that the inputs are; before a program has taken a batch by itself, of none.
    make_share: the share of a batch that the program takes by itself, of its components.
    """

    is_ordered = True
    """Whether ops with effects run in the order in which they are made, as in functions that eager code calls."""

    def __init__(self, share: Share, exchanger: Exchanger, make_share: Callable[[Sequence[Any]], Share] | None = None):
        self.share, self.exchanger, self.make_share = share, exchanger, make_share

    def build(self, program: Program, inputs: Sequence[Any], gives: Sequence[Placement]) -> list[Any]:
        """The outputs of a program for these inputs, brought to the placements `gives`, after its effects."""
        import tensorflow as tf

        # The share of a batch that a branch or a turn of a loop takes holds within it.
        copy = Copy(self.share, self.exchanger, self.make_share) if program.takes_batch else self
        made, after = copy.build_apart(program, inputs, gives)
        if not after:
            return made
        with tf.control_dependencies(after):
            return [tf.identity(tensor) for tensor in made]

    def build_apart(
        self, program: Program, inputs: Sequence[Any], gives: Sequence[Placement]
    ) -> tuple[list[Any], list[Any]]:
        """The outputs, and the operations that are over when all effects are."""
        body = _Body(self, program)
        made = body.build(inputs, gives)
        after = [op for node in program.effects for op in body.operations.get(id(node), ())]
        return made, after if self.is_ordered else after + body.last

    def find_first(self, rows: Rows, count: Any) -> Any:
        """The number, int64, of the first of the `count` entries along an axis with these rows that this rank has."""
        import tensorflow as tf

        return tf.cast(count, tf.int64) // self.share.count * self.share.first

    def create_op(self, node: Node, inputs: Sequence[Any], **changes: Any) -> list[Any]:
        """The op of a node with other inputs; `changes`: attributes that differ, by name."""
        import tensorflow as tf
        from tensorflow.core.framework import attr_value_pb2

        attributes = {name: value for name, value in node.op.node_def.attr.items() if not name.startswith("_")}
        for name, value in changes.items():
            attributes[name] = attr_value_pb2.AttrValue(type=value.as_datatype_enum)
        dtypes = [value.dtype for value in node.outputs]
        name = node.op.name.rsplit("/", 1)[-1].lstrip("_")
        graph = tf.compat.v1.get_default_graph()
        given = [graph.capture(one) if one.graph is not graph else one for one in inputs]
        with tf.device(node.op.device) if node.op.device else contextlib.nullcontext():
            # The public create_op looks for deprecated arguments, which takes a third of the time.
            op = graph._create_op_internal(node.type, given, dtypes, name=name or node.type, attrs=attributes)
        return list(op.outputs)

    def draw(self, node: Node, inputs: Sequence[Any]) -> Any:
        """The numbers of a random op of other inputs."""
        return self.create_op(node, inputs)[0]

    def slice_rows(self, tensor: Any, to: Placement) -> Any:
        """This rank's rows of a replicated tensor; the tensor itself where the axis has one entry for all rows."""
        import tensorflow as tf

        share, blocks = self.share, to.rows.blocks
        length = tf.shape(tensor, tf.int64)[to.axis]
        known = None if tensor.shape.rank is None else tensor.shape[to.axis]
        before: Any = tf.constant(0, tf.int64)
        parts = []
        for block in blocks:
            unit = length // share.total if len(blocks) == 1 else tf.constant(block, tf.int64)
            parts.append(before + unit * share.first + tf.range(unit * share.count))
            before += unit * share.total
        numbers = tf.concat(parts, 0)
        if known is None:
            alone = tf.equal(length, 1)
            numbers = tf.cond(alone, lambda: tf.zeros([1], tf.int64), lambda: numbers)
        return tf.gather(tensor, numbers, axis=to.axis)

    def make_sizes_whole(self, tensor: Any, placement: Placement) -> Any:
        """Numbers of rows, of which each row has as many on all ranks, as those of the script's batch: no message."""
        import tensorflow as tf

        count, total = (tf.cast(one, tensor.dtype) for one in (self.share.count, self.share.total))
        counts = [one.rows is not None and one.rows.chosen is None for one in placement.sizes]
        mask = counts[0] if tensor.shape.rank == 0 else counts
        counts_rows = tf.logical_and(tf.constant(mask), tensor >= 0)  # -1: any number
        return tf.where(counts_rows, tensor * total // count, tensor)


class _Body:
    """The copy of one program in one graph."""

    def __init__(self, copy: Copy, program: Program):
        self.copy, self.program = copy, program
        self.tensors: dict[int, Any] = {}
        self.whole: dict[int, Any] = {}
        self.brought: dict[tuple[int, Placement], Any] = {}
        self.operations: dict[int, list[Any]] = {}
        self.last: list[Any] = []  # what the next collective waits for

    def build(self, inputs: Sequence[Any], gives: Sequence[Placement]) -> list[Any]:
        self.tensors = {id(value): tensor for value, tensor in zip(self.program.inputs, inputs)}
        exchanges = waves.schedule(self.program, list(gives))
        nodes, at = waves.order(self.program), 0
        for level in range(len(exchanges) + 1):
            while at < len(nodes) and nodes[at].level == level:
                self._build_node(nodes[at])
                at += 1
            if level < len(exchanges):
                self._exchange([one.value for one in exchanges[level]])
        made = [self._convert(value, need) for value, need in zip(self.program.outputs, gives)]
        for tensor, value, need in zip(made, self.program.outputs, gives):
            shape = value.shape
            if shape is not None:
                tensor.set_shape([None if need.is_sharded and at == need.axis else n for at, n in enumerate(shape)])
        return made

    def _build_node(self, node: Node) -> None:
        import tensorflow as tf

        if node.is_kept:
            self.tensors.update((id(value), value.tensor) for value in node.outputs)
            self.operations[id(node)] = [node.op]
            return
        inputs = [
            self.tensors[id(value)] if need is None else self._convert(value, need)
            for value, need in zip(node.inputs, node.decision.needs)
        ]
        before = [op for one in node.controls for op in self.operations.get(id(one), ())]
        ordered = any(body.has_collectives or not self.copy.is_ordered for body in node.bodies)
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
        import tensorflow as tf

        made = self.copy.create_op(node, inputs)
        if not made:
            self.operations[id(node)] = [tf.compat.v1.get_default_graph().get_operations()[-1]]
        return made

    def _convert(self, value: Value, need: Placement) -> Any:
        """The tensor of a value in another placement than it has."""
        import tensorflow as tf

        placement, tensor = value.placement, self.tensors[id(value)]
        if placement.has_layout(need) or (need.kind == placement.kind and need.kind not in (SHARDED, LIST)):
            return tensor
        if placement.kind == LIST and not is_other_list(placement, need):
            return tensor
        key = (id(value), need)
        if key not in self.brought:
            if need.kind == PARTIAL:
                kept = self._convert(value, WHOLE)
                self.brought[key] = tf.where(self.copy.share.keeps, kept, tf.zeros_like(kept))
            elif need.kind == SHARDED:
                self.brought[key] = self.copy.slice_rows(self._convert(value, WHOLE), need)
            else:
                self.brought[key] = self._make_whole(value)
        return self.brought[key]

    def _make_whole(self, value: Value) -> Any:
        placement, tensor = value.placement, self.tensors[id(value)]
        if placement.kind in (REPLICATED, "any") or (placement.kind == LIST and id(value) not in self.whole):
            return tensor
        if placement.kind == SIZES:
            return self.copy.make_sizes_whole(self.whole.get(id(value), tensor), placement)
        return self.whole[id(value)]

    def _exchange(self, values: Sequence[Value]) -> None:
        """One wave: all of its collectives, after the wave before."""
        import tensorflow as tf

        from matex_tf.rewrite.gathering import prepare

        prepared = [prepare(self.copy, value, self.tensors[id(value)]) for value in values]
        requests = [request for one in prepared for request in one.requests]
        with tf.control_dependencies(self.last):
            found = self.copy.exchanger.exchange(requests, self.copy.share.contributes)
        if found:
            self.last = [found[-1].op] if self.copy.is_ordered else [tf.group(*found)]
        for value, one in zip(values, prepared):
            taken, found = found[: len(one.requests)], found[len(one.requests) :]
            self.whole[id(value)] = one.finish(taken)
