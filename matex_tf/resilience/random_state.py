"""The states of the generators of random numbers that a script draws from in Python, as plain data."""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np

_STATEFUL = {
    "Multinomial", "ParameterizedTruncatedNormal", "RandomGamma", "RandomPoisson", "RandomPoissonV2", "RandomShuffle",
    "RandomStandardNormal", "RandomUniform", "RandomUniformInt", "TruncatedNormal",
}  # fmt: skip


def copy_states() -> dict[str, Any]:
    """The states of Python's and NumPy's generators, and of TensorFlow's, if imported, for the seeds of eager ops."""
    context = sys.modules.get("tensorflow.python.eager.context")
    seeds = getattr(context.context(), "_rng", None) if context is not None else None
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "seed": context.global_seed() if context is not None else None,
        "tensorflow": seeds.getstate() if seeds is not None else None,
    }


def read_positions() -> tuple[Any, ...]:
    """What is another once Python's or NumPy's generator was drawn from."""
    name, keys, *rest = np.random.get_state()
    return random.getstate(), name, np.asarray(keys).tobytes(), *rest


def can_draw(graph: Any) -> bool:
    """Whether a graph draws by random ops whose state nobody can get at."""
    definition = graph.as_graph_def()
    functions = (node for function in definition.library.function for node in function.node_def)
    return any(node.op in _STATEFUL for node in [*definition.node, *functions])


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
