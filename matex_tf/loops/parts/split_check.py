"""Which steps are computed in parts (MATEX_MICROBATCH), and of others why not, which is said once."""

from __future__ import annotations

import weakref
from typing import Any

from matex_tf import settings
from matex_tf.runtime import notes
from matex_tf.sharding import step_weight

SESSION = "a session of tf.compat.v1 runs it"
NO_MODEL = "it makes no call of a Keras model in a tf.function under a tape (eager code is computed at once)"

_split: weakref.WeakSet[Any] = weakref.WeakSet()
_why: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def _list_outer_graphs() -> list[Any]:
    """The graph being built and those around it."""
    import tensorflow as tf

    found, graph = [], None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while graph is not None:
        found.append(graph)
        graph = getattr(graph, "outer_graph", None)
    return found


def note_split() -> None:
    """A model in the graph being built is called in parts."""
    _split.update(_list_outer_graphs())


def note_whole(name: str, why: str) -> None:
    """The model `name` in the graph being built is not."""
    for graph in _list_outer_graphs():
        _why.setdefault(graph, f"the model '{name}': {why}")


def say_unsplit() -> None:
    """Where gradients are taken: if MATEX_MICROBATCH has no effect on what they are taken of, say so once."""
    if not settings.get_settings().microbatch:
        return
    graphs = _list_outer_graphs()
    if any(graph in _split and graph not in _why for graph in graphs):
        return
    otherwise = SESSION if step_weight.is_in_session_graph() else NO_MODEL
    why = next((_why[graph] for graph in graphs if graph in _why), otherwise)
    notes.print_note(f"MATEX_MICROBATCH: a training step is not computed in parts, or not all of it: {why}")
