"""`tf.function`: its calls in eager code are steps."""

from __future__ import annotations

from typing import Any

from matex_tf.runtime.replace import replace_function
from matex_tf.steps import agreement, function_calls


def install() -> None:
    from tensorflow.python.autograph.core import config, config_lib
    from tensorflow.python.eager.polymorphic_function import polymorphic_function

    # AutoGraph converts what the script wrote. To convert our functions, too, costs each rank more than a second.
    config.CONVERSION_RULES = (config_lib.DoNotConvert("matex_tf"), *config.CONVERSION_RULES)
    replace_function(polymorphic_function.Function, "__call__", _wrap_call)


def _wrap_call(original: Any) -> Any:
    from tensorflow.python.eager import record

    def __call__(self, *args, **kwargs):
        import tensorflow as tf

        is_step = tf.executing_eagerly() and not tf.config.functions_run_eagerly() and not self._jit_compile
        is_recorded = record.could_possibly_record()
        if not is_step or (is_recorded and not agreement.is_sharing_eager_calls()):
            return original(self, *args, **kwargs)
        return function_calls.call_function(original, self, args, kwargs, is_recorded)

    return __call__
