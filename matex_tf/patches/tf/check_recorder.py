"""The first training steps of a script, written down for `matex run --check`.

After the asked number of steps the weights, and the scalars that the steps returned, are stored and the script ends.
"""

from __future__ import annotations

import atexit
import json
import os
import weakref
from typing import Any

import numpy as np

from matex_tf import settings
from matex_tf.runtime import real_files
from matex_tf.runtime.replace import patch_when_imported, replace_function
from matex_tf.world import world

_recorder: Recorder | None = None


def start_recorder() -> None:
    """Begin, where `matex run --check` started this process (setting `check`: "STEPS:FOLDER")."""
    global _recorder
    asked = settings.get_settings().check
    if not asked or _recorder is not None:
        return
    steps, _, folder = asked.partition(":")
    _recorder = Recorder(int(steps), folder)
    atexit.register(_recorder.store_steps)
    patch_when_imported("tensorflow", _recorder.install)


class Recorder:
    """What one process of a checked run has done so far.

    A step is whatever changes a trainable variable: a call of a `tf.function`, an optimizer's update in eager code, a
    variable's `assign_sub` or `assign_add`, a run of a session.
    """

    def __init__(self, steps: int, folder: str):
        self.wanted = steps
        self.folder = folder
        self.steps: list[list[float]] = []
        self.variables: list[weakref.ref] = []
        self.weights: list[np.ndarray] = []
        self.target: Any = None
        self.inside = False
        self.stored = False

    def install(self, _: Any) -> None:
        """Listen to everything that can be a step, in TensorFlow, which has been imported."""
        from tensorflow.python.client import session
        from tensorflow.python.eager import backprop
        from tensorflow.python.eager.polymorphic_function import polymorphic_function
        from tensorflow.python.ops import resource_variable_ops

        base = resource_variable_ops.BaseResourceVariable
        replace_function(base, "__init__", self._wrap_init)
        for kind in (base, resource_variable_ops.ResourceVariable):
            for method in {"assign_sub", "assign_add"} & set(vars(kind)):
                replace_function(kind, method, self._wrap_step)
        replace_function(polymorphic_function.Function, "__call__", self._wrap_step)
        replace_function(session.BaseSession, "run", self._wrap_run)
        replace_function(backprop.GradientTape, "gradient", self._wrap_gradient)
        for module in ("keras.src.optimizers.base_optimizer", "keras.src.optimizers.optimizer"):
            patch_when_imported(module, self._patch_optimizers)
        patch_when_imported("tf_keras.src.optimizers.optimizer", self._patch_optimizers)

    def _patch_optimizers(self, module: Any) -> None:
        for name in ("BaseOptimizer", "_BaseOptimizer", "Optimizer"):
            kind = getattr(module, name, None)
            for method in ("apply", "apply_gradients"):
                if kind is not None and method in vars(kind):
                    replace_function(kind, method, self._wrap_step)

    def _wrap_init(self, original: Any) -> Any:
        def init(variable, *args, **kwargs):
            original(variable, *args, **kwargs)
            if variable.trainable and all(known() is not variable for known in self.variables):
                self.variables.append(weakref.ref(variable))

        return init

    def _wrap_step(self, original: Any) -> Any:
        def method(*args, **kwargs):
            import tensorflow as tf

            if self.inside or not tf.executing_eagerly():
                return original(*args, **kwargs)
            return self._watch_step(lambda: original(*args, **kwargs), self._read_eager_weights)

        return method

    def _wrap_gradient(self, original: Any) -> Any:
        def gradient(tape, target, *args, **kwargs):
            self.target = target
            return original(tape, target, *args, **kwargs)

        return gradient

    def _wrap_run(self, original: Any) -> Any:
        def run(session, *args, **kwargs):
            if self.inside:
                return original(session, *args, **kwargs)
            return self._watch_step(
                lambda: original(session, *args, **kwargs), lambda: self._read_session_weights(session, original)
            )

        return run

    def _read_eager_weights(self) -> list[np.ndarray]:
        alive = [variable for variable in (known() for known in self.variables) if variable is not None]
        eager = [variable for variable in alive if hasattr(variable.handle, "numpy")]
        return [np.array(variable.numpy()) for variable in eager]

    def _read_session_weights(self, session: Any, run: Any) -> list[np.ndarray]:
        import tensorflow as tf

        try:
            return run(session, session.graph.get_collection(tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES))
        except tf.errors.FailedPreconditionError:
            return []  # the initialiser has not run yet

    def _watch_step(self, act: Any, weights: Any) -> Any:
        self.inside = True
        try:
            before = weights()
            result = act()
            after = weights()
        finally:
            self.inside = False
        if any(old.tobytes() != new.tobytes() for old, new in zip(before, after)):
            self.steps.append(_list_scalars(result) or _list_scalars(self.target))
            self.target = None
            self.weights = after
            if len(self.steps) >= self.wanted:
                self.store_steps()
                raise SystemExit(0)
        return result

    def store_steps(self) -> None:
        """Write what was seen to `folder`/rank-R.npz, once."""
        if self.stored or os.getpid() != world.get_world().process:
            return
        self.stored = True
        figures = json.dumps(self.steps)
        arrays: dict[str, Any] = {f"weight{index}": value for index, value in enumerate(self.weights)}
        with real_files.use_real_files():
            np.savez(os.path.join(self.folder, f"rank-{world.get_world().rank}.npz"), figures=figures, **arrays)


def _list_scalars(result: Any) -> list[float]:
    """The floating-point scalars in what a step returned."""
    import tensorflow as tf

    if isinstance(result, tf.experimental.Optional):
        result = result.get_value() if result.has_value() else None
    found = []
    for leaf in tf.nest.flatten(result):
        value = leaf.numpy() if hasattr(leaf, "numpy") else leaf
        if np.ndim(value) == 0 and isinstance(value, (float, np.floating)):
            found.append(float(value))
    return found
