"""Hooks of TensorFlow, and of the text of Keras' errors, that are not about training steps.

They let a script call collectives in branches and loops, and in functions that XLA compiles. They leave the library's
frames out of the text of errors. And they refuse `tf.distribute`. The last text of each hook says what goes wrong
without it.
"""

from __future__ import annotations

import os
import traceback
from typing import Any

from matex_tf import errors, ops, settings
from matex_tf.ops import order, xla
from matex_tf.rewrite import graph_ops
from matex_tf.runtime import notes, script_frames
from matex_tf.runtime.keras_table import KerasTable
from matex_tf.world import world

HOOKS = KerasTable()
_PYTHON = "tensorflow.python"
_OWN_FILES = [os.path.abspath(str(module.__file__)) for module in (settings, ops)]
_OWN_FOLDERS = tuple(os.path.join(os.path.dirname(path), "") for path in _OWN_FILES)
"""The folders of the packages `matex_tf` and `matex_tf.ops`; a checkout has the second one outside of the first."""
_DEFAULT_STRATEGIES = (
    "_DefaultDistributionStrategy", "_DefaultDistributionStrategyV1", "_DefaultReplicaThreadStrategy",
)  # fmt: skip
"""The strategies that TensorFlow creates for a script that uses none."""


@HOOKS.replace(
    f"{_PYTHON}.ops.control_flow_v2_func_graphs",
    "ControlFlowFuncGraph.capture",
    "a collective within a branch or a loop cannot be traced",
)
def _wrap_capture(original: Any) -> Any:
    """Collectives in a branch or loop take the order handle, an eager tensor that keeps them in order (`ops.order`).

    A branch or loop in a function would capture an eager tensor directly. In its gradients TensorFlow looks for the
    graph of each captured tensor, and an eager tensor has none. So the function captures the handle first, and the
    branch or loop captures the function's tensor.
    """

    def capture(self, tensor, *args, **kwargs):
        outer_graph = self.outer_graph
        if order.is_handle(tensor) and outer_graph.building_function:
            tensor = outer_graph.capture(tensor)
        return original(self, tensor, *args, **kwargs)

    return capture


@HOOKS.replace(
    f"{_PYTHON}.util.traceback_utils",
    "_EXCLUDED_PATHS",
    "errors in a tf.function show frames of matex_tf",
    optional=True,
)
@HOOKS.replace_in(
    "errors in fit show frames of matex_tf",
    "utils.traceback_utils:_EXCLUDED_PATHS",
    "utils.traceback_utils:_EXCLUDED_PATHS",
    optional=True,
)
def _exclude_own_files(original: Any) -> Any:
    """TensorFlow and Keras leave out frames of their own files where an error in a `tf.function` or in `fit` is shown:
    in the traceback, and in AutoGraph's text "in user code". Our files are left out, too.
    """
    return (*original, *_OWN_FOLDERS) if settings.get_settings().traceback == "script" else original


@HOOKS.replace(
    f"{_PYTHON}.distribute.distribute_lib", "StrategyBase.__init__", "tf.distribute would shard batches once more"
)
def _refuse_strategy(original: Any) -> Any:
    """Refuse `tf.distribute` strategies under several ranks: both libraries would shard the batch and sum gradients."""

    def __init__(self, *args, **kwargs):
        name = type(self).__name__
        if name not in _DEFAULT_STRATEGIES and world.is_active():
            frame = script_frames.find_script_frame(traceback.extract_stack())
            place = f"{frame.filename}, line {frame.lineno}: {frame.line}" if frame else "the script"
            raise errors.UnsupportedError(
                f"tf.distribute.{name} cannot be used under several ranks of matex_tf, which shards the batches "
                f"itself. Remove this line and the `with strategy.scope():` around the model: {place}"
            )
        return original(self, *args, **kwargs)

    return __init__


@HOOKS.replace(
    f"{_PYTHON}.eager.polymorphic_function.atomic_function",
    "from_func_graph",
    "a jit-compiled function with a collective fails",
)
def _wrap_from_func_graph(original: Any) -> Any:
    """Turn XLA off for a function (`jit_compile=True`) with a collective for which there is no XLA kernel.

    The function has been traced, so its ops are known, and it has not run yet. It then runs uncompiled with the same
    results, where TensorFlow would raise an error. A note reports this.
    """
    from tensorflow.python.eager.polymorphic_function import attributes

    def from_func_graph(name, graph, attrs, *args, **kwargs):
        xla_option = (attrs or {}).get(attributes.XLA_COMPILE)  # a bool, TensorFlow's AttrValue, or None
        if getattr(xla_option, "b", xla_option):
            why = xla.find_obstacle({node.op for node in graph_ops.iterate_nodes(graph)})
            if why:
                notes.print_note(
                    f"XLA (jit_compile=True) is turned off for the function '{graph.name}': {why}; the results are "
                    "the same"
                )
                attrs = {key: value for key, value in attrs.items() if key != attributes.XLA_COMPILE}
        return original(name, graph, attrs, *args, **kwargs)

    return from_func_graph
