"""Calls of a `tf.function` in eager code are steps, which ranks share (`steps.function_calls`)."""

from __future__ import annotations

from typing import Any

from matex_tf.input import shared_batches
from matex_tf.lazy import tf
from matex_tf.runtime.hooks import Table
from matex_tf.sharding import shard_arrays
from matex_tf.steps import agreement, function_calls
from matex_tf.steps.tapes import first_calls

HOOKS = Table()


@HOOKS.replace(
    "tensorflow.python.autograph.core.config", "CONVERSION_RULES", "AutoGraph converts matex_tf", optional=True
)
def _add_rule(original: Any) -> Any:
    """Exclude the library from AutoGraph, which would take each rank over a second to convert."""
    from tensorflow.python.autograph.core import config_lib

    return (config_lib.DoNotConvert("matex_tf"), *original)


@HOOKS.replace(
    "tensorflow.python.eager.polymorphic_function.polymorphic_function",
    "Function.__call__",
    "each rank computes all of a tf.function",
)
def _wrap_call(original: Any) -> Any:
    from tensorflow.python.eager import record

    def __call__(self, *args, **kwargs):
        if not tf.executing_eagerly():  # a call within another function is a part of that step
            return original(self, *args, **kwargs)
        if agreement.is_watched():
            args = tuple(map(_give_whole, args))
            kwargs = {name: _give_whole(value) for name, value in kwargs.items()}
        is_recorded = record.could_possibly_record()
        runs_eagerly = tf.config.functions_run_eagerly()
        if runs_eagerly or (is_recorded and (self._jit_compile or not first_calls.may_be_shared())):
            return function_calls.call_whole(original, self, args, kwargs)
        return function_calls.call_function(original, self, args, kwargs, is_recorded)

    return __call__


def _give_whole(argument: Any) -> Any:
    """The argument; for a dataset that ranks share, a dataset of whole batches that stands for it in functions."""
    if not isinstance(argument, tf.data.Dataset) or shard_arrays.is_shard(argument):
        return argument
    return shared_batches.give_whole(argument)
