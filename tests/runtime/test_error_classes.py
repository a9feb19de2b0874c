"""Each error has the class that says what a caller can do about it, on all ranks; all have one base."""

import launch
import matex_tf

OTHER_BASES = {
    "SettingError": ValueError,
    "ReaderError": ValueError,
    "BuildError": RuntimeError,
    "RankError": RuntimeError,
}
KINDS = [name for name in matex_tf.__all__ if name.endswith("Error")]


def test_all_errors_have_one_base_and_stay_what_they_are_without_it():
    assert 1 < len(KINDS) <= 10
    for name in KINDS:
        kind = getattr(matex_tf, name)
        assert issubclass(kind, matex_tf.MatexError) and kind.__doc__
        assert issubclass(kind, OTHER_BASES.get(name, Exception))
        assert issubclass(kind, matex_tf.RankError) or name in (
            "MatexError",
            "SettingError",
            "ReaderError",
            "BuildError",
        )


CASES = """
import sys
import numpy as np
import tensorflow as tf
import matex_tf
from matex_tf.readers import DataSet
import keras

rank = matex_tf.rank()

def make(units=3):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(units), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model

def fit(x, y, model=None):
    (model or make()).fit(x, y, batch_size=8, verbose=0)

def read():
    with open("damaged.csv", "w") as file:
        file.write("a,b\\n1,2\\n3\\n")
    DataSet("damaged.csv", labels=["b"]).training_data

def run_in_session():
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        fixed = v1.placeholder(tf.float64, [8, 6])
        session.run(fixed @ np.ones((6, 1)), {fixed: matex_tf.shard(np.ones((8, 6)), own=True)})

x, y = np.ones((16, 4), "float32"), np.ones((16, 1), "float32")
cases = {
    "a strategy": tf.distribute.OneDeviceStrategy,
    "a session fed own rows": run_in_session,
    "rows that differ": lambda: fit(x[: 16 - 8 * rank], y[: 16 - 8 * rank]),
    "values that differ": lambda: fit(x + rank, y),
    "arrays of own rows that differ": lambda: fit(matex_tf.shard(x[:, : 3 + rank]), matex_tf.shard(y)),
    "a damaged file": read,
    "models that differ": lambda: fit(x, y, make(3 + rank)),
}
for name, act in cases.items():
    try:
        act() if name != "a strategy" else act("cpu")
        print(f"CASE {name}: none", flush=True)
    except matex_tf.MatexError as error:
        print(f"CASE {name}: {type(error).__name__}", flush=True)
"""
EXPECTED = {
    "a strategy": "UnsupportedError",
    "a session fed own rows": "UnsupportedError",
    "rows that differ": "BatchError",
    "values that differ": "BatchError",
    "arrays of own rows that differ": "BatchError",
    "a damaged file": "ReaderError",
    "models that differ": "MismatchError",
}


def test_each_kind_is_raised_on_every_rank(tmp_path):
    result = launch.run(2, CASES, env=launch.ALL_FILES, cwd=tmp_path)
    said = [line.partition("CASE ")[2] for line in result.stdout.splitlines() if "CASE " in line]
    for name, kind in EXPECTED.items():
        assert [one for one in said if one.startswith(f"{name}:")] == [f"{name}: {kind}"] * 2, result.output


# The second import must fail as well, because this rank has no hooks.
IMPORTS = """
for _ in range(2):
    try:
        import matex_tf
        print("imported")
    except Exception as error:
        print(type(error).__name__)
        last = error
raise last
"""


def test_a_setting_that_does_not_fit_the_ranks_is_an_error_of_the_start():
    env = {**launch.ALL_FILES, "MATEX_STRATEGY": "servers:7"}
    result = launch.run(2, IMPORTS, env=env, module=False, cold=True)
    assert result.returncode == 1 and result.stdout.split() == ["SetupError"] * 4, result.output
