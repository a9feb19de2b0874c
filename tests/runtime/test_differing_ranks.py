"""Ranks that differ, in their models, batches or places in the script, all get an error that names both sides."""

import pytest

import launch

MODEL = """
import sys
import numpy as np
import tensorflow as tf
import matex_tf
import keras
rank = matex_tf.rank()
units = 5 + (rank if "models" in sys.argv else 0)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(units), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD(0.01)
x, y = np.ones((80, 4), "float32"), np.ones((80, 1), "float32")
"""
LOOP = (
    MODEL
    + """
def step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - y) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
if "function" in sys.argv:
    step = tf.function(step)
mean = keras.metrics.Mean()
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
if "uneven" in sys.argv and rank == 1:
    data = data.map(lambda a, b: (a, b)).enumerate().map(lambda i, e: (e[0][i // 5:], e[1][i // 5:]))
for index, (a, b) in enumerate(data):
    step(a, b)
    if "break" in sys.argv and rank == 1 and index == 3:
        break
mean.update_state(1.0)
print(mean.result())
"""
)


FIT = (
    MODEL
    + """
if "leave" in sys.argv and rank == 1:
    sys.exit(int(sys.argv[2]))
model.compile(optimizer, "mse")
if "rows" in sys.argv:
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8 + rank)
    model.fit(data, verbose=0)
if "branch" in sys.argv:
    print(matex_tf.allreduce(1.0) if rank == 0 else matex_tf.broadcast(1.0))
model.fit(x, y, epochs=1 + rank if "epochs" in sys.argv else 1, verbose=0)
if "caught" in sys.argv:
    try:
        if rank == 1:
            raise ValueError("on one rank only")
        model.evaluate(x, y, verbose=0)
    except ValueError:
        pass
    model.fit(x, y, verbose=0)
"""
)


@pytest.mark.parametrize("script, arguments", [(FIT, ["models"]), (LOOP, ["models"]), (LOOP, ["models", "function"])])
def test_models_that_differ_are_named(script, arguments):
    result = launch.run_failing(2, script, *arguments)
    assert "matex_tf.MismatchError" in result.output and "kernel" in result.output
    assert "[4, 5]" in result.output and "[4, 6]" in result.output
    assert "rank 0 (" in result.output and "rank 1 (" in result.output


OVERLAPPED = """
import tensorflow as tf
import matex_tf
from matex_tf import ops

@tf.function
def step(x):
    return ops.reduce_gradients([x], ["kernel"], 1.0, "the update of a test")[0]

for _ in range(2):
    try:
        step(tf.ones([4 + min(matex_tf.rank(), 1)]))
    except tf.errors.FailedPreconditionError as error:
        print(matex_tf.rank(), "'kernel', is float32 [4] on rank 0" in str(error))
"""


def test_gradients_that_differ_and_are_overlapped_are_named_on_every_rank():
    result = launch.run_failing(3, OVERLAPPED, env={"MATEX_OVERLAP": "on", "MATEX_OUTPUT": "all"})
    assert sorted(result.stdout.split()) == sorted("0 True 1 True 2 True".split() * 2)


ONE_LABEL = """
import numpy as np
import tensorflow as tf

w = tf.Variable(np.ones((4, 3)))
x, labels = np.ones((12, 4)), np.arange(12) % 3
labels[-1] = 7

@tf.function
def step(x, labels):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, x @ w))

step(x, labels)
"""


def test_a_row_of_one_rank_that_cannot_be_computed_is_told_once():
    result = launch.run(2, ONE_LABEL)
    told = "rank 1 (", "failed in the step 'step'", "Received a label value of 7"
    assert result.returncode and [result.stderr.count(words) for words in told] == [1, 1, 1], result.stderr
    assert "contextlib" not in result.stderr, "a frame of how the library passes the error on"


