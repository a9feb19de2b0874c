"""Functions of Keras and TensorFlow that save: rank 0 writes the file, and all ranks return when they can read it.

Concurrent writes of all ranks to one path would damage the file, or fail if HDF5 locks it. Ranks can be lost at any
moment, so rank 0 writes atomically: to a temporary path, which it renames when the file is complete (see `atomic`).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from matex_tf import ops, settings
from matex_tf.files import delivery, journal, overlay
from matex_tf.files.paths import find_real_path
from matex_tf.files.wrappers import Proxy
from matex_tf.runtime import atomic, first_rank, objects, real_files, shutdown, watchdog
from matex_tf.runtime.keras_table import KerasTable
from matex_tf.steps import events, pieces
from matex_tf.thread_flag import ThreadFlag, is_main_thread
from matex_tf.world import membership, world

HOOKS = KerasTable(when=lambda: settings.get_settings().output != "all")  # "all": each rank saves its own files

_IF_HOOK_MISSING = "each rank writes the file that a script saves"
_OF_KERAS = "saving.saving_api:save_model save_weights"

_is_inside = ThreadFlag()
"""Set while this thread writes a save. Functions that this save calls write a part of it, and begin no save of their
own: other ranks may not call them.
"""
_is_by_clock = ThreadFlag()
"""Set in TensorFlow's hook that can save after some seconds, which end at a different moment on each rank: ranks do not
wait for each other.
"""


@HOOKS.replace_in(_IF_HOOK_MISSING, keras3=_OF_KERAS, keras2=_OF_KERAS)
@HOOKS.replace_in(_IF_HOOK_MISSING, keras2="engine.training:Model.save Model.save_weights")
@HOOKS.replace("tensorflow.python.saved_model.save", "save_and_return_nodes", _IF_HOOK_MISSING)
@HOOKS.replace("tensorflow.python.checkpoint.checkpoint", "TrackableSaver.save", _IF_HOOK_MISSING)
def _wrap_save(original: Any) -> Any:
    signature = inspect.signature(original)

    def save(*args, **kwargs):
        try:
            call = signature.bind(*args, **kwargs)
        except TypeError:
            return original(*args, **kwargs)  # raises the appropriate error
        path = _find_path(call)
        # A single rank has nothing to agree on. Without a local path, each rank saves by itself: a buffer or an open
        # file is its own, and a URL is no local file, which could be renamed or delivered.
        if _is_inside or not world.is_active() or path is None:
            return original(*args, **kwargs)
        return _save_once(functools.partial(_write_whole, original, call), path, path, original.__name__)

    return save


def _find_path(call: inspect.BoundArguments) -> str | None:
    """The path to which a call saves, its second argument, after the saved object; None if it is no local path."""
    arguments = list(call.arguments.values())
    path = arguments[1] if len(arguments) > 1 else None
    return os.fspath(path) if isinstance(path, (str, os.PathLike)) and "://" not in os.fspath(path) else None


def _write_whole(original: Any, call: inspect.BoundArguments, path: str) -> Any:
    """Make the call, with `path` as its second argument, on this rank alone, and return its result.

    The file appears at `path` when it is complete.
    """
    # Keras would look for a file at the temporary path, and never ask.
    if not call.arguments.get("overwrite", True):
        if os.path.exists(path) and not _ask_to_overwrite(original, path):
            return None
        call.arguments["overwrite"] = True
    # `written_path` is `path` if the file must be written in place, such as a pipe.
    with atomic.write_beside(path, make_folder=_makes_folder(original, path)) as written_path, _is_inside.set():
        call.arguments[list(call.arguments)[1]] = written_path
        result = original(*call.args, **call.kwargs)
    result_path = _find_path_text(result)  # if the result is a path, it contains `written_path`
    if written_path == path or result_path is None:
        return result
    result_path = result_path.replace(written_path, path)
    return os.fsencode(result_path) if isinstance(result, bytes) else result_path


def _ask_to_overwrite(original: Any, path: str) -> bool:
    """Ask the user as Keras would."""
    package = original.__module__.partition(".")[0]
    answer: bool = sys.modules[f"{package}.src.utils.io_utils"].ask_to_proceed_with_overwrite(path)
    return answer


def _makes_folder(original: Any, path: str) -> bool:
    """Whether a function creates the folder of its file if it is missing."""
    is_hdf5 = original.__name__ in ("save", "save_model") and path.endswith((".h5", ".hdf5"))
    return is_hdf5 or original.__qualname__ in ("save_and_return_nodes", "TrackableSaver.save")


def _is_measured() -> bool:
    """Whether `matex plan` measures this run: saved files stay private, even on rank 0 (`overlay.start_overlay`)."""
    return settings.get_settings().plan is not None and overlay.get_view() is not None


def _save_once(write: Callable[[str], Any], path: str, saved_path: str, name: str) -> Any:
    """Rank 0 calls `write(path)`; every rank returns its result, once the file exists for the rank. Collective.

    Another rank might still read the old file. So rank 0 writes after all ranks have arrived. But three kinds of saves
    come at a different time on each rank: on a thread of the script, in a hook that depends on the clock, and after the
    end of the script. For these, ranks do not wait: rank 0 writes, and other ranks return the path at once.

    Args:
        saved_path: the path of the file that `write` makes.
        name: the name of the function that saves.
    """
    if _is_measured():
        private_path = find_real_path(path, "w", creates_more_files=True)
        with real_files.use_real_files():
            return write(private_path)
    if not _is_called_by_all():
        # Not on the real files: rank 0's change is noted in the journal, as other ranks may still need the old file.
        return write(path) if world.get_world().rank == 0 else saved_path
    return membership.attempt_collectives(f"saving ({name})", lambda: _save_together(write, path, saved_path, name))


def _save_together(write: Callable[[str], Any], path: str, saved_path: str, name: str) -> Any:
    """`_save_once` for a call that all ranks make: they meet, and wait until rank 0 has written. Collective."""
    results: list[Any] = []  # on rank 0; only a path is sent to the others

    def save() -> tuple[str, str | None]:
        with real_files.use_real_files():  # no path is redirected, and the journal notes no change
            results.append(write(path))
        return saved_path, _find_path_text(results[0])

    ops.records.mark_between_steps()  # records do not count the time as part of a step
    pieces.make_all_whole()  # rank 0 reads the variables without the other ranks
    events.ranks_meet("saving")  # with the strategy `local`, ranks average their weights
    operation = f"saving ({name})"
    objects.barrier(operation)
    path_of_0, result_path = first_rank.run_on_first(save, operation, f"saving to {saved_path}", watchdog.SAVING_FACTOR)
    delivery.deliver_file(saved_path)  # waits until this rank can read it; rank 0 sends it to hosts that do not see it
    if results:
        return results[0]
    return None if result_path is None else result_path.replace(path_of_0, saved_path)


class _WholeFiles(Proxy):
    """Keras' file functions; on rank 0, `File` writes files atomically."""

    @contextlib.contextmanager
    def File(self, path: str, mode: str = "r") -> Iterator[Any]:
        if "w" not in mode or world.get_world().rank > 0 or "://" in path:
            with self._original.File(path, mode) as file:
                yield file
            return
        journal.note_change(path)
        with real_files.use_real_files(), atomic.write_beside(path) as place, self._original.File(place, mode) as file:
            yield file


