"""Sessions of `tf.compat.v1` where ranks differ. (What their runs give is in `sameness/cases/sessions.py`.)"""

import launch

APART = """
import numpy as np
import tensorflow as tf

import matex_tf

v1 = tf.compat.v1
v1.disable_eager_execution()
x = v1.placeholder(tf.float64, [None, 3])
w = v1.get_variable("w", initializer=np.ones([3, 2]))
loss = tf.reduce_mean(tf.square(x @ w))
train = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
rows = np.random.default_rng(0).normal(size=[8, 3])
with v1.Session() as session:
    session.run(v1.global_variables_initializer())
    for number in range(5):
        if number == 3:
            np.random.default_rng(matex_tf.rank()).shuffle(rows)
            print("apart from here on", flush=True)
        session.run(train, {x: rows})
"""


def test_arrays_that_ranks_come_to_feed_apart_are_told(tmp_path):
    script = tmp_path / "apart.py"
    script.write_text(APART)
    before, after = launch.run(2, script).check().output.split("apart from here on")
    assert "different rows" not in before and "different rows" in after
