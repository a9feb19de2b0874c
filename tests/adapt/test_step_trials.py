"""The first calls of a step show whether its updates are overlapped; the result is the same."""

import functools
import re

import pytest

import launch

SCRIPT = """
import numpy as np
import tensorflow as tf
import matex_tf
from matex_tf import tags
from matex_tf.adapt import step_trials
from matex_tf.steps import events
from matex_tf.world import world

# Each way is timed once, and the first one may be timed again.
calls = sum(step_trials.IGNORED.values()) + step_trials.IGNORED[False] + 3 * step_trials.TIMED
read_clocks = step_trials.Trial._read_clocks
several_hosts = world.get_world().has_several_nodes
plans = []
events.step_ended.add_listener(lambda plan: None if plan in plans else plans.append(plan))


def steps(share, gain, size=600, busy_calls=0):
    # How many copies were made of a function, and which way it goes in the end, that has made so many steps.
    # While the machine is busy, a call takes 10 s more.
    step_trials.LEAST_SHARE, step_trials.GAIN = share, gain
    traces, reads = [], []

    def read_busy_clocks(trial):
        reads.append(1)
        seconds, *others = read_clocks(trial)
        return seconds + 10.0 * min(len(reads) // 2, busy_calls), *others

    step_trials.Trial._read_clocks = read_busy_clocks
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
    plan, trial = plans[-1], tags.get_tag(plans[-1], step_trials.TRIAL)
    ways = {kind: way for way, kind in trial.kinds.items()}
    copies = {ways[kind]: copy for (_, kind, *_), copy in plan.copies.made.items()}
    for way, copy in copies.items():
        assert ("MatexHandOverGradient" in str(copy.graph.as_graph_def())) == way
    assert len(traces) == 1 and plan.copies.kind == trial.kinds[trial.way.is_overlapped] and trial.is_over
    return len(copies), trial.way.is_overlapped != several_hosts


first = step_trials.IGNORED[several_hosts] + step_trials.TIMED
found = [steps(0.0, 1e9), steps(0.0, 0.0), steps(0.0, 0.1, 600, first), steps(1e9, 1e9), steps(0.0, 1e9, 100)]
step_trials.Trial._read_clocks = read_clocks
wanted = [
    (2, True),  # faster by all means
    (2, False),  # never faster: back to the step as it is
    (2, False),  # faster only because the machine was busy at first
    (1, False),  # nothing to be gained
    (1, False),  # too small to be asked
]
assert found == wanted, found

step_trials.LEAST_SHARE, step_trials.GAIN = 0.0, 1e9
keras = tf.keras
keras.utils.set_random_seed(1)
random = np.random.default_rng(0)
x, y = random.standard_normal((256, 500)).astype("float32"), random.standard_normal((256, 600)).astype("float32")
model = keras.Sequential([keras.Input((500,)), keras.layers.Dense(600)])
model.compile(keras.optimizers.SGD(0.1), "mse")
losses = model.fit(x, y, batch_size=32, epochs=6, verbose=0).history["loss"]
print("losses", *losses)
assert len(plans[-1].copies.made) == 2
assert step_trials.may_overlap() is True
assert step_trials.may_overlap(in_pieces=True) is several_hosts
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


IN_PIECES = """
import gc
import numpy as np
import tensorflow as tf
import matex_tf
from matex_tf import tags
from matex_tf.adapt import step_trials
from matex_tf.steps import events, pieces

keras = tf.keras
plans = []
events.step_ended.add_listener(lambda plan: None if plan in plans or not plan.trained else plans.append(plan))
random = np.random.default_rng(0)
x, y = random.standard_normal((96, 300)).astype("float32"), random.standard_normal((96, 300)).astype("float32")


