"""Wrong input to every public function and reader: what is called, the error's type, and words of its text.

`PUBLIC` are calls that every rank makes alike. `ARGUMENTS` are those of a `DataSet` on the table that `table` writes;
they are also given by one rank alone, while the others ask for what is right.
"""

from __future__ import annotations

import collections
from pathlib import Path

import numpy as np
import tensorflow as tf

import matex_tf
from matex_tf import ops
from matex_tf.readers import Format, register

Pair = collections.namedtuple("Pair", "x y")
MADE = "expected a tensor or what can be made one; given"
TYPES = "expected a tensor of float32, float64, float16, bfloat16, int32, int64, uint8, bool, not of"
WHOLE = "to be a whole number"
HUGE = np.broadcast_to(np.zeros(1, "uint8"), (1 << 20, 1 << 20))
MASKED = np.ma.array([1.0, 2.0], mask=[False, True])
NO_TENSORS = [
    None,
    object(),
    {"a": 1.0},
    {1.0},
    (x for x in [1.0]),
    np.array([None]),
    tf.data.Dataset.range(3),
    1 << 70,
]
NO_TYPES = ["a", b"a", np.array(["a"]), 1j, np.int8([1]), np.uint16([1])]
ROOTS = [("0", TypeError), (True, TypeError), (0.0, TypeError), (float("nan"), TypeError), (None, TypeError)]


def of_each(function):
    """The calls of a function on one tensor that fail for what they are given."""
    name = function.__name__
    for value in NO_TENSORS:
        yield lambda value=value: function(value), (TypeError, ValueError), f"{name}: {MADE}"
    for value in NO_TYPES:
        yield lambda value=value: function(value), TypeError, f"{name}: {TYPES}"
    yield lambda: function(np.array(["2020-01-01"], "M8")), ValueError, f"{name}: {MADE}"
    yield lambda: function(MASKED), TypeError, f"{name}: expected an array without a mask"
    yield lambda: function(tf.ragged.constant([[1], [2, 3]])), TypeError, "expected a dense tensor, not a RaggedTensor"
    yield lambda: function(tf.sparse.from_dense([1.0])), TypeError, "expected a dense tensor, not a SparseTensor"
    yield lambda: function(), TypeError, "missing 1 required positional argument"


ONE = [tf.constant([1.0])]
PUBLIC = [
    *of_each(matex_tf.allreduce),
    *of_each(matex_tf.broadcast),
    *of_each(matex_tf.allgather),
    *(
        (lambda op=op: matex_tf.allreduce(1.0, op), ValueError, "op has to be one of mean, sum, min, max; given")
        for op in ("prod", "", None, 1, ["sum"], np.array(["sum", "min"]))
    ),
    (lambda: matex_tf.allreduce([1.0, "a"]), TypeError, TYPES),
    (lambda: matex_tf.allreduce([True]), TypeError, "the mean of bool tensors is not defined"),
    (lambda: tf.function(lambda: matex_tf.allreduce("a"))(), TypeError, TYPES),
    *((lambda root=root: matex_tf.broadcast(1.0, root), kind, f"root, a rank, {WHOLE}") for root, kind in ROOTS),
    (lambda: matex_tf.broadcast(1.0, -1), ValueError, "given -1"),
    (lambda: matex_tf.broadcast(1.0, 99), ValueError, "expected root to be a rank from 0 to"),
    (lambda: matex_tf.broadcast([[1.0], [2.0, 3.0]]), ValueError, MADE),
    (lambda: matex_tf.barrier(3), TypeError, "takes 0 positional arguments"),
    *((lambda call=call: call(3), TypeError, "takes 0 positional arguments") for call in (
        matex_tf.rank, matex_tf.size, matex_tf.local_rank, matex_tf.local_size, matex_tf.is_active
    )),
    *(
        (lambda x=x: matex_tf.shard(x), TypeError, "shard: expected a NumPy array, an eager tensor, a tuple or dict")
        for x in (None, [1, 2], np.float32(3), "abc", 3, object(), (np.ones(4), None), {"x": [1]},
                  tf.keras.Sequential(), tf.ragged.constant([[1], [2, 3]]), tf.sparse.from_dense([1.0]))
    ),
    (lambda: tf.function(matex_tf.shard)(tf.ones(4)), TypeError, "an eager tensor"),
    (lambda: matex_tf.shard(MASKED), TypeError, "expected an array without a mask"),
    (lambda: matex_tf.shard(np.array(3)), ValueError, "at least one dimension was expected"),
    (lambda: matex_tf.shard((np.ones(4), np.ones(5))), ValueError, "one number of rows; given {0: 4, 1: 5}"),
    (lambda: matex_tf.shard({"x": np.ones(4), "y": tf.ones(5)}), ValueError, "number of rows; given {'x': 4, 'y': 5}"),
    (lambda: matex_tf.shard(tf.data.Dataset.range(4)), ValueError, "put .batch(...) before"),
    (lambda: ops.reduce_gradients(ONE[0], ["a"], 1.0), TypeError, "expected a list of tensors and one of names"),
    (lambda: ops.reduce_gradients(ONE, "a", 1.0), TypeError, "expected a list of tensors and one of names"),
    (lambda: ops.reduce_gradients(ONE, ["a", "b"], 1.0), ValueError, "expected 1 names, one for each tensor, not 2"),
    (lambda: ops.reduce_gradients([tf.constant([1])], ["a"], 1.0), TypeError, "'a' is int32"),
    (lambda: ops.reduce_gradients([None], ["a"], 1.0), (TypeError, ValueError), MADE),
    (lambda: ops.reduce_gradients(ONE, ["a"], "x"), (TypeError, ValueError), MADE),
    (lambda: ops.reduce_gradients(ONE, ["a"], [1.0, 2.0, 3.0, 4.0]), ValueError, "a scalar weight, or weight and rows"),
    *((lambda name=name: register(name)(Format), TypeError, "expected names of a format") for name in (3, "", None)),
    (lambda: register(), TypeError, "expected names of a format"),
    (lambda: register("X")(int), TypeError, "expected a subclass of Format"),
    (lambda: register("X")(object()), TypeError, "expected a subclass of Format"),
]  # fmt: skip

