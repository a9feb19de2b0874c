"""A process that fits again and again holds no more than before; benchmarks/soak.py looks for longer, and at more."""

import runpy
from pathlib import Path

import pytest

import launch

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"


def test_repeated_fits_hold_nothing():
    soak = runpy.run_path(str(BENCHMARKS / "soak.py"))
    result = launch.run(2, BENCHMARKS / "soak_worker.py", "fits", 40, timeout=280).check()
    course = soak["course_of"](result.stdout, 0.25)
    assert course.is_even, result.stdout
    assert course.growth < soak["LIMIT"], result.stdout


DROPPED = """
import gc
import weakref
import numpy as np
import tensorflow as tf
import matex_tf
from matex_tf import settings

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
for strategy, kind in (("allreduce", "batches"), ("allreduce", "rows"), ("allreduce", "arrays"), ("sharded", "arrays")):
    settings.get_settings().strategy = strategy  # as if the environment said so
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    model.fit(**pipeline(kind), epochs=2, verbose=0)
    model.evaluate(**pipeline(kind), verbose=0)
    try:
        model.fit(**pipeline(kind), verbose=0, callbacks=[Stop()])
    except KeyError:
        pass
    moment = model.optimizer.variables[2]
    held += [(strategy, kind, weakref.ref(one)) for one in (model, model.weights[0], moment)]
    del model, moment
    keras.backend.clear_session()
    gc.collect()
    alive = [(*of, str(one())) for *of, one in held if one() is not None]
    assert not alive, (matex_tf.rank(), alive)
print("dropped", len(held))
"""


def test_a_model_that_is_dropped_is_gone():
    """Neither pipelines nor what TensorFlow keeps of their Python functions hold it."""
    assert "dropped 12" in launch.run(2, DROPPED, timeout=240).check().stdout


CLEANS = """
import atexit, os, shutil, sys, tempfile

atexit.register(lambda: os.system("echo after the end"))  # called after the ranks have ended
import matex_tf

folder = tempfile.mkdtemp()
open(os.path.join(folder, "file"), "w").close()
matex_tf.barrier()
atexit.register(shutil.rmtree, folder)
with open("result.txt", "w") as file:
    file.write("trained")
sys.exit(*map(int, sys.argv[1:]))
"""


@pytest.mark.parametrize("code", [0, 3])
def test_a_run_leaves_no_file_but_the_scripts_own(tmp_path, code):
    """Also where the script removes what it has made as late as Python ends."""
    for name in ("cwd", "tmp"):
        (tmp_path / name).mkdir()
    options = {"env": {"TMPDIR": str(tmp_path / "tmp")}, "cwd": tmp_path / "cwd", "module": False}
    result = launch.run(2, CLEANS, *([code] if code else []), **options)
    assert result.returncode == code, result.output
    assert result.stdout == "after the end\n", result.output
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert left == ["cwd", "cwd/result.txt", "tmp"]
