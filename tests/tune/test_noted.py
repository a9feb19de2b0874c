"""What a trial notes of itself: real runs, on one rank and on two, of a script that knows nothing of it."""

from __future__ import annotations

import json

import pytest

import launch
import matex_tf
from matex_tf.tune.objective import Objective

SCRIPT = """
import os, subprocess, sys
import numpy as np, keras
assert "MATEX_TRIAL" not in os.environ, "children are told nothing of it"
keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(64, 8)).astype("float64"); y = x.sum(1, keepdims=True)
keras.backend.set_floatx("float64")
model = keras.Sequential([keras.layers.Dense(4, activation="relu"), keras.layers.Dense(1)])
model.compile("sgd", "mse", metrics=["mae"])
model.fit(x, y, epochs=2, batch_size=16, validation_split=0.25, verbose=0)
import matex_tf
matex_tf.report(mine=0.5)
matex_tf.report(mine=0.25, epoch=7)
"""


@pytest.mark.timeout(200)
def test_what_fit_logs_and_what_is_reported(tmp_path):
    noted = {}
    for ranks in (1, 2):
        path = tmp_path / str(ranks)
        launch.run(ranks, SCRIPT, env={"MATEX_TRIAL": str(path)}, cwd=tmp_path).check()
        noted[ranks] = [json.loads(line) for line in path.read_text().splitlines()]
    task, one, two, first, last = noted[1]
    assert task["task"] == {"rows": 64, "columns": 8, "classes": 1, "parameters": 41, "loss": "mse"}
    assert (one["epoch"], one["of"], two["epoch"]) == (1, 2, 2)
    assert one["logs"].keys() == {"loss", "mae", "val_loss", "val_mae"}
    assert [(line["logs"], line["epoch"]) for line in (first, last)] == [({"mine": 0.5}, None), ({"mine": 0.25}, 7)]
    assert len(noted[2]) == 5, "rank 0 alone writes"
    for mine, theirs in zip(noted[1][1:], noted[2][1:]):
        assert mine["logs"] == pytest.approx(theirs["logs"], rel=1e-10)
    curves = [Objective().read_curve(lines) for lines in noted.values()]
    assert [point.epoch for point in curves[0]] == [1, 2] and curves[1][1].value == pytest.approx(curves[0][1].value)


def test_without_a_search_a_report_does_nothing_but_check(tmp_path):
    matex_tf.report(loss=1)
    with pytest.raises(TypeError, match="report: expected loss to be a number; given 'low'"):
        matex_tf.report(loss="low")
    with pytest.raises(TypeError, match="expected a metric, such as"):
        matex_tf.report(epoch=3)
