"""Random ops whose numbers follow one another in a sequence that the op itself holds, in TensorFlow's memory."""

from __future__ import annotations

from typing import Any

_SEED = "seed2"
"""The attribute of ops that hold a sequence."""


def has_sequence(graph: Any) -> bool:
    """Whether such an op is in a graph, or in a function that it calls."""
    definition = graph.as_graph_def()
    nodes = [*definition.node, *(node for one in definition.library.function for node in one.node_def)]
    return any(_SEED in node.attr for node in nodes)