HOOKS.replace_in(
    "a run that is lost while BackupAndRestore records the epoch cannot be resumed",
    "callbacks.backup_and_restore:file_utils",
    optional=True,
)(_WholeFiles)


def _is_called_by_all() -> bool:
    """Whether all ranks make the save that this thread makes now, and can wait for one another.

    A save must be called on every rank, also by a script that asks for its rank: unlike in `is_reached_by_all`.
    """
    return is_main_thread() and not (_is_by_clock or _is_measured() or shutdown.have_all_ended())


def _find_path_text(result: Any) -> str | None:
    """The result of saving if it is a path, else None; scripts use no other results."""
    if hasattr(result, "numpy"):
        result = result.numpy()
    return os.fsdecode(result) if isinstance(result, (str, bytes)) else None


@HOOKS.replace(
    "tensorflow.python.training.basic_session_run_hooks",
    "CheckpointSaverHook._save",
    "a time-based checkpoint waits for other ranks",
)
def _wrap_clocked_save(original: Any) -> Any:
    def _save(self, *args, **kwargs):
        with _is_by_clock.set():
            return original(self, *args, **kwargs)

    return _save


@HOOKS.replace("tensorflow.python.training.saver", "Saver.save", _IF_HOOK_MISSING)
def _wrap_saver(original: Any) -> Any:
    def save(self, sess, save_path, global_step=None, latest_filename=None, *args, **kwargs):
        # Not to a temporary path: a Saver records the path, in its list and in the file of the last checkpoints.
        def write(place: Any) -> Any:
            return original(self, sess, place, global_step, latest_filename, *args, **kwargs)

        if not world.is_active() or _is_inside:
            return write(save_path)
        prefix = os.fspath(save_path)
        saved_path = _name_checkpoint(sess, prefix, global_step)
        result = _save_once(write, prefix, saved_path, "Saver.save")
        # Rank 0 has also changed the file that names the last checkpoints, and the Saver's list of them.
        if _is_called_by_all():
            delivery.deliver_file(os.path.join(os.path.dirname(saved_path), latest_filename or "checkpoint"))
            self._last_checkpoints = objects.broadcast(self._last_checkpoints, "the checkpoints of a Saver")
        return result

    return save


def _name_checkpoint(session: Any, path: str, global_step: Any) -> str:
    """The name that a v1 Saver gives to a checkpoint."""
    from tensorflow.python.training import training_util

    if global_step is None:
        return path
    is_number = isinstance(global_step, (int, np.integer))
    return f"{path}-{global_step if is_number else training_util.global_step(session, global_step)}"
