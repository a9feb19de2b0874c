"""The script that benchmarks/faults.py runs on ranks, and what makes one of them end at a given moment.

`python -m matex_tf faults_worker.py FOLDER`; FAULT in the environment is "moment:kind:rank". `arm` is called before
anything else in every process, by a sitecustomize.py on PYTHONPATH, and knows of a rank only under mpirun.
"""

from __future__ import annotations

import ctypes
import os
import posix  # the ranks' own view of files leaves it alone
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

MOMENT, KIND, RANK = (os.environ.get("FAULT", "::").split(":") + ["", ""])[:3]
WIDTH = 2000  # the saved model's one layer: 16 MB, so that writing takes a while
# A rank's processes are not told it, and the script itself begins when that is gone.
_rank = getattr(sys.modules.get("faults_worker"), "_rank", "") or os.environ.get("OMPI_COMM_WORLD_RANK", "")


def write(name: str, text: str) -> None:
    """Note something for the program that watches."""
    handle = posix.open(os.path.join(os.environ["FAULT_NOTES"], name), os.O_WRONLY | os.O_CREAT, 0o644)
    posix.write(handle, text.encode())
    posix.close(handle)


def fault(*ignored: Any) -> None:
    """End this rank in the way that is asked for."""
    write("fault", f"{time.time()} {_rank}")
    if KIND.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, KIND))
        time.sleep(600)  # one that Python takes for itself comes between two of its lines
    elif KIND == "os._exit(0)":
        os._exit(0)
    elif KIND == "os._exit(3)":
        os._exit(3)
    elif KIND == "_exit(0) in C":
        ctypes.CDLL(None)._exit(0)
    raise RuntimeError("a fault that was asked for")


def is_victim() -> bool:
    return _rank == RANK or RANK == "any"


def at(moment: str) -> None:
    """The script is at `moment`."""
    if moment == MOMENT and is_victim():
        fault()


def arm() -> None:
    """Prepare for the moments at which the script has no line of its own."""
    if not _rank or not MOMENT:
        return
    write(f"process-{os.getpid()}", "")
    if not is_victim():
        return
    if MOMENT == "at random":
        timer = threading.Timer(float(os.environ["FAULT_SECONDS"]), fault)
        timer.daemon = True
        timer.start()
        return
    import wrapt

    for moment, module, name in (
        ("import of mpi4py", "mpi4py", ""),
        ("import of TensorFlow", "tensorflow.python.framework.ops", ""),
        ("building the ops", "matex_tf.ops.compiler", "run_compiler"),
        ("comparing variables at the start", "matex_tf.steps.variables", "find_differing"),
        ("after the meeting at the end", "matex_tf.runtime.rank_records", "note_end"),
        ("after the end of MPI", "matex_tf.world.mpi_calls", "end_mpi"),
    ):
        if moment == MOMENT:
            wrapt.register_post_import_hook(lambda found, name=name: _arm(found, name), module)


def _arm(module: Any, name: str) -> None:
    if not name:
        fault()
    original = getattr(module, name)

    def replaced(*args, **kwargs):
        if name == "run_compiler":  # one rank alone compiles
            threading.Timer(1.0, fault).start()  # while the compiler is at work
        result = original(*args, **kwargs) if name in ("run_compiler", "end_mpi") else None
        fault()
        return result

    setattr(module, name, replaced)


def train(folder: str) -> None:
    import numpy as np
    import tensorflow as tf

    keras = tf.keras

    steps = []

    @tf.custom_gradient
    def in_backpropagation(x):
        def look(value):
            steps.append(1)
            if len(steps) == 3:
                at("in a step (fit)" if fits else "in a step (loop)" if eager else "in a step (overlapped)")
            return value

        def gradient(dy):
            return tf.ensure_shape(tf.py_function(look, [dy], dy.dtype), dy.shape)

        return tf.identity(x), gradient

    class Watched(keras.layers.Layer):
        def call(self, x):
            return in_backpropagation(x)

    class Callback(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 3:
                at("between steps (fit)")

        def on_epoch_end(self, epoch, logs=None):
            at("end of an epoch")

    x, y = np.ones((64, 8), "float32"), np.ones((64, 1), "float32")
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(64), Watched(), keras.layers.Dense(64), keras.layers.Dense(1)]
    )
    eager, fits = MOMENT == "in a step (loop)", "fit" in MOMENT or "epoch" in MOMENT or "comparing" in MOMENT
    if MOMENT in ("host", "at random"):
        return train_for_ever(model, x, y, folder)
    if fits:
        model.compile("sgd", "mse")
        model.fit(x, y, batch_size=8, epochs=2, verbose=0, callbacks=[Callback()])
        return None
    optimizer = keras.optimizers.SGD(0.01)

    def step(a, b):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(a) - b) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))

    run = step if eager else tf.function(step)
    for a, b in tf.data.Dataset.from_tensor_slices((x, y)).batch(8):
        run(a, b)


