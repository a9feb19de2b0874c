"""Shares: each rank's own rows are trained on once, in the sequential number of steps, and never sliced again."""

import json
import re

import pytest

import launch

SCRIPT = """
import json, sys
import numpy as np
import tensorflow as tf
import keras
import matex_tf
from matex_tf.sharding import apportion
from matex_tf.sharding import slice_bounds

keras.backend.set_floatx("float64")
rank, size = matex_tf.rank(), matex_tf.size()
generator = np.random.RandomState(0)
X = generator.rand(53, 5)
Y = X @ generator.rand(5, 1)
said = {}

keras.utils.set_random_seed(3)
MODEL = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
MODEL.compile(keras.optimizers.Adam(0.01), "mse")
MODEL.optimizer.build(MODEL.trainable_variables)
FIRST = [(variable, variable.numpy()) for variable in (*MODEL.weights, *MODEL.optimizer.variables)]

def make():
    # The model as it was at first: its step is traced once.
    keras.utils.set_random_seed(3)
    for variable, value in FIRST:
        variable.assign(value)
    return MODEL

def weights(model):
    return [value.ravel().tolist() for value in model.get_weights()]

# The rows of each step, taken from the ranks' shares, make up a sequential run over all rows in that order.
x, y = matex_tf.shard(X), matex_tf.shard(Y)
model = make()
history = model.fit(np.concatenate([x]), y.astype("float64"), batch_size=8, epochs=3, shuffle=False, verbose=0)
said["fit on shares"] = [int(model.optimizer.iterations.numpy()), history.history["loss"], weights(model)]
said["evaluate"] = [model.evaluate(x, y, verbose=0), model.evaluate(X, Y, verbose=0)]
blocks = [range(*slice_bounds.deal_block(53, rank, size)) for rank in range(size)]
order, taken = [], [0] * size
for step in range(7):
    for owner, end in enumerate(apportion.apportion_rows([len(block) for block in blocks], 8 * (step + 1))):
        order += blocks[owner][taken[owner]:end]
        taken[owner] = end
model = make()
history = model.fit(X[order], Y[order], batch_size=8, epochs=3, shuffle=False, verbose=0)
said["in that order"] = [int(model.optimizer.iterations.numpy()), history.history["loss"], weights(model)]

# Rows that are each rank's own from the start, here 10, 19, 28..., are marked.
x, y = (matex_tf.shard(np.array(rows[:10 + 9 * rank]), own=True) for rows in (X, Y))
model = make()
model.fit(x, y, batch_size=7, epochs=1, verbose=0)
rows = sum(10 + 9 * other for other in range(size))
said["own rows"] = [int(model.optimizer.iterations.numpy()), -(-rows // 7)]

# Loops and fit over a dataset made of shares: all ranks go on until the last has no rows left.
own = tf.data.Dataset.from_tensor_slices((x, y)).batch(3 * size)
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

# A dataset of batches of this rank's own.
batches = tf.data.Dataset.from_tensor_slices((np.array(x), np.array(y))).batch(3)
model = make()
model.fit(matex_tf.shard(batches, own=True), epochs=2, verbose=0)
said["fit on batches of its own"] = [int(model.optimizer.iterations.numpy()), 2 * most]

# A batch of the dataset sharded by the script itself.
sharded = matex_tf.shard(tf.data.Dataset.from_tensor_slices((X, Y)).batch(8))
said["shard(dataset)"] = []
for data, options in (((sharded,), {}), ((X, Y), {"batch_size": 8, "shuffle": False})):
    model = make()
    model.fit(*data, epochs=2, verbose=0, **options)
    said["shard(dataset)"].append(weights(model))
print("SAID" + json.dumps(said))
"""


@pytest.fixture(scope="module", params=[2, *(pytest.param(ranks, marks=pytest.mark.more) for ranks in (1, 3))])
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
    steps, expected = said["own rows"]
    assert steps == expected


def test_a_rank_that_runs_out_joins_until_all_are_done(said):
    for name in ("loop over a share", "fit on a dataset of shares", "fit on batches of its own"):
        assert said[name][0] == said[name][1], name
    assert said["equal"] == 1


