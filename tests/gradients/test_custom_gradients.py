"""Gradient functions of the script's own (`tf.custom_gradient`, `RegisterGradient`): shared where they are proved."""

from pathlib import Path

import pytest
from comparing import differences, stored

import launch

CASES = Path(__file__).with_name("custom_gradient_cases.py")


@pytest.mark.timeout(400)
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.more)])
def test_a_step_is_under_ranks_what_it_is_alone(alone, which, ranks, tmp_path):
    result = launch.run(
        ranks, CASES, tmp_path, which, env={**launch.ALL_FILES, "MATEX_EXPLAIN": "1"}, timeout=300
    ).check()
    found = stored(tmp_path, ranks)
    wrong = differences({name: alone[name] for name in alone.keys() - {"names", "shared"}}, found)
    assert not wrong, "\n".join(wrong)
    for left in found:
        shared = dict(zip(left["names"].tolist(), left["shared"].tolist()))
        assert [name for name, is_shared in shared.items() if not is_shared] == []
    assert "is sharded: each rank computes its slice of every batch" in result.output
