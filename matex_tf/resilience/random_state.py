"""The states of the generators of random numbers that a script draws from in Python, as plain data."""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np

_STEPS = ("one_step_on_data", "train_function", "train_step")
_STATEFUL = {
    "Multinomial", "ParameterizedTruncatedNormal", "RandomGamma", "RandomPoisson", "RandomPoissonV2", "RandomShuffle",
    "RandomStandardNormal", "RandomUniform", "RandomUniformInt", "TruncatedNormal",
}  # fmt: skip


def copy_states() -> dict[str, Any]:
    """The states of Python's and NumPy's generators, and of TensorFlow's, if imported, for the seeds of eager ops."""
    context = sys.modules.get("tensorflow.python.eager.context")
    seeds = getattr(context.context(), "_rng", None) if context is not None else None
    seed = context.global_seed() if context is not None else None
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "seed": None if seed is None else int(seed),  # one that ranks have agreed on is of a class of its own
        "tensorflow": seeds.getstate() if seeds is not None else None,
    }


def can_step_draw() -> bool:
    """Whether a training step of Keras draws by random ops whose state nobody can get at."""
    from tensorflow.python.eager import context
    from tensorflow.python.util import compat

    inner = context.context()
    names = [name for name in map(compat.as_str, inner.list_function_names()) if any(step in name for step in _STEPS)]
    return any(node.op in _STATEFUL for name in names for node in inner.get_function_def(name).node_def)


def restore_states(kept: dict[str, Any]) -> None:
    """Go on drawing where `copy_states` was called."""
    random.setstate(kept["python"])
    np.random.set_state(kept["numpy"])
    if kept["seed"] is not None and kept["tensorflow"] is not None:
        from tensorflow.python.eager import context

        inner = context.context()
        if inner._seed != kept["seed"]:
            context.set_global_seed(kept["seed"])
        inner._rng.setstate(kept["tensorflow"])
