"""Training steps in eager code, which every rank computes whole, and the variables that traced functions change.

The hook of `GradientTape.gradient` calls `finish_gradients`, which marks the end of a training step in eager code: it
counts the step, has the weights compared between ranks when that is due, and tells the user why the step is not shared.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from matex_tf import tags
from matex_tf.lazy import tf
from matex_tf.runtime import notes, objects
from matex_tf.steps import agreement, events
from matex_tf.world import world

EAGER = (
    "its ops run one by one, as Python comes to them. Decorate the step with @tf.function, or leave out "
    "run_eagerly=True, and ranks share it"
)
_MIN_TRAINING_STEPS = 2
"""A script that takes gradients only once does not train."""

_REASON, _UNREPORTED = "why ranks cannot share its step", "no message about its step"  # tags of tapes
gradient_count = 0
"""The number of gradient computations of variables in eager code. Each marks the end of a training step."""
_shared: list[str] = []  # names of models and functions, for the next message
_said: set[str] = set()  # reasons


def leave_unreported(tapes: Iterable[Any]) -> None:
    """Print no message about the step that these tapes record: ranks may share the next one."""
    for tape in tapes:
        tags.set_tag(tape, _UNREPORTED, True)


def note_reason(tapes: Iterable[Any], why: str) -> None:
    """Record the reason why ranks cannot share a call of the step that these tapes record."""
    for tape in tapes:
        tags.get_or_make_tag(tape, _REASON, lambda: why)


def finish_gradients(tape: Any, computed_gradients: Any, sources: list[Any]) -> Any:
    """The gradients that eager code gets, from those that `tape` has computed for the variables `sources`.

    If the ranks began with different values of these variables, all ranks now get rank 0's values and gradients.
    Collective if `sources` has variables on which the ranks have not agreed yet, and if weights are due to be compared.
    """
    global gradient_count
    gradient_count += 1
    if gradient_count >= _MIN_TRAINING_STEPS:
        events.computed_whole("a training step in eager code", EAGER)
        if not tags.get_tag(tape, _UNREPORTED) and world.get_world().size > 1:
            _say_whole(tags.get_tag(tape, _REASON, EAGER))
    if agreement.agree_on_new(sources):
        computed_gradients = _take_first_rank(computed_gradients)
    agreement.note_step()
    events.step_trained(None)
    return computed_gradients


def note_shared(name: str) -> None:
    """Record that ranks share the calls of this model or function."""
    if name not in _shared:
        _shared.append(name)


def _say_whole(why: str) -> None:
    """Tell, once for each reason, that a step is computed whole, or that only the calls of `_shared` in it are not."""
    if why in _said:
        return
    _said.add(why)
    names = ", ".join(f"'{name}'" for name in _shared)
    _shared.clear()
    shared_text = f"the calls of {names} in it are sharded, the rest every rank computes for the whole batch"
    whole_text = "every rank computes the whole batch: the result is right, training is no faster"
    notes.print_note(
        f"a training step in eager code cannot be sharded{' as a whole' if names else ''}: {why}. So "
        f"{shared_text if names else whole_text}"
    )


def _take_first_rank(computed_gradients: Any) -> Any:
    """The gradients of rank 0. Collective. They may be tensors, IndexedSlices, or None."""
    components = tf.nest.flatten(computed_gradients, expand_composites=True)
    own_values = [component.numpy() if isinstance(component, tf.Tensor) else component for component in components]
    values_of_rank_0 = objects.broadcast(
        own_values, "the gradients of variables that ranks had begun with other values"
    )
    tensors = [None if array is None else tf.convert_to_tensor(array) for array in values_of_rank_0]
    return tf.nest.pack_sequence_as(computed_gradients, tensors, expand_composites=True)


def list_written(graph: Any) -> list[Any]:
    """The inputs of a FuncGraph for state that it may change: variables, iterators, tables."""
    from tensorflow.python.framework import auto_control_deps_utils

    only_read = set(auto_control_deps_utils.get_read_only_resource_input_indices_graph(graph))
    resources = [(index, tensor) for index, tensor in enumerate(graph.inputs) if tensor.dtype.name == "resource"]
    return [tensor for index, tensor in resources if index not in only_read]


def list_changed(function: Any) -> list[Any]:
    """The variables that a ConcreteFunction changes."""
    graph = function.graph
    written_ids = set(map(id, list_written(graph)))
    inner_ids = {id(outer_tensor): id(inner_tensor) for outer_tensor, inner_tensor in graph.captures}
    return [variable for variable in graph.variables if inner_ids.get(id(variable.handle)) in written_ids]


def list_trained(function: Any) -> list[Any]:
    """The weights that a ConcreteFunction changes, without integer variables: these are counters, even if trainable."""
    return [variable for variable in list_changed(function) if variable.trainable and not variable.dtype.is_integer]
