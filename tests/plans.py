"""What tests see of the plans of steps, in a process of a rank."""

from matex_tf import tags
from matex_tf.rewrite.nodes import Decision
from matex_tf.rewrite.placement import WHOLE
from matex_tf.rewrite.rules import RULES
from matex_tf.steps import function_calls


def is_shared(function):
    """Whether ranks share every call that was made of a `tf.function`."""
    plans = tags.get_tag(function, function_calls._PLANS, None)
    return plans is not None and not any(plan.why_whole for plan in plans.by_trace.values())


def leave_python_as_it_is():
    """Calls of Python that a test puts into a step see a rank's part of it; those of a script would see all of it."""
    RULES["PyFunc"] = lambda node: Decision([None] * len(node.inputs), [WHOLE] * len(node.op.outputs))
