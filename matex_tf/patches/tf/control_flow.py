"""Loops and branches take the handle that orders our ops from the function around them, as they take its tensors.

A tensor of eager code they would take directly, and where TensorFlow derives them it looks for a graph of it.
"""

from __future__ import annotations

from typing import Any

from matex_tf.ops import order
from matex_tf.runtime.replace import replace_function


def install() -> None:
    from tensorflow.python.ops import control_flow_v2_func_graphs as graphs

    replace_function(graphs.ControlFlowFuncGraph, "capture", _wrap_capture)


def _wrap_capture(original: Any) -> Any:
    def capture(self, tensor, *args, **kwargs):
        around = self.outer_graph
        if order.is_handle(tensor) and around.building_function:
            tensor = around.capture(tensor)
        return original(self, tensor, *args, **kwargs)

    return capture
