"""What tests see of the plans of steps, in a process of a rank."""

from matex_tf import tags
from matex_tf.rewrite.nodes import Decision
from matex_tf.rewrite.placement import WHOLE
from matex_tf.rewrite.rules import RULES
from matex_tf.steps import function_calls
from matex_tf.steps.plan import NO_BATCH


def is_shared(function):
    """Whether ranks share every call that was made of a `tf.function`, but those of one row, which have no batch."""
    plans = tags.get_tag(function, function_calls._PLANS, None)
    made = [] if plans is None else plans.by_trace.values()
    reasons = [plan.why_whole for plan in made if plan.why_whole != NO_BATCH]
    return bool(reasons) and not any(reasons)


def leave_python_as_it_is(on=True):
    """Calls of Python that a test puts into a step see a rank's part of it; those of a script would see all of it."""
    if on:
        RULES["PyFunc"] = lambda node: Decision([None] * len(node.inputs), [WHOLE] * len(node.op.outputs))
    else:
        RULES.pop("PyFunc", None)
