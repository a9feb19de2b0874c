"""Steps in eager code see whole batches, whatever they ask, and ranks share the calls of models in them."""

import shutil
import textwrap
from pathlib import Path

import pytest
from comparing import differences, stored

import launch

CASES = Path(__file__).with_name("eager_cases.py")
WHOLE = {"losses that layers add"}


@pytest.mark.timeout(500)
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.more)])
def test_a_step_is_under_ranks_what_it_is_alone(alone, which, ranks, tmp_path):
    # Whose code it is does not depend on the folder that it lies in.
    script = tmp_path / "lib" / "python" / "site-packages" / CASES.name
    script.parent.mkdir(parents=True)
    shutil.copy(CASES, script)
    launch.run(ranks, script, tmp_path, which, env=launch.ALL_FILES, timeout=400).check()
    found = stored(tmp_path, ranks)
    wrong = differences({name: want for name, want in alone.items() if not name.endswith(": rows")}, found, 1e-9)
    for name in (name for name in alone if name.endswith(": rows")):
        for rank, (mine, all_rows) in enumerate(left[name] for left in found):
            if (mine < 0.8 * alone[name][0]) == (name.removesuffix(": rows") in WHOLE):
                wrong.append(f"{name}: rank {rank} computed {mine} of {all_rows}")
    assert not wrong, "\n".join(wrong)


MODEL = """
import keras, numpy as np, tensorflow as tf

class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner, self.mixes, self.reads, self.seen = keras.layers.Dense(1), False, {reads}, 0.0

    def call(self, inputs):
        if self.reads and hasattr(inputs, "numpy"):
            self.seen = max(self.seen, float(np.abs(inputs.numpy()).max()))
        if self.mixes:
            inputs = 0.5 * inputs + 0.5 * inputs[::-1]
        return self.inner(inputs)

keras.utils.set_random_seed(1)
x = tf.constant(np.random.RandomState(1).randn(12, 3).astype("float32"))
model, optimizer = Model(), keras.optimizers.SGD(0.1)
for turn in range(8):
    model.mixes = turn == {mixes_at}
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x)))
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
print("%.6f %.6f" % (loss, model.seen))
"""


def script(tmp_path, **values):
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(MODEL.format(**{"reads": False, "mixes_at": -1, **values})))
    return path


@pytest.mark.timeout(200)
def test_a_model_that_begins_to_mix_rows_gives_what_it_gives_alone(tmp_path):
    alone = launch.run_alone(script(tmp_path, mixes_at=5), timeout=100).check()
    for env in ({}, {"MATEX_EAGER": "whole"}):
        together = launch.run(2, script(tmp_path, mixes_at=5), env=env, timeout=150).check()
        assert together.stdout.split() == alone.stdout.split()


@pytest.mark.timeout(200)
def test_a_model_that_mixes_rows_from_the_start_or_reads_them_is_called_with_whole_batches(tmp_path):
    for values in ({"reads": True}, {"mixes_at": 0}):
        alone = launch.run_alone(script(tmp_path, **values), timeout=100).check()
        result = launch.run(2, script(tmp_path, **values), env={"MATEX_EXPLAIN": "1"}, timeout=150).check()
        assert result.stdout.split() == alone.stdout.split()
        if "reads" in values:
            assert "'model' is sharded" not in result.output


TWO = """
import keras, numpy as np, tensorflow as tf
from keras import layers

x = tf.constant(np.random.RandomState(1).randn(12, 3).astype("float32"))
shared = keras.Sequential([keras.Input((3,)), layers.Dense(2)])
whole = keras.Sequential([keras.Input((2,)), layers.Dense(1, activity_regularizer="l2")])
weights, optimizer = shared.trainable_variables + whole.trainable_variables, keras.optimizers.SGD(0.1)
for turn in range(8):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(whole(shared(x))) + tf.add_n(whole.losses)
    optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
"""


@pytest.mark.timeout(200)
def test_a_step_of_which_one_model_is_shared_is_not_said_to_be_whole():
    result = launch.run(2, TWO, env={"MATEX_EXPLAIN": "1"}, timeout=150).check()
    assert "the call of 'sequential' is sharded" in result.stderr
    assert "cannot be sharded:" not in result.stderr