def train_for_ever(model: Any, x: Any, y: Any, folder: str) -> None:
    """Train, and save at the end of each epoch, until the fault comes."""
    import tensorflow as tf

    class Ready(tf.keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 3:
                write(f"ready-{os.uname().nodename}", "")
            if MOMENT == "at random":
                model.save_weights(os.path.join(folder, "model.weights.h5"))

    model.compile("sgd", "mse")
    model.fit(x, y, batch_size=8, epochs=10**6, verbose=0, callbacks=[Ready()])


def savers(folder: str) -> dict[str, Callable[[float], Any]]:
    """By the name of what is saved: the function that saves a value."""
    import tensorflow as tf

    keras = tf.keras

    def model(value):
        made = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(WIDTH, use_bias=False)])
        made.layers[-1].kernel.assign(tf.fill((WIDTH, WIDTH), value))
        return made

    def module(value):
        made = tf.Module()
        made.value = tf.Variable(tf.fill((WIDTH, WIDTH), value))
        made.read = tf.function(lambda: made.value, input_signature=[])
        return made

    def by_v1(value):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            kept = tf.compat.v1.get_variable("value", initializer=tf.fill((WIDTH, WIDTH), value))
            session.run(kept.initializer)
            tf.compat.v1.train.Saver().save(session, os.path.join(folder, "v1"))

    return {
        ".keras": lambda value: model(value).save(os.path.join(folder, "model.keras")),
        ".weights.h5": lambda value: model(value).save_weights(os.path.join(folder, "model.weights.h5")),
        "Checkpoint": lambda value: tf.train.Checkpoint(model=module(value)).write(os.path.join(folder, "written")),
        "SavedModel": lambda value: tf.saved_model.save(module(value), os.path.join(folder, "saved")),
        "v1 Saver": by_v1,
    }


def save(folder: str, what: str) -> None:
    """Save 1, then 2 in its place; the fault comes when there is something of the second on the disk."""
    from matex_tf.runtime import real_files

    saver = savers(folder)[what]
    saver(1.0)
    started = False

    def state() -> dict:
        found = {}
        for above, _, names in os.walk(folder):
            for name in names:
                try:
                    seen = os.stat(os.path.join(above, name))
                except FileNotFoundError:
                    continue
                found[above, name] = seen.st_size, seen.st_mtime_ns
        return found

    def watch() -> None:
        nonlocal started
        with real_files.use_real_files():
            before = state()
            started = True
            while state() == before:
                time.sleep(0.0005)
        fault()

    if is_victim():
        threading.Thread(target=watch, daemon=True).start()
        while not started:
            time.sleep(0.01)
    saver(2.0)
    if is_victim():
        time.sleep(5)


def read(folder: str) -> None:
    from matex_tf.readers import DataSet
    from matex_tf.world import world

    path = os.path.join(folder, "table.csv")
    original, calls = world.get_communicator, []

    def communicator(name):
        if name == "readers":
            calls.append(name)
            if len(calls) == 3:
                at("reader's read")
        return original(name)

    world.get_communicator = communicator
    print(len(DataSet("CSV", path, labels="y").training_data))


def main() -> None:
    folder = sys.argv[1]
    if MOMENT.startswith("saving"):
        save(folder, MOMENT.removeprefix("saving "))
    elif MOMENT == "reader's read":
        read(folder)
    else:
        train(folder)
    at("end of the script")


if __name__ == "__main__":
    main()
