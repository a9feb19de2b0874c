"""Metrics count every row once, also where a batch has fewer rows than there are ranks."""

from pathlib import Path

import numpy as np
import pytest
from comparing import close

import launch

CASES = Path(__file__).with_name("metric_cases.py")


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "legacy, ranks, which",
    [
        pytest.param("0", 2, "few"),
        *(pytest.param(legacy, ranks, "all", marks=pytest.mark.more) for legacy in "01" for ranks in (2, 3)),
    ],
)
def test_metrics_are_those_of_all_rows(legacy, ranks, which, tmp_path):
    keras, together = {"TF_USE_LEGACY_KERAS": legacy}, tmp_path / "together"
    together.mkdir()
    launch.run_alone(CASES, tmp_path, which, env=keras).check()
    launch.run(ranks, CASES, together, which, env={**launch.ALL_FILES, **keras}, timeout=450).check()
    want = dict(np.load(tmp_path / "rank-0.npz"))
    found = [dict(np.load(together / f"rank-{rank}.npz")) for rank in range(ranks)]
    wrong = [name for name in want if not all(close(part[name], want[name]) for part in found)]
    assert not wrong, wrong
