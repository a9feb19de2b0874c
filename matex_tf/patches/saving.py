"""Saving: rank 0 writes the file, and the other ranks return when it is there for them, too.

What all ranks would write to one path at once would be broken, and where HDF5 locks the file it would be an error.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from matex_tf import files, saved, settings, watchdog, world
from matex_tf.patches import replace, when_imported

_PLACES = (
    ("keras.src.saving.saving_api", None, ("save_model", "save_weights")),
    ("tf_keras.src.saving.saving_api", None, ("save_model", "save_weights")),
    ("keras.src.saving.saving_lib", None, ("save_model", "save_weights_only")),
    ("keras.src.legacy.saving.legacy_h5_format", None, ("save_model_to_hdf5",)),
    ("keras.src.models.model", "Model", ("export",)),
    ("keras.src.engine.training", "Model", ("save", "save_weights", "export")),
    ("tf_keras.src.engine.training", "Model", ("save", "save_weights", "export")),
    ("tensorflow.python.saved_model.save", None, ("save_and_return_nodes",)),
    ("tensorflow.python.checkpoint.checkpoint", "TrackableSaver", ("save",)),
)
_state = threading.local()


def install() -> None:
    if settings.current().output == "all":
        return
    for module, owner, names in _PLACES:
        when_imported(module, lambda imported, owner=owner, names=names: _patch(imported, owner, names))
    when_imported("tensorflow.python.training.saver", lambda module: replace(module.Saver, "save", _saver))
    when_imported(
        "tensorflow.python.training.basic_session_run_hooks",
        lambda module: replace(module.CheckpointSaverHook, "_save", _by_a_clock),
    )


def _patch(module: Any, owner: str | None, names: tuple[str, ...]) -> None:
    target = module if owner is None else getattr(module, owner, None)
    for name in names:
        if hasattr(target, name):
            replace(target, name, _on_first_rank)


def _on_first_rank(original: Any) -> Any:
    signature = inspect.signature(original)

    def save(*args, **kwargs):
        path = _path_in(signature, args, kwargs)
        # What is no path, a buffer or an open file, is each rank's own.
        if not world.is_active() or _is_inside() or path is None:
            return original(*args, **kwargs)
        return _save_once(lambda: original(*args, **kwargs), path, original.__name__)

    return save


def _path_in(signature: inspect.Signature, args: tuple, kwargs: dict) -> str | None:
    """The path that a call saves to: its second argument, after what is saved."""
    try:
        given = list(signature.bind(*args, **kwargs).arguments.values())
    except TypeError:
        return None  # the original says what is wrong
    path = given[1] if len(given) > 1 else None
    return os.fspath(path) if isinstance(path, (str, os.PathLike)) and "://" not in os.fspath(path) else None


def _is_inside() -> bool:
    return getattr(_state, "inside", False)


def _save_once(write: Callable[[], Any], path: str, what: str) -> Any:
    """What `write` returns on rank 0, on every rank, when what it wrote to `path` is there. Collective.

    Rank 0 writes when all have come: another might still be reading what is there. In a thread of the script's own,
    and in a hook that looks at the clock, nobody waits: each rank has its own time.
    """
    first = world.current().rank == 0
    if not _all_come():
        return write() if first else path
    result = error = None
    world.control.barrier(f"saving ({what})")
    if first:
        _state.inside = True
        try:
            with files.plainly(), watchdog.busy(f"saving to {path}"):
                result = write()
        except Exception as raised:
            error = raised
        finally:
            _state.inside = False
    outcome = (path, _text(result), None if error is None else f"{type(error).__name__}: {error}")
    origin, text, failed = world.control.broadcast(outcome, f"saving ({what})")
    if error is not None:
        raise error
    if failed is not None:
        raise OSError(f"rank 0 could not save to {origin}: {failed}")
    saved.deliver(path)
    return result if first or text is None else text.replace(origin, path)


def _all_come() -> bool:
    return threading.current_thread() is threading.main_thread() and not getattr(_state, "by_a_clock", False)


def _text(result: Any) -> str | None:
    """What saving returned if it is a path, else None; the other functions return nothing that a script would use."""
    if hasattr(result, "numpy"):
        result = result.numpy()
    return os.fsdecode(result) if isinstance(result, (str, bytes)) else None


def _by_a_clock(original: Any) -> Any:
    def _save(self, *args, **kwargs):
        before, _state.by_a_clock = getattr(_state, "by_a_clock", False), True
        try:
            return original(self, *args, **kwargs)
        finally:
            _state.by_a_clock = before

    return _save


def _saver(original: Any) -> Any:
    def save(self, sess, save_path, global_step=None, latest_filename=None, *args, **kwargs):
        if not world.is_active() or _is_inside():
            return original(self, sess, save_path, global_step, latest_filename, *args, **kwargs)

        def write() -> Any:
            return original(self, sess, save_path, global_step, latest_filename, *args, **kwargs)

        path = _numbered(sess, os.fspath(save_path), global_step)
        result = _save_once(write, path, "Saver.save")
        if _all_come():
            saved.deliver(os.path.join(os.path.dirname(path), latest_filename or "checkpoint"))
            self._last_checkpoints = world.control.broadcast(self._last_checkpoints, "the checkpoints of a Saver")
        return result

    return save


def _numbered(session: Any, path: str, global_step: Any) -> str:
    """The name that a v1 Saver gives a checkpoint."""
    from tensorflow.python.training import training_util

    if global_step is None:
        return path
    known = isinstance(global_step, (int, np.integer))
    return f"{path}-{global_step if known else training_util.global_step(session, global_step)}"
