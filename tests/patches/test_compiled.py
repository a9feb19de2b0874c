"""`jit_compile=True`: what XLA compiles gives the sequential result, with our kernels in it and without them."""

import re
from pathlib import Path

import numpy as np
import pytest
from comparing import close

import launch
from matex_tf.ops import build

CASES = Path(__file__).with_name("compiled_cases.py")


@pytest.fixture(scope="module", autouse=True)
def kernels():
    """Built before any launch that has a time limit."""
    build.build_xla()


def check(folder, ranks, alone):
    parts = [dict(np.load(folder / f"rank-{rank}.npz")) for rank in range(ranks)]
    for name, value in parts[0].items():
        assert close(value, alone[name]), name
        assert all(part[name].tobytes() == value.tobytes() for part in parts), f"{name} differs between ranks"
    return {name.split("|")[0] for name in parts[0]}


def turned_off(output):
    return re.findall(r"matex_tf: XLA .* is turned off for the function '(\w+)': (.*); the results", output)


# Keras' step of `predict` (one_step_on_data; in Keras 2 run_step) gathers what the ranks predicted, and XLA cannot know
# the shape of that.
OF_PREDICT = "XLA has no kernel for MatexAllgather"


@pytest.mark.timeout(1000)
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.more)])
def test_compiled_training_gives_the_sequential_result(alone, which, ranks, tmp_path):
    result = launch.run(ranks, CASES, tmp_path, which, env=launch.ALL_FILES, timeout=550).check()
    assert len(check(tmp_path, ranks, alone)) == {"usual": 3, "all": 6}[which]
    reasons = [reason for _, reason in turned_off(result.output)]
    assert reasons == [], "every function stays compiled"


@pytest.mark.more
@pytest.mark.timeout(900)
def test_where_xla_has_no_kernels_it_is_turned_off_and_said_once(alone, tmp_path):
    result = launch.run(2, CASES, tmp_path, "usual", env={**launch.ALL_FILES, "MATEX_XLA": "off"}, timeout=400).check()
    assert len(check(tmp_path, 2, alone)) == 3
    # Keras' steps and the script's own; a compiled forward pass has no collective and stays as it is.
    functions = [name for name, reason in turned_off(result.output) if reason != OF_PREDICT]
    assert "step" in functions and len(functions) == len(set(functions)) == 2, result.output


MISMATCH = """
import tensorflow as tf
import matex_tf
from matex_tf.ops import reduce_gradients, xla

WHAT = {what!r}
rank = matex_tf.rank()
if WHAT == "way" and rank == 1:
    xla._load_kernels = lambda: "of a test"
one = tf.constant(1.0, tf.float64)


@tf.function(jit_compile=True)
def step(x):
    return reduce_gradients([x], ["kernel"], one, "the step of a test")


step(tf.ones([3 + (WHAT == "shape" and rank)]))
print("gone on")
"""


@pytest.mark.parametrize(
    "what, expected",
    [
        ("shape", "'kernel', is float32 [3] on rank 0"),
        ("way", "XLA has compiled the step on rank 0"),
    ],
)
def test_ranks_that_differ_in_a_compiled_step_get_the_error_of_any_other(what, expected):
    result = launch.run(2, MISMATCH.format(what=what), timeout=100)
    assert result.returncode != 0 and "gone on" not in result.stdout
    assert expected in result.output, result.output[-3000:]
    assert "the step of a test" in result.output
