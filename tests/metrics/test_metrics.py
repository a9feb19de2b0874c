"""Metrics count every row once, also where a batch has fewer rows than there are ranks."""

from pathlib import Path

import numpy as np
import pytest
from comparing import close

import launch

CASES = Path(__file__).with_name("metric_cases.py")


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "legacy, worlds",
    [
        pytest.param("0", (2,), id="keras3"),
        pytest.param("0", (3,), id="keras3-3", marks=pytest.mark.more),
        pytest.param("1", (2,), id="keras2", marks=pytest.mark.more),
        pytest.param("1", (3,), id="keras2-3", marks=pytest.mark.more),
    ],
)
def test_metrics_are_those_of_all_rows(legacy, worlds, tmp_path):
    keras = {"TF_USE_LEGACY_KERAS": legacy}
    launch.run_alone(CASES, tmp_path, env=keras).check()
    want = dict(np.load(tmp_path / "rank-0.npz"))
    wrong = []
    for ranks in worlds:
        folder = tmp_path / str(ranks)
        folder.mkdir()
        launch.run(ranks, CASES, folder, env={**launch.ALL_FILES, **keras}, timeout=450).check()
        found = [dict(np.load(folder / f"rank-{rank}.npz")) for rank in range(ranks)]
        wrong += [f"{name} on {ranks}" for name in want if not all(close(part[name], want[name]) for part in found)]
    assert not wrong, wrong
