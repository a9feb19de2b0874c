"""Random graphs: whatever the analysis claims of any tensor in them is so for random inputs.

Sizes are chosen to collide: 4 rows on ranks that have 2, or 3 and 1, or 1, 1 and 2, beside dimensions of 2 and 4.
"""

from __future__ import annotations

import growing
import numpy as np
import pytest
import recombining
import tensorflow as tf

from matex_tf.analysis import declarations, interpreter
from matex_tf.analysis.placement import ROWS, UNKNOWN

GRAPHS = 50
SPLITS = ((2, 2), (3, 1), (1, 1, 2))


class Grower(growing.Grower):
    """One random expression, grown within the graph that is traced, of which most is known."""

    def __init__(self, random: np.random.Generator, arguments: dict[str, tf.Tensor]):
        super().__init__(random, arguments)
        self.found = interpreter.Interpreter(arguments["x"].graph)
        self.count = self.unknown = 0

    def grow(self) -> None:
        for _ in range(growing.NODES):
            kind = growing.KINDS[self.random.integers(len(growing.KINDS))]
            try:
                made = kind(self)
            except (ValueError, TypeError, IndexError, tf.errors.InvalidArgumentError):
                continue  # these shapes do not fit: nothing is made
            for one in made if isinstance(made, (list, tuple)) else [made]:
                if one.dtype != tf.float64:
                    one = tf.cast(one, tf.float64)
                self.count += 1
                is_unknown = self.found.find_placement(one).kind == UNKNOWN
                self.unknown += is_unknown
                size = one.shape.rank
                fits = size is not None and size <= 4 and np.prod([dim or 4 for dim in one.shape]) <= growing.MOST
                if fits and not (is_unknown and self.random.random() < 0.95):
                    self.pool.append(one)


def grown(seed: int, graphs: int = GRAPHS) -> tuple[tf.Graph, list[np.ndarray], tuple[int, ...], int, int]:
    """A traced function with random expressions, its arguments, how to cut them, and how much of it is unknown."""
    random = np.random.default_rng(seed)
    rows = SPLITS[seed % len(SPLITS)]
    values = {name: random.uniform(-1.5, 1.5, [4, *shape]) for name, shape in growing.SPECS.items()}
    values["ids"] = random.integers(0, 4, [4], np.int32)
    counts = [0, 0]

    def function(*tensors):
        for tensor in tensors:
            declarations.declare_placement(tensor, ROWS)
        for _ in range(graphs):
            grower = Grower(random, dict(zip(values, tensors)))
            grower.grow()
            counts[0] += grower.count
            counts[1] += grower.unknown
        return tensors[0]

    specs = [tf.TensorSpec([None, *one.shape[1:]], one.dtype) for one in values.values()]
    graph = tf.function(function, autograph=False).get_concrete_function(*specs).graph
    return graph, list(values.values()), rows, *counts


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.more) for seed in range(8, 30))])
def test_what_is_claimed_of_random_graphs_is_so(seed):
    graph, values, rows, count, unknown = grown(seed)
    wrong = recombining.wrong_claims(graph, values, rows, tolerance=1e-10)
    assert not wrong, f"seed {seed}, {list(rows)} rows: {len(wrong)} wrong claims, first:\n" + "\n".join(wrong[:5])
    # So that it does not pass because nothing is claimed.
    assert count > 300 and unknown < 0.6 * count, f"seed {seed}: {unknown} of {count} tensors are unknown"
