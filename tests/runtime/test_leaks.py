"""A process that fits again and again holds no more than before; benchmarks/soak.py looks for longer, and at more."""

import runpy
from pathlib import Path

import launch

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"


def test_repeated_fits_hold_nothing():
    soak = runpy.run_path(str(BENCHMARKS / "soak.py"))
    result = launch.run(2, BENCHMARKS / "soak_worker.py", "fits", 40, timeout=280).check()
    course = soak["course_of"](result.stdout, 0.5)
    assert course.is_even, result.stdout
    assert course.growth < soak["LIMIT"], result.stdout


DROPPED = """
import gc
import weakref
import numpy as np
import tensorflow as tf
import matex_tf

keras = tf.keras
x = np.random.default_rng(0).normal(size=(48, 4)).astype("float32")
y = x.sum(1, keepdims=True)


def pipeline(kind):
    rows = tf.data.Dataset.from_tensor_slices((x, y))
    if kind == "batches":
        return {"x": rows.batch(8)}
    if kind == "rows":
        return {"x": rows.map(lambda a, b: (a * 1.0, b), num_parallel_calls=2).batch(8)}
    return {"x": x, "y": y, "batch_size": 8}


class Stop(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        raise KeyError("before the data are iterated")


held = []
for kind in ("batches", "rows", "arrays"):
    for _ in range(2):
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(**pipeline(kind), epochs=2, verbose=0)
        model.evaluate(**pipeline(kind), verbose=0)
        try:
            model.fit(**pipeline(kind), verbose=0, callbacks=[Stop()])
        except KeyError:
            pass
        held.append((kind, weakref.ref(model)))
        del model
        keras.backend.clear_session()
        gc.collect()
    alive = [kind for kind, model in held if model() is not None]
    assert not alive, (matex_tf.rank(), alive)
print("dropped", len(held))
"""


def test_a_model_that_is_dropped_is_gone():
    """Neither pipelines nor what TensorFlow keeps of their Python functions hold it."""
    assert "dropped 6" in launch.run(2, DROPPED, timeout=240).check().stdout
