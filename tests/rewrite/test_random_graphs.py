"""Random functions of a batch, with gradients, run on ranks: each of their tensors is that of the function alone."""

from __future__ import annotations

import growing
import pytest
from simulated_ranks import Simulation, find_difference

EXPRESSIONS = 3


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.more) for seed in range(8, 160))])
def test_ranks_compute_what_the_function_computes_alone(seed):
    function, arguments, counts = growing.grow(seed, EXPRESSIONS)
    simulation = Simulation(function, arguments, is_open=seed % 4 < 2)
    expected = simulation.run_alone()
    assert len(expected) > 3 * EXPRESSIONS  # so that it does not pass because nothing was grown
    for rank, given in enumerate(simulation.run(counts)):
        assert not find_difference(expected, given), f"rank {rank} of {len(counts)}, {counts} rows"
