"""Weights that rank 0 alone has set are those of every rank in the next call of `fit`, `evaluate` or `predict`."""

from pathlib import Path

import pytest
from comparing import differences, stored

import launch

CASES = Path(__file__).with_name("rank_zero_cases.py")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "ranks, legacy, settings",
    [
        (3, "0", {}),
        pytest.param(2, "1", {}, marks=pytest.mark.more),
        pytest.param(2, "0", {"MATEX_STRATEGY": "sharded"}, marks=pytest.mark.more),
        pytest.param(2, "0", {"MATEX_STRATEGY": "servers:1:only"}, marks=pytest.mark.more),
        pytest.param(2, "0", {"MATEX_STRATEGY": "servers:1"}, marks=pytest.mark.more),
        pytest.param(2, "0", {"MATEX_ELASTIC": "1"}, marks=pytest.mark.more),
    ],
)
def test_a_change_of_weights_on_rank_0_alone_gives_the_sequential_result(tmp_path, which, ranks, legacy, settings):
    alone, together = tmp_path / "alone", tmp_path / "together"
    alone.mkdir()
    together.mkdir()
    keras = {"TF_USE_LEGACY_KERAS": legacy}
    launch.run_alone(CASES, alone, which, env=keras).check()
    launch.run(ranks, CASES, together, which, env={**launch.ALL_FILES, **keras, **settings}, timeout=300).check()
    wrong = differences(stored(alone)[0], stored(together, ranks))
    assert not wrong, "\n".join(wrong)
