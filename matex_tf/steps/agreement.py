"""What ranks compare between steps, so that all hold the weights that the script alone would hold.

In code that every rank computes whole, rank 0's values are those of the script: where the others' differ they take
rank 0's. A weight of a step that ranks share must not differ: what the step gave would be a mixture of two models.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from matex_tf import errors, settings, tags
from matex_tf.runtime import notes, objects, shutdown
from matex_tf.sharding import fingerprint
from matex_tf.steps import capture, events, own_data, variables
from matex_tf.world import world

AS_TRAINING_STARTS = "comparing the variables as training starts"

_SHARED = "is of a step that ranks share"
_steps = 0
_unchecked = False
_are_apart = False


def is_watched() -> bool:
    """Whether what this thread does is compared: other threads of a script are at other places on each rank."""
    is_main = threading.current_thread() is threading.main_thread()
    return world.is_active() and is_main and not own_data.is_alone()


def set_apart(are_apart: bool) -> None:
    """Whether weights differ between ranks on purpose, until they meet (`events.ranks_meet`)."""
    global _are_apart
    _are_apart = are_apart


def is_sharing_eager_calls() -> bool:
    """Whether calls in eager code while tapes record may be shared by the ranks in this thread."""
    return is_watched() and settings.get_settings().eager == "auto"


def agree_on_new(used: Iterable[Any]) -> bool:
    """Give all ranks the same values of those variables on which they have not agreed yet; whether any differed.

    Collective where there is a new one.
    """
    new = variables.select_new(used)
    if new:
        events.ranks_meet("comparing variables")
    return bool(new and variables.synchronize_variables(new, AS_TRAINING_STARTS))


def count_rows(tensors: Iterable[Any], are_rows: Iterable[bool]) -> int:
    """The rows of the batches that a function was traced for, 0 for any number: of its tensors that have rows."""
    return next((one.shape.as_list()[0] for one, has_rows in zip(tensors, are_rows) if has_rows), None) or 0


def agree_on_trace(graph: Any, why_whole: str, place: str, rows: int = 0) -> str:
    """Why ranks do not share the calls of a traced function, if one of them has a reason. Collective.

    All ranks have traced the same, and have the same values of the variables that it uses.

    Args:
        rows: see `count_rows`.

    Raises:
        MismatchError: on every rank, if the traces differ.
    """
    events.ranks_meet(place)
    why_whole = agree_on_plan(capture.digest_graph(graph, for_ranks=True), why_whole, place, rows)
    variables.synchronize_variables(graph.variables, f"comparing the variables before {place}")
    if not why_whole:
        note_shared(graph.variables)
    return why_whole


def agree_on_plan(digest: bytes, why_whole: str, place: str, rows: int = 0) -> str:
    """Why all ranks compute a step whole, empty where they share it. Collective.

    Args:
        digest: of the ops of the step; constants, names of files for example, may differ.
        why_whole: why this rank would compute it whole.
        place: names the step in messages.
        rows: see `count_rows`.

    Raises:
        MismatchError: on every rank, where all would share the step, and have other ops.
    """
    everyone = objects.allgather((digest, why_whole, rows), f"whether ranks can share {place}", rows)
    reasons = [why for _, why, _ in everyone if why]
    if reasons:
        return reasons[0]
    for rank, (other, *_) in enumerate(everyone):
        if other != everyone[0][0]:
            fingerprint.check_rows([(rank, rows) for rank, (*_, rows) in enumerate(everyone)], f"a batch of {place}")
            hosts = world.get_world().hosts
            raise errors.MismatchError(
                f"the ranks' traces of {place} differ: that of rank {rank} ({hosts[rank]}) has other ops "
                f"than that of rank 0 ({hosts[0]}). Every rank must run the same script."
            )
    return ""


def note_shared(used: Iterable[Any]) -> None:
    """A step that ranks share uses these variables, on which they have agreed."""
    for variable in map(variables.find_tf_variable, used):
        tags.set_tag(variable, _SHARED, True)


def note_step() -> None:
    """A step has run. After 1, 2, 4, 8, ... of them, and every MATEX_DRIFT_STEPS, weights are compared: collective."""
    global _steps, _unchecked
    _steps += 1
    _unchecked = True
    every = settings.get_settings().drift_steps
    if every and not _are_apart and (_steps & (_steps - 1) == 0 or _steps % every == 0):
        compare_weights(f"after {_steps} steps")


def compare_weights(when: str, more: Iterable[Any] = ()) -> None:
    """Compare the weights of all steps so far, and `more` variables, of all ranks. Collective.

    Raises:
        MismatchError: on every rank, if a weight differs that a shared step uses.
    """
    global _unchecked
    events.ranks_meet(f"comparing weights {when}")
    _unchecked = False
    found = [*(one for one in variables.list_agreed() if _is_trainable(one)), *more]
    shared = [one for one in found if _is_trainable(one) and tags.get_tag(variables.find_tf_variable(one), _SHARED)]
    differing = variables.synchronize_variables(found, f"comparing weights {when}", shared)
    if differing:
        notes.print_note(
            f"{_name_first(differing)} differ between ranks: code that every rank runs whole has changed them by data "
            "or random numbers of its own. All ranks go on with rank 0's"
        )


def agree_on_model(model: Any) -> None:
    """Give all ranks the same values of a model's weights and of its optimizer's variables. Collective."""
    events.ranks_meet("comparing the variables as training starts")
    owned = getattr(getattr(model, "optimizer", None), "variables", [])
    variables.synchronize_variables([*list_weights(model), *(owned() if callable(owned) else owned)])


def compare_model(model: Any, kind: str, is_within_fit: bool) -> None:
    """Before `evaluate` or `predict`, which `kind` is, all ranks have the same weights. Collective.

    Within `fit` weights that a shared step has changed otherwise on each rank are an error.
    """
    events.ranks_meet(kind)
    if is_within_fit:
        compare_weights(f"before {kind}", list_weights(model))
        return
    differing = variables.synchronize_variables(list_weights(model), f"comparing the weights before {kind}")
    if differing:
        notes.print_note(f"{kind}: {_name_first(differing)} differ between ranks; all ranks take rank 0's")


def list_weights(model: Any) -> list[Any]:
    """The weights of a Keras model that are made; none of a list of callbacks that has no model."""
    try:
        return list(getattr(model, "weights", []))
    except ValueError:  # Keras 2: of a model that is not built yet
        return [weight for layer in model.layers for weight in list_weights(layer)]


def _is_trainable(variable: Any) -> bool:
    return bool(getattr(variable, "trainable", True))


def _name_first(names: list[str]) -> str:
    return f"'{names[0]}' and {len(names) - 1} other variables" if len(names) > 1 else f"the values of '{names[0]}'"


def _check_end() -> None:
    if settings.get_settings().drift_steps and _unchecked:
        compare_weights("at the end of the script")


shutdown.at_end.append(_check_end)