ARGUMENTS = [
    ({"format": None}, TypeError, "expected a path, a pattern or a list of them"),
    ({"format": 3}, TypeError, "expected a path, a pattern or a list of them"),
    ({"format": np.ones(3)}, TypeError, "expected a path, a pattern or a list of them"),
    ({"format": "CSV", "path": 3}, TypeError, "expected a path, a pattern or a list of them"),
    ({"format": "CSV", "path": [None]}, TypeError, "expected a path, a pattern or a list of them"),
    ({"format": "CSV", "path": b"x.csv"}, TypeError, "expected a path, a pattern or a list of them"),
    ({"format": "CSV", "path": []}, FileNotFoundError, "expected at least one file, given an empty list"),
    ({"format": "CSV", "path": "/nowhere/x.csv"}, FileNotFoundError, "there is no folder /nowhere"),
    ({"format": "CSV", "path": "a\0b"}, FileNotFoundError, "expected a file, found none"),
    ({"format": "CSV"}, TypeError, "needs a path"),
    ({"format": "PARQ", "path": "x"}, ValueError, "there is no format 'PARQ'; the formats are"),
    ({"format": 3, "path": "x"}, ValueError, "there is no format 3; the formats are"),
    ({"format": "NETCDF", "data": 3}, TypeError, "expected data and labels to be names in the file; given 3"),
    ({"format": "HDF5", "labels": [1]}, TypeError, "expected data and labels to be names in the file"),
    ({"format": "NETCDF", "sample": True}, TypeError, "a dimension's name or number; given True"),
    ({"format": "NETCDF", "parallel": "yes"}, TypeError, "parallel has to be True or False; given 'yes'"),
    ({"format": "NETCDF"}, ValueError, "expected a NetCDF file"),
    ({"format": "HDF5"}, ValueError, "expected an HDF5 file"),
    ({"format": "MNIST"}, FileNotFoundError, "expected a folder with the MNIST files"),
    ({"format": "MNIST", "path": 3}, TypeError, "expected a path"),
    ({"format": "CIFAR100", "path": None, "labels": "all"}, TypeError, "needs a path"),
    ({"label": "y"}, TypeError, "no option 'label'; its options are labels, columns"),
    ({"labels": "z"}, ValueError, "expected a column 'z', found none; the columns are x, y"),
    ({"labels": 7}, ValueError, "expected a column 7, found none"),
    ({"labels": {}}, TypeError, "expected a column's name or number; given {}"),
    ({"labels": True}, TypeError, "expected a column's name or number; given True"),
    ({"columns": 2.5}, TypeError, "expected columns to be names or numbers; given 2.5"),
    ({"dtype": "nothing"}, TypeError, "expected dtype to be a NumPy dtype"),
    ({"delimiter": 3}, ValueError, "delimiter has to be one ASCII character; given 3"),
    ({"quote": "ab"}, ValueError, "quote has to be one ASCII character; given 'ab'"),
    ({"header": "yes"}, TypeError, "header has to be True or False; given 'yes'"),
    ({"memory": -1}, ValueError, f"memory, in bytes, {WHOLE}"),
    ({"memory": "1GB"}, TypeError, f"memory, in bytes, {WHOLE}"),
    *(({"normalize": value}, ValueError, 'has to be False, True or "standard"') for value in ("max", 3, np.ones(2))),
    *(({"missing": value}, ValueError, '"error", "nan" or a') for value in ("zero", None, [1], True, np.ones(2))),
    *(({"validation_fraction": value}, ValueError, "at least 0 and less than 1") for value in (-1, 1, 2, float("nan"))),
    *(({"test_fraction": value}, TypeError, "at least 0 and less than 1") for value in ("0.1", None, True, [0.1])),
    ({"validation_fraction": 0.6, "test_fraction": 0.6}, ValueError, "leave no training rows; given 0.6 and 0.6"),
    *(({"split": value}, ValueError, "split has to be one of last, spread; given") for value in ("first", None, 3)),
    *(({"window": value}, TypeError, WHOLE) for value in ("3", 1.5, True, [2])),
    *(({"window": value}, ValueError, WHOLE) for value in (0, -1)),
    *(({"window": 2, "horizon": value}, ValueError, WHOLE) for value in (0, -1)),
    *(({"window": 2, "horizon": value}, TypeError, WHOLE) for value in ("1", None, 1.5)),
    ({"window": 10**12}, ValueError, "expected at least one training row, found none"),
    *(({"distribution": value}, ValueError, "one of block, cyclic, batch; given") for value in ("random", None, 3)),
    *(({"distribution": "batch", "batch_size": value}, TypeError, WHOLE) for value in ("8", 2.5, True)),
    *(({"distribution": "batch", "batch_size": value}, ValueError, WHOLE) for value in (0, -3)),
    ({"distribution": "batch"}, ValueError, "needs a batch_size; given None"),
    ({"batch_size": 8}, ValueError, "batch_size= requires"),
    *(({"reshuffle": value}, ValueError, 'reshuffle has to be None or "epoch"') for value in ("always", True, 1)),
    *(({"seed": value}, TypeError, f"seed {WHOLE}") for value in ("a", 1.5, None)),
    ({"seed": -1}, ValueError, f"seed {WHOLE}"),
]  # fmt: skip

