"""Pipelines that keep a state, or that fail, give under ranks what they give alone: in eager code bit for bit."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from comparing import close

import launch

CASE = Path(__file__).with_name("orders_case.py")


def read(folder):
    return [pickle.loads(path.read_bytes()) for path in sorted(folder.glob("*.pickle"))]


def is_same(got, want):
    if isinstance(want, dict):  # of `fit`
        return got.keys() == want.keys() and all(map(close, got.values(), want.values()))
    if isinstance(want, list):
        return len(got) == len(want) and all(map(is_same, got, want))
    return type(got) is type(want) and np.array_equal(got, want)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    launch.run_alone(CASE, folder).check()
    return read(folder)[0]


@pytest.mark.timeout(500)
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.more)])
def test_each_rank_sees_what_the_script_alone_sees(alone, ranks, tmp_path):
    launch.run(ranks, CASE, tmp_path, env=launch.ALL_FILES, timeout=400).check()
    for found in read(tmp_path):
        wrong = [name for name in alone if not is_same(found[name], alone[name])]
        assert not wrong, "\n".join(f"{name}: {found[name]} instead of {alone[name]}"[:400] for name in wrong)
