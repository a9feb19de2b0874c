"""`tf.function`: what it returns of a loss is the global loss, and new variables are agreed on once it has run."""

from __future__ import annotations

import contextlib
from typing import Any

from matex_tf import fitting, graphs, loops, losses, metrics, overlapping, pipeline, variables
from matex_tf.ops import overlap
from matex_tf.patches import replace


def install() -> None:
    from tensorflow.python.eager.polymorphic_function import polymorphic_function
    from tensorflow.python.framework import func_graph

    replace(func_graph, "func_graph_from_py_func", _trace)
    replace(polymorphic_function.Function, "__call__", _call)


def _trace(original: Any) -> Any:
    def func_graph_from_py_func(name, python_func, *args, **kwargs):
        import tensorflow as tf

        def with_global_losses(*call_args, **call_kwargs):
            outputs = python_func(*call_args, **call_kwargs)
            flat = tf.nest.flatten(outputs, expand_composites=False)
            replaced = [losses.global_value(value) if isinstance(value, tf.Tensor) else None for value in flat]
            if graphs.is_training_step(tf.compat.v1.get_default_graph()):
                replaced = losses.global_figures(flat, replaced)
            if all(value is None for value in replaced):
                return outputs
            return tf.nest.pack_sequence_as(
                outputs, [value if new is None else new for value, new in zip(flat, replaced)]
            )

        # Tracing inspects these to name the graph's inputs and to find the function's source.
        with_global_losses.__wrapped__ = python_func
        for attribute in ("__name__", "__qualname__", "__module__", "__doc__"):
            if hasattr(python_func, attribute):
                setattr(with_global_losses, attribute, getattr(python_func, attribute))
        return original(name, with_global_losses, *args, **kwargs)

    return func_graph_from_py_func


def _call(original: Any) -> Any:
    def __call__(self, *args, **kwargs):
        import tensorflow as tf

        if tf.executing_eagerly() and fitting.current() is None:
            metrics.count_apart()
        sources = (tf.data.Dataset, tf.data.Iterator)
        compiled = overlap.for_xla() if getattr(self, "_jit_compile", None) else contextlib.nullcontext()
        with compiled, pipeline.passed([part for part in (*args, *kwargs.values()) if isinstance(part, sources)]):
            try:
                result = overlapping.call(original, self, args, kwargs)
            except ValueError:
                # While it was traced: nothing has run. A step may rely on the number of rows of a whole batch.
                whole = loops.whole_batch_in(args, kwargs)
                if whole is None:
                    raise
                result = overlapping.call(original, self, *whole)
        if tf.executing_eagerly():
            if variables.waiting():
                variables.settle()
            loops.notice_update()
        return result

    return __call__
