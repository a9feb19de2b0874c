"""A call of a step is an attempt (see `elastic`): those that are left put back its variables and make the call again.

Between steps every rank holds all variables, and each has the whole batch, which is taken before the call. So nothing of
a call is lost with a rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matex_tf import tags
from matex_tf.resilience import elastic
from matex_tf.rewrite import functions, sources
from matex_tf.steps import plan, whole_code
from matex_tf.world import membership

_UNDO = "how a call of the step is undone"


def attempt_steps() -> None:
    """Have each call of a step be an attempt, where ranks may be lost."""
    if elastic.is_on():
        plan.execute_by(_attempt_step)


def _attempt_step(step: plan.StepPlan, compute: Callable[[], Any]) -> Any:
    undo: Undo = tags.get_or_make_tag(step, _UNDO, lambda: Undo(step))
    undo.save()
    return elastic.attempt_work(step.place, compute, undo.restore)


def _find_obstacle(step: plan.StepPlan) -> str:
    """What keeps a call from being undone; empty where it can be."""
    graph, source = step.own.graph, step.source
    taking = (*sources.SOURCES, "IteratorGetNextAsOptional")
    others = (op for op in graph.get_operations() if op is not source)
    if any(op.type in taking or functions.has_op(op, taking) for op in others):
        return "takes batches within its function, as a loop does, which do not come again"
    inside = {id(outer): id(inner) for outer, inner in graph.captures}
    known = {inside.get(id(one.handle)) for one in graph.variables}
    if source is not None:
        known.add(id(source.inputs[0]))
    if any(id(one) not in known for one in whole_code.list_written(graph)):
        return "changes more than variables, as a table, a queue or a file of summaries"
    return ""


class Undo:
    """The values that the variables of a step have before a call.

    To keep them costs no copy by itself: what the step then changes TensorFlow writes to new memory.
    """

    def __init__(self, step: plan.StepPlan):
        import tensorflow as tf

        self._place, self._why_not = step.place, _find_obstacle(step)
        self._variables = changed = whole_code.list_changed(step.own)
        self._values: list[Any] = []
        self._read = tf.function(lambda: [one.read_value() for one in changed], autograph=False).get_concrete_function()

    def save(self) -> None:
        self._values = self._read()

    def restore(self) -> None:
        """Give the variables these values.

        Raises:
            CannotGoOn: if that is not all that the call has changed.
        """
        if self._why_not:
            raise membership.make_loss_error(f"{self._place} {self._why_not}")
        for variable, value in zip(self._variables, self._values):
            variable.assign(value)
