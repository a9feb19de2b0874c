"""Functions that XLA compiles (`jit_compile=True`): a call stays one compiled function with its collectives inside."""

from __future__ import annotations

import copy as copies
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from matex_tf.lazy import tf
from matex_tf.rewrite.control import needs_exchange
from matex_tf.rewrite.functions import find_callee
from matex_tf.rewrite.nodes import Decision, Node, NoRuleError
from matex_tf.rewrite.placement import PARTIAL, Placement
from matex_tf.rewrite.sharing import Request, Slice

MUST_COMPILE = "_XlaMustCompile"
CALLS = ("PartitionedCall", "StatefulPartitionedCall")


def is_compiled(op: Any) -> bool:
    """Whether an op calls a function that XLA compiles."""
    return op.type in CALLS and MUST_COMPILE in op.node_def.attr and op.node_def.attr[MUST_COMPILE].b


def place_call(reader: Any, node: Node) -> Decision:
    """Decide on a call whose inputs have rows: its function becomes a body, as a branch does. If XLA cannot compile one
    of the exchanges, all ranks compute the call on whole inputs.
    """
    callee = find_callee(node.op, node.read_attribute("f").name)
    body = reader.read(callee, node.placements, (*node.key, "compiled"), [value.constant for value in node.inputs])
    if not all(map(_can_travel, _list_exchanged(body))):
        raise NoRuleError
    node.bodies = [body]
    gives = [value.placement for value in body.outputs]

    def emit(copy: Any, *inputs: Any) -> list[Any]:
        inner = copies.copy(copy)
        inner.exchanger, inner.transform = _Padding(copy), None

        def run() -> list[Any]:
            return inner.build(body, inputs, gives) or [tf.constant(0)]  # as in `control.place_branches`

        run.__name__ = callee.name
        return list(compile_function(run)())

    constants, shapes = [value.constant for value in body.outputs], [value.shape for value in body.outputs]
    return Decision([None] * len(node.inputs), gives, emit, constants, shapes)


def compile_function(function: Callable[[], list[Any]]) -> Callable[[], list[Any]]:
    """Compile `function`. Its captured tensors become arguments, so that XLA knows the values that give sizes,
    and compiles the function once for each set of sizes.
    """
    return tf.function(function, jit_compile=True, autograph=False)


def _list_exchanged(program: Any) -> Iterable[tuple[Placement, Any]]:
    """The placement and the dtype of each value that a program exchanges."""
    for value, need, _ in program.iterate_needs():
        if needs_exchange(value.placement, need):
            yield value.placement, value.dtype
    for body in (body for node in program.nodes for body in node.bodies):
        yield from _list_exchanged(body)


def _can_travel(exchanged: tuple[Placement, Any]) -> bool:
    """Whether XLA can exchange a value. It cannot exchange strings, nor rows that a mask selects: their number on the
    other ranks is unknown.
    """
    placement, dtype = exchanged
    inner = placement.item or placement
    is_counted = inner.kind == PARTIAL or (inner.is_sharded and inner.rows.chosen is None)
    return is_counted and dtype.name != "string"


class _Padding:
    """Exchanges inside a compiled function, where XLA needs static shapes. A gather becomes a sum of full-size tensors
    that are 0 in the rows of the other ranks.
    """

    def __init__(self, copy: Any):
        self.exchanger, self.batch_slice, self.rank = copy.exchanger, copy.batch_slice, copy.exchanger.rank

    def exchange(
        self, requests: Sequence[Request], batch_slice: Slice, labels: Sequence[Any] = (), is_last: bool = False
    ) -> list[Any]:
        from matex_tf.ops import overlap

        given = [
            Request("sum", self._pad(request.tensor)) if request.kind == "gather" else request for request in requests
        ]
        with overlap.trace_for_xla():
            found: list[Any] = self.exchanger.exchange(given, batch_slice, labels, is_last)
        return found

    def _pad(self, rows: Any) -> Any:
        """The rows at their place among the rows of all ranks, and 0 elsewhere."""
        batch_slice = self.batch_slice
        length = tf.shape(rows, tf.int64)[0]
        unit = length // batch_slice.count
        before = unit * batch_slice.first
        ends = tf.reshape(tf.stack([before, unit * batch_slice.total - before - length]), [1, 2])
        return tf.pad(rows, tf.concat([ends, tf.zeros([tf.rank(rows) - 1, 2], tf.int64)], 0))
