"""What outside trials found wrong under ranks is what it is alone: steps, metrics however they are read, files."""

from __future__ import annotations

import functools
import pickle
from pathlib import Path

import numpy as np
import pytest

import launch

CASES = Path(__file__).with_name("result_cases.py")
LOOSE = {"two_updates": 1e-8}
"""Adam amplifies a gradient that is 0 but for rounding."""


@pytest.fixture(scope="module")
def alone(tmp_path_factory, which):
    @functools.cache
    def run(style):
        path = tmp_path_factory.mktemp("alone") / "found"
        env = {"TF_USE_LEGACY_KERAS": "1"} if style == "legacy" else {}
        launch.run_alone(CASES, path, style, which, env=env).check()
        return pickle.loads(path.read_bytes())[0]

    return run


@pytest.mark.parametrize(
    "style, ranks",
    [
        ("keras", 2),
        ("legacy", 2),
        *(pytest.param(style, 3, marks=pytest.mark.more) for style in ("keras", "legacy")),
    ],
)
def test_results_are_those_alone(alone, style, ranks, which, tmp_path):
    env = {"TF_USE_LEGACY_KERAS": "1" if style == "legacy" else None, "MATEX_EXPLAIN": "1"}
    launch.run(ranks, CASES, tmp_path / "found", style, which, env=env, timeout=280).check()
    found, said = pickle.loads((tmp_path / "found").read_bytes())
    wrong = []
    for name, expected in alone(style).items():
        assert len(found[name]) == len(expected)
        for place, (one, other) in enumerate(zip(expected, found[name])):
            if one.shape != other.shape or not np.allclose(one, other, LOOSE.get(name, 1e-10), 1e-12):
                wrong.append(f"{name}, result {place}: {other} for {one}")
    assert not wrong, "\n".join(wrong)
    assert not [line for line in said if "cannot be" in line], said
