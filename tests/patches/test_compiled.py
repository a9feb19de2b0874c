"""`jit_compile=True` where ranks differ. (What XLA compiles is in `sameness/cases/compiled.py`.)"""

import pytest

import launch
from matex_tf.ops import build


@pytest.fixture(scope="module", autouse=True)
def kernels():
    """Built before any launch that has a time limit."""
    build.build_xla()


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
