"""The import-time patches, one file for each thing patched.

Each file has `install()`, which patches now, or, for a module that is not imported yet, once it is. Everything that is
replaced is replaced through `replace`. The order counts: a patch may wrap what another has put in place.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from matex_tf import settings
from matex_tf.hooks import functions, iterators, sessions
from matex_tf.runtime.replace import patch_when_imported

_ONCE_TENSORFLOW_IS_THERE = "*"
_IN_ORDER = """
    imports tf.tape* tf.function* tf.function_loop* tf.xla* tf.control_flow* tf.printing* tf.dataset* v1.session*
    v1.iterators* tf.strategy* tf.errors* keras.callbacks keras.calls keras.resume keras.data keras.losses keras.metrics
    keras.optimizers keras.training keras.batch_normalization tf.random files.saving files.downloads files.python
    files.libraries files.tensorflow files.datasets* files.commands
""".split()


_WITH_PLANS = """
    imports tf.strategy* tf.errors* files.saving files.downloads files.python files.libraries
    files.tensorflow files.datasets* files.commands
""".split()
"""Those beside the hooks of `steps`."""


def _install(part: Any, _: Any) -> None:
    part.install()


def install() -> None:
    """Install every patch of the runtime. Communicates only about what needs no TensorFlow."""
    plans = settings.get_settings().steps == "plans"
    if plans:
        for hooks in (functions, iterators, sessions):
            patch_when_imported("tensorflow", functools.partial(_install, hooks))
    for name in _WITH_PLANS if plans else _IN_ORDER:
        part = importlib.import_module(f"{__name__}.{name.rstrip(_ONCE_TENSORFLOW_IS_THERE)}")
        if name.endswith(_ONCE_TENSORFLOW_IS_THERE):
            patch_when_imported("tensorflow", functools.partial(_install, part))
        else:
            part.install()
