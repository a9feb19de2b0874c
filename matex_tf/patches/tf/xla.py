"""`jit_compile=True`: a function with a collective remains compiled by XLA if there are XLA kernels for the collective.

Otherwise XLA is turned off for the function, after it is traced and before it first runs, and a note reports this.
"""

from __future__ import annotations

from typing import Any

from matex_tf.ops import xla
from matex_tf.rewrite import graph_ops
from matex_tf.runtime import notes
from matex_tf.runtime.hooks import Table

HOOKS = Table()


@HOOKS.replace(
    "tensorflow.python.eager.polymorphic_function.atomic_function",
    "from_func_graph",
    "a jit-compiled function with a collective fails",
)
def _wrap_from_func_graph(original: Any) -> Any:
    from tensorflow.python.eager.polymorphic_function import attributes

    def from_func_graph(name, graph, attrs, *args, **kwargs):
        if _is_true(attrs, attributes.XLA_COMPILE):
            why = xla.find_obstacle({node.op for node in graph_ops.iterate_nodes(graph)})
            if why:
                notes.print_note(
                    f"XLA (jit_compile=True) is turned off for the function '{graph.name}': {why}; the results are "
                    "the same"
                )
                attrs = {key: value for key, value in attrs.items() if key != attributes.XLA_COMPILE}
        return original(name, graph, attrs, *args, **kwargs)

    return from_func_graph


def _is_true(attrs: Any, name: str) -> bool:
    """Whether the attribute `name`, a bool or TensorFlow's AttrValue, is present and true."""
    value = (attrs or {}).get(name)
    return bool(getattr(value, "b", value))
