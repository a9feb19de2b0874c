"""Comparisons between the ranks, so that all of them hold the weights that the script alone would hold.

Two things are compared. Before ranks share a step, they compare its traces and variables (`agree_on_trace`). While they
train, they compare weights: in `fit` and `evaluate`, after 1, 2, 4, ... steps, and every MATEX_DRIFT_STEPS steps.

If values differ, code that every rank runs by itself has computed them, for example from random numbers. All ranks then
take the values of rank 0. But it is an error if a weight of a shared step differs: the gradients of that step were sums
over different models. Before a comparison, ranks that have trained by themselves, as with the strategy `local:H`, bring
their variables together (`events.ranks_meet`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from matex_tf import errors, settings, tags
from matex_tf.rewrite import graph_ops
from matex_tf.runtime import notes, objects, real_files, shutdown
from matex_tf.sharding import fingerprint
from matex_tf.steps import capture, events, own_data, variables
from matex_tf.thread_flag import is_main_thread
from matex_tf.world import world

AS_TRAINING_STARTS = "comparing the variables as training starts"
COMPUTED_PATHS = "it computes the paths of files that it reads or writes"

_SHARED = "is of a step that ranks share"  # the name of a tag of variables
_steps = 0
_has_unchecked = False
"""Whether there was a step since the last comparison of weights."""
_are_differences_expected = False
"""Whether ranks train by themselves for some steps (`apart.local`). Their weights differ then, and are not compared."""


def is_watched() -> bool:
    """Whether work of this thread is compared between ranks."""
    return world.is_active() and is_main_thread() and not own_data.is_alone()


def expect_differences(are_expected: bool) -> None:
    """True: compare no weights after steps from now on, since ranks train by themselves. False: compare them again."""
    global _are_differences_expected
    _are_differences_expected = are_expected


def agree_on_new(used_variables: Iterable[Any]) -> bool:
    """Give all ranks the same values of new variables. Returns whether any differed. Collective if there are any."""
    new_variables = variables.select_new(used_variables)
    if new_variables:
        events.ranks_meet("comparing variables")
    return bool(new_variables and variables.synchronize_variables(new_variables, AS_TRAINING_STARTS))


def agree_on_trace(graph: Any, why_whole: str, place: str, rows: int = 0) -> str:
    """`agree_on_plan` for a trace. Afterwards the variables of the trace have equal values on all ranks. Collective."""
    events.ranks_meet(place)
    # Other ranks than rank 0 have further ops in such a trace: their files are in private folders.
    if not why_whole and any(map(real_files.finds_files, graph_ops.iterate_nodes(graph))):
        why_whole = COMPUTED_PATHS
    why_whole = agree_on_plan(capture.digest_graph(graph, for_ranks=True), why_whole, place, rows)
    variables.synchronize_variables(graph.variables, f"comparing the variables before {place}")
    for variable in [] if why_whole else graph.variables:
        tags.set_tag(variables.find_tf_variable(variable), _SHARED, True)
    return why_whole


def agree_on_plan(digest: bytes, why_whole: str, place: str, rows: int = 0) -> str:
    """The reason why a step is not shared; empty if it is. Collective.

    digest: a digest of the ops of the step, without constants: file names may differ between ranks.
    why_whole: the reason why this rank would compute the step whole; empty if it would share it.
    rows: the number of rows of the batches for which the step was traced; 0: any number. For messages and records.

    Raises MismatchError on every rank if all ranks would share the step but have different ops.
    """
    plans_of_ranks = objects.allgather((digest, why_whole, rows), f"whether ranks can share {place}", rows)
    reasons = [why for _, why, _ in plans_of_ranks if why]
    if reasons:
        return reasons[0]
    for rank, (digest_of_rank, *_) in enumerate(plans_of_ranks):
        if digest_of_rank != plans_of_ranks[0][0]:
            # Batches of different sizes are the likely reason, which has a message of its own.
            fingerprint.check_rows(list(enumerate(rows for *_, rows in plans_of_ranks)), f"a batch of {place}")
            hosts = world.get_world().hosts
            raise errors.MismatchError(
                f"the ranks' traces of {place} differ: that of rank {rank} ({hosts[rank]}) has other ops "
                f"than that of rank 0 ({hosts[0]}). Every rank must run the same script."
            )
    return ""


def note_step() -> None:
    """Count a step. After 1, 2, 4, 8, ... steps, and every MATEX_DRIFT_STEPS, the weights are compared: collective.

    MATEX_DRIFT_STEPS=0: never. Called for each shared step, and for each training step that every rank computes whole.
    """
    global _steps, _has_unchecked
    _steps += 1
    _has_unchecked = True
    period = settings.get_settings().drift_steps
    if not period or _are_differences_expected:
        return
    is_power_of_two = _steps & (_steps - 1) == 0
    if is_power_of_two or _steps % period == 0:
        compare_weights(f"after {_steps} steps")


def compare_weights(when: str, further_variables: Iterable[Any] = ()) -> None:
    """Compare the weights of all steps so far, and `further_variables`, between all ranks. Collective.

    further_variables: such as the moving averages of a model, which `evaluate` is about to read.

    Raises MismatchError on every rank if a weight of a shared step differs.
    """
    global _has_unchecked
    events.ranks_meet(f"comparing weights {when}")
    _has_unchecked = False
    compared_variables = [*filter(_is_weight, variables.list_agreed()), *further_variables]
    shared_weights = [
        variable
        for variable in compared_variables
        if tags.get_tag(variables.find_tf_variable(variable), _SHARED) and _is_weight(variable)
    ]
    differing_names = variables.synchronize_variables(compared_variables, f"comparing weights {when}", shared_weights)
    if differing_names:
        notes.print_note(
            f"{_name_first(differing_names)} differ between ranks: code that every rank runs whole has changed them by "
            "data or random numbers of its own. All ranks go on with rank 0's"
        )


def agree_on_model(model: Any) -> None:
    """Give all ranks the same weights of a model, and the same variables of its optimizer. Collective."""
    events.ranks_meet(AS_TRAINING_STARTS)
    slots = getattr(getattr(model, "optimizer", None), "variables", [])
    compared_variables = [*list_weights(model), *(slots() if callable(slots) else slots)]
    variables.synchronize_variables(compared_variables, AS_TRAINING_STARTS)


def compare_model(model: Any, kind: str, is_within_fit: bool) -> None:
    """Give all ranks the same weights before `evaluate` or `predict` (`kind`). Collective.

    Within `fit`, weights that a shared step changed differently on the ranks are an error. Outside of it, a rank may
    have set or loaded weights by itself.
    """
    events.ranks_meet(kind)
    if is_within_fit:
        compare_weights(f"before {kind}", list_weights(model))
        return
    differing_names = variables.synchronize_variables(list_weights(model), f"comparing the weights before {kind}")
    if differing_names:
        notes.print_note(f"{kind}: {_name_first(differing_names)} differ between ranks; all ranks take rank 0's")


def list_weights(model: Any) -> list[Any]:
    """The existing weights of a Keras model; none for a list of callbacks without a model."""
    try:
        return list(getattr(model, "weights", []))
    except ValueError:  # Keras 2: a model that is not built
        return [weight for layer in model.layers for weight in list_weights(layer)]


def _is_weight(variable: Any) -> bool:
    """Whether a variable is trainable. Integer variables are counters, even if trainable."""
    return getattr(variable, "trainable", True) and not variables.find_tf_variable(variable).dtype.is_integer


def _name_first(names: list[str]) -> str:
    return f"'{names[0]}' and {len(names) - 1} other variables" if len(names) > 1 else f"the values of '{names[0]}'"


def _check_end() -> None:
    if settings.get_settings().drift_steps and _has_unchecked:
        compare_weights("at the end of the script")


shutdown.at_end.append(_check_end)
