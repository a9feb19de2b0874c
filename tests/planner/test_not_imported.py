"""A training run imports nothing of the planner."""

import sys

import launch

SAYS = """
import sys
names = [name for name in sys.modules if name.startswith(("matex_tf.planner", "matex_tf.launch"))]
print("IMPORTED", *names)
"""
TRAINS = """
import numpy as np, tensorflow as tf
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(np.ones((32, 3)), np.ones((32, 1)), batch_size=8, verbose=0)
"""


def list_imported(text):
    lines = [line.split()[1:] for line in text.splitlines() if line.startswith("IMPORTED")]
    assert lines
    return {name for line in lines for name in line}


def test_an_import_of_the_library_imports_nothing_of_the_planner():
    program = "import matex_tf\n" + SAYS
    ended = launch.execute([sys.executable, "-c", program], launch.environment(), 120).check()
    assert list_imported(ended.stdout) == set()


def test_ranks_that_train_import_nothing_of_the_planner():
    ended = launch.run(2, TRAINS + SAYS).check()
    assert list_imported(ended.stdout) == set()
