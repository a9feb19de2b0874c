"""The states of the generators of random numbers that a script draws from in Python, as plain data."""

from __future__ import annotations

import random
from typing import Any

import numpy as np


def states() -> dict[str, Any]:
    """The states of Python's and NumPy's generators, and of TensorFlow's for the seeds of eager ops."""
    from tensorflow.python.eager import context

    inner = context.context()
    seeds = getattr(inner, "_rng", None)
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "seed": context.global_seed(),
        "tensorflow": seeds.getstate() if seeds is not None else None,
    }


def put_back(kept: dict[str, Any]) -> None:
    """Go on drawing where `states` was called."""
    from tensorflow.python.eager import context

    random.setstate(kept["python"])
    np.random.set_state(kept["numpy"])
    if kept["seed"] is not None and kept["tensorflow"] is not None:
        inner = context.context()
        if inner._seed != kept["seed"]:
            context.set_global_seed(kept["seed"])
        inner._rng.setstate(kept["tensorflow"])
