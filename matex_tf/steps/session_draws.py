"""Random ops of a session's graph: all copies of an op draw from the one sequence of numbers that the op has alone.

A copy draws by the stateless form of the op. The position in the sequence, a counter of the Philox generator, is in a
variable that all copies of the op share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matex_tf import tags
from matex_tf.lazy import tf
from matex_tf.rewrite.emit import Copy
from matex_tf.rewrite.nodes import Node

_STATELESS = {
    "RandomUniform": "StatelessRandomUniformV2",
    "RandomStandardNormal": "StatelessRandomNormalV2",
    "TruncatedNormal": "StatelessTruncatedNormalV2",
    "RandomUniformInt": "StatelessRandomUniformIntV2",
}
_RESERVED = 256
"""Values of Philox' counter that TensorFlow's random ops skip for each number that they draw."""
_PHILOX = 1
_STATES = "places in sequences of random numbers"


class SessionCopy(Copy):
    """A copy in the graph of a session, where an op keeps its state under its name.

    starts: by the names of the script's random ops, the operation that must run once in each session.
    """

    is_ordered = False

    def __init__(self, graph: Any, *arguments: Any):
        super().__init__(*arguments)
        self.graph, self.starts = graph, dict[str, Any]()

    def draw(self, node: Node, inputs: Sequence[Any]) -> Any:
        op = node.op
        if op.type not in _STATELESS or op.graph is not self.graph:
            return super().draw(node, inputs)
        shape, *bounds = inputs
        state, self.starts[op.name] = _find_state(op)
        step = tf.reduce_prod(tf.cast(shape, tf.int64)) * _RESERVED
        advance = tf.raw_ops.AssignAddVariableOp(resource=state, value=step)
        with tf.control_dependencies([advance]):
            position = tf.raw_ops.ReadVariableOp(resource=state, dtype=tf.int64) - step
        key, counter = ([op.get_attr("seed")], [position, op.get_attr("seed2")])
        options = {"minval": bounds[0], "maxval": bounds[1]} if bounds else {"dtype": op.outputs[0].dtype}
        return getattr(tf.raw_ops, _STATELESS[op.type])(
            shape=shape,
            key=tf.cast(key, tf.uint64),
            counter=tf.cast(tf.stack(counter), tf.uint64),
            alg=_PHILOX,
            **options,
        )


def _find_state(op: Any) -> tuple[Any, Any]:
    """The variable that holds the next value of Philox' counter, and the operation that sets it to 0."""
    states: dict[str, tuple[Any, Any]] = tags.get_or_make_tag(op.graph, _STATES, dict)
    if op.name not in states:
        with tf.control_dependencies(None):
            state = tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[], shared_name=f"matex_tf draws of {op.name}")
            start = tf.raw_ops.AssignVariableOp(resource=state, value=tf.constant(0, tf.int64))
        states[op.name] = state, start
    return states[op.name]
