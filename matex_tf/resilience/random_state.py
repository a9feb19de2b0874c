"""The states of the generators of random numbers that a script draws from in Python, as plain data."""

from __future__ import annotations

import random
import sys
from collections.abc import Collection
from typing import Any

import numpy as np

from matex_tf.rewrite.graph_ops import iterate_nodes

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


def find_drawn(before: dict[str, Any]) -> set[str]:
    """Which generators were drawn from since `copy_states` gave `before`."""
    now = copy_states()
    return {name for name in now if _make_comparable(now[name]) != _make_comparable(before[name])}


def _make_comparable(state: Any) -> Any:
    if not isinstance(state, tuple):
        return state
    return [part.tobytes() if isinstance(part, np.ndarray) else part for part in state]


def can_draw(graph: Any) -> bool:
    """Whether a graph draws by random ops whose state nobody can get at."""
    return any(node.op in _STATEFUL for node in iterate_nodes(graph))


def restore_states(kept: dict[str, Any], without: Collection[str] = ()) -> None:
    """Go on drawing where `copy_states` was called, but for the generators `without`."""
    if "python" not in without:
        random.setstate(kept["python"])
    if "numpy" not in without:
        np.random.set_state(kept["numpy"])
    if kept["seed"] is not None and kept["tensorflow"] is not None and "tensorflow" not in without:
        from tensorflow.python.eager import context

        inner = context.context()
        if inner._seed != kept["seed"]:
            context.set_global_seed(kept["seed"])
        inner._rng.setstate(kept["tensorflow"])
