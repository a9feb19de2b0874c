"""Sessions of `tf.compat.v1` where ranks differ. (What their runs give is in `sameness/cases/sessions.py`.)"""

import threading
import types

import numpy as np
import tensorflow as tf

import launch
from matex_tf.steps import session_graphs, slices

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
    assert np.isnan(session.run(loss, {x: rows[:0]})), "the mean of no rows"
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


def test_threads_that_run_a_random_op_at_once_draw_one_sequence():
    v1 = tf.compat.v1
    with tf.Graph().as_default() as graph:
        shape = tf.constant([1])
        drawn = tf.raw_ops.RandomUniform(shape=shape, dtype=tf.float32, seed=5, seed2=7)
        with session_graphs.add_to(graph):
            copy = session_graphs.SessionCopy(graph, slices.make_empty_slice(), None)
            (copied,) = copy.create_op(types.SimpleNamespace(op=drawn.op), [shape])
        with v1.Session() as session:
            session.run(list(copy.starts.values()))
            make_draw, number, found = session.make_callable(copied), 3000, []

            def work():
                mine = [make_draw() for _ in range(number)]
                found.extend(mine)

            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            make_own = session.make_callable(drawn)
            sequence = [make_own() for _ in range(4 * number)]
    np.testing.assert_array_equal(np.sort(np.ravel(found)), np.sort(np.ravel(sequence)))
