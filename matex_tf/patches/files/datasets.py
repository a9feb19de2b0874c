"""Files that TensorFlow's own ops read and write: datasets of files, caches, vocabularies, `read_file`.

Each is given the real path of its file (see `patches.files.tensorflow`).
"""

from __future__ import annotations

import glob
import inspect
import os
from collections.abc import Callable
from typing import Any

from matex_tf.input import pipelines
from matex_tf.io import overlay
from matex_tf.patches.files.journal import note_made
from matex_tf.patches.files.opening import find_real_path
from matex_tf.patches.files.tensorflow import find_real_folder, is_local, list_matching, match_type, raise_as_tensorflow
from matex_tf.runtime import real_files
from matex_tf.runtime.hooks import Table, put_function

HOOKS = Table(when=overlay.is_on)

_LOST = "files of a pipeline are not those of the rank"
_V1 = "tensorflow._api.v2.compat.v1 tensorflow.compat.v1"

_CACHE_IS_THERE = ".index"
"""What the name of a dataset's cache ends with when it is whole."""


_FILES = {"filename", "filenames", "data_source_name"}
"""Arguments of ops that are files to read, but for ops whose names begin with one of `_WRITING`."""
_WRITING = ("write", "save", "cache", "datasettotfrecord", "experimentaldatasettotfrecord")
_WRITTEN = ("dataset_to_tf_record", "DatasetToTFRecord", "write_file", "WriteFile")
"""Ops that write the one file that they name; the others that write have patches of their own."""


def _put_into_ops(owner: Any, name: str, make: Any) -> None:
    """Replace what a module has generated for each op of files, `name` and others, and where else these stand.

    TensorFlow's own classes, Keras and `tf.raw_ops` call the ops by them.
    """
    import tensorflow as tf
    from tensorflow.python.ops import io_ops

    apis = [tf.raw_ops, tf.compat.v1.raw_ops, tf.compat.v2.raw_ops, io_ops]
    for each, function in list(vars(owner).items()):
        if each.startswith("_") or each.endswith("_eager_fallback") or not inspect.isfunction(function):
            continue
        put_function(owner, each, make)
        for api in apis:
            if getattr(api, each, None) is function:
                setattr(api, each, getattr(owner, each))


@HOOKS.replace("tensorflow.python.ops.gen_io_ops", "read_file", _LOST, put=_put_into_ops)
@HOOKS.replace("tensorflow.python.ops.gen_dataset_ops", "text_line_dataset", _LOST, put=_put_into_ops)
@HOOKS.replace("tensorflow.python.ops.gen_experimental_dataset_ops", "csv_dataset", _LOST, put=_put_into_ops)
@HOOKS.replace(
    "tensorflow.python.ops.gen_lookup_ops",
    "initialize_table_from_text_file",
    _LOST,
    put=_put_into_ops,
)
def _wrap_op_of_files(original: Any) -> Any:
    name, files = original.__name__, _FILES.intersection(inspect.signature(original).parameters)
    if name in _WRITTEN:
        return _wrap_op(original, _find_place_to_write, files)
    if files and overlay.has_view() and not name.lower().replace("_", "").startswith(_WRITING):
        return _wrap_op(original, _find_real_names, files)
    return original


def _wrap_op(original: Any, find_place: Callable[[Any], Any], files: set[str]) -> Any:
    names = list(inspect.signature(original).parameters)

    def op(*args, **kwargs):
        args = tuple(find_place(value) if name in files else value for name, value in zip(names, args))
        return original(*args, **{name: find_place(kwargs[name]) if name in files else kwargs[name] for name in kwargs})

    return op


# Read, on the ranks that are not the first


def _find_real_names(names: Any) -> Any:
    """Where the files `names` (a path, a list or a tensor of them) really are."""
    import numpy as np
    import tensorflow as tf

    if is_local(names):
        return match_type(names, find_real_path(names, None))
    if isinstance(names, (list, tuple)) and all(map(is_local, names)):
        return [match_type(name, find_real_path(name, None)) for name in names]
    if not isinstance(names, tf.Tensor) or names.dtype != tf.string:
        return names

    def real(values: Any) -> Any:
        flat = [
            match_type(name, find_real_path(name, None)) if is_local(name) else name
            for name in np.ravel(values).tolist()
        ]
        return np.array(flat, dtype=object).reshape(np.shape(values))

    if hasattr(names, "numpy"):
        return tf.constant(real(names.numpy()), tf.string)
    with real_files.use_real_files():
        if overlay.get_own_view().is_untouched():
            return names
    found = tf.numpy_function(real, [names], tf.string, name=pipelines.PLACES_OF_FILES)
    found.set_shape(names.shape)
    return found


