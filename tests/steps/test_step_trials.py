"""The first calls of a step show whether its updates are overlapped; the result is the same."""

import pytest

import launch

SCRIPT = """
import numpy as np
import tensorflow as tf
import matex_tf
from matex_tf import settings, tags
from matex_tf.steps import events, overlap_trial
from matex_tf.world import world

calls = sum(overlap_trial.IGNORED.values()) + 2 * overlap_trial.TIMED
several_hosts = world.get_world().has_several_nodes
plans = []
events.step_ended.add_listener(lambda plan: None if plan in plans else plans.append(plan))


def steps(share, gain, size=600):
    # How many copies were made of a function, and which way it goes in the end, that has made so many steps.
    overlap_trial.LEAST_SHARE, overlap_trial.GAIN = share, gain
    traces = []
    variable = tf.Variable(tf.zeros([size, 500]))

    @tf.function
    def step(x):
        traces.append(1)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.matmul(x, variable))
        variable.assign_sub(tape.gradient(loss, variable))

    for number in range(calls + 3):
        step(tf.fill([4, size], float(number)))
    np.testing.assert_array_equal(variable.numpy(), np.full([size, 500], -4 * sum(range(calls + 3)), np.float32))
    plan, trial = plans[-1], tags.get_tag(plans[-1], overlap_trial.TRIAL)
    ways = {id(kind): way for way, kind in trial.kinds.items()}
    copies = {ways[id(kind.make_within)]: copy for (_, kind, *_), copy in plan._copies.items()}
    for way, copy in copies.items():
        assert ("MatexHandOverGradient" in str(copy.graph.as_graph_def())) == way
    assert len(traces) == 1 and plan.copy_kind.make_within is trial.kinds[trial.is_overlapped] and trial.is_over
    return len(copies), trial.is_overlapped != several_hosts


found = [steps(0.0, 1e9), steps(0.0, 0.0), steps(1e9, 1e9), steps(0.0, 1e9, 100)]
wanted = [
    (2, True),  # faster by all means
    (2, False),  # never faster: back to the step as it is
    (1, False),  # nothing to be gained
    (1, False),  # too small to be asked
]
assert found == wanted, found

overlap_trial.LEAST_SHARE, overlap_trial.GAIN = 0.0, 1e9
keras = tf.keras
keras.utils.set_random_seed(1)
random = np.random.default_rng(0)
x, y = random.standard_normal((256, 500)).astype("float32"), random.standard_normal((256, 600)).astype("float32")
model = keras.Sequential([keras.Input((500,)), keras.layers.Dense(600)])
model.compile(keras.optimizers.SGD(0.1), "mse")
losses = model.fit(x, y, batch_size=32, epochs=6, verbose=0).history["loss"]
print("losses", *losses)
assert len(plans[-1]._copies) == 2
assert overlap_trial.may_be_tried() is True
settings.get_settings().strategy = "sharded"
assert overlap_trial.may_be_tried() is several_hosts
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
    fit = SCRIPT[SCRIPT.index("keras.utils") : SCRIPT.index("assert len(plans[-1]")]
    alone = launch.run_alone(ALONE + fit).check().stdout
    mine, theirs = ([float(word) for word in text.split("losses")[1].split()] for text in (alone, together))
    assert all(abs(a - b) < 1e-5 * a for a, b in zip(mine, theirs, strict=True))
