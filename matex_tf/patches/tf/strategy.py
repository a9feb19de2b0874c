"""Refuses `tf.distribute` strategies: two libraries that both shard the batch would reduce gradients twice."""

from __future__ import annotations

import linecache
import sys
import traceback
from typing import Any

from matex_tf import errors
from matex_tf.runtime import script_frames
from matex_tf.runtime.hooks import Table
from matex_tf.world import world

HOOKS = Table()

_DEFAULT_STRATEGIES = (
    "_DefaultDistributionStrategy",
    "_DefaultDistributionStrategyV1",
    "_DefaultReplicaThreadStrategy",
)

_SKIPPED_PACKAGES = ("matex_tf", "tensorflow", "keras", "tf_keras", "wrapt", "runpy", "importlib")
"""Packages whose frames may be between the user's line and ours."""


def find_caller_line() -> str:
    """The line of the user's code that led here: "train.py, line 12: strategy = ..."."""
    for frame, number in traceback.walk_stack(sys._getframe()):
        if script_frames.find_package(frame) not in _SKIPPED_PACKAGES:
            path = frame.f_code.co_filename
            return f"{path}, line {number}: {linecache.getline(path, number).strip()}".rstrip(": ")
    return "the script"


@HOOKS.replace(
    "tensorflow.python.distribute.distribute_lib",
    "StrategyBase.__init__",
    "a strategy of tf.distribute would shard batches once more",
)
def _refuse_strategy(original: Any) -> Any:
    def __init__(self, *args, **kwargs):
        name = type(self).__name__
        if name not in _DEFAULT_STRATEGIES and world.is_active():
            raise errors.UnsupportedError(
                f"tf.distribute.{name} cannot be used under several ranks of matex_tf, which shards the batches "
                f"itself. Remove this line and the `with strategy.scope():` around the model: {find_caller_line()}"
            )
        return original(self, *args, **kwargs)

    return __init__
