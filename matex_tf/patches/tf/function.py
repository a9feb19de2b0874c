"""`tf.function`: the border between whole batches and slices (`function_step`); new variables are agreed on."""

from __future__ import annotations

import contextlib
from typing import Any

from matex_tf.gradients import overlap_trial, reduction, tape_stack, variables
from matex_tf.keras import fit_call
from matex_tf.loops import explain, function_step, traces
from matex_tf.metrics import metrics
from matex_tf.ops import overlap
from matex_tf.runtime.hooks import Table
from matex_tf.sharding import sliced_dataset, step_weight
from matex_tf.steps import pieces

HOOKS = Table()

_LOST = "each rank computes all of a tf.function"


@HOOKS.replace(
    "tensorflow.python.autograph.core.config", "CONVERSION_RULES", "AutoGraph converts matex_tf", optional=True
)
def _add_rule(original: Any) -> Any:
    """AutoGraph converts what the script wrote. To convert our functions, too, costs each rank more than a second."""
    from tensorflow.python.autograph.core import config_lib

    return (config_lib.DoNotConvert("matex_tf"), *original)


@HOOKS.replace("tensorflow.python.framework.func_graph", "func_graph_from_py_func", _LOST, takes="func_graph")
def _wrap_trace(original: Any) -> Any:
    def func_graph_from_py_func(name, python_func, *args, **kwargs):
        from tensorflow.python.framework import func_graph

        made = kwargs.get("func_graph", args[3] if len(args) > 3 else None)
        if type(made) is not func_graph.FuncGraph:
            return original(name, python_func, *args, **kwargs)  # a branch, or a loop's body

        def traced(*call_args, **call_kwargs):
            return traces.trace_whole(python_func, call_args, call_kwargs)

        # Tracing inspects these to name the graph's inputs and to find the function's source.
        setattr(traced, "__wrapped__", python_func)  # noqa: B010
        for attribute in ("__name__", "__qualname__", "__module__", "__doc__"):
            if hasattr(python_func, attribute):
                setattr(traced, attribute, getattr(python_func, attribute))
        return original(name, traced, *args, **kwargs)

    return func_graph_from_py_func


@HOOKS.replace("tensorflow.python.eager.polymorphic_function.polymorphic_function", "Function.__call__", _LOST)
def _wrap_call(original: Any) -> Any:
    def __call__(self, *args, **kwargs):
        import tensorflow as tf

        if tf.config.functions_run_eagerly():
            return original(self, *args, **kwargs)  # it is eager code

        def run(function, args, kwargs):
            return _run_function(original, function, args, kwargs)

        if not tf.executing_eagerly():
            with traces.enter_call(self, args, kwargs):
                return run(self, args, kwargs)
        if fit_call.get_current() is not None or tape_stack.is_recording():
            with traces.enter_frame(self, [], is_border=False):
                result = run(self, args, kwargs)
        else:
            result = _call_step(self, run, args, kwargs)
        if variables.has_agreements_due():
            variables.settle_agreements()
        return result

    return __call__


def _call_step(function: Any, run: Any, args: tuple, kwargs: dict) -> Any:
    """A call in eager code that may train."""
    metrics.count_apart()
    updates = reduction.count_updates()
    result, why = function_step.call_step(run, function, args, kwargs)
    if why and reduction.count_updates() > updates and not traces.has_shared_loop(function):
        if step_weight.is_sliced():
            explain.say_inexact(why)
        else:
            explain.say_whole(why, explain.name_step(function))
    return result


@HOOKS.replace(
    "tensorflow.python.eager.polymorphic_function.polymorphic_function", "Function.get_concrete_function", _LOST
)
def _wrap_get_concrete_function(original: Any) -> Any:
    def get_concrete_function(self, *args, **kwargs):
        with contextlib.ExitStack() as around:
            if getattr(self, "_jit_compile", None):
                around.enter_context(overlap.trace_for_xla())
            if not traces.is_called(self):
                around.enter_context(traces.enter_frame(self, [], is_border=False))
            return original(self, *args, **kwargs)

    return get_concrete_function


def _run_function(original: Any, function: Any, args: tuple, kwargs: dict) -> Any:
    import tensorflow as tf

    sources = [part for part in (*args, *kwargs.values()) if isinstance(part, (tf.data.Dataset, tf.data.Iterator))]
    with contextlib.ExitStack() as around:
        if getattr(function, "_jit_compile", None):
            if tf.executing_eagerly():
                pieces.make_whole()  # XLA takes variables as they are
            around.enter_context(overlap.trace_for_xla())
        if sources:
            around.enter_context(sliced_dataset.pass_sources(sources))
        return overlap_trial.call_function(original, function, args, kwargs)
