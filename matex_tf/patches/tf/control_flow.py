"""Loops and branches take the handle that orders our ops from the function around them, as they take its tensors.

A tensor of eager code they would take directly, and where TensorFlow derives them it looks for a graph of it.
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
        around = self.outer_graph
        if order.is_handle(tensor) and around.building_function:
            tensor = around.capture(tensor)
        return original(self, tensor, *args, **kwargs)

    return capture
