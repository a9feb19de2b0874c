"""`MATEX_STRATEGY=local:H`: ranks train by themselves, and average their weights where they meet."""

from pathlib import Path

import numpy as np
import pytest
from comparing import close

import launch

HERE = Path(__file__).parent
KEPT = """
import os, signal, sys
import keras, numpy as np

class Ask(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if "ASK" in os.environ and self.model.optimizer.iterations == 10:
            os.kill(os.getpid(), signal.SIGUSR1)

keras.config.set_floatx("float64")
x = np.random.default_rng(0).normal(size=(24, 4))
y = x.sum(1, keepdims=True)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
model.compile(keras.optimizers.SGD(0.0625), "mse")
for call in range(2):
    model.fit(x, y, 6, epochs=2, verbose=0, shuffle=False, callbacks=[Ask()])
print("WEIGHTS", *model.get_weights()[0].ravel().tolist(), flush=True)
"""
OTHER_ORDER = """
import keras, numpy as np, tensorflow as tf, matex_tf
places = np.random.default_rng(matex_tf.rank()).permutation(3)  # as of a set
x, y = np.random.default_rng(3).normal(size=(2, 16, 3))

class Model(keras.Model):
    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(data[0]) - data[1]) ** 2)
        weights = [self.trainable_weights[place] for place in (places if self.name == "shuffled" else range(3))]
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return {"loss": loss}

found = []
for name in ("listed", "shuffled"):
    keras.utils.set_random_seed(1)
    inputs = rows = keras.Input((3,))
    for number in range(3):
        rows = keras.layers.Dense(3, "tanh", use_bias=False, name=f"{name}{number}")(rows)
    model = Model(inputs, rows, name=name)
    model.compile(keras.optimizers.Adam(0.05))
    model.fit(x, y, 4, epochs=2, verbose=0, shuffle=False)
    moments = sorted(model.optimizer.variables, key=lambda one: one.path.replace(name, ""))
    found.append([np.asarray(one) for one in [*model.weights, *moments]])
assert len(found[0]) == 11 and all(map(np.allclose, *found))
"""
SAME = ("met", "shared", "saving", "saved", "words", "allreduce", "loop")


def of(found, name):
    return [value for key, value in found.items() if key.partition("|")[0] == name]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.more)])
def test_ranks_train_by_themselves_and_meet(ranks, tmp_path):
    env = {"MATEX_STRATEGY": "local:4"}
    said = launch.run(ranks, HERE / "local_case.py", tmp_path, env=env, timeout=300).check().stderr
    found = [dict(np.load(path)) for path in sorted(tmp_path.glob("rank-*.npz"))]
    assert len(found) == ranks
    for one in found:
        for name in ("three", "one", "custom", "figures", "shared", "waves"):
            wanted, got = of(one, f"{name} expected"), of(one, name)
            assert len(wanted) == len(got) and all(map(close, got, wanted)), name
        differing = [
            key for key in one if key.partition("|")[0] in SAME and one[key].tobytes() != found[0][key].tobytes()
        ]
        assert differing == []
        assert all(map(np.array_equal, of(one, "saved"), of(one, "saving")))
    assert not np.array_equal(found[0]["three|0"], found[1]["three|0"])
    assert np.allclose(sum(one["apart"] for one in found) / ranks, found[0]["met|1"], rtol=1e-12)
    assert all(np.isfinite(value).all() for value in of(found[0], "words"))
    assert not any(text in said for text in ("differs between ranks", "drifted", "ranks were lost")), said
    assert f"local: {ranks} ranks, each on its slices of batches by itself; after 3 steps the average" in said
    assert "after each step the average" in said and "results are statistical" in said
    for name in ("eagerly", "several", "scales", "accumulates"):
        assert f"MATEX_STRATEGY=local: fit on '{name}' runs as allreduce: " in said, said
    assert said.count("runs as allreduce: only fit trains so") == 2, said  # train_on_batch, and a loop of its own
    assert "fit on 'figures' runs as allreduce: its step uses rows of other ranks" in said, said
    assert said.count("runs as allreduce") == 7, said


@pytest.mark.timeout(200)
def test_moments_that_ranks_create_in_another_order_are_averaged():
    launch.run(2, OTHER_ORDER, env={"MATEX_STRATEGY": "local:2"}).check()


@pytest.mark.timeout(300)
def test_a_run_goes_on_with_other_ranks(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(KEPT)
    env = {"MATEX_STRATEGY": "local:1", "MATEX_STATE": str(tmp_path / "state")}
    env["MATEX_SAVE_SECONDS"] = "0.01"
    asked = launch.run(2, script, env={**env, "ASK": "1"})
    assert asked.returncode == 75 and "saved at epoch 1, step 2 of call 2 of fit" in asked.stderr, asked.output
    found = launch.run(3, script, env=env).check()
    assert "resuming from the state saved at epoch 1, step 2" in found.stderr
    x = np.random.default_rng(0).normal(size=(24, 4))
    weights = np.zeros(4)
    for step in range(16):
        rows = x[step % 4 * 6 :][:6]
        weights = weights - 0.0625 * 2 * rows.T @ (rows @ weights - rows.sum(1)) / 6
    shown = found.stdout.partition("WEIGHTS")[2].split()[:4]
    np.testing.assert_allclose(np.array(shown, float), weights, rtol=1e-10)
