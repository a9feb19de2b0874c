"""MATEX_MICROBATCH: a slice that is computed in parts gives what it gives at once, in less memory."""

import itertools
from pathlib import Path

import control_group
import numpy as np
import pytest
import tensorflow as tf
from comparing import close

import launch
from matex_tf import settings
from matex_tf.microbatches import sizes

CASE = Path(__file__).with_name("parts_cases.py")
PARTS = {"MATEX_MICROBATCH": "3"}


@pytest.fixture(scope="module")
def alone(which, tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    launch.run_alone(CASE, folder, which, timeout=300).check()
    return dict(np.load(folder / "found.npz"))


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "ranks, env",
    [
        pytest.param(1, PARTS, marks=pytest.mark.more),
        pytest.param(2, PARTS, marks=pytest.mark.more),
        (2, {"MATEX_MICROBATCH": "auto", "MATEX_MEMORY": "1MiB"}),
    ],
)
def test_parts_give_what_all_rows_at_once_give(alone, which, ranks, env, tmp_path):
    if ranks == 1:
        ended = launch.run_alone(CASE, tmp_path, which, env=env, module=True, timeout=300).check()
    else:
        ended = launch.run(ranks, CASE, tmp_path, which, env=env, timeout=300).check()
    found = dict(np.load(tmp_path / "found.npz"))
    assert found.keys() == alone.keys()
    assert [name for name, want in alone.items() if not close(found[name], want)] == []
    said = [line for line in ended.output.splitlines() if "MATEX_MICROBATCH:" in line]
    assert ("are computed in parts of 1:" in ended.output) == (env != PARTS)
    assert [line for line in said if "the step 'step'" in line and "keeps" in line]  # the root of a mean of all rows
    whole = [line for line in said if "not computed in parts" in line and "eager code" not in line]
    assert [line for line in whole if "that a list holds" not in line] == []  # an LSTM before the root of a mean
    assert [line for line in said if "eager code" in line]


MEMORY = """
import keras, numpy as np

def kilobytes(name):
    return int(next(line for line in open("/proc/self/status") if line.startswith(name)).split()[1])

keras.backend.set_floatx("float64")
keras.utils.set_random_seed(1)
tanh = [keras.layers.Activation("tanh") for _ in range(8)]
model = keras.Sequential([keras.Input((512,)), keras.layers.Reshape((512, 1)), keras.layers.Dense(64), *tanh,
                          keras.layers.GlobalMaxPooling1D(), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x, y = np.random.RandomState(0).rand(256, 512), np.zeros((256, 1))
model.fit(x[:1], y[:1], batch_size=1, verbose=0)  # what a first step loads, and what it traces
before = kilobytes("VmRSS")
model.fit(x, y, batch_size=256, epochs=2, verbose=0)
print(kilobytes("VmHWM") - before, *np.concatenate([one.ravel() for one in model.get_weights()]).tolist())
"""
ACTIVATIONS = 256 * 8 * 512 * 64 * 8 >> 10
AUTO = {"MATEX_MICROBATCH": "auto"}
CUT = "256 rows of the step "
PARTS_OF = " are computed in parts of "


def trained(env):
    """The result of the program, the most memory that it took for its steps in KiB, and its weights."""
    ended = launch.run_alone(MEMORY, env=env, module=bool(env), timeout=250).check()
    took, *weights = map(float, ended.stdout.splitlines()[-1].split())
    return ended, took, np.array(weights)


@pytest.fixture(scope="module")
def whole():
    return trained({})


@pytest.mark.timeout(300)
def test_only_the_activations_of_a_part_are_in_memory(whole):
    _, took, weights = trained({"MATEX_MICROBATCH": "64"})
    assert whole[1] - took > 0.5 * ACTIVATIONS, (whole[1], took)
    assert close(weights, whole[2])


@pytest.mark.timeout(300)
def test_a_slice_that_does_not_fit_is_computed_in_parts_that_do(whole):
    ended, took, weights = trained({**AUTO, "MATEX_MEMORY": "850MiB"})
    said = [line for line in ended.stderr.splitlines() if CUT in line]
    assert len(said) == 1 and 1 <= int(said[0].split(PARTS_OF)[1].split(":")[0]) < 256, ended.stderr
    assert whole[1] - took > 0.25 * ACTIVATIONS, (whole[1], took)
    assert close(weights, whole[2])


