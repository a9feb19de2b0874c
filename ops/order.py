"""The order of collective ops inside functions.

TensorFlow runs independent ops of a function in any order, but all ranks must execute collectives in one order. Ops
that write to the same variable do run in the order of their creation. So each collective op has the handle of one
variable, the order handle, as an input, as if it wrote to it. All collectives are created by `make_in_order`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matex_tf import tags
from matex_tf.lazy import tf

from .library import get_library

_variable: Any = None
_LAST = "last collective"  # tag of a graph: the last collective op so far, in a list


def list_order_handles() -> list[Any]:
    """The handle of the order variable, in a list, for an op in a function that eager code calls; else an empty list.

    A session has its own variables. In its graphs, and in their functions, turns order the collectives instead
    (`collectives/common.py`).
    """
    global _variable
    from tensorflow.python.framework import ops
    from tensorflow.python.ops import resource_variable_ops

    if tf.executing_eagerly() or not ops.inside_function():
        return []
    with tf.init_scope():
        if not tf.executing_eagerly():
            return []
    if _variable is None:
        # Not tf.Variable: a function that is being traced tracks each tf.Variable created in it.
        with tf.init_scope(), tf.device("CPU:0"):
            _variable = resource_variable_ops.ResourceVariable(0, trainable=False, name="matex_tf_order")
    return [_variable.handle]


def make_in_order(make: Callable[..., Any], **inputs: Any) -> Any:
    """The result of `make`, which creates a collective op with these inputs. It runs after the previous collectives.

    If eager code calls a function, TensorFlow builds a graph for its backward pass. Such a graph does not order ops by
    their resources, so in it each collective gets a control dependency on the previous one.
    """
    from tensorflow.python.framework import ops

    graph = None  # of the function that is being traced; None: no function
    if not tf.executing_eagerly() and ops.inside_function():
        graph = ops.get_default_graph()
    orders_by_resources = getattr(graph, "experimental_acd_manager", None) is not None
    if graph is None or orders_by_resources:
        return make(order=list_order_handles(), **inputs)
    with tf.control_dependencies(tags.get_tag(graph, _LAST, [])):
        outputs = make(order=list_order_handles(), **inputs)
    first_output = tf.nest.flatten(outputs)[0]
    tags.set_tag(graph, _LAST, [first_output if isinstance(first_output, tf.Operation) else first_output.op])
    return outputs


def make_on_device(make: Callable[..., Any], mark: Callable[..., Any], **inputs: Any) -> list[Any]:
    """The output tensors of a collective op that is to be placed on the device of its inputs; `make` creates the op.

    With the order handle as input, TensorFlow would place the op on the CPU. So two other ops, made by `mark`, have the
    handle: one runs before the op, the other after it. Consumers of the tensors run after all three ops.
    """
    if not list_order_handles():
        return list(make(**inputs))
    with tf.control_dependencies([make_in_order(mark)]):
        tensors = make(**inputs)
    with tf.control_dependencies([tensors[0].op]):
        after_op = make_in_order(mark)
    with tf.control_dependencies([after_op]):
        return [tf.identity(tensor) for tensor in tensors]


def is_handle(tensor: Any) -> bool:
    """Whether `tensor` is the order variable's handle in eager code."""
    return _variable is not None and tensor is _variable.handle


def pass_turn(other_branch: Any, turn: int) -> Any:
    """In a v1 graph: the operation that uses the turn of a collective if the branch of the collective is not executed.

    All later collectives would wait for the turn (`sequence/v1_order.h`).

    Args:
        other_branch: a bool tensor of the branch without the collective. It has a value, so that the operation runs,
            only if that branch is executed.
        turn: the attribute `turn` of the collective.
    """
    return get_library().ops.matex_pass_turn(other_branch=other_branch, turn=turn)