@HOOKS.replace(_V1, "read_file", _LOST, later=True, when=overlay.has_view)
@HOOKS.replace("tensorflow", "io.read_file compat.v1.io.read_file compat.v2.io.read_file", _LOST, when=overlay.has_view)
def _wrap_read_file(original: Any) -> Any:
    def read_file(filename, name=None):
        return original(_find_real_names(filename), name)

    return read_file


def _match_here(patterns: Any) -> list[str] | None:
    """The paths that match a pattern, or each of several; None where the disk's answer is this rank's, too."""
    patterns = [patterns] if is_local(patterns) else patterns
    if real_files.uses_real_files() or not isinstance(patterns, (list, tuple)) or not all(map(is_local, patterns)):
        return None
    with real_files.use_real_files():
        if overlay.get_own_view().is_untouched():
            return None
    return [path for pattern in patterns for path in list_matching(os.fsdecode(pattern))]


@HOOKS.replace("tensorflow.python.data.ops.dataset_ops", "DatasetV2.list_files", _LOST, when=overlay.has_view)
def _wrap_list_files(original: Any) -> Any:
    def list_files(file_pattern, *args, **kwargs):
        found = _match_here(file_pattern)
        # The same names on all ranks; what reads them looks for the files where they are.
        file_pattern = [glob.escape(str(_find_real_names(path))) for path in found or []] or file_pattern
        return original(file_pattern, *args, **kwargs)

    return list_files


@HOOKS.replace(_V1, "matching_files", _LOST, later=True, when=overlay.has_view)
@HOOKS.replace(
    "tensorflow",
    "io.matching_files compat.v1.io.matching_files compat.v2.io.matching_files",
    _LOST,
    when=overlay.has_view,
)
def _wrap_matching_files(original: Any) -> Any:
    def matching_files(pattern, name=None):
        value = pattern.numpy() if hasattr(pattern, "numpy") else pattern
        found = _match_here(value)
        if found is None:
            return original(pattern, name)
        import tensorflow as tf

        names = sorted(set(found))
        return tf.constant(names, tf.string, shape=(len(names),), name=name or "MatchingFiles")

    return matching_files


@HOOKS.replace("tensorflow.python.data.ops.load_op", "_load", _LOST, when=overlay.has_view, later=True)
def _wrap_load(original: Any) -> Any:
    def load(path, *args, **kwargs):
        return original(_find_real_names(path), *args, **kwargs)

    return load


# Written, on every rank


def _find_place_to_write(filename: Any) -> Any:
    """Where an op is to write the file `filename`, text or a tensor of it."""
    path = filename.numpy() if hasattr(filename, "numpy") else filename
    note_made(path)
    if overlay.get_view() is None or not is_local(path):
        return filename
    raise_as_tensorflow(os.makedirs, os.path.dirname(path) or path[:0] or ".", exist_ok=True)
    return match_type(path, raise_as_tensorflow(find_real_path, path, "w"))


@HOOKS.replace(_V1, "write_file", _LOST, later=True)
@HOOKS.replace("tensorflow", "io.write_file compat.v1.io.write_file compat.v2.io.write_file", _LOST)
def _wrap_write_file(original: Any) -> Any:
    def write_file(filename, contents, name=None):
        return original(_find_place_to_write(filename), contents, name)

    return write_file


@HOOKS.replace("tensorflow.python.data.ops.save_op", "_save", _LOST, later=True)
def _wrap_save(original: Any) -> Any:
    def save(input_dataset, path, *args, **kwargs):
        return original(input_dataset, find_real_folder(path), *args, **kwargs)

    return save


@HOOKS.replace("tensorflow.python.data.ops.snapshot_op", "_SnapshotDataset.__init__", _LOST, later=True)
def _wrap_snapshot(original: Any) -> Any:
    def __init__(self, input_dataset, path, *args, **kwargs):
        if is_local(path):
            path = _find_real_names(path) if os.path.isdir(path) else find_real_folder(path)
        return original(self, input_dataset, path, *args, **kwargs)

    return __init__


@HOOKS.replace("tensorflow.python.data.ops.cache_op", "CacheDataset.__init__", _LOST, later=True)
def _wrap_cache(original: Any) -> Any:
    def __init__(self, input_dataset, filename, *args, **kwargs):
        return original(self, input_dataset, _find_real_cache(filename), *args, **kwargs)

    return __init__


def _find_real_cache(name: Any) -> Any:
    """Where the cache `name` of a dataset really is: the whole one that this rank sees, else one of its own."""
    if not is_local(name) or not os.fspath(name):
        return name
    index = os.fsdecode(name) + _CACHE_IS_THERE
    is_there = os.path.exists(index)
    if overlay.get_view() is None:
        if not is_there:
            note_made(index)
        return name
    place = os.fsdecode(raise_as_tensorflow(find_real_path, index, None if is_there else "w", beside=True))
    return match_type(name, place[: -len(_CACHE_IS_THERE)])
