"""`predict` that ranks do not make alike. (What it gives where they do is in `sameness/cases/predict.py`.)"""

import launch

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
