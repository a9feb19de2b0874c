"""Tells whether the user has chosen the strategy `async` or `local`, and the reason why the ranks cannot train by it.

With `async`, each rank trains whole batches, on weights in shared memory. With `local`, each rank trains some steps on
its own rows, with its own weights, and then the ranks average the weights. If there is a reason against the chosen
strategy, the ranks train as with MATEX_STRATEGY=allreduce, and `report_fallback` tells the user.
"""

from __future__ import annotations

from typing import Any

from matex_tf import settings
from matex_tf.runtime import notes
from matex_tf.servers.pieces import update_costs
from matex_tf.world import world

ONLY_FIT = "only fit trains so"  # the reason against both strategies for a step outside of Keras' `fit`


def is_chosen(strategy: str) -> bool:
    """Whether ranks are to train by `strategy`, "async" or "local", if possible.

    Always false in a phantom: `matex plan` measures steps of allreduce there, and predicts these strategies from them.
    """
    chosen = settings.get_strategy_name(settings.get_settings().strategy)
    return chosen == strategy and world.is_active() and not world.get_world().is_phantom


def report_fallback(strategy: str, what: str, why: str) -> None:
    """Tell the user once, if `strategy` is chosen, that `what` runs as allreduce, and `why`."""
    # `matex plan` records the reason also if the strategy is not chosen: it predicts strategies that could be chosen.
    update_costs.note_obstacle(strategy, why)
    if is_chosen(strategy):
        notes.print_note(f"MATEX_STRATEGY={strategy}: {what} runs as allreduce: {why}")


def name_step(plan: Any) -> str:
    """The name of a step for messages. `plan`: the argument of `events.step_trained`; None for a step without one."""
    return "a loop of the script's own" if plan is None else str(plan.place)


def find_obstacle(model: Any) -> str:
    """Why ranks cannot train this model by themselves in `fit`; "" if its attributes tell no reason.

    The caller may find a reason elsewhere, such as in the step of the model.
    """
    if getattr(model, "run_eagerly", False):
        return "its step is not traced (run_eagerly=True)"
    steps = getattr(model, "steps_per_execution", None)
    if steps is None:  # Keras 2 has another attribute, a variable
        steps = getattr(model, "_steps_per_execution", 1)
    if steps is not None and int(steps) != 1:
        return "it makes several steps at once (steps_per_execution)"
    if getattr(getattr(model, "optimizer", None), "gradient_accumulation_steps", None):
        return "its optimizer accumulates gradients"
    return ""
