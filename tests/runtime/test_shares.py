"""Shares: each rank's own rows are trained on once, in the sequential number of steps, and never sliced again."""

import json

import pytest

import launch

SCRIPT = """
import json, sys
import numpy as np
import tensorflow as tf
import keras
import matex_tf
from matex_tf import sharding

keras.backend.set_floatx("float64")
rank, size = matex_tf.rank(), matex_tf.size()
generator = np.random.RandomState(0)
X = generator.rand(53, 5)
Y = X @ generator.rand(5, 1)
said = {}

def make():
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model

def weights(model):
    return [value.ravel().tolist() for value in model.get_weights()]

# The rows of each step, taken from the ranks' shares, make up a sequential run over all rows in that order.
x, y = matex_tf.shard(X), matex_tf.shard(Y)
model = make()
history = model.fit(np.concatenate([x]), y.astype("float64"), batch_size=8, epochs=3, shuffle=False, verbose=0)
said["fit on shares"] = [int(model.optimizer.iterations.numpy()), history.history["loss"], weights(model)]
said["evaluate"] = [model.evaluate(x, y, verbose=0), model.evaluate(X, Y, verbose=0)]
blocks = [range(*sharding.rows_of(53, rank, size)) for rank in range(size)]
order, taken = [], [0] * size
for step in range(7):
    for owner, rows in enumerate(sharding.share_step_rows([len(block) for block in blocks], step, 8)):
        order += blocks[owner][taken[owner]:taken[owner] + rows]
        taken[owner] += rows
model = make()
history = model.fit(X[order], Y[order], batch_size=8, epochs=3, shuffle=False, verbose=0)
said["in that order"] = [int(model.optimizer.iterations.numpy()), history.history["loss"], weights(model)]

# Arrays that differ between ranks are shares too, known by comparing; here of 10, 19, 28... rows.
x, y = np.array(X[:10 + 9 * rank]), np.array(Y[:10 + 9 * rank])
model = make()
model.fit(x, y, batch_size=7, epochs=1, verbose=0)
rows = sum(10 + 9 * other for other in range(size))
said["arrays that differ"] = [int(model.optimizer.iterations.numpy()), -(-rows // 7)]

# Loops and fit over a dataset made of shares: all ranks go on until the last has no rows left.
own = tf.data.Dataset.from_tensor_slices((sharding.as_share(x), sharding.as_share(y))).batch(3 * size)
model = make()
optimizer = keras.optimizers.SGD(0.1)

@tf.function
def step(a, b):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(a) - b) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss

losses = [float(step(a, b)) for a, b in own]
most = -(-(10 + 9 * (size - 1)) // 3)
said["loop over a share"] = [len(losses), most]
model = make()
model.fit(own, epochs=2, verbose=0)
said["fit on a dataset of shares"] = [int(model.optimizer.iterations.numpy()), 2 * most]
said["weights"] = [model.get_weights()[0].tobytes().hex()]
everyone = matex_tf.allgather(tf.constant([hash(said["weights"][0]) % 2**31]))
said["equal"] = len(set(everyone.numpy().tolist()))

# A batch of the dataset sharded by the script itself.
sharded = matex_tf.shard(tf.data.Dataset.from_tensor_slices((X, Y)).batch(8))
model, other = make(), make()
model.fit(sharded, epochs=2, verbose=0)
other.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0)
said["shard(dataset)"] = [weights(model), weights(other)]
print("SAID" + json.dumps(said))
"""


@pytest.fixture(scope="module", params=[1, 2, 3])
def said(request):
    result = launch.run(request.param, SCRIPT, timeout=200).check()
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("SAID")]
    return json.loads(line[4:])


def flat(value):
    return [item for part in value for item in flat(part)] if isinstance(value, list) else [value]


def equal(one, other):
    assert flat(one) == pytest.approx(flat(other), rel=1e-10, abs=1e-13)


def test_fit_on_shares_is_a_sequential_run_over_their_rows(said):
    assert said["fit on shares"][0] == said["in that order"][0] == 21
    equal(said["fit on shares"], said["in that order"])


def test_evaluate_on_shares_is_that_of_all_rows(said):
    equal([said["evaluate"][0]], [said["evaluate"][1]])


def test_arrays_that_differ_between_ranks_are_shares(said):
    steps, expected = said["arrays that differ"]
    assert steps == expected


def test_a_rank_that_runs_out_joins_until_all_are_done(said):
    for name in ("loop over a share", "fit on a dataset of shares"):
        assert said[name][0] == said[name][1], name
    assert said["equal"] == 1


def test_a_dataset_that_the_script_sharded_is_not_sliced_again(said):
    equal(*said["shard(dataset)"])
