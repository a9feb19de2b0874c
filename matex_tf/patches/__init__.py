"""The import-time patches, one file for each thing patched.

Each file has `install()`, which patches now, or, for a module that is not imported yet, once it is; those of
`_OF_TENSORFLOW` are installed once TensorFlow is imported. Everything that is replaced is replaced through `replace`.
"""

from __future__ import annotations

import importlib

from matex_tf.runtime.replace import when_imported

_OF_TENSORFLOW = """
    tf.tape tf.function tf.function_loop tf.xla tf.control_flow tf.printing tf.dataset v1.session v1.iterators
    tf.strategy files.datasets
""".split()

_IN_ORDER = """
    tf.tape tf.function tf.function_loop tf.xla tf.control_flow tf.printing tf.dataset v1.session v1.iterators
    tf.strategy keras.callbacks keras.calls keras.losses keras.metrics keras.optimizers keras.training keras.resume
    keras.batch_normalization tf.random files.saving files.downloads files.python files.libraries files.tensorflow
    files.datasets files.commands
""".split()


def install() -> None:
    """Install every patch of the runtime. Communicates only about what needs no TensorFlow."""
    for name in _IN_ORDER:
        part = importlib.import_module(f"{__name__}.{name}")
        if name in _OF_TENSORFLOW:
            when_imported("tensorflow", lambda _, part=part: part.install())
        else:
            part.install()
