"""The command line, and what starts ranks. Nothing here joins MPI. Called, it is `matex_tf.deploy.python.launch`."""

from __future__ import annotations

import sys
import types
from typing import Any


class _Callable(types.ModuleType):
    """`matex_tf.launch` is this package and a function: Python sets the one where the other would be."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from matex_tf.deploy import python

        return python.launch(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
