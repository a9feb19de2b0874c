"""Steps in eager code without a Keras model: what ran under the tape is proved, and ranks share the way back."""

from pathlib import Path

import pytest
from comparing import differences, stored

import launch

CASES = Path(__file__).with_name("recorded_cases.py")
WHOLE = {"a gradient of its own", "a function that is called", "two tapes"}


@pytest.mark.timeout(500)
@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.more), 3])
def test_a_step_is_under_ranks_what_it_is_alone(alone, ranks, tmp_path):
    result = launch.run(ranks, CASES, tmp_path, env=launch.ALL_FILES, timeout=400).check()
    found = stored(tmp_path, ranks)
    wrong = differences({name: want for name, want in alone.items() if not name.endswith(": shared")}, found)
    for name in (name for name in alone if name.endswith(": shared")):
        for rank, (shared, steps) in enumerate(left[name] for left in found):
            if (shared >= 0.5 * steps) == (name.removesuffix(": shared") in WHOLE):
                wrong.append(f"{name}: {shared} of {steps} steps on rank {rank}")
    assert not wrong, "\n".join(wrong)
    assert "cannot be sharded: two tapes record at once" in result.output
    assert "gradients go back through what no op tells of (mixing)" in result.output


UNLIKE = """
import numpy as np, tensorflow as tf, matex_tf

x, w = tf.constant(np.random.RandomState(1).randn(12, 3)), tf.Variable([[1.0], [2.0], [3.0]], dtype=tf.float64)
for turn in range(6):
    with tf.GradientTape() as tape:
        # Each rank has a program of its own, and numbers of its own in the same program.
        h = tf.tanh(x @ w) if turn % (matex_tf.rank() + 2) else x @ w
        loss = tf.reduce_mean(h**2) * (1 + matex_tf.rank())
    w.assign_sub(0.1 * tape.gradient(loss, w))
print(w.numpy().ravel().tolist())
"""


@pytest.mark.timeout(200)
def test_ranks_that_make_something_else_take_that_of_the_first_and_wait_for_nobody():
    alone = launch.run_alone(UNLIKE, timeout=100).check()
    result = launch.run(2, UNLIKE, timeout=150).check()
    assert result.stdout == alone.stdout
    assert "the ranks hold other values in the same step" in result.output
