"""The import-time patches, one file for each thing patched.

Each file has `install()`, which patches now, or, for a module that is not imported yet, once it is; those of
`_OF_TENSORFLOW` are installed once TensorFlow is imported. Everything that is replaced is replaced through `replace`
and can be put back with `undo_all`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

_undo: list[Callable[[], None]] = []


def replace(owner: Any, name: str, make: Callable[[Callable], Callable]) -> None:
    """Replace `owner.name` by `make(original)`, which keeps the original's name, docstring and signature."""
    original = vars(owner)[name] if isinstance(owner, type) and name in vars(owner) else getattr(owner, name)
    own = not isinstance(owner, type) or name in vars(owner)
    if isinstance(original, staticmethod):
        function = original.__func__
        setattr(owner, name, staticmethod(functools.wraps(function)(make(function))))
    else:
        setattr(owner, name, functools.wraps(original)(make(original)))
    _undo.append(lambda: setattr(owner, name, original) if own else delattr(owner, name))


def when_imported(module: str, patch: Callable[[Any], None]) -> None:
    """Call `patch(module)` as soon as the module is imported; now, if it is."""
    import wrapt

    wrapt.register_post_import_hook(patch, module)


_OF_TENSORFLOW = """tapes functions function_loops compilation control_flow shown_figures datasets session
    graph_iterators strategies dataset_files""".split()


def install() -> None:
    """Install every patch of the runtime. Communicates only about what needs no TensorFlow."""
    from matex_tf.patches import (
        batch_normalization,
        commands,
        compilation,
        control_flow,
        dataset_files,
        datasets,
        downloads,
        files,
        function_loops,
        functions,
        graph_iterators,
        keras_callbacks,
        keras_calls,
        keras_losses,
        keras_metrics,
        keras_optimizers,
        keras_resuming,
        keras_training,
        library_files,
        random_streams,
        saving,
        session,
        shown_figures,
        strategies,
        tapes,
        tensorflow_files,
    )

    for part in (
        tapes,
        functions,
        function_loops,
        compilation,
        control_flow,
        shown_figures,
        datasets,
        session,
        graph_iterators,
        strategies,
        keras_callbacks,
        keras_calls,
        keras_losses,
        keras_metrics,
        keras_optimizers,
        keras_training,
        keras_resuming,
        batch_normalization,
        random_streams,
        saving,
        downloads,
        files,
        library_files,
        tensorflow_files,
        dataset_files,
        commands,
    ):
        if part.__name__.rpartition(".")[2] in _OF_TENSORFLOW:
            when_imported("tensorflow", lambda _, part=part: part.install())
        else:
            part.install()


def undo_all() -> None:
    """Put back everything that was replaced, the last first."""
    while _undo:
        _undo.pop()()
