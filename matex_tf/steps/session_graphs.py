"""What is added to a session's graph: ops beside the script's, under names of their own, which nobody saves."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from matex_tf import tags

_SCOPE = "matex_step"
_ADDED = "added to the graph"


@contextlib.contextmanager
def add_to(graph: Any) -> Iterator[None]:
    """Within it ops are made in `graph`, finalized or not, wherever the script is."""
    import tensorflow as tf

    v1 = tf.compat.v1
    finalized, is_v2 = graph.finalized, v1.control_flow_v2_enabled()
    scopes, functions = tags.get_or_make_tag(graph, _ADDED, lambda: ([], set()))
    before = set(graph._functions)
    graph._unsafe_unfinalize()
    v1.enable_control_flow_v2()  # branches with collectives in them are functions, of which ops run in their order
    try:
        with graph.as_default(), tf.control_dependencies(None), tf.device(None), v1.name_scope(None):
            with v1.name_scope(_SCOPE) as scope:
                scopes.append(scope)
                yield
    finally:
        functions |= set(graph._functions) - before
        if not is_v2:
            v1.disable_control_flow_v2()
        if finalized:
            graph.finalize()


def drop_copies(graph: Any, definition: Any) -> Any:
    """The definition of a graph without what was added to it."""
    scopes, functions = tags.get_tag(graph, _ADDED, ((), ()))
    if scopes:
        nodes = [node for node in definition.node if not node.name.startswith(tuple(scopes))]
        library = [one for one in definition.library.function if one.signature.name not in functions]
        del definition.node[:], definition.library.function[:]
        definition.node.extend(nodes)
        definition.library.function.extend(library)
        if not library:
            definition.library.ClearField("function")
    return definition
