"""How a run starts and what belongs to it: one voice, one seed, rank 0's variables, children that are not ranks."""

import json

import pytest

import launch

BEGINS = """
import json, os, random, subprocess, sys, multiprocessing
import keras
import numpy as np
import tensorflow as tf
import matex_tf

ours = {name: [one.__file__, type(one.__spec__.loader).__name__, [at for at in dir(one) if "__" in at]]
        for name, one in sys.modules.items() if name.split(".")[0] == "matex_tf"}
said = {"modules": dict(sorted(ours.items()))}
from matex_tf.rewrite.rules import registry
said["modules"]["rules"] = sorted(registry.RULES)
"""
SCRIPT = (
    BEGINS
    + """
rank = matex_tf.rank()
said["ranks"] = [matex_tf.size(), matex_tf.local_size(), matex_tf.is_active()]

def everywhere(value):
    return [row.tolist() for row in matex_tf.allgather(tf.constant([value], tf.float64)).numpy()]

# Nobody seeded anything: all ranks draw the same all the same.
data = tf.data.Dataset.range(50).shuffle(50).batch(50)
said["drawn"] = everywhere([random.random(), np.random.rand(), np.random.default_rng().random(),
                            float(tf.random.uniform([])), float(next(iter(data))[0]),
                            float(keras.initializers.GlorotUniform()((1, 1))[0, 0])])

# Variables that differ all the same become rank 0's before the first step.
def model_of_own_values():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.set_weights([np.full((2, 1), 0.1 + rank), np.zeros(1)])
    return model

x, y = np.ones((8, 2), "float32"), np.zeros((8, 1), "float32")
fitted = model_of_own_values()
fitted.compile(keras.optimizers.SGD(0.01), "mse")
fitted.fit(x, y, batch_size=8, verbose=0)
looped, optimizer = model_of_own_values(), keras.optimizers.SGD(0.01)
for a, b in tf.data.Dataset.from_tensor_slices((x, y)).batch(8):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((looped(a) - b) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, looped.trainable_variables), looped.trainable_variables))
said["weights"] = everywhere([float(fitted.get_weights()[0][0, 0]), float(looped.get_weights()[0][0, 0])])

said["asked"] = everywhere([float(os.environ.get("OMPI_COMM_WORLD_RANK", "-1"))])

# A process that a rank starts is a world of its own.
code = "import matex_tf; from mpi4py import MPI; print(matex_tf.size(), MPI.COMM_WORLD.size)"
said["child"] = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "A": "1"}
).stdout
with multiprocessing.get_context("fork").Pool(2) as pool:
    said["forked"] = pool.map(matex_tf.world.world.is_active, []) + pool.map(len, ["ab", "c"])
child = os.fork()
if child == 0:
    sys.exit(7 if matex_tf.size() == 1 else 8)
said["fork"] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

os.write(1, b"from C\\n")
print("a line of rank", rank)
print("SAID" + json.dumps(said))
"""
)


@pytest.fixture(scope="module", params=[2, *(pytest.param(ranks, marks=pytest.mark.more) for ranks in (1, 3))])
def run(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs")
    result = launch.run(request.param, SCRIPT, env={"MATEX_LOG_DIR": str(folder)}, cold=True).check()
    return request.param, find_said(result), result, folder


def find_said(result):
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("SAID")]
    return json.loads(line[4:])


def test_a_child_of_a_server_imports_what_a_python_of_its_own_does(run):
    """The children are given modules that are made before (`made_modules.py`)."""
    ranks, said, _, _ = run
    ours = find_said(launch.run(ranks, BEGINS + 'print("SAID" + json.dumps(said))').check())["modules"]
    assert ours == said["modules"]


def test_the_world(run):
    ranks, said, _, _ = run
    assert said["ranks"] == [ranks, ranks, ranks > 1]


def test_unseeded_draws_agree(run):
    _, said, _, _ = run
    assert all(row == said["drawn"][0] for row in said["drawn"])
    assert len(set(said["drawn"][0])) > 4


def test_variables_become_those_of_rank_0(run):
    _, said, _, _ = run
    # One step from 0.1: the gradient of (w0 + w1)^2 is 0.4.
    assert said["weights"] == [pytest.approx([0.096, 0.096])] * len(said["weights"])


def test_children_are_worlds_of_their_own(run):
    _, said, _, _ = run
    assert said["child"] == "1 1\n" and said["forked"] == [2, 1] and said["fork"] == 7


def test_a_default_in_place_of_a_variable_of_the_launcher_is_said_once(run):
    ranks, said, result, _ = run
    assert said["asked"] == ([[-1.0]] * ranks if ranks > 1 else [[0.0]])
    assert result.stderr.count("OMPI_COMM_WORLD_RANK") == (1 if ranks > 1 else 0), result.stderr


def test_only_rank_0_speaks_and_the_others_keep_a_log(run):
    ranks, _, result, folder = run
    assert result.stdout.count("a line of rank") == 1 and "a line of rank 0" in result.stdout
    assert result.stdout.count("from C") == 1
    assert sorted(path.name for path in folder.iterdir()) == [f"rank-{rank}.log" for rank in range(1, ranks)]
    for rank in range(1, ranks):
        text = (folder / f"rank-{rank}.log").read_text()
        assert f"a line of rank {rank}" in text and "from C" in text


DRIFT = """
import sys
import keras
import numpy as np
import tensorflow as tf
import matex_tf

style, last = sys.argv[1], int(sys.argv[2])
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
x, y = np.ones((48, 2), "float32"), np.zeros((48, 1), "float32")
steps = 0

def spoil():  # by other amounts on each rank, after the step of this number
    global steps
    steps += 1
    if steps == last:
        model.layers[0].kernel.assign_add([[0.1 * matex_tf.rank()], [0.0]])

if style == "fit":
    model.compile("sgd", "mse")
    spoiler = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: spoil())
    model.fit(x, y, batch_size=8, epochs=2, verbose=0, callbacks=[spoiler])
elif style == "batch":
    model.compile("sgd", "mse")
    for _ in range(5):
        model.train_on_batch(x, y)
        spoil()
elif style == "last":
    model.compile("sgd", "mse")
    model.fit(x, y, epochs=2, verbose=0)
    if matex_tf.rank() == 0:  # the best weights, which it saves
        model.layers[0].kernel.assign([[3.0], [2.0]])
else:
    optimizer = keras.optimizers.SGD(0.01)
    for a, b in tf.data.Dataset.from_tensor_slices((x, y)).batch(4):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(a) - b) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        spoil()
"""


@pytest.mark.parametrize(
    "style, last, every, where",
    [
        ("fit", 1, 1000, "after 2 steps"),
        ("fit", 4, 3, "after 6 steps"),
        ("fit", 5, 1000, "at the end of epoch 1"),
        pytest.param("loop", 4, 3, "after 6 steps", marks=pytest.mark.more),
        ("loop", 4, 1000, "after 8 steps"),
        ("batch", 5, 1000, "at the end of the script"),
    ],
)
def test_weights_that_drift_apart_are_named(style, last, every, where):
    """Weights are compared after 1, 2, 4, ... steps, every so many as asked for, and at the end of epoch and script."""
    result = launch.run(2, DRIFT, style, last, env={"MATEX_DRIFT_STEPS": str(every)})
    assert result.returncode == 1
    assert "drifted apart" in result.stderr and "kernel" in result.stderr and where in result.stderr


def test_weights_that_rank_0_sets_after_training_are_no_drift():
    assert "drifted" not in launch.run(2, DRIFT, "last", 0).check().stderr
