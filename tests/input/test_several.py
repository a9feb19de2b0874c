"""Steps that take several batches within their function: each rank decodes its rows, and all give what one does."""

from pathlib import Path

import numpy as np
import pytest
from comparing import close

import launch

CASE = Path(__file__).with_name("several_case.py")
FIRST = 8
"""Rows of a first batch of a dataset, which each rank makes whole to compare it."""
DATASETS = {"fit": 2, "in part": 3}
WHOLE = ("whole decoded", "by turns decoded", "in part, within decoded")
"""Cases in which ranks are to decode whole batches, or decode ahead what nobody takes."""


@pytest.fixture(scope="module")
def want(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    launch.run_alone(CASE, folder, "equal").check()
    return dict(np.load(folder / "rank-0.npz"))


@pytest.mark.timeout(500)
@pytest.mark.parametrize(
    "ranks, how, threads",
    [(2, "equal", ""), (2, "forced", "1"), pytest.param(3, "forced", "1", marks=pytest.mark.more)],
)
def test_steps_of_several_batches(tmp_path, want, ranks, how, threads):
    env = {"TF_NUM_INTEROP_THREADS": threads or None, "MATEX_ADAPT": "on" if how == "forced" else None}
    env |= {**launch.ALL_FILES, "MATEX_EXPLAIN": "1"}
    output = launch.run(ranks, CASE, tmp_path, how, env=env, timeout=300).check().output
    told = [line for line in output.splitlines() if "the step 'loop" in line and "whole batches, because" in line]
    assert ["'loop_of_two'" in line and "ZipDataset" in line for line in told] == [True]
    paths = sorted(tmp_path.glob("*.npz"))
    assert len(paths) == ranks and want["error"]
    for path in paths:
        found = dict(np.load(path))
        assert found["error"], "an error of one rank's row is raised on all"
        for name in want:
            if name != "error" and "decoded" not in name:
                assert close(found[name], want[name]), name
            elif how == "equal" and name not in ("error", *WHOLE):
                first = FIRST * DATASETS.get(name.removesuffix(" decoded"), 1)
                assert found[name] <= want[name] * (1 / ranks + 0.05) + first, name
