"""`tf.function`: what it returns of a loss is the global loss, and new variables are agreed on once it has run."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from matex_tf import (
    control,
    fitting,
    gradients,
    graphs,
    loops,
    losses,
    metrics,
    output,
    overlapping,
    pipeline,
    rehearsal,
    variables,
)
from matex_tf.ops import overlap
from matex_tf.patches import replace

_calls = threading.local()


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
        graph = original(name, with_global_losses, *args, **kwargs)
        for function in _running() if graphs.why_whole(graph) else ():
            function._matex_why_whole = graphs.why_whole(graph)
        return graph

    return func_graph_from_py_func


def _running() -> list[Any]:
    """The functions that are called now, the outermost first."""
    if not hasattr(_calls, "stack"):
        _calls.stack = []
    return _calls.stack


def _call(original: Any) -> Any:
    def __call__(self, *args, **kwargs):
        import tensorflow as tf

        if not tf.executing_eagerly():
            return _run(original, self, args, kwargs)
        loop, updates = None, gradients.updates()
        if fitting.current() is None:
            metrics.count_apart()
            loop = loops.working_on()
        with losses.held() as inexact:
            result = _run(original, self, args, kwargs)
        if loop is not None and gradients.updates() > updates:
            _rehearse(self, args, kwargs, loop.rows)
        if _why_whole(self):
            loops.compute_whole(_why_whole(self))
        else:
            for text in inexact:
                output.note(text)
        if variables.waiting():
            variables.settle()
        loops.notice_update()
        return result

    return __call__


def _run(original: Any, function: Any, args: tuple, kwargs: dict) -> Any:
    import tensorflow as tf

    sources = [part for part in (*args, *kwargs.values()) if isinstance(part, (tf.data.Dataset, tf.data.Iterator))]
    with contextlib.ExitStack() as around:
        if getattr(function, "_jit_compile", None):
            around.enter_context(overlap.for_xla())
        if sources:
            around.enter_context(pipeline.passed(sources))
        _running().append(function)
        try:
            return overlapping.call(original, function, args, kwargs)
        except ValueError:
            # While it was traced: nothing has run. A step may rely on the number of rows of a whole batch.
            whole = loops.whole_batch_in(args, kwargs) if tf.executing_eagerly() else None
            if whole is None:
                raise
            return overlapping.call(original, function, *whole)
        finally:
            _running().pop()


def _why_whole(function: Any) -> str:
    """Why this function is to have whole batches; empty as far as is known."""
    return getattr(function, "_matex_why_whole", "")


def _rehearse(function: Any, args: tuple, kwargs: dict, rows: int) -> None:
    """Once a function has trained on a batch that a loop gave: whether slices of one will do for it. Collective."""
    if hasattr(function, "_matex_rehearsed"):
        return
    function._matex_rehearsed = True
    mine = _why_whole(function) or rehearsal.why_call_whole(function, args, kwargs, rows)
    reasons = control.allgather(mine, "whether a training step can compute a part of a batch")
    function._matex_why_whole = next((why for why in reasons if why), "")
