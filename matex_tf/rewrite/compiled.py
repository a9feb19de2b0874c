"""Calls of functions that XLA compiles (`jit_compile=True`): the copy compiles them with their collectives inside.

XLA needs the shapes of all tensors when it compiles, and a rank does not know how many rows the others have. So in
compiled code ranks do not gather rows: each puts its rows into a tensor of zeros for all rows, and these are added up.
"""

from __future__ import annotations

import copy as copies
from collections.abc import Callable, Sequence
from typing import Any

from matex_tf.lazy import tf
from matex_tf.rewrite.functions import find_callee
from matex_tf.rewrite.nodes import Decision, Node, Value, require
from matex_tf.rewrite.placement import PARTIAL
from matex_tf.rewrite.sharing import Request, Slice

MUST_COMPILE = "_XlaMustCompile"
CALLS = ("PartitionedCall", "StatefulPartitionedCall")


def is_compiled(op: Any) -> bool:
    """Whether an op calls a function that XLA compiles."""
    return op.type in CALLS and MUST_COMPILE in op.node_def.attr and op.node_def.attr[MUST_COMPILE].b


def place_call(reader: Any, node: Node) -> Decision:
    """Decide on a call whose inputs have rows: its function becomes a body, as a branch does.

    Raises NoRuleError if XLA cannot compile one of the exchanges: the call then takes whole inputs.
    """
    callee = find_callee(node.op, node.read_attribute("f").name)
    body = reader.read(callee, node.placements, (*node.key, "compiled"), [value.constant for value in node.inputs])
    require(all(_can_travel(value) for value, _ in body.iterate_exchanged()))
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


def _can_travel(value: Value) -> bool:
    """Whether XLA can exchange a value. It cannot exchange strings, nor rows that a mask selects: their number on the
    other ranks is unknown.
    """
    inner, dtype = value.placement.item or value.placement, value.dtype
    is_counted = inner.kind == PARTIAL or (inner.is_sharded and inner.rows.chosen is None)
    return is_counted and dtype.name != "string"


class _Padding:
    """The `Exchanger` inside of a compiled function: it gathers rows by sums of padded tensors."""

    sums_early = False

    def __init__(self, copy: Any):
        self.exchanger, self.batch_slice, self.rank = copy.exchanger, copy.batch_slice, copy.exchanger.rank

    def exchange(
        self, requests: Sequence[Request], batch_slice: Slice, labels: Sequence[Any] = (), is_last: bool = False,
        can_wait: Sequence[bool] = (),
    ) -> list[Any]:  # fmt: skip
        from matex_tf.ops import overlap

        padded = [Request("sum", self._pad(one.tensor)) if one.kind == "gather" else one for one in requests]
        with overlap.trace_for_xla():
            return list(self.exchanger.exchange(padded, batch_slice, labels, is_last, can_wait))

    def _pad(self, rows: Any) -> Any:
        """The rows at their place among the rows of all ranks, and 0 elsewhere."""
        batch_slice, length = self.batch_slice, tf.shape(rows, tf.int64)[0]
        unit = length // batch_slice.count  # entries for each row of the batch
        before = unit * batch_slice.first
        ends = tf.reshape(tf.stack([before, unit * batch_slice.total - before - length]), [1, 2])
        return tf.pad(rows, tf.concat([ends, tf.zeros([tf.rank(rows) - 1, 2], tf.int64)], 0))
