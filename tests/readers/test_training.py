"""What readers give to training under mpirun: the sequential loss curve, every row once an epoch, errors everywhere."""

import json

import numpy as np
import pytest

import launch

SCRIPT = """
import json, sys, time
import numpy as np
import tensorflow as tf
import keras
import matex_tf
from matex_tf.runtime import objects
from matex_tf.world import world
from matex_tf.readers import DataSet, Format, ReaderError, register
from matex_tf.readers.base import agreement

keras.backend.set_floatx("float64")
rank, size = matex_tf.rank(), matex_tf.size()
path, path_of_few = sys.argv[1:]
WHOLE = np.genfromtxt(path, delimiter=",", skip_header=1)
X, Y = WHOLE[:, :5], WHOLE[:, 5:]
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

def outcome(model, history):
    weights = np.concatenate([value.ravel() for value in model.get_weights()])
    same = len(set(objects.allgather(weights.tobytes(), "weights"))) == 1
    return [int(model.optimizer.iterations.numpy()), history.history["loss"], weights.tolist(), same]

def fit(x, y=None, model=None, epochs=3, **options):
    model = model or make()
    return outcome(model, model.fit(x, y, epochs=epochs, verbose=0, **options))

everything = sorted(map(tuple, WHOLE.tolist()))

def has_every_row_once(x, y):
    # What eager code has seen on this rank, and on all others.
    seen = np.concatenate([x, y], axis=1)
    fine = sorted(map(tuple, seen.tolist())) == everything
    return fine and len(set(objects.allgather(seen.tobytes(), "seen"))) == 1

def join(batches):
    return [np.concatenate(part) for part in zip(*batches)]

def join_ranks(x, y):
    return [np.concatenate(objects.allgather(np.asarray(mine), "rows")) for mine in (x, y)]

# The loss curve of the sequential run.
said["sequential"] = fit(X, Y, batch_size=8, shuffle=False)
data = DataSet(path, labels=["y"], distribution="batch", batch_size=8)
said["batch arrays"] = fit(data.training_data, data.training_labels, batch_size=8, shuffle=False)
said["batch arrays, another view"] = fit(
    np.asarray(data.training_data.astype("float64")), data.training_labels + 0.0, batch_size=8, shuffle=False)
said["batch dataset"] = fit(data.as_dataset(8))
alone = DataSet(path, labels=["y"], distribution="batch", batch_size=8, rank=0, size=1)
said["alone, shuffled batches"] = fit(alone.as_dataset(8, shuffle=True, seed=5))
said["shuffled batches"] = fit(data.as_dataset(8, shuffle=True, seed=5))
try:
    fit(data.training_data, data.training_labels, batch_size=16, shuffle=False)
    said["another batch size is refused"] = size == 1
except matex_tf.BatchError:
    said["another batch size is refused"] = True

# So few rows that the last rank has none.
few = DataSet(path_of_few, labels=["y"])
count = sum(objects.allgather(len(few.training_data), "rows"))
assert size == 1 or count == size - 1
said["few rows, sequential"] = fit(X[:count], Y[:count], batch_size=2, shuffle=False)
said["few rows"] = fit(few.training_data, few.training_labels, batch_size=2, shuffle=False)
said["few rows streamed"] = fit(few.as_dataset(2))
said["few rows in slices"] = fit(tf.data.Dataset.from_tensor_slices((few.training_data, few.training_labels)).batch(2))
said["rows predicted"] = [sum(objects.allgather(len(make().predict(few.training_data, verbose=0)), "rows")), count]

# Rows dealt in batches: eager code sees the batches of the sequential run, in its order.
data = DataSet(path, labels=["y"], distribution="batch", batch_size=8)
wanted = [WHOLE[first : first + 8].tolist() for first in range(0, 53, 8)]
said["whole batches"] = [
    [np.concatenate(batch, axis=1).tolist() for batch in batches] == wanted
    for batches in ([data.next_train_batch(8) for _ in range(7)], data.as_dataset(8), data.as_dataset(8))]

# Streams: every row once an epoch, in the sequential number of steps, in fit and in a loop.
seen = []
for shuffle in (False, True):
    for distribution in ("block", "cyclic"):
        data = DataSet(path, labels=["y"], distribution=distribution)
        stream = data.as_dataset(8, shuffle=shuffle, seed=1)
        said[f"steps of a stream {shuffle} {distribution}"] = [fit(stream, epochs=2)[0], 14]
        seen.append(has_every_row_once(*join(stream)))
said["rows of streams"] = all(seen)
model, optimizer = make(), keras.optimizers.SGD(0.1)
losses = []
for epoch in range(2):
    for x, y in DataSet(path, labels=["y"]).as_dataset(8):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        losses.append(float(loss))
weights = model.get_weights()[0].tobytes()
said["loop"] = [len(losses), 14, len(set(objects.allgather(weights, "weights"))) == 1]

# A loop inside a function sees the batches of all ranks.
@tf.function
def whole_epoch(batches):
    total = tf.constant(0.0, tf.float64)
    for x, y in batches:
        total += tf.reduce_sum(x)
    return total

@tf.function
def one_batch(iterator):
    return next(iterator)

batches = DataSet(path, labels=["y"], distribution="batch", batch_size=8).as_dataset(8)
for name, call, wanted in (
    ("loop", lambda: whole_epoch(batches), X.sum()), ("next", lambda: one_batch(iter(batches))[0], X[:8])
):
    said[f"{name} in a function"] = bool(np.allclose(call(), wanted, rtol=1e-12))

# Rows are exchanged between epochs: each keeps its label, all are seen, and a rank comes to hold others.
data = DataSet(path, labels=["y"], reshuffle="epoch", seed=4)
epochs = []
for epoch in range(3):
    fine = has_every_row_once(*join(data.next_train_batch(8) for _ in range(7)))
    epochs.append([fine, np.array(data.training_data)[:, 0].tolist()])
said["exchanged in batches"] = [all(fine for fine, _ in epochs),
                                size == 1 or all(sorted(a) != sorted(b) for (_, a), (_, b) in zip(epochs, epochs[1:]))]
data = DataSet(path, labels=["y"], reshuffle="epoch")
before = np.array(data.training_data)
steps = fit(data.training_data, data.training_labels, batch_size=8)
fine = has_every_row_once(*join_ranks(data.training_data, data.training_labels))
said["exchanged in fit"] = [steps[0], 21, steps[3], fine,
                            size == 1 or keras.__version__ < "3" or not np.array_equal(before, data.training_data)]
stream = DataSet(path, labels=["y"], reshuffle="epoch").as_dataset(8, seed=2)
epochs = [join(stream) for _ in range(2)]
said["dealt anew in a stream"] = [*(has_every_row_once(*rows) for rows in epochs),
                                  size == 1 or not np.array_equal(epochs[0][0], epochs[1][0])]
streams = [DataSet(path, labels=["y"], reshuffle="epoch", seed=seed).as_dataset(8, shuffle=True) for seed in (5, 5, 6)]
first, same, other = (join(stream)[0] for stream in streams)
said["dealt anew by the seed"] = [np.array_equal(first, same), not np.array_equal(first, other)]

# One rank fails at once; the others, which would read for ever, end within seconds.
@register("ENDLESS")
class Endless(Format):
    def __init__(self, path):
        pass
    def count(self, part):
        return 3 if part == "training" else 0
    def read(self, part, field, start, stop):
        if rank == size - 1:
            raise PermissionError(13, "Permission denied", "data.bin")
        while True:
            agreement.stop_if_others_failed()
            time.sleep(0.01)

if size > 1:
    for turn in range(2):
        begin = time.time()
        try:
            DataSet("ENDLESS", "").training_data
            said["endless"] = "nothing"
        except (ReaderError, PermissionError) as error:
            said["endless"] = [f"{type(error).__name__}: {error}", time.time() - begin < 20]
print("SAID" + json.dumps(said))
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    random = np.random.RandomState(0)
    x = random.rand(53, 5)
    table = np.concatenate([x, x @ random.rand(5, 1)], axis=1)
    for rows in (53, 2, 1):
        np.savetxt(folder / f"{rows}.csv", table[:rows], "%.17g", ",", header="a,b,c,d,e,y", comments="")
    return folder


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((1, "allreduce"), marks=pytest.mark.more),
        (2, "allreduce"),
        pytest.param((3, "allreduce"), marks=pytest.mark.more),
        pytest.param((3, "servers:1:only"), marks=pytest.mark.more),
    ],
)
def said(request, files):
    ranks, strategy = request.param
    words = files / "53.csv", files / f"{max(ranks - 1, 1)}.csv"
    result = launch.run(ranks, SCRIPT, *words, env={"MATEX_STRATEGY": strategy}, timeout=280).check()
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("SAID")]
    return json.loads(line[4:])


def equal(one, other):
    assert one[0] == other[0], "steps"
    assert one[1] == pytest.approx(other[1], rel=1e-10)
    assert one[2] == pytest.approx(other[2], rel=1e-9, abs=1e-11)
    assert one[3] and other[3], "weights of ranks differ"


def test_rows_dealt_in_batches_give_the_sequential_loss_curve(said):
    for name in ("batch arrays", "batch arrays, another view", "batch dataset"):
        equal(said[name], said["sequential"])
    equal(said["shuffled batches"], said["alone, shuffled batches"])
    assert said["shuffled batches"][1] != said["batch dataset"][1]
    assert said["another batch size is refused"]
    assert all(said["whole batches"])


def test_a_rank_without_rows_takes_part(said):
    for name in ("few rows", "few rows streamed", "few rows in slices"):
        equal(said[name], said["few rows, sequential"])
    predicted, there = said["rows predicted"]
    assert predicted == there


def test_streams_give_every_row_once_in_the_sequential_number_of_steps(said):
    assert said["rows of streams"]
    for name in said:
        if name.startswith("steps of a stream"):
            assert said[name][0] == said[name][1], name
    assert said["loop"][0] == said["loop"][1] and said["loop"][2]
    for name in ("loop in a function", "next in a function"):
        assert said[name] is True, said[name]


def test_reshuffled_rows_are_all_there_with_their_labels(said):
    assert said["exchanged in batches"] == [True, True]
    steps, expected, *fine = said["exchanged in fit"]
    assert steps == expected and all(fine)
    assert all(said["dealt anew in a stream"]) and all(said["dealt anew by the seed"])


def test_an_error_on_one_rank_ends_the_reading_of_the_others(said):
    if "endless" in said:
        text, soon = said["endless"]
        assert text.startswith("ReaderError: reading training_data") and "PermissionError" in text
        assert soon