def train(name, gain, share=0.0):
    # What a step's ranks have in pieces at first and in the end, with the weights and slots that come of it.
    step_trials.GAIN, step_trials.LEAST_SHARE = gain, share
    plans.clear()
    gc.collect()
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((300,)), keras.layers.Dense(500, "tanh"), keras.layers.Dense(300)])
    model.compile(keras.optimizers.Adam(1e-3), "mse")
    model.fit(x, y, batch_size=32, epochs=1, verbose=0)
    first = len(plans[0].copies.pieces.list_variables())
    model.fit(x, y, batch_size=32, epochs=32, verbose=0)
    model.evaluate(x, y, verbose=0)
    plan, trial = plans[0], tags.get_tag(plans[0], step_trials.TRIAL)
    apart = [one for one in pieces.list_variables() if one.is_in_pieces()]
    assert trial.is_over and len(apart) == len(plan.copies.pieces.list_variables()), name
    values = [*model.get_weights(), *(one.numpy() for one in model.optimizer.variables)]
    print(name, first, len(apart), repr([float(np.abs(one).sum()) for one in values]))


train("by trial, in pieces", 0.0)
"""
OTHERS = """
train("by trial, whole", 1e9)
train("of small share", 1e9, 1e9)
"""


@pytest.mark.parametrize("hosts", [1, pytest.param(2, marks=pytest.mark.more)])
def test_the_first_steps_decide_who_updates(hosts):
    env = {"MATEX_RANKS_PER_NODE": str(2 // hosts)}
    found = launch.run(2, IN_PIECES + OTHERS, env={**env, "MATEX_STRATEGY": "auto"}, timeout=240).check()
    usual = launch.run(
        2, IN_PIECES.replace("trial.is_over and ", ""), env={**env, "MATEX_STRATEGY": "allreduce"}
    ).check()
    cases = [line.rpartition(" [") for line in found.stdout.splitlines()]
    wanted = ["by trial, in pieces 4 4", "by trial, whole 4 0", "of small share 4 4"]
    assert [how for how, _, _ in cases] == wanted
    assert {values for _, _, values in cases} == {usual.stdout.strip().rpartition(" [")[2]}
    said = [line for line in found.stderr.splitlines() if "MATEX_STRATEGY=auto" in line]
    assert len(said) == 1 and "sharded" in said[0].split(":")[2]


ASKED = """
import threading
import numpy as np
import tensorflow as tf
import matex_tf
from matex_tf.steps import pieces

keras = tf.keras
keras.utils.set_random_seed(1)
x = np.random.default_rng(0).standard_normal((64, 300)).astype("float32")


def train():
    model = keras.Sequential([keras.Input((300,)), keras.layers.Dense(300)])
    model.compile(keras.optimizers.Adam(1e-3), "mse")
    model.fit(x, x, batch_size=32, epochs=2, verbose=0)
    return model


def read():
    return [float(np.abs(one.numpy()).sum()) for one in model.optimizer.variables]


model = train()
assert len(pieces.list_variables()) == 2 and all(one.is_in_pieces() for one in pieces.list_variables())
found = []
{}
model.fit(x, x, batch_size=32, epochs=1, verbose=0)
print(found, read())
assert not any(one.is_in_pieces() for one in pieces.list_variables())
again = train()
assert len(pieces.list_variables()) == 2
"""
ON_ONE_RANK = "found = read() if {} == 0 else []"
IN_A_THREAD = "reader = threading.Thread(target=lambda: found.extend(read())); reader.start(); reader.join()"


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(ON_ONE_RANK.format("matex_tf.rank()"), marks=pytest.mark.more),
        "from mpi4py import MPI; " + ON_ONE_RANK.format("MPI.COMM_WORLD.rank"),
        IN_A_THREAD,
    ],
    ids=["rank", "MPI", "thread"],
)
def test_variables_that_one_rank_may_read_are_whole(ask):
    """From the moment on at which a script may no longer do the same on all ranks, or reads in two threads."""
    found = launch.run(2, ASKED.format(ask), env={"MATEX_STRATEGY": "auto"}).check()
    assert found.stdout == read_usual()


@functools.cache
def read_usual():
    """What is printed where variables are whole from the start, whoever reads them."""
    script = re.sub("(?m)^assert .*", "", ASKED.format("found = read()"))
    return launch.run(2, script, env={"MATEX_STRATEGY": "allreduce"}).check().stdout