def test_a_dataset_that_the_script_sharded_is_not_sliced_again(said):
    equal(*said["shard(dataset)"])


DIFFER = """
import numpy as np
import tensorflow as tf
import matex_tf
from matex_tf.world import world

keras = tf.keras
rank = matex_tf.rank()
last = rank == matex_tf.size() - 1
generator = np.random.RandomState(0)
x, y = generator.rand(24, 3), generator.rand(24, 1)
order = generator.permutation(24) if last else slice(None)
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
before = model.get_weights()
quiet = {"verbose": 0, "batch_size": 8}
fewer = slice(0, 20 if last else 24)
share = matex_tf.shard(x, own=True) if last else x
cases = {
    "rows": lambda: model.fit(x[fewer], y[fewer], **quiet),
    "order": lambda: model.fit(x[order], y[order], **quiet),
    "labels": lambda: model.fit(x, y[order], **quiet),
    "types": lambda: model.fit(x.astype("float32") if last else x, y, **quiet),
    "one mark": lambda: model.fit(share, y, **quiet),
    "evaluate": lambda: model.evaluate(x[order], y[order], **quiet),
    "validation": lambda: model.fit(x, y, validation_data=(x[fewer], y[fewer]), **quiet),
    "shares": lambda: model.fit(matex_tf.shard(x[:, : 2 if last else 3]), matex_tf.shard(y), **quiet),
}
for name, case in cases.items():
    try:
        case()
    except matex_tf.BatchError as error:
        print(f"SAID {rank} {name}: {error}", flush=True)
    else:
        print(f"SAID {rank} {name}: trained on", flush=True)
    if name in ("rows", "order", "labels", "types", "one mark"):
        assert all(map(np.array_equal, before, model.get_weights()))
# Also if one rank has fewer rows than there are ranks, or one rank's rows are a shard.
for mine in (x[order], x[: matex_tf.size() - int(last)], share, x[:1]):
    found = model.predict(mine, verbose=0)
    assert np.allclose(found, mine @ model.get_weights()[0] + model.get_weights()[1])
# The last rank makes two calls more, without the others.
own = matex_tf.shard(x, own=True)
for mine in (own[:4], own[4:8], x[:1])[: 3 if last else 1]:
    assert np.allclose(model.predict_on_batch(mine), mine @ model.get_weights()[0] + model.get_weights()[1])
print(f"SAID {rank} predict: own rows", flush=True)
"""


@pytest.mark.parametrize("ranks, legacy", [(3, "0"), pytest.param(2, "1", marks=pytest.mark.more)])
def test_arrays_without_a_mark_that_differ_are_an_error_on_all_ranks(ranks, legacy):
    env = {**launch.ALL_FILES, "TF_USE_LEGACY_KERAS": legacy}
    result = launch.run(ranks, DIFFER, env=env).check()
    said = [line.split(" ", 2) for line in result.stdout.splitlines() if line.startswith("SAID")]
    last, values = ranks - 1, "float64[24, 3] of other values, float64[24, 1]"
    for rank in range(ranks):
        (rows, order, labels, types, mark, evaluated, validated, ratios, predicted) = [
            re.sub(r"^[^:]*: (rank \d of \d on \S+: )?", "", text) for _, number, text in said if int(number) == rank
        ]
        data = "the training data of fit differ between ranks: rank 0"
        assert rows.startswith(data) and "has float64[24, 3], float64[24, 1], rank" in rows
        assert f"rank {last} " in rows and "has float64[20, 3], float64[20, 1]." in rows
        assert order.startswith(data) and f"has {values} of other values." in order
        assert "has float64[24, 3], float64[24, 1] of other values." in labels
        assert "has float32[24, 3], float64[24, 1]." in types
        assert f"rank {last} " in mark and "has a shard, float64[24, 3]" in mark
        assert all(text.startswith("the data of evaluate differ") for text in (evaluated, validated))
        for text in (rows, order, labels, evaluated, validated):
            assert "matex_tf.shard(x, own=True)" in text and "DataSet" in text and "without a seed" in text
        assert ratios.endswith("Shares may differ in their rows only.")
        assert predicted == "own rows"
