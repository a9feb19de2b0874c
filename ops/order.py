"""What orders our ops inside functions: each seems to write to one variable, so that they run as they were made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matex_tf import tags

_variable: Any = None
_LAST = "last collective"


def list_order_handles() -> list[Any]:
    """The variable's handle, in a list, for an op in a function that eager code calls; nothing elsewhere.

    A session has variables of its own. In its graphs, and in their functions, each op waits for the one before it.
    """
    global _variable
    import tensorflow as tf
    from tensorflow.python.framework import ops
    from tensorflow.python.ops import resource_variable_ops

    if tf.executing_eagerly() or not ops.inside_function():
        return []
    with tf.init_scope():
        if not tf.executing_eagerly():
            return []
    if _variable is None:
        # Not tf.Variable: a function that is being traced counts those that are made in it.
        with tf.init_scope(), tf.device("CPU:0"):
            _variable = resource_variable_ops.ResourceVariable(0, trainable=False, name="matex_tf_order")
    return [_variable.handle]


def make_in_order(make: Callable[..., Any], **inputs: Any) -> Any:
    """What `make`, which makes one of our ops, gives with these inputs and the order: the op runs after those before.

    The graph of a backward pass that TensorFlow makes for a function called in eager code has nothing that orders ops
    by their variables: there each waits for the one before it.
    """
    import tensorflow as tf
    from tensorflow.python.framework import ops

    graph = None
    if not tf.executing_eagerly() and ops.inside_function():
        graph = ops.get_default_graph()
    if graph is None or getattr(graph, "experimental_acd_manager", None) is not None:
        return make(order=list_order_handles(), **inputs)
    with tf.control_dependencies(tags.get_tag(graph, _LAST, [])):
        made = make(order=list_order_handles(), **inputs)
    first = tf.nest.flatten(made)[0]
    tags.set_tag(graph, _LAST, [first if isinstance(first, tf.Operation) else first.op])
    return made


def make_on_device(make: Callable[..., Any], mark: Callable[..., Any], **inputs: Any) -> list[Any]:
    """The tensors that `make` gives, in the order, for an op that is to lie where its inputs do.

    With the handle TensorFlow has it on the CPU. `mark` makes an op that does nothing but take its place in the order,
    before that op and after it. What is made of the tensors comes after both.
    """
    import tensorflow as tf

    if not list_order_handles():
        return list(make(**inputs))
    with tf.control_dependencies([make_in_order(mark)]):
        made = make(**inputs)
    with tf.control_dependencies([made[0].op]):
        after = make_in_order(mark)
    with tf.control_dependencies([after]):
        return [tf.identity(one) for one in made]


def is_handle(tensor: Any) -> bool:
    """Whether it is the variable's handle, as eager code has it."""
    return _variable is not None and tensor is _variable.handle
