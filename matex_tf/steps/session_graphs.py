"""Ops that the library adds to a session's graph. They have a name scope of their own, so that no file saves them.

All of these ops are created in the context `add_to`. `SessionCopy` creates the copy of a run, a call of `Session.run`,
by which ranks share the work of the run. The random numbers of all runs of a session must continue one sequence for
each random op, whatever a run fetches and whether ranks share it. A random op of a copy (`is_counted`) is the stateless
form of the op, and draws from the same sequence. All copies of an op share a variable, which holds the position in the
sequence: the state of a Philox generator, two numbers of its counter and its key.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from matex_tf import tags
from matex_tf.lazy import tf
from matex_tf.rewrite.emit import Copy
from matex_tf.rewrite.nodes import Node
from matex_tf.rewrite.rules.randoms import is_seeded

_SCOPE = "matex_step"
_ADDED = "added to the graph"
_STATELESS = {
    "RandomUniform": "StatelessRandomUniformV2",
    "RandomStandardNormal": "StatelessRandomNormalV2",
    "TruncatedNormal": "StatelessTruncatedNormalV2",
    "RandomUniformInt": "StatelessRandomUniformIntV2",
}
_PHILOX = 1  # the generator's number
_STATES = "places in sequences of random numbers"


@contextlib.contextmanager
def add_to(graph: Any) -> Iterator[None]:
    """Within the context ops are created in `graph`, finalized or not, outside of the script's scopes."""
    v1 = tf.compat.v1
    was_finalized = graph.finalized
    # Names, by which `drop_copies` finds what was added.
    scopes, functions = tags.get_or_make_tag(graph, _ADDED, lambda: ([], set()))
    functions_before = set(graph._functions)
    graph._unsafe_unfinalize()
    try:
        with (
            graph.as_default(), tf.control_dependencies(None), tf.device(None), use_v2_behavior(),
            v1.name_scope(None), v1.name_scope(_SCOPE) as scope,
        ):  # fmt: skip
            scopes.append(scope)
            yield
    finally:
        functions |= set(graph._functions) - functions_before
        if was_finalized:
            graph.finalize()


@contextlib.contextmanager
def use_v2_behavior() -> Iterator[None]:
    """Within the context TF2 shapes (sizes are ints) and TF2 control flow (branches are functions) are on.

    The reason: collectives in functions run in order, and no rank waits for a collective of a branch that is not taken.
    """
    v1 = tf.compat.v1
    had_shapes, had_control_flow = isinstance(tf.TensorShape([1])[0], int), v1.control_flow_v2_enabled()
    v1.enable_v2_tensorshape()
    v1.enable_control_flow_v2()
    try:
        yield
    finally:
        if not had_shapes:
            v1.disable_v2_tensorshape()
        if not had_control_flow:
            v1.disable_control_flow_v2()


def drop_copies(graph: Any, definition: Any) -> Any:
    """The definition of a graph without the added ops."""
    scopes, functions = tags.get_tag(graph, _ADDED, ((), ()))
    if scopes:
        nodes = [node for node in definition.node if not node.name.startswith(tuple(scopes))]
        library = [function for function in definition.library.function if function.signature.name not in functions]
        del definition.node[:], definition.library.function[:]
        definition.node.extend(nodes)
        definition.library.function.extend(library)
        if not library:
            definition.ClearField("library")
    return definition


class SessionCopy(Copy):
    """A copy in the graph of a session, where an op keeps its state under its name.

    starts: by the names of the script's random ops, the operation that must run once in each session: it sets the
        state of the op's generator to the first one.
    counters: the variable ops of these states.
    """

    is_ordered = False  # a session runs ops in any order

    def __init__(self, graph: Any, *arguments: Any):
        super().__init__(*arguments)
        self.graph, self.starts, self.counters = graph, dict[str, Any](), list[Any]()

    def create_op(self, node: Node, inputs: Sequence[Any], **changes: Any) -> list[Any]:
        """Create the op of a node with other inputs; for a random op that `is_counted`, its stateless form."""
        op = node.op
        if not is_counted(op) or op.graph is not self.graph:
            return super().create_op(node, inputs, **changes)
        shape, *bounds = inputs
        resource, self.starts[op.name] = _find_state(op)
        self.counters.append(resource.op)
        # One op reads the state and advances it by the numbers of this draw: threads may run a session at once.
        draw_count = tf.cast(tf.reduce_prod(tf.cast(shape, tf.int64)), tf.uint64)
        state = tf.cast(tf.raw_ops.RngReadAndSkip(resource=resource, alg=_PHILOX, delta=draw_count), tf.uint64)
        counter, key = state[:2], state[2:]
        options = {"minval": bounds[0], "maxval": bounds[1]} if bounds else {"dtype": op.outputs[0].dtype}
        draw = getattr(tf.raw_ops, _STATELESS[op.type])
        return [draw(shape=shape, key=key, counter=counter, alg=_PHILOX, **options)]


def is_counted(op: Any) -> bool:
    """Whether copies draw the random numbers of an op by a counter. Only TensorFlow's own kernel knows the position in
    the sequence of another random op.
    """
    return op.type in _STATELESS and is_seeded(op)


def _find_state(op: Any) -> tuple[Any, Any]:
    """The variable that holds the state of the op's generator, and the operation that sets it to the first state."""
    states: dict[str, tuple[Any, Any]] = tags.get_or_make_tag(op.graph, _STATES, dict)
    if op.name not in states:
        with tf.control_dependencies(None):
            state = tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[3], shared_name=f"matex_tf draws of {op.name}")
            first_state = tf.constant([0, op.get_attr("seed2"), op.get_attr("seed")], tf.int64)
            start_operation = tf.raw_ops.AssignVariableOp(resource=state, value=first_state)
        states[op.name] = state, start_operation
    return states[op.name]
