"""`MATEX_CHECK_NUMERICS=1`: gradients that are no finite numbers on one rank are an error on all, which names them."""

from pathlib import Path

import pytest

import launch

CASE = Path(__file__).with_name("numerics_case.py")
ON = {"MATEX_CHECK_NUMERICS": "1", "MATEX_OUTPUT": "all"}


# The engine has two ways, and XLA calls the first; gradients of sessions are known otherwise than those of tapes.
@pytest.mark.parametrize("way", ["fit", "function overlapped", "v1", pytest.param("fit jit", marks=pytest.mark.more)])
def test_one_rank_is_named_on_all(way):
    overlap = "on" if "overlapped" in way else "off"
    result = launch.run(2, CASE, way, env={**ON, "MATEX_OVERLAP": overlap}, timeout=300)
    assert result.returncode == 1
    for rank in range(2):
        (said,) = [line for line in result.stdout.splitlines() if line.startswith(f"{way} rank {rank} ")]
        assert (
            "stopped: gradients are not finite numbers at" in said and "on rank 1 (" in said and "rank 0 (" not in said
        )
        assert "update 3: " in said and "spoiled/kernel', float32 [5, 3]: 3 NaN and 3 infinite, the first at" in said


def test_they_are_passed_on_where_nobody_asks_and_skipped_where_losses_are_scaled():
    result = launch.run(2, CASE, "fit", env={"MATEX_OUTPUT": "all"}, timeout=300).check()
    assert result.stdout.count("finite False") == 2
    result = launch.run(2, CASE, "fit scaled", env=ON, timeout=300).check()
    assert result.stdout.count("finite True") == 2
