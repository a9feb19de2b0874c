"""Saving: rank 0 writes the file, the other ranks return once it is there.

What all ranks would write to one path at once would be broken, and where HDF5 locks the file it would be an error.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from matex_tf import world
from matex_tf.patches import replace, when_imported

_PLACES = (
    ("keras.src.saving.saving_lib", None, ("save_model", "save_weights_only")),
    ("keras.src.legacy.saving.legacy_h5_format", None, ("save_model_to_hdf5",)),
    ("keras.src.models.model", "Model", ("export",)),
    ("keras.src.engine.training", "Model", ("save", "save_weights", "export")),
    ("tf_keras.src.engine.training", "Model", ("save", "save_weights", "export")),
    ("tensorflow.python.saved_model.save", None, ("save_and_return_nodes",)),
    ("tensorflow.python.checkpoint.checkpoint", "Checkpoint", ("save", "_write")),
)


def install() -> None:
    for module, owner, names in _PLACES:
        when_imported(module, lambda imported, owner=owner, names=names: _patch(imported, owner, names))
    when_imported("tensorflow.python.training.saver", lambda module: replace(module.Saver, "save", _saver))


def _patch(module: Any, owner: str | None, names: tuple[str, ...]) -> None:
    target = module if owner is None else getattr(module, owner, None)
    for name in names:
        if hasattr(target, name):
            replace(target, name, _on_first_rank)


def _on_first_rank(original: Any) -> Any:
    def save(*args, **kwargs):
        if not world.is_active() or _inside:
            return original(*args, **kwargs)
        _inside.append(True)
        try:
            result = original(*args, **kwargs) if world.current().rank == 0 else None
        finally:
            _inside.pop()
        # What is returned is a path or nothing.
        return world.control.broadcast(result if isinstance(result, str) else None, f"saving ({original.__name__})")

    return save


_inside: list[bool] = []


def _saver(original: Any) -> Any:
    from tensorflow.python.training import training_util

    def save(self, sess, save_path, global_step=None, *args, **kwargs):
        # Hooks save when a rank's own clock says so: nobody waits, and what is not written needs no agreement.
        if not world.is_active() or world.current().rank == 0:
            return original(self, sess, save_path, global_step, *args, **kwargs)
        if global_step is None:
            return save_path
        step = (
            global_step if isinstance(global_step, (int, np.integer)) else training_util.global_step(sess, global_step)
        )
        return f"{save_path}-{step}"

    return save
