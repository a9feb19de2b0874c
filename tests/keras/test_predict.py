"""`predict` and `evaluate` share the rows over the ranks and give each the sequential answer, whole and in order."""

from pathlib import Path

import numpy as np
import pytest
from comparing import close

import launch

CASES = Path(__file__).with_name("predict_cases.py")
WHOLE = ("one row", "on batch", "subclass Summary", "subclass Hidden", "eager")


def same(got, want):
    return got.shape == want.shape and got.dtype == want.dtype and close(got, want)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "ranks, legacy", [(2, "1"), *(pytest.param(ranks, "0", marks=pytest.mark.more) for ranks in (2, 3))]
)
def test_every_rank_gets_the_whole_answer_and_computes_a_part(tmp_path, ranks, legacy):
    alone, together = tmp_path / "alone", tmp_path / "together"
    alone.mkdir()
    together.mkdir()
    keras = {"TF_USE_LEGACY_KERAS": legacy}
    launch.run_alone(CASES, alone, env=keras).check()
    launch.run(ranks, CASES, together, env={**launch.ALL_FILES, **keras}, timeout=300).check()
    want = dict(np.load(alone / "rank-0.npz"))
    found = [dict(np.load(together / f"rank-{rank}.npz")) for rank in range(ranks)]
    problems = []
    for name, value in want.items():
        parts = [part[name] for part in found]
        if not name.endswith("|rows"):
            problems += [f"{name} on rank {rank}" for rank, part in enumerate(parts) if not same(part, value)]
        elif value and not name.startswith(WHOLE) and not max(parts) < value <= sum(parts):
            problems.append(f"{name}: {parts} of {value} rows computed")
    assert not problems, problems


ON_ONE_RANK = """
import sys
import keras
import numpy as np
import matex_tf

model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x, y = np.ones((8, 2), "float32"), np.zeros((8, 1), "float32")
if matex_tf.rank() == int(sys.argv[1]):
    model.predict(x, verbose=0)
model.fit(x, y, verbose=0)
"""


def test_predict_on_one_rank_is_an_error_and_no_hang():
    result = launch.run(2, ON_ONE_RANK, 0)
    assert result.returncode != 0 and "different places" in result.stderr and "predict" in result.stderr


ANOTHER_ORDER = """
import keras
import numpy as np
import tensorflow as tf
import matex_tf

model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
rows = np.random.default_rng(matex_tf.rank()).random((8, 2), np.float32)
found = model.predict(tf.data.Dataset.from_tensor_slices(rows).batch(4), verbose=0)
assert np.allclose(found, model(rows))
seen = []

def see(batch):
    found = tf.py_function(lambda one: seen.append(one) or one, [batch], tf.float32)
    return (tf.ensure_shape(found, [None, 2]),)

shuffled = tf.data.Dataset.from_tensor_slices(rows).shuffle(8).batch(2).map(see)
found = model.predict(shuffled, verbose=0)
assert np.allclose(found, model(np.concatenate(seen)))
found = model.predict(((rows[i : i + 4],) for i in (0, 4)), verbose=0)
assert np.allclose(found, model(rows))
print("own rows")
"""


def test_a_rank_that_sees_other_rows_predicts_its_own():
    result = launch.run(2, ANOTHER_ORDER)
    result.check()
    assert "own rows" in result.stdout and "the ranks see different rows" in result.stderr
