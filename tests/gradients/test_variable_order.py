"""Variables are the same on two ranks by the order of their making, whatever order a script lists them in."""

from pathlib import Path

import pytest
from comparing import differences, stored

import launch

CASES = Path(__file__).with_name("order_cases.py")


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "ranks, settings",
    [
        (3, {}),
        pytest.param(2, {"MATEX_OVERLAP": "on"}, marks=pytest.mark.more),
        pytest.param(2, {"TF_USE_LEGACY_KERAS": "1"}, marks=pytest.mark.more),
        pytest.param(2, {"MATEX_STRATEGY": "sharded"}, marks=pytest.mark.more),
    ],
)
def test_gradients_of_variables_that_each_rank_lists_in_another_order(tmp_path, ranks, settings):
    alone, together = tmp_path / "alone", tmp_path / "together"
    alone.mkdir()
    together.mkdir()
    launch.run_alone(CASES, alone, env=settings).check()
    launch.run(ranks, CASES, together, env={**launch.ALL_FILES, **settings}, timeout=150).check()
    wrong = differences(stored(alone)[0], stored(together, ranks))
    assert not wrong, "\n".join(wrong)
