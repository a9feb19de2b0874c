"""Whether ranks are to train by themselves, by the strategies `async` and `local`, and the reasons why they cannot.

If a reason is found, the ranks train together, as with MATEX_STRATEGY=allreduce, and `report_fallback` tells the user.
"""

from __future__ import annotations

from typing import Any

from matex_tf import settings
from matex_tf.runtime import notes
from matex_tf.servers.pieces import update_costs
from matex_tf.world import world

ONLY_FIT = "only fit trains so"


def is_chosen(strategy: str) -> bool:
    """Whether ranks train by `strategy`, "async" or "local", if possible."""
    chosen = settings.get_strategy_name(settings.get_settings().strategy)
    return chosen == strategy and world.is_active() and not world.get_world().is_phantom


def report_fallback(strategy: str, what: str, why: str) -> None:
    """Report once that `what` runs as allreduce although `strategy` is chosen; record the reason for a plan."""
    update_costs.note_obstacle(strategy, why)
    if is_chosen(strategy):
        notes.print_note(f"MATEX_STRATEGY={strategy}: {what} runs as allreduce: {why}")


def name_step(plan: Any) -> str:
    """The name, for messages, of a step that has changed weights, from `events.step_trained`."""
    return "a loop of the script's own" if plan is None else str(plan.place)


def find_obstacle(model: Any) -> str:
    """Why ranks cannot train this model by themselves in `fit`; "" if no reason is known yet."""
    if getattr(model, "run_eagerly", False):
        return "its step is not traced (run_eagerly=True)"
    steps = getattr(model, "steps_per_execution", None)
    steps = getattr(model, "_steps_per_execution", 1) if steps is None else steps  # a variable in Keras 2
    if steps is not None and int(steps) != 1:
        return "it makes several steps at once (steps_per_execution)"
    if getattr(getattr(model, "optimizer", None), "gradient_accumulation_steps", None):
        return "its optimizer accumulates gradients"
    return ""
