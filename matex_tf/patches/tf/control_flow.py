"""Loops and branches capture the handle that orders the library's ops through the surrounding function.

Without this patch they would capture the handle, an eager tensor, directly, and TensorFlow could not find a graph for
it in their gradients.
"""

from __future__ import annotations

from typing import Any

from matex_tf.ops import order
from matex_tf.runtime.hooks import Table

HOOKS = Table()


@HOOKS.replace(
    "tensorflow.python.ops.control_flow_v2_func_graphs",
    "ControlFlowFuncGraph.capture",
    "a collective within a branch or a loop cannot be traced",
)
def _wrap_capture(original: Any) -> Any:
    def capture(self, tensor, *args, **kwargs):
        outer = self.outer_graph
        if order.is_handle(tensor) and outer.building_function:
            tensor = outer.capture(tensor)
        return original(self, tensor, *args, **kwargs)

    return capture
