"""With weak scaling a step gives what the script alone gives with batches of as many rows as ranks train."""

import numpy as np
import pytest

import launch

CASES = launch.HERE / "steps" / "weak_scaling_cases.py"


@pytest.mark.parametrize(
    "ranks, legacy",
    [(2, "0"), pytest.param(3, "0", marks=pytest.mark.more), pytest.param(2, "1", marks=pytest.mark.more)],
)
def test_results_are_those_of_larger_batches(ranks, legacy, tmp_path):
    env = {**launch.ALL_FILES, "TF_USE_LEGACY_KERAS": legacy}
    launch.run(1, CASES, ranks, tmp_path, env=env, timeout=200).check()
    result = launch.run(ranks, CASES, ranks, tmp_path, env={**env, "MATEX_SCALING": "weak"}, timeout=200).check()
    assert result.stderr.count("Learning rates stay as they are") == 3  # arrays, a dataset, loops
    assert "steps_per_epoch and no batch_size" in result.stderr and "ran out of data" not in result.stderr
    alone, *each = (np.load(tmp_path / f"{name}.npz") for name in ("alone", *range(ranks)))
    for name in alone:
        for mine in each:
            assert mine[name].shape == alone[name].shape, name
            assert np.abs(mine[name] - alone[name]).max() <= 1e-10 * max(np.abs(alone[name]).max(), 1e-3), name
