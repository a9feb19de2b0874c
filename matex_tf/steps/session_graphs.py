"""Ops that the library adds to a session's graph, under names of their own; they are never saved."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from matex_tf import tags
from matex_tf.lazy import tf

_SCOPE = "matex_step"
_ADDED = "added to the graph"


@contextlib.contextmanager
def add_to(graph: Any) -> Iterator[None]:
    """Within the context ops are created in `graph`, finalized or not, outside of the script's scopes."""
    v1 = tf.compat.v1
    finalized = graph.finalized
    scopes, functions = tags.get_or_make_tag(graph, _ADDED, lambda: ([], set()))
    functions_before = set(graph._functions)
    graph._unsafe_unfinalize()
    try:
        with contextlib.ExitStack() as stack:
            for context in (graph.as_default(), tf.control_dependencies(None), tf.device(None), use_v2_behavior()):
                stack.enter_context(context)
            stack.enter_context(v1.name_scope(None))
            scopes.append(stack.enter_context(v1.name_scope(_SCOPE)))
            yield
    finally:
        functions |= set(graph._functions) - functions_before
        if finalized:
            graph.finalize()


@contextlib.contextmanager
def use_v2_behavior() -> Iterator[None]:
    """Within the context TF2 shapes (sizes are ints) and TF2 control flow (branches are functions) are on.

    Collectives in functions run in order, and no rank waits for those of a branch that is not taken.
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
