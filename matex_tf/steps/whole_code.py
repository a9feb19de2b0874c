"""Training steps that no plan computes: every rank computes them whole. Said once, where they train."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from matex_tf.loops import explain
from matex_tf.steps import agreement

EAGER = (
    "its ops run one by one, as Python comes to them. Decorate the step with @tf.function, or leave out "
    "run_eagerly=True, and ranks share it"
)
_ENOUGH = 2
"""Gradients that are taken once are no training."""

_times = 0


def note_gradients(sources: Iterable[Any]) -> None:
    """Eager code has taken gradients of variables. Collective at times."""
    global _times
    _times += 1
    if _times >= _ENOUGH:
        explain.say_whole(EAGER, "a training step in eager code")
    agreement.note_gradients(sources)


def list_trained(function: Any) -> list[Any]:
    """The weights that a ConcreteFunction changes."""
    from tensorflow.python.framework import auto_control_deps_utils

    graph = function.graph
    only_read = set(auto_control_deps_utils.get_read_only_resource_input_indices_graph(graph))
    written = {id(tensor) for index, tensor in enumerate(graph.inputs) if index not in only_read}
    inside = {id(outer): id(inner) for outer, inner in graph.captures}
    return [one for one in graph.variables if one.trainable and inside.get(id(one.handle)) in written]
