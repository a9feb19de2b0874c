"""Calls of functions that XLA compiles (`jit_compile=True`): the copy of a step compiles them, too.

The collectives of such a function are inside of the compiled code. XLA needs the shapes of all tensors when it
compiles, but a rank does not know how many rows each other rank has, so compiled code cannot gather rows. Instead, each
rank puts its rows into a tensor of zeros with space for the rows of all ranks. The sum of these tensors over the ranks
has all rows.
"""

from __future__ import annotations

import copy as copies
from collections.abc import Callable, Sequence
from typing import Any

from matex_tf.lazy import tf
from matex_tf.rewrite.functions import find_callee
from matex_tf.rewrite.nodes import Decision, Node, Value, require
from matex_tf.rewrite.placement import ItemList, Partial, Sharded
from matex_tf.rewrite.sharing import Exchanger, Request, Slice

MUST_COMPILE = "_XlaMustCompile"
"""The attribute by which `tf.function` marks a call of a function that XLA compiles."""
CALLS = ("PartitionedCall", "StatefulPartitionedCall")


def is_compiled(op: Any) -> bool:
    """Whether an op calls a function that XLA compiles."""
    return op.type in CALLS and MUST_COMPILE in op.node_def.attr and op.node_def.attr[MUST_COMPILE].b


def place_call(reader: Any, node: Node) -> Decision:
    """Decide on a call whose inputs have rows: its function becomes a body of the node, as a branch does.

    Raises NoRuleError if XLA cannot compile one of the exchanges: the call then takes whole inputs.
    """
    callee = find_callee(node.op, node.read_attribute("f").name)
    body = reader.read(callee, node.placements, (*node.key, "compiled"), [value.constant for value in node.inputs])
    require(all(_can_exchange(value) for value, _ in body.iterate_exchanged()))
    node.bodies = [body]
    gives = [value.placement for value in body.outputs]

    def emit(copy: Any, *inputs: Any) -> list[Any]:
        inner_copy = copies.copy(copy)  # the same `emit.Copy`, but with other collectives
        inner_copy.exchanger = _PaddingExchanger(copy)
        inner_copy.transform = None  # `microbatches` does not cut compiled functions

        def run() -> list[Any]:
            return inner_copy.build(body, inputs) or [tf.constant(0)]  # without outputs: a tensor to wait for

        run.__name__ = callee.name
        return list(compile_function(run)())

    constants, shapes = [value.constant for value in body.outputs], [value.shape for value in body.outputs]
    return Decision([None] * len(node.inputs), gives, emit, constants, shapes)


def compile_function(function: Callable[[], list[Any]]) -> Callable[[], list[Any]]:
    """A function that computes `function()` in code that XLA compiles.

    `tf.function` makes an argument of each tensor that `function` captures. XLA reads the values of arguments that give
    sizes, such as a number of rows, and compiles once for each set of these values.
    """
    return tf.function(function, jit_compile=True, autograph=False)


def _can_exchange(value: Value) -> bool:
    """Whether compiled code can exchange a value, or the items of a list.

    XLA has no strings. A rank does not know how many rows a mask selects on other ranks, so it cannot place its own.
    """
    placement = value.placement.item if isinstance(value.placement, ItemList) else value.placement
    has_all_rows = isinstance(placement, Sharded) and placement.rows.chosen is None
    return (isinstance(placement, Partial) or has_all_rows) and value.dtype.name != "string"


class _PaddingExchanger(Exchanger):
    """Makes a copy's collectives inside of a compiled function: it gathers rows by sums of padded tensors.

    `sums_early` is False: XLA itself chooses the order in which the ops of a compiled function run.
    """

    def __init__(self, copy: Any):
        self.exchanger, self.batch_slice = copy.exchanger, copy.batch_slice

    @property
    def rank(self) -> int:
        return self.exchanger.rank

    def exchange(self, requests: Sequence[Request], batch_slice: Slice, is_last: bool = False) -> list[Any]:
        """The results of the requests. Each gather is made as a sum of padded tensors."""
        from matex_tf.ops import overlap

        padded_requests = [
            request._replace(kind="sum", tensor=self._pad(request.tensor)) if request.kind == "gather" else request
            for request in requests
        ]
        with overlap.is_for_xla.set():
            return list(self.exchanger.exchange(padded_requests, batch_slice, is_last))

    def _pad(self, rows: Any) -> Any:
        """A tensor for the entries of all ranks along axis 0: this rank's entries in their place, and 0 elsewhere."""
        batch_slice, length = self.batch_slice, tf.shape(rows, tf.int64)[0]
        unit = length // batch_slice.count  # the entries for each row of the batch
        padding_before = unit * batch_slice.first
        padding_after = unit * batch_slice.total - padding_before - length
        other_axes = tf.zeros([tf.rank(rows) - 1, 2], tf.int64)
        return tf.pad(rows, tf.concat([[[padding_before, padding_after]], other_axes], 0))
