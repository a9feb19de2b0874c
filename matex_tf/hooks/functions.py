"""Calls of a `tf.function` or a ConcreteFunction in eager code: steps that ranks share (`steps.function_calls`).

The hooks separate the calls that ranks never share, such as calls that run op by op (`call_whole`), from all others
(`call_function`).
"""

from __future__ import annotations

from typing import Any

from matex_tf import own_functions
from matex_tf.input import shared_batches
from matex_tf.lazy import tf
from matex_tf.runtime.hooks import Table
from matex_tf.sharding import shard_arrays
from matex_tf.steps import agreement, function_calls
from matex_tf.steps.tapes import first_calls

HOOKS = Table()
_FUNCTIONS = "tensorflow.python.eager.polymorphic_function"


@HOOKS.replace(
    "tensorflow.python.autograph.core.config", "CONVERSION_RULES", "AutoGraph converts matex_tf", optional=True
)
def _add_rule(original: Any) -> Any:
    """Exclude the library from AutoGraph, which would need over a second on each rank to convert it."""
    from tensorflow.python.autograph.core import config_lib

    return (config_lib.DoNotConvert("matex_tf"), *original)


@HOOKS.replace(f"{_FUNCTIONS}.polymorphic_function", "Function.__call__", "each rank computes all of a tf.function")
def _wrap_call(original: Any) -> Any:
    from tensorflow.python.eager import record
    from tensorflow.python.util import traceback_utils

    @traceback_utils.filter_traceback  # as the original: without the frames of the library, too (`patches.tensorflow`)
    def __call__(self, *args, **kwargs):
        if not tf.executing_eagerly():  # a call within another function is a part of that step
            return original(self, *args, **kwargs)
        args, kwargs = _give_whole(args, kwargs)
        is_recorded = record.could_possibly_record()  # by a gradient tape
        runs_eagerly = tf.config.functions_run_eagerly()
        # Ranks share no call that runs op by op. Of calls that a tape records, they share none that XLA compiles, and
        # none if the setting `eager` forbids it.
        if runs_eagerly or (is_recorded and (self._jit_compile or not first_calls.may_be_shared())):
            return function_calls.call_whole(original, self, args, kwargs)
        return function_calls.call_function(original, self, args, kwargs, is_recorded)

    return __call__


@HOOKS.replace(
    f"{_FUNCTIONS}.concrete_function", "ConcreteFunction.__call__", "each rank computes all of a ConcreteFunction"
)
def _wrap_concrete_call(original: Any) -> Any:
    from tensorflow.python.eager import record

    def __call__(self, *args, **kwargs):
        # A function without a type was made of a graph of `tf.compat.v1`. A function of the library itself is no step.
        if not tf.executing_eagerly() or self.function_type is None or own_functions.is_own(self):
            return original(self, *args, **kwargs)
        args, kwargs = _give_whole(args, kwargs)
        if record.could_possibly_record():
            return function_calls.call_whole(original, self, args, kwargs)
        return function_calls.call_function(original, self, args, kwargs, is_recorded=False)

    return __call__


def _give_whole(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments of a call, for which the function is traced: a dataset whose batches ranks share is replaced by one
    of whole batches.
    """

    def give(argument: Any) -> Any:
        may_be_shared = isinstance(argument, tf.data.Dataset) and not shard_arrays.is_shard(argument)
        return shared_batches.give_whole(argument) if may_be_shared else argument

    if not agreement.is_watched():  # another thread of the script, or a rank that computes alone
        return args, kwargs
    return tuple(map(give, args)), {name: give(value) for name, value in kwargs.items()}
