"""Batches of iterators that steps take: what ranks give, each of them, is what the script alone gives."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

import launch

CASES = Path(__file__).with_name("batch_cases.py")


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.more)])
def test_each_rank_gives_what_the_script_gives_alone(ranks, tmp_path):
    launch.run_alone(CASES, tmp_path / "alone", timeout=400).check()
    env = {**launch.ALL_FILES, "MATEX_EXPLAIN": "1"}
    output = launch.run(ranks, CASES, tmp_path / "found", env=env, timeout=400).check().output
    alone, errors = pickle.loads((tmp_path / "alone.0").read_bytes())
    wrong = []
    for rank in range(ranks):
        found, messages = pickle.loads((tmp_path / f"found.{rank}").read_bytes())
        assert len(messages) == len(errors)
        failed = f"rank {ranks - 1} ("
        wrong += [f"rank {rank}: {one}" for one in messages if failed not in one or "outside" not in one]
        for name, expected in alone.items():
            assert len(found[name]) == len(expected), name
            for place, (one, other) in enumerate(zip(expected, found[name])):
                if np.shape(one) != np.shape(other) or not np.allclose(one, other, 1e-9, 1e-12):
                    wrong.append(f"rank {rank}, {name}, result {place}: {other} for {one}")
    assert not wrong, "\n".join(wrong)
    assert ") cannot be sharded" not in output
    assert "is sharded" in output
