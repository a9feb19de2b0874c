"""A function that trains gets slices of its arguments: what it computes, and what is asked around it, is as alone."""

from pathlib import Path

import numpy as np
import pytest

import launch

CASES = Path(__file__).with_name("border_cases.py")
WHOLE = {
    "rows and a figure of the batch",
    "less the mean of the batch",
    "rows with rows",
    "python that compares the rows",
    "python that compares a whole shape",
    "python that asks for an int",
    "python that asks for an int without AutoGraph",
    "python that catches what int() raises",
}
"""Losses in which rows meet, a figure of the batch meets rows, or Python needs the number of rows."""


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    launch.run_alone(CASES, folder, timeout=200).check()
    return dict(np.load(folder / "rank-0.npz"))


@pytest.mark.timeout(400)
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.more)])
def test_a_step_is_under_ranks_what_it_is_alone(alone, ranks, tmp_path):
    result = launch.run(ranks, CASES, tmp_path, env=launch.ALL_FILES, timeout=300).check()
    found = [dict(np.load(tmp_path / f"rank-{rank}.npz")) for rank in range(ranks)]
    wrong = []
    for name in alone.keys() - {"names", "shared"}:
        for rank, left in enumerate(found):
            assert left[name].shape == alone[name].shape, name
            apart = np.abs(left[name] - alone[name]).max() / max(np.abs(alone[name]).max(), 1e-3)
            if apart > 1e-9:
                wrong.append(f"{name}: rank {rank} is off by {apart:.1e}")
    assert not wrong, "\n".join(wrong)
    for left in found:
        shared = dict(zip(left["names"].tolist(), left["shared"].tolist()))
        assert {name for name, is_shared in shared.items() if not is_shared} == WHOLE
    # Of what is whole the line is named that is the reason.
    for line in (73, 74, 75):
        assert f"border_cases.py line {line}" in result.output
