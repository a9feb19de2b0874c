"""Runs programs one after the other in one process and stores what each of them leaves behind.

`python program.py FOLDER` reads FOLDER/programs.json: the programs, and for each the options of `Job`. Each program is
run as `python PATH usual|all`, in a folder NAME of its own, and its results go to FOLDER/NAME.rank-R.pickle:

- `weights` and `figures`: the values of models, variables, histories and losses among its global variables; the arrays
  of a global variable `results` are figures, too.
- `rows`: how many rows have passed backwards through products and convolutions.
- `error`: the traceback of an exception, or what the programs before have left behind (`list_state`).
- `notes`: what the library has told; `faults`: what was expected (`corpus_run.expect`) and is not so.

Before each program the process prints a line that begins with `MARK`.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import runpy
import sys
import traceback
from _io import FileIO
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tensorflow as tf

sys.path.append(str(Path(__file__).parents[1]))
import corpus_run

MARK = "@@ "


@dataclass(frozen=True)
class Job:
    """A program of the corpus.

    Args:
        name: of its results.
        path: of the file.
        dtype: Keras' default.
        counts_rows: whether rows are counted, by an op next to each product of a gradient.
        is_v1: whether it runs in the behaviour of TensorFlow 1, as does every program after it.
        alone: the file of the results that the program has left alone; empty in the run alone.
    """

    name: str
    path: str
    dtype: str
    counts_rows: bool
    is_v1: bool
    alone: str


class Rows:
    """How many rows pass backwards: what a rank computes of a training step, whatever it says."""

    seen = 0
    types = ("MatMul", "BatchMatMulV2", "Conv2D", "GatherV2", "ResourceGather")
    plain: dict = {}

    @classmethod
    def count(cls, on: bool) -> None:
        from tensorflow.python.framework import ops

        cls.seen = 0
        registry = ops.gradient_registry._registry
        cls.plain = cls.plain or {name: registry[name]["type"] for name in cls.types}
        for name, plain in cls.plain.items():
            registry[name]["type"] = cls._counting(plain) if on else plain
        if corpus_run.has_ranks():
            import plans

            plans.leave_python_as_it_is(on)

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


def list_state() -> dict:
    """What a program may change and the next one would see: its surroundings, and what the library has kept of it."""
    return {
        "environment": dict(os.environ),
        "sys.path": sys.path[1:],
        "how NumPy prints": repr(np.get_printoptions()),
        "errors of NumPy": np.geterr(),
        "functions that run eagerly": tf.config.functions_run_eagerly(),
        "epsilon": tf.keras.backend.epsilon(),
        "format of images": tf.keras.backend.image_data_format(),
        "optimizer of graphs": tf.config.optimizer.get_experimental_options(),
    }


def start(job: Job) -> None:
    """A fresh state: seeds, dtype, Keras' names, the default graph, the environment."""
    keras = tf.keras
    os.environ.clear()
    os.environ.update(ENVIRONMENT)
    np.set_printoptions(**PRINTING)
    if job.is_v1:
        tf.compat.v1.disable_v2_behavior()  # as programs before it have, so that the seed is the default graph's
        tf.compat.v1.reset_default_graph()
    gc.collect()
    gc.freeze()  # what the programs before have left for good: Keras collects, too, and went through it each time
    keras.backend.clear_session()
    keras.backend.set_floatx(job.dtype)
    if not job.is_v1:  # where Keras 2 has policies only before v2 behaviour is turned off
        keras.mixed_precision.set_global_policy(keras.backend.floatx())
    keras.utils.set_random_seed(7)
    Rows.count(job.counts_rows)
    corpus_run.EXPECTATIONS.clear()
    corpus_run.ALONE = pickle.loads(Path(job.alone).read_bytes())["figures"] if job.alone else {}
    if "matex_tf.runtime.notes" in sys.modules:
        sys.modules["matex_tf.runtime.notes"]._printed.clear()
        if "matex_tf.steps.whole_code" in sys.modules:
            sys.modules["matex_tf.steps.whole_code"]._said.clear()


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
    """(weights, figures) among the global variables of a program, by name."""
    if "results" in found:
        return {}, {name: np.asarray(array) for name, array in found["results"].items()}
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


def main(folder: str, which: str, jobs: list[Job]) -> None:
    home, fresh = sys.path[0], None
    for job in jobs:
        os.chdir(os.path.join(folder, "work", job.name))
        start(job)
        now = list_state()
        fresh = fresh or now
        left = [what for what in now if now[what] != fresh[what]]
        print(f"{MARK}{job.name}", flush=True)
        error, weights, figures = "", {}, {}
        sys.argv, sys.path[0] = [job.path, which], os.path.dirname(job.path)
        try:
            if left:
                raise AssertionError(f"the programs before have left behind: {', '.join(left)}")
            weights, figures = collect(runpy.run_path(job.path, run_name="__main__"))
        except BaseException:
            error = traceback.format_exc()
        sys.path[0] = home
        stored = {
            "weights": weights,
            "figures": figures,
            "rows": Rows.seen,
            "error": error,
            "notes": corpus_run.list_notes(),
            "faults": list(corpus_run.EXPECTATIONS),
        }
        # What a rank opens to write is its own affair, and gone at the end; this is not.
        with FileIO(os.path.join(folder, f"{job.name}.rank-{corpus_run.get_rank()}.pickle"), "w") as file:
            file.write(pickle.dumps(stored))
    sys.stdout.flush()


if __name__ == "__main__":
    chosen = json.loads(Path(sys.argv[1], "programs.json").read_text())
    main(os.path.abspath(sys.argv[1]), chosen["which"], [Job(**job) for job in chosen["jobs"]])
