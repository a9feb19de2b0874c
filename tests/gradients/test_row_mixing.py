"""Steps in which rows meet, or figures of all rows meet them, are sharded up to there, and exact."""

from pathlib import Path

import numpy as np
import pytest

import launch

CASES = Path(__file__).with_name("row_mixing_cases.py")
SEEDS, MORE = (13, 20, 22), range(80)
"""Rows meet in each of the usual ones: a gather that goes wrong on the way back is seen in each, and so is a weight."""


@pytest.fixture(scope="module")
def alone(tmp_path_factory, pytestconfig):
    folder = tmp_path_factory.mktemp("alone")
    seeds = MORE if pytestconfig.getoption("--all") else SEEDS
    launch.run_alone(CASES, folder, *seeds, timeout=200).check()
    return dict(np.load(folder / "rank-0.npz"))


@pytest.mark.timeout(400)
@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.more), 3])
def test_random_steps_are_under_ranks_what_they_are_alone(alone, ranks, tmp_path):
    launch.run(ranks, CASES, tmp_path, *alone, env=launch.ALL_FILES, timeout=300).check()
    left = [dict(np.load(tmp_path / f"rank-{rank}.npz")) for rank in range(ranks)]
    wrong = []
    for seed, want in alone.items():
        for rank, found in enumerate(left):
            if not np.allclose(found[seed], want, rtol=1e-8, atol=1e-9, equal_nan=True):
                apart = np.abs(found[seed] - want).max()
                wrong.append(f"seed {seed}: rank {rank} is off by {apart:.1e}, plans {found[f'shared {seed}']}")
    assert not wrong, "\n".join(wrong)
    kinds = [int(left[0][f"shared {seed}"]) for seed in alone]
    # So that it does not pass because nothing is sharded.
    assert kinds.count(0) < 0.2 * len(kinds), kinds
