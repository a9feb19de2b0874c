"""The first steps of a function show whether its updates are overlapped; the result is the same."""

import pytest

import launch

SCRIPT = """
import numpy as np
import tensorflow as tf
import matex_tf
from matex_tf import settings
from matex_tf.gradients import overlap_trial
from matex_tf.world import world

size, rank = matex_tf.size(), matex_tf.rank()
calls = sum(overlap_trial.IGNORED.values()) + 2 * overlap_trial.TIMED
shape = [600, 500]
several_hosts = world.get_world().has_several_nodes


def steps(share, gain, shape=shape):
    # How a function is run, and how often it was traced, that has made so many steps.
    overlap_trial.LEAST_SHARE, overlap_trial.GAIN = share, gain
    traces = []
    variable = tf.Variable(tf.zeros(shape))

    @tf.function
    def inner(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable * x)
        return tape.gradient(loss, variable)

    @tf.function
    def step(x):
        traces.append(1)
        print("traced")
        variable.assign_sub(inner(x))

    for number in range(calls + 3):
        step(tf.constant(float(number)))
    expected = -sum(range(calls + 3))  # every rank computes the whole batch, and rank 0's counts
    np.testing.assert_array_equal(variable.numpy(), np.full(shape, expected, np.float32))
    way = overlap_trial._trials[step]._way.__name__
    is_overlapped = several_hosts
    for function in (step, *filter(None, [overlap_trial._versions.get(step)])):
        graph = function.get_concrete_function(tf.constant(0.0)).graph.as_graph_def()
        assert ("MatexHandOverGradient" in str(graph)) == is_overlapped, (way, is_overlapped)
        is_overlapped = not is_overlapped
    return len(traces), way


found = [steps(0.0, 1e9), steps(0.0, 0.0), steps(1e9, 1e9), steps(0.0, 1e9, [100])]
wanted = [
    (2, "_call_other"),  # faster by all means
    (2, "_call_usual"),  # never faster: back to the function as it is
    (1, "_call_usual"),  # nothing to be gained
    (1, "_run_first"),  # too small to be asked
]
assert found == wanted, found


class Untraceable:
    # A function that can be traced once only.
    def __init__(self):
        self.variable, self.traced = tf.Variable(tf.zeros(shape)), False

    @tf.function
    def step(self, x):
        if self.traced and rank == size - 1:
            raise RuntimeError("once only")
        self.traced = True
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(self.variable * x)
        self.variable.assign_sub(tape.gradient(loss, self.variable))


overlap_trial.LEAST_SHARE, overlap_trial.GAIN = 0.0, 1e9
untraceable = Untraceable()
for number in range(calls):
    untraceable.step(tf.constant(1.0))
np.testing.assert_array_equal(untraceable.variable.numpy(), np.full(shape, -calls, np.float32))

keras = tf.keras
keras.utils.set_random_seed(1)
random = np.random.default_rng(0)
x, y = random.standard_normal((256, 500)).astype("float32"), random.standard_normal((256, 600)).astype("float32")
model = keras.Sequential([keras.Input((500,)), keras.layers.Dense(600)])
model.compile(keras.optimizers.SGD(0.1), "mse")
losses = model.fit(x, y, batch_size=32, epochs=6, verbose=0).history["loss"]
assert "_call_other" in [trial._way.__name__ for trial in overlap_trial._trials.values()]
print("losses", *losses)
assert overlap_trial._may_be_tried(None) is True
settings.get_settings().strategy = "sharded"
assert overlap_trial._may_be_tried(None) is several_hosts
"""
ALONE = """
import numpy as np
import tensorflow as tf
keras = tf.keras
"""


@pytest.mark.parametrize("hosts", [1, pytest.param(2, marks=pytest.mark.more)])
def test_the_first_steps_decide(hosts):
    """On one host they are reduced at once to begin with, on several overlapped."""
    together = launch.run(2, SCRIPT, env={"MATEX_RANKS_PER_NODE": str(2 // hosts)}, timeout=240).check().stdout
    assert together.count("traced") == 4, together
    fit = SCRIPT[SCRIPT.index("keras.utils") : SCRIPT.index('assert "_call_other" in')]
    alone = launch.run_alone(ALONE + fit + 'print("losses", *losses)\n').check().stdout
    mine, theirs = ([float(word) for word in text.split("losses")[1].split()] for text in (alone, together))
    assert all(abs(a - b) < 1e-5 * a for a, b in zip(mine, theirs, strict=True))