@pytest.mark.timeout(300)
def test_a_slice_that_does_not_fit_a_real_control_group_is_computed_in_parts_that_do(whole):
    limit = 700 << 20
    with control_group.make_group(limit) as group:
        if group is None:
            pytest.skip(control_group.NEEDED)
        words = [launch.sys.executable, "-m", "matex_tf", launch.script_file(MEMORY)]
        ended = launch.execute(group.wrap(words), launch.environment(AUTO), 250).check()
    took, *weights = map(float, ended.stdout.splitlines()[-1].split())
    assert CUT in ended.stderr and whole[1] - took > 0.25 * ACTIVATIONS, (ended.stderr, whole[1], took)
    assert close(np.array(weights), whole[2])


@pytest.mark.timeout(300)
def test_a_slice_that_fits_is_computed_at_once(whole):
    ended, took, weights = trained({**AUTO, "MATEX_MEMORY": "16GiB"})
    assert PARTS_OF not in ended.stderr and took < whole[1] + 0.25 * ACTIVATIONS, (took, whole[1])
    assert close(weights, whole[2])


def test_of_few_rows_nothing_is_taken_for_many(monkeypatch):
    memory = {"VmRSS": 1000, "VmHWM": 1001}  # a row takes nothing that was not there: what it needs was free
    monkeypatch.setattr(sizes, "read_resident_bytes", memory.get)
    monkeypatch.setattr(settings.get_settings(), "memory", 1e6)
    row = np.array([3])
    one = sizes.Fitting("a step", [])
    asked = [one.start(256, row)]
    while sum(asked) < 256:
        asked.append(one.note_part(asked[-1], 256, min(asked[-1], 256 - sum(asked)), 0, 0))
    assert asked[:4] == [1, 4, 16, 64] and asked[4] >= 171
    assert one.start(256, row) >= 256  # from the second step on, all at once
    assert one.start(4096, row) < 4096  # which is more than was tried


def test_the_first_part_has_a_size_of_each_execution_where_all_numbers_of_rows_are_known(monkeypatch):
    """TensorFlow computes what has only constants as inputs once, as it optimizes the graph."""
    monkeypatch.setattr(sizes.Fitting, "start", lambda self, count, row: np.int64(next(numbers)))
    numbers, one = itertools.count(), sizes.Fitting("a step", [])
    step = tf.function(lambda x: one.begin(tf.constant(8, tf.int64), [tf.shape(x, tf.int64)[1:]]))
    x = tf.ones([8, 3])
    assert [int(step(x)) for _ in range(3)] == [0, 1, 2]


def test_parts_are_no_larger_than_fits(monkeypatch):
    taken = {"VmRSS": 1000, "VmHWM": 0}
    monkeypatch.setattr(sizes, "read_resident_bytes", taken.get)
    monkeypatch.setattr(settings.get_settings(), "memory", 1.15 * 2000)
    one = sizes.Fitting("a step", [])
    asked, done = [one.start(256, np.array([3]))], 0
    while done < 256:
        part = min(asked[-1], 256 - done)
        done += part
        taken["VmHWM"] = 1000 + 100 * part  # ten rows take all that there is
        asked.append(one.note_part(asked[-1], 256, part, 0, 0))
    assert asked[:3] == [1, 4, 10] and max(asked) == 10
    assert one.start(256, np.array([3])) == 10


SESSION = """
import numpy as np, tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
x, w = tf.placeholder(tf.float32, [None, 4]), tf.get_variable("w", [4, 1], use_resource=True)
train = tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean((tf.matmul(x, w) - 1.0) ** 2))
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for _ in range(3):
        session.run(train, {x: np.ones((8, 4))})
"""


@pytest.mark.timeout(300)
def test_a_session_says_that_it_computes_no_parts():
    ended = launch.run_alone(SESSION, env=PARTS, module=True).check()
    said = [line for line in ended.stderr.splitlines() if "MATEX_MICROBATCH" in line]
    assert len(said) == 1 and "a session of tf.compat.v1" in said[0], ended.stderr
