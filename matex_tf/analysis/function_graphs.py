"""The graphs of functions that ops call, which may be known by their definitions alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matex_tf.analysis.placement import Placement
from matex_tf.analysis.rules import UnprovedError


def find_graph(graph: Any, name: str, inputs: Sequence[Placement], op: Any) -> Any:
    """The graph of the function `name` that an op of `graph` calls."""
    from tensorflow.python.eager import context
    from tensorflow.python.framework import function_def_to_graph

    function = graph._get_function(name)
    found = getattr(function, "graph", None)
    if found is not None and len(getattr(found, "inputs", None) or ()) == len(inputs):
        return found
    definition = getattr(function, "cached_definition", None) or context.context().get_function_def(name)
    if definition is None:
        raise UnprovedError("it calls a function that cannot be read")
    shapes = [tensor.shape for tensor in list(op.inputs)[-len(inputs) :]] if inputs else []
    return function_def_to_graph.function_def_to_graph(definition, input_shapes=shapes)
