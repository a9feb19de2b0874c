"""Records the first training steps of a script for `matex run --check`, which compares runs on 1 and N ranks.

Hooks on variables, functions, optimizers and sessions recognize a step by a change of the trainable variables. After
the requested number of steps, the recorder stores the weights and the scalars that the steps returned, and ends the
script.
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
from matex_tf.runtime.hooks import Make
from matex_tf.runtime.keras_table import KerasTable
from matex_tf.world import world

_recorder: Recorder | None = None
HOOKS = KerasTable()

_VARIABLES = "tensorflow.python.ops.resource_variable_ops"
_IF_HOOK_MISSING = "`matex run --check` sees no steps"


def start_recorder() -> None:
    """Start to record, if `matex run --check` started this process (setting `check`: "STEPS:FOLDER")."""
    global _recorder
    request = settings.get_settings().check
    if not request or _recorder is not None:
        return
    steps, _, folder = request.partition(":")
    _recorder = Recorder(int(steps), folder)
    atexit.register(_recorder.store_steps)
    HOOKS.install()


class Recorder:
    """The recorded steps of one process of a checked run.

    A step is a call that changes a trainable variable: of a `tf.function`, of an optimizer in eager code, of a
    variable's `assign_sub` or `assign_add`, or of a session's `run`.
    """

    def __init__(self, steps: int, folder: str):
        self.max_steps = steps
        self.folder = folder
        self.steps: list[list[float]] = []  # the scalars of each step
        self.variables: list[weakref.ref[Any]] = []  # the trainable ones
        self.weights: list[np.ndarray] = []  # after the last step
        self.target: Any = None  # the loss of the last call of `GradientTape.gradient`
        self.is_inside = False  # a call is watched, or weights are read: calls inside of it are not steps
        self.is_stored = False

    def wrap_init(self, original: Any) -> Any:
        """Replaces `__init__` of variables: lists the trainable ones."""

        def init(variable: Any, *args: Any, **kwargs: Any) -> None:
            original(variable, *args, **kwargs)
            if variable.trainable and all(reference() is not variable for reference in self.variables):
                self.variables.append(weakref.ref(variable))

        return init

    def wrap_step(self, original: Any) -> Any:
        """Replaces calls in eager code that may change weights: records a call that does."""

        def method(*args: Any, **kwargs: Any) -> Any:
            import tensorflow as tf

            if self.is_inside or not tf.executing_eagerly():
                return original(*args, **kwargs)
            return self._watch_step(lambda: original(*args, **kwargs), self._read_eager_weights)

        return method

    def wrap_gradient(self, original: Any) -> Any:
        """Replaces `GradientTape.gradient`: keeps the loss."""

        def gradient(tape: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
            self.target = target
            return original(tape, target, *args, **kwargs)

        return gradient

    def wrap_run(self, original: Any) -> Any:
        """Replaces `run` of sessions: records runs that change weights."""

        def run(session: Any, *args: Any, **kwargs: Any) -> Any:
            if self.is_inside:
                return original(session, *args, **kwargs)
            return self._watch_step(
                lambda: original(session, *args, **kwargs), lambda: self._read_session_weights(session, original)
            )

        return run

    def _read_eager_weights(self) -> list[np.ndarray]:
        """The values of the trainable variables of eager code that still exist."""
        existing_variables = [
            variable for variable in (reference() for reference in self.variables) if variable is not None
        ]
        eager_variables = [variable for variable in existing_variables if hasattr(variable.handle, "numpy")]
        return [np.array(variable.numpy()) for variable in eager_variables]

    def _read_session_weights(self, session: Any, run: Any) -> list[np.ndarray]:
        import tensorflow as tf

        try:
            return run(session, session.graph.get_collection(tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES))
        except tf.errors.FailedPreconditionError:
            return []  # the initializer has not run yet

    def _watch_step(self, call: Any, read_weights: Any) -> Any:
        """Return the result of `call`, and record it as a step if it changes the weights. May end the script."""
        self.is_inside = True
        try:
            old_weights = read_weights()
            result = call()
            new_weights = read_weights()
        finally:
            self.is_inside = False
        if any(old_value.tobytes() != new_value.tobytes() for old_value, new_value in zip(old_weights, new_weights)):
            # If the step returns no scalars, the loss of its gradient tape is recorded.
            self.steps.append(_list_scalars(result) or _list_scalars(self.target))
            self.target = None
            self.weights = new_weights
            if len(self.steps) >= self.max_steps:
                self.store_steps()
                raise SystemExit(0)
        return result

    def store_steps(self) -> None:
        """Write the records to `folder`/rank-R.npz, once, and not in a child process. `launch.check_run` reads them."""
        if self.is_stored or os.getpid() != world.get_world().process:
            return
        self.is_stored = True
        steps_json = json.dumps(self.steps)
        arrays: dict[str, Any] = {
            # Files of NumPy have no bfloat16. Its values, and those of smaller dtypes, are exact in float32.
            f"weight{index}": value.astype(np.float32) if value.dtype.kind == "V" else value
            for index, value in enumerate(self.weights)
        }
        with real_files.use_real_files():
            np.savez(os.path.join(self.folder, f"rank-{world.get_world().rank}.npz"), figures=steps_json, **arrays)


def _list_scalars(result: Any) -> list[float]:
    """The floating-point scalars in the result of a step."""
    import tensorflow as tf

    if isinstance(result, tf.experimental.Optional):
        result = result.get_value() if result.has_value() else None
    scalars = []
    for leaf in tf.nest.flatten(result):
        value = leaf.numpy() if hasattr(leaf, "numpy") else leaf
        if np.ndim(value) == 0 and isinstance(value, (float, np.floating)):
            scalars.append(float(value))
    return scalars


def _record(name: str) -> Make:
    """The `make` of a hook: calls the method `name` of the global recorder."""
    return lambda original: getattr(_recorder, name)(original)


HOOKS.replace(_VARIABLES, "BaseResourceVariable.__init__", _IF_HOOK_MISSING)(_record("wrap_init"))
for _kind in ("BaseResourceVariable", "ResourceVariable"):  # the second may define its own methods
    HOOKS.replace(_VARIABLES, f"{_kind}.assign_sub {_kind}.assign_add", _IF_HOOK_MISSING)(_record("wrap_step"))
HOOKS.replace(
    "tensorflow.python.eager.polymorphic_function.polymorphic_function", "Function.__call__", _IF_HOOK_MISSING
)(_record("wrap_step"))
HOOKS.replace("tensorflow.python.client.session", "BaseSession.run", _IF_HOOK_MISSING)(_record("wrap_run"))
HOOKS.replace("tensorflow.python.eager.backprop", "GradientTape.gradient", _IF_HOOK_MISSING)(_record("wrap_gradient"))
HOOKS.replace_in(
    _IF_HOOK_MISSING,
    "optimizers.base_optimizer:BaseOptimizer.apply BaseOptimizer.apply_gradients",
    "optimizers.optimizer:_BaseOptimizer.apply_gradients Optimizer.apply_gradients",
)(_record("wrap_step"))