BY_HAND = [
    *(({"rank": rank, "size": 2}, TypeError, f"expected rank {WHOLE}") for rank in ("0", 0.5, True)),
    *(({"rank": rank, "size": 2}, ValueError, "rank has to be 0 to size - 1") for rank in (-1, 2)),
    ({"format": "CIFAR10"}, ValueError, "expected a whole tar archive"),
    ({"size": 0}, ValueError, "rank has to be 0 to size - 1"),
]  # fmt: skip

BATCHES = [
    *((lambda data, n=n: data.next_train_batch(n), TypeError, WHOLE) for n in ("4", 1.5, None, True, float("nan"))),
    *((lambda data, n=n: data.next_train_batch(n), ValueError, WHOLE) for n in (0, -1)),
    (lambda data: data.next_validation_batch(3), ValueError, "has no validation rows"),
    (lambda data: data.testing_data, ValueError, "has no testing rows"),
    (lambda data: data.train_data, AttributeError, "train_data"),
]
STREAMS = [
    *(({"batch_size": n}, TypeError, WHOLE) for n in ("8", 2.5, True)),
    *(({"batch_size": n}, ValueError, WHOLE) for n in (0, -1)),
    *(({"part": part}, ValueError, "part has to be one of training, validation, testing") for part in ("train", 3)),
    ({"part": "validation"}, ValueError, "has no validation rows"),
    ({"shuffle": "yes"}, TypeError, "shuffle has to be True or False; given 'yes'"),
    *(({"seed": seed}, TypeError, f"seed {WHOLE}") for seed in ("x", 1.5)),
    ({"seed": -1}, ValueError, f"seed {WHOLE}"),
]  # fmt: skip

DIFFERENT = [
    {"distribution": "cyclic"}, {"normalize": True}, {"missing": 0}, {"reshuffle": "epoch"}, {"seed": 3},
    {"distribution": "batch", "batch_size": 4},
]  # fmt: skip
"""Right in themselves; wrong where the other ranks ask for something else."""


def table(folder: Path) -> str:
    """The path of a small table with the columns x and y."""
    path = folder / "table.csv"
    path.write_text("x,y\n" + "".join(f"{number},{number % 2}\n" for number in range(20)))
    return str(path)


def asked(path: str, wrong: dict) -> dict:
    """The arguments of a `DataSet` with what is `wrong` in place of the right ones."""
    names_a_format = "format" in wrong
    right = {"format": "CSV", "path": path} if not names_a_format else {}
    if names_a_format and "path" not in wrong and str(wrong["format"]) in ("NETCDF", "HDF5", "MNIST", "CIFAR10"):
        right = {"path": path}
    return {**right, **({} if names_a_format or "labels" in wrong else {"labels": "y"}), **wrong}


def check(call, kind, words: str, also: str = "") -> str:
    """Nothing where `call()` fails with a `kind`, or what `also` names, and its text has `words`; else what it did."""
    try:
        result = call()
    except Exception as error:  # the wrong kind is what is looked for
        right = isinstance(error, kind) or type(error).__name__ == also
        found = f"{type(error).__name__}: {error}"
        return "" if right and words in found else f"expected {kind}: {words!r}; found {found}"
    return f"expected {words!r}; nothing was raised, and the result is {result!r}"[:400]
