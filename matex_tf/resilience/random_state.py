"""Copies and restores the states of the random generators that a script uses in Python, as plain data."""

from __future__ import annotations

import random
import sys
from collections.abc import Collection
from typing import Any

import numpy as np


def copy_states() -> dict[str, Any]:
    """The states of the generators of Python, NumPy, and TensorFlow (seeds of eager ops; None before its import)."""
    context = sys.modules.get("tensorflow.python.eager.context")
    seed_generator = getattr(context.context(), "_rng", None) if context is not None else None
    seed = context.global_seed() if context is not None else None
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "seed": None if seed is None else int(seed),  # a seed that ranks have agreed on has its own class
        "tensorflow": seed_generator.getstate() if seed_generator is not None else None,
    }


def find_drawn(old_states: dict[str, Any]) -> set[str]:
    """The generators that were used since `copy_states` returned `old_states`.

    A restarted `fit` skips batches up to the saved step. Generators that the script's code for these batches uses have
    then drawn as many numbers as before, so `resumption` does not restore them.
    """
    states = copy_states()
    return {name for name in states if _make_comparable(states[name]) != _make_comparable(old_states[name])}


def _make_comparable(state: Any) -> Any:
    """A state whose parts can be compared by ==, which arrays cannot."""
    if not isinstance(state, tuple):
        return state
    return [part.tobytes() if isinstance(part, np.ndarray) else part for part in state]


def restore_states(saved: dict[str, Any], without: Collection[str] = ()) -> None:
    """Restore the `saved` states, except for the generators `without`."""
    if "python" not in without:
        random.setstate(saved["python"])
    if "numpy" not in without:
        np.random.set_state(saved["numpy"])
    # Without a global seed, TensorFlow's ops do not use the generator of seeds.
    if saved["seed"] is not None and saved["tensorflow"] is not None and "tensorflow" not in without:
        from tensorflow.python.eager import context

        eager_context = context.context()
        if eager_context._seed != saved["seed"]:
            context.set_global_seed(saved["seed"])
        eager_context._rng.setstate(saved["tensorflow"])
