"""Runs scripts one after the other in one process and stores what each of them left behind.

`python driver.py FOLDER SCRIPT...` runs each script, seeded alike, in a folder that whoever starts it has made (NAME,
in the folder "work" of FOLDER), and writes FOLDER/NAME.rank-R.pickle: the weights and figures found among the script's
globals, and how many rows passed backwards through its products and convolutions. Before each script it prints a line
that begins with `MARK`. An import of TensorFlow costs seconds, so that scripts share a process; nothing of one may be
left for the next: what is (`held`) is an error of the next.
"""

from __future__ import annotations

import gc
import os
import pickle
import runpy
import sys
import time
import traceback
from _io import FileIO
from pathlib import Path

import numpy as np
import tensorflow as tf

MARK = "@@ "
# What these compute in float32 by their own words does not mix with layers in float64.
SINGLE = ("inside_function", "convnet_augmented", "mixed_precision", "mixed_and_clipped")


class Rows:
    """How many rows passed backwards: what a rank really computed of a training step, whatever it says."""

    seen = 0

    @classmethod
    def install(cls):
        from tensorflow.python.framework import ops

        registry = ops.gradient_registry._registry
        for name in ("MatMul", "BatchMatMulV2", "Conv2D", "GatherV2", "ResourceGather"):
            entry = registry[name]
            entry["type"] = cls._counting(entry["type"])
        if "matex_tf" in sys.modules:
            sys.path.append(str(Path(__file__).parents[1]))
            import plans

            plans.leave_python_as_it_is()

    @classmethod
    def _note(cls, rows):
        cls.seen += int(rows)
        return np.int64(0)

    @classmethod
    def _counting(cls, plain):
        def gradient(op, *gradients):
            first = gradients[0]
            if isinstance(first, tf.Tensor) and first.shape.rank:
                # The op itself: of a fixed shape `tf.shape` would be a constant, that of the script.
                noted = tf.numpy_function(cls._note, [tf.raw_ops.Shape(input=first)[0]], tf.int64)
                with tf.control_dependencies([noted]):
                    first = tf.identity(first)
            return plain(op, first, *gradients[1:])

        return gradient


ENVIRONMENT, PRINTING = dict(os.environ), np.get_printoptions()


def held():
    """What a script may change and the next one would see: its surroundings, and what we remember of a step."""
    return {
        "environment": dict(os.environ),
        "sys.path": sys.path[1:],
        "how NumPy prints": repr(np.get_printoptions()),
        "errors of NumPy": np.geterr(),
        "functions that run eagerly": tf.config.functions_run_eagerly(),
        "epsilon": tf.keras.backend.epsilon(),
        "format of images": tf.keras.backend.image_data_format(),
    }


def start(path):
    """A fresh state: seeds, dtype, Keras' names, the default graph, the environment."""
    keras = tf.keras
    os.environ.clear()
    os.environ.update(ENVIRONMENT)
    np.set_printoptions(**PRINTING)
    if "/v1/" in path:
        tf.compat.v1.disable_v2_behavior()  # as scripts before it have, so that the seed is the default graph's
        tf.compat.v1.reset_default_graph()
    gc.collect()
    keras.backend.clear_session()
    keras.backend.set_floatx("float32" if os.path.basename(path)[:-3] in SINGLE or "/v1/" in path else "float64")
    if "/v1/" not in path:  # where Keras 2 has policies only before v2 behaviour is turned off
        keras.mixed_precision.set_global_policy(keras.backend.floatx())
    keras.utils.set_random_seed(7)
    Rows.seen = 0
    if "matex_tf.runtime.notes" in sys.modules:
        sys.modules["matex_tf.runtime.notes"]._printed.clear()
        for name in ("matex_tf.steps.report", "matex_tf.steps.whole_code"):
            if name in sys.modules:
                sys.modules[name]._said.clear()


def variables_in(value):
    """The values of the variables of a model, module or variable; None for anything else."""
    if isinstance(value, type):
        return None
    if hasattr(value, "get_weights") and hasattr(value, "layers"):
        return value.get_weights()
    if isinstance(value, tf.Module) and not hasattr(value, "get_config"):
        return [variable.numpy() for variable in value.variables]
    if isinstance(value, tf.Variable) and tf.executing_eagerly():
        return [value.numpy()]
    return None


def collect(found):
    """(weights, figures) among a script's globals, by name."""
    weights, figures = {}, {}
    for name, value in found.items():
        if name.startswith("_"):
            continue
        values = [value]
        if isinstance(value, list) and value and all(variables_in(part) is not None for part in value):
            values = value
        for place, part in enumerate(values):
            inside = variables_in(part)
            if inside is not None:
                weights.update({f"{name}.{place}.{index}": array for index, array in enumerate(inside)})
        if hasattr(value, "history") and hasattr(value, "epoch"):
            figures.update({f"{name}.{key}": np.array(value.history[key], np.float64) for key in value.history})
        elif name in ("losses", "norms", "loss", "final", "weights", "averaged", "final_embeddings"):
            parts = value if isinstance(value, (list, tuple)) else [value]
            if all(isinstance(part, (float, np.ndarray, np.floating)) for part in parts):
                figures.update({f"{name}.{index}": np.asarray(part) for index, part in enumerate(parts)})
    return weights, figures


def main(folder, paths):
    rank = sys.modules["matex_tf"].rank() if "matex_tf" in sys.modules else 0
    Rows.install()
    home = sys.path[0]
    fresh = None
    for path in paths:
        name = os.path.splitext(os.path.basename(path))[0]
        work = os.path.join(folder, "work", name)
        os.chdir(work)
        start(path)
        now = held()
        fresh = fresh or now
        left = [what for what in now if now[what] != fresh[what]]
        print(f"{MARK}{name}", flush=True)
        began, error, weights, figures = time.process_time(), "", {}, {}
        sys.argv, sys.path[0] = [path], os.path.dirname(path)
        try:
            if left:
                raise AssertionError(f"the scripts before have left behind: {', '.join(left)}")
            weights, figures = collect(runpy.run_path(path, run_name="__main__"))
        except BaseException:
            error = traceback.format_exc()
        sys.path[0] = home
        said = sorted(getattr(sys.modules.get("matex_tf.runtime.notes"), "_printed", []))
        stored = {
            "weights": weights,
            "figures": figures,
            "rows": Rows.seen,
            "seconds": time.process_time() - began,
            "error": error,
            "said": said,
        }
        # What a rank opens to write is its own affair, and gone at the end; this is not.
        with FileIO(os.path.join(folder, f"{name}.rank-{rank}.pickle"), "w") as file:
            file.write(pickle.dumps(stored))
    sys.stdout.flush()


if __name__ == "__main__":
    main(os.path.abspath(sys.argv[1]), [os.path.abspath(path) for path in sys.argv[2:]])