IN_PARTS = """
import sys
import tensorflow as tf
import matex_tf
from matex_tf import ops
last = matex_tf.rank() == matex_tf.size() - 1
layers = 2 if sys.argv[1] == "layers" and last else 3

@tf.function
def step(x, limit):
    found = []
    for number in range(layers + 1):
        found += ops.reduce_gradients(
            [x], [f"kernel {number}"], 1.0, "a backward pass", part_of="all kernels", has_more=number < layers
        )
        if number == 1:
            with tf.control_dependencies([tf.debugging.assert_less(x, limit, message="too much")]):
                x = tf.identity(x)
        if number < layers:
            x = ops.allreduce(x, "mean", f"layer {number}")
    return found

step = step.get_concrete_function(tf.ones([4]), tf.constant(2.0))
assert str(step.graph.as_graph_def()).count('op: "MatexAnnounceUpdate"') == layers + 1
for turn in range(3):
    fails = sys.argv[1] != "layers" and turn == 1 and last
    try:
        step(tf.ones([4]), tf.constant(0.0 if fails else 2.0))
    except tf.errors.OpError as error:
        if sys.argv[1] != "caught":
            raise
        print(matex_tf.rank(), "in turn", turn, type(error).__name__, flush=True)
"""


@pytest.mark.parametrize(
    "how, said",
    [
        ("raise", ["rank 2 of 3", "too much"]),
        ("layers", ["a backward pass: rank 0 (", ") will compute more, rank 2 (", ") computes no more"]),
    ],
)
def test_a_rank_that_does_not_come_to_the_next_part_of_an_update(how, said):
    result = launch.run_failing(3, IN_PARTS, how, env={"MATEX_OVERLAP": "on"})
    for text in said:
        assert text in result.output, result.output


def test_a_part_that_one_rank_does_not_come_to_fails_on_all_also_where_scripts_go_on():
    """They are at different collectives from then on: the others at one of the step, this one at the next step's."""
    result = launch.run_failing(3, IN_PARTS, "caught", env={"MATEX_OVERLAP": "on", "MATEX_OUTPUT": "all"})
    found = sorted(line for line in result.stdout.splitlines() if "in turn" in line)
    assert [line for line in found if "in turn 0" in line] == []
    assert [line.split(" in ")[0] for line in found] == ["0", "0", "1", "1", "2", "2"], result.output
    assert "2 in turn 1 InvalidArgumentError" in found and "2 in turn 2 FailedPreconditionError" in found


def test_ranks_at_different_places_are_named():
    result = launch.run_failing(2, LOOP, "break")
    assert "the call of 'sequential'" in result.output and "rank 1 (" in result.output
    assert "has ended its script" in result.output
    assert "contextlib.py" not in result.output, "frames of `with` in the library"


@pytest.mark.parametrize(
    "what, here, there",
    [
        ("branch", "is at allreduce (mean) of float32 []", "is at broadcast from rank 0 of float32 []"),
        ("epochs", "rank 0 (", "has ended its script"),
        ("caught", "rank 0 (", "rank 1 ("),
    ],
)
def test_ranks_that_do_other_things_are_told_apart(what, here, there):
    result = launch.run_failing(2, FIT, what)
    assert here in result.output and there in result.output, result.output
    assert "collective number" in result.output, result.output


def test_batches_of_other_sizes_are_an_error():
    result = launch.run_failing(2, FIT, "rows")
    assert "matex_tf.BatchError" in result.output
    assert "8 on rank 0" in result.output and "9 on rank 1" in result.output


def test_batches_that_lose_rows_later_are_an_error():
    result = launch.run_failing(2, LOOP, "uneven")
    error = next(line for line in result.output.splitlines() if "ranks are at different places" in line)
    assert "'sequential' with 8 rows" in error and "'sequential' with 7 rows" in error, result.output


def test_a_rank_that_ends_early_is_named():
    result = launch.run_failing(2, FIT, "leave", 0)
    assert "has ended its script" in result.output and "rank 1 (" in result.output
