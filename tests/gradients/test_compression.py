"""`MATEX_COMPRESSION` in a script: every way of an update compresses, and keeps what it leaves out for the next."""

import os

import launch
from matex_tf import settings
from matex_tf.launch import info

SCRIPT = """
import gc
import hashlib
import numpy as np
import tensorflow as tf
import matex_tf
from matex_tf import ops, settings
from matex_tf.steps import gradients, own_data


rank, size = matex_tf.rank(), matex_tf.size()
variable, other = tf.Variable(tf.zeros([2000]), name="w"), tf.Variable(tf.zeros([2000]), name="w")
one = tf.constant(1.0, tf.float64)
SMALL = 2.0 ** -20
SHARE = 0.1


def reduce(x, of=variable):
    label = gradients.make_label(of)
    given, names, numbers = [x, tf.constant(1 + SMALL)], [label.name, "loss"], [label.number, 0]
    return tuple(ops.reduce_gradients(given, names, one, "a test", variables=numbers))


def call(way, x):
    with own_data.compute_alone():  # each rank gives numbers of its own
        return way(x)


def overlapped(x):
    settings.get_settings().overlap = "on"
    return reduce(x)


ways = {
    "eager": reduce,
    "inline": tf.function(reduce),
    "overlapped": tf.function(overlapped),
    "compiled": tf.function(reduce, jit_compile=True),
}
total = np.zeros(2000)
turns = 0
for turn in range(6):
    for name, way in ways.items():
        everyone = [np.random.default_rng([r, turns]).standard_normal(2000) + 1 for r in range(size)]
        reduced, loss = call(way, tf.constant(everyone[rank], tf.float32))
        settings.get_settings().overlap = "off"
        turns += 1
        found = reduced.numpy()
        assert np.count_nonzero(found) <= SHARE * 2000 * size, (name, np.count_nonzero(found))
        assert loss.numpy() == np.float32(1 + SMALL) * size, "a loss is no gradient"
        digests = ops.allgather(tf.constant(np.frombuffer(hashlib.sha256(found.tobytes()).digest(), np.uint8)[None]))
        assert len(np.unique(digests, axis=0)) == 1, name
        total += found - sum(everyone)
kinds = [op.type for op in ways["overlapped"].get_concrete_function(tf.zeros([2000])).graph.get_operations()]
assert "MatexHandOverGradient" in kinds
rest = np.sqrt(1 - SHARE)
most = rest / (1 - rest) * size * np.sqrt(2000 * 2.5)
assert np.linalg.norm(total) <= most, (np.linalg.norm(total), most)
assert ops.get_library().c.matex_residuals() == 1, "the four ways share what is left of the variable"
reduced, _ = reduce(tf.ones([2000]), other)  # another variable of the same name has one of its own
assert set(reduced.numpy()) == {0.0, float(size)} and ops.get_library().c.matex_residuals() == 2


def of_a_third():
    third = tf.Variable(tf.zeros([2000]), name="w")
    call(tf.function(lambda x: reduce(x, third), jit_compile=True), tf.ones([2000]))
    assert ops.get_library().c.matex_residuals() == 3


of_a_third()
gc.collect()
assert ops.get_library().c.matex_residuals() == 2, "what a compiled step leaves of a variable goes with it"

x, y = np.random.default_rng(0).standard_normal((2, 256, 16))
keras = tf.keras
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(32, activation="tanh"), keras.layers.Dense(16)])
model.compile(keras.optimizers.SGD(0.2), "mse")
losses = model.fit(x, y, batch_size=32, epochs=12, verbose=0).history["loss"]  # weights are compared after each
print("losses", losses[0], losses[-1])
"""


def test_every_way_of_an_update():
    result = launch.run(2, SCRIPT, env={"MATEX_COMPRESSION": "topk:0.1", "MATEX_OVERLAP": "off"}, timeout=240).check()
    assert "MATEX_COMPRESSION=topk:0.1 changes results" in result.stderr
    first, last = map(float, result.stdout.split()[1:])
    assert last < 0.9 * first


def test_info_shows_it(monkeypatch, clean_environment):
    def shown():
        return info.describe_compression(settings.Settings(os.environ))

    assert shown() == "none"
    monkeypatch.setenv("MATEX_COMPRESSION", "bf16")
    assert shown() == "bf16, on all links: results are not those of the script alone"
    monkeypatch.setenv("MATEX_COMPRESSION", "bf16:hosts")
    assert shown().startswith("bf16:hosts, between hosts: ")
