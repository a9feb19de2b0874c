"""Runs of sessions of `tf.compat.v1` that ranks share: what is fetched, and all variables, are those of the script."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from session_cases import CASES, FIRST_CONTROL_FLOW, MORE, OF_RANKS

import launch

CASES_FILE = launch.HERE / "session_cases.py"
TOLERANCE = {"float32": 1e-5}
"""What metrics of TensorFlow 1 add up in, whatever they are given."""
NAMES = [
    *(pytest.param(name, marks=[pytest.mark.more] if name in MORE else []) for name in CASES),
    *(f"{name} of TensorFlow 1" for name in FIRST_CONTROL_FLOW),
]
PARTLY = {"loops of TensorFlow 1": 1.0, "iterators": 0.7}
"""Cases of which some runs are whole, or have few rows: the most rows of a rank, in parts of all."""
MOST = 0.6


def load(folder: Path, rank: int) -> dict[str, dict[str, np.ndarray]]:
    found: dict[str, dict[str, np.ndarray]] = {}
    with np.load(folder / f"rank-{rank}.npz") as file:
        for key in file:
            name, index = key.split("|")
            found.setdefault(name, {})[index] = file[key]
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory, which):
    folder = tmp_path_factory.mktemp("alone")
    launch.run_alone(CASES_FILE, folder, which, timeout=600, cwd=folder).check()
    return load(folder, 0)


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.more)])
def of_ranks(request, tmp_path_factory, which):
    folder = tmp_path_factory.mktemp("ranks")
    launch.run(request.param, CASES_FILE, folder, which, timeout=900, cwd=folder, env=launch.ALL_FILES).check()
    return [load(folder, rank) for rank in range(request.param)]


def distance(want: np.ndarray, got: np.ndarray) -> float:
    if want.shape != got.shape or want.dtype != got.dtype:
        return np.inf
    scale = max(np.abs(want).max(initial=0), 1e-3)
    return float(np.abs(want.astype(np.float64) - got).max(initial=0) / scale)


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("name", NAMES)
def test_runs_give_what_the_script_gives_alone(alone, of_ranks, name):
    want = alone[name]
    rows = int(want.pop("rows", 0)) or None
    for rank, everything in enumerate(of_ranks):
        found = dict(everything[name])
        mine = int(found.pop("rows"))
        assert found.keys() == want.keys()
        off = {key: distance(want[key], found[key]) for key in want}
        wrong = {key: one for key, one in off.items() if not one <= TOLERANCE.get(want[key].dtype.name, 1e-10)}
        assert not wrong, f"rank {rank}: {wrong}"
        assert rows is None or mine <= PARTLY.get(name, MOST) * rows
    if rows is not None:
        want["rows"] = np.array(rows)


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("name", OF_RANKS)
def test_ranks_say_the_same_where_each_process_would_draw_by_itself(of_ranks, name):
    first = of_ranks[0][name]
    assert first and all(np.isfinite(one).all() and one.size for one in first.values())
    for other in of_ranks[1:]:
        assert other[name].keys() == first.keys()
        assert all(np.array_equal(other[name][key], first[key]) for key in first)
    if name in ("own_collectives", "refused_shares"):
        assert all(one for one in first.values() if one.dtype == bool)


APART = """
import numpy as np
import tensorflow as tf

import matex_tf

v1 = tf.compat.v1
v1.disable_eager_execution()
x = v1.placeholder(tf.float64, [None, 3])
w = v1.get_variable("w", initializer=np.ones([3, 2]))
loss = tf.reduce_mean(tf.square(x @ w))
train = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
rows = np.random.default_rng(0).normal(size=[8, 3])
with v1.Session() as session:
    session.run(v1.global_variables_initializer())
    for number in range(5):
        if number == 3:
            np.random.default_rng(matex_tf.rank()).shuffle(rows)
            print("apart from here on", flush=True)
        session.run(train, {x: rows})
"""


def test_arrays_that_ranks_come_to_feed_apart_are_told(tmp_path):
    script = tmp_path / "apart.py"
    script.write_text(APART)
    before, after = launch.run(2, script).check().output.split("apart from here on")
    assert "different rows" not in before and "different rows" in after
