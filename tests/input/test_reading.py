"""Ranks read and decode the rows that they train, and train what the script alone does."""

import re
from pathlib import Path

import numpy as np
import pytest
from comparing import close

import launch

CASE, FAILING = (Path(__file__).with_name(name) for name in ("reading_case.py", "failing_case.py"))
ROWS, BYTES = 96, 30_000


@pytest.mark.timeout(500)
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.more)])
def test_a_rank_reads_and_decodes_its_rows(tmp_path, ranks):
    images, alone, together = (tmp_path / name for name in ("images", "alone", "together"))
    for folder in (images, alone, together):
        folder.mkdir()
    generator = np.random.default_rng(0)
    for number in range(ROWS):
        (images / f"{number:03}.raw").write_bytes(generator.bytes(BYTES))
    launch.run_alone(CASE, images, alone).check()
    env = {**launch.ALL_FILES, "MATEX_EXPLAIN": "1"}
    output = launch.run(ranks, CASE, images, together, env=env, timeout=300).check().output
    assert re.search(r"eager code.* ms to make.* ms to gather", output)
    want = dict(np.load(alone / "rank-0.npz"))
    assert want["fit decoded"] == ROWS and want["fit bytes"] > ROWS * BYTES
    for path in sorted(together.glob("*.npz")):
        found = dict(np.load(path))
        for name in ("fit loss", "weights", "loop losses", "predicted"):
            assert close(found[name], want[name]), name
        for name in ("fit bytes", "fit decoded"):
            assert found[name] <= want[name] * (1 / ranks + 0.05), name
        assert found["loop decoded"] == ROWS // ranks


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.more)])
def test_a_loop_goes_on_after_an_element_that_fails_on_one_rank(tmp_path, ranks):
    """While ranks try both ways to make batches, and after that."""
    alone, together = tmp_path / "alone", tmp_path / "together"
    for folder in (alone, together):
        folder.mkdir()
    launch.run_alone(FAILING, alone).check()
    launch.run(ranks, FAILING, together, env=launch.ALL_FILES).check()
    want = dict(np.load(alone / "rank-0.npz"))
    assert all((one == -2).sum() == 1 and one[-1] == -1 for one in want.values())
    for path in sorted(together.glob("*.npz")):
        found = dict(np.load(path))
        assert found.keys() == want.keys() and all(np.array_equal(found[name], want[name]) for name in want), path
