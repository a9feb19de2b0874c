"""TensorFlow's files: `tf.io.gfile`, records and summaries go to the same place as Python's.

The private folder of a rank is one that TensorFlow's C++ knows nothing of, so it is given the real path of each file.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import re
import shutil
from typing import Any

from matex_tf.files import journal, overlay
from matex_tf.files.opening import find_real_path
from matex_tf.runtime import real_files
from matex_tf.runtime.hooks import Table

HOOKS = Table(when=overlay.is_on)

_LOST = "what TensorFlow reads and writes is not the rank's own file"

_WILD = re.compile(r"[*?\[\\]")
"""What makes a path a pattern to TensorFlow."""


def is_local(path: Any) -> bool:
    """Whether `path` is one of this machine's files, not a tensor nor a bucket."""
    return isinstance(path, (str, bytes, os.PathLike)) and b"://" not in os.fsencode(path)


@HOOKS.replace("tensorflow.python.lib.io.file_io", "_pywrap_file_io", _LOST)
class _Files:
    """TensorFlow's file functions, of which those on local paths see the files as Python does."""

    def __init__(self, original: Any):
        self._original = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def _has_view(self, *paths: Any) -> bool:
        """Whether this rank has a view of the files, in which `paths` are."""
        return overlay.get_view() is not None and not real_files.uses_real_files() and all(map(is_local, paths))

    def BufferedInputStream(self, name: Any, *args: Any) -> Any:
        return self._original.BufferedInputStream(_find_readable(name), *args)

    def WritableFile(self, name: Any, mode: Any) -> Any:
        if is_local(name):
            journal.note_change(name)
            letters = os.fsdecode(mode).replace("b", "")
            name = match_type(name, raise_as_tensorflow(find_real_path, name, "r+" if letters == "r+" else letters[0]))
        return self._original.WritableFile(name, mode)

    def FileExists(self, path: Any) -> Any:
        if not self._has_view(path):
            return self._original.FileExists(path)
        if not os.path.exists(path):  # whatever the reason
            raise_as_tensorflow(_raise_missing, path)

    def IsDirectory(self, path: Any) -> Any:
        return os.path.isdir(path) if self._has_view(path) else self._original.IsDirectory(path)

    def Stat(self, path: Any) -> Any:
        if self._has_view(path):
            raise_as_tensorflow(os.stat, path)
            path = match_type(path, find_real_path(path, None))
        return self._original.Stat(path)

    def GetChildren(self, path: Any) -> Any:
        return (
            raise_as_tensorflow(os.listdir, os.fsdecode(path))
            if self._has_view(path)
            else self._original.GetChildren(path)
        )

    def GetMatchingFiles(self, pattern: Any) -> Any:
        return list_matching(os.fsdecode(pattern)) if is_local(pattern) else self._original.GetMatchingFiles(pattern)

    def CreateDir(self, path: Any) -> Any:
        if self._has_view(path):
            return raise_as_tensorflow(os.mkdir, path)
        journal.note_change(path)
        return self._original.CreateDir(path)

    def RecursivelyCreateDir(self, path: Any) -> Any:
        if self._has_view(path):
            return raise_as_tensorflow(os.makedirs, path, exist_ok=True) if os.fsdecode(path) else None
        # Each folder on the way to it, the outermost first, as far as they are not there.
        if is_local(path):
            made = os.path.abspath(os.fsdecode(path))
            missing = []
            while not os.path.lexists(made):
                missing.append(made)
                made = os.path.dirname(made)
            for folder in reversed(missing):
                journal.note_change(folder)
        return self._original.RecursivelyCreateDir(path)

    def DeleteFile(self, path: Any) -> Any:
        if self._has_view(path):
            return raise_as_tensorflow(os.remove, path)
        journal.note_change(path, removed=True)
        return self._original.DeleteFile(path)

    def DeleteRecursively(self, path: Any) -> Any:
        if self._has_view(path):
            return raise_as_tensorflow(shutil.rmtree, path)
        journal.note_change(path, removed=True)
        return self._original.DeleteRecursively(path)

    def RenameFile(self, source: Any, target: Any, overwrite: bool) -> Any:
        if self._has_view(source, target):
            _refuse_to_overwrite(target, overwrite)
            return raise_as_tensorflow(os.replace, source, target)
        journal.note_change(target)
        journal.note_change(source, removed=True)
        return self._original.RenameFile(source, target, overwrite)

    def CopyFile(self, source: Any, target: Any, overwrite: bool) -> Any:
        if self._has_view(source, target):
            _refuse_to_overwrite(target, overwrite)
            return raise_as_tensorflow(shutil.copyfile, source, target) and None
        journal.note_change(target)
        return self._original.CopyFile(source, target, overwrite)


@HOOKS.replace("tensorflow.python.lib.io.tf_record", "_pywrap_record_io", _LOST)
class _Records:
    """TensorFlow's functions on files of records, of which those that read see the files as Python does."""

    def __init__(self, original: Any):
        self._original = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def RecordIterator(self, path: Any, *args: Any) -> Any:
        return self._original.RecordIterator(_find_readable(path), *args)

    def RandomRecordReader(self, path: Any) -> Any:
        return self._original.RandomRecordReader(_find_readable(path))


def _find_readable(path: Any) -> Any:
    return match_type(path, find_real_path(path, None)) if is_local(path) else path


@HOOKS.replace("tensorflow", "compat.v1.train.string_input_producer", _LOST)
def _wrap_queue(original: Any) -> Any:
    def string_input_producer(string_tensor, *args, **kwargs):
        if isinstance(string_tensor, (list, tuple)):
            string_tensor = [_find_readable(path) for path in string_tensor]
        return original(string_tensor, *args, **kwargs)

    return string_input_producer


def _raise_missing(path: Any) -> None:
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _refuse_to_overwrite(target: Any, overwrite: bool) -> None:
    import tensorflow as tf

    if not overwrite and os.path.exists(target):
        raise tf.errors.AlreadyExistsError(None, None, "file already exists")


def match_type(given: Any, path: Any) -> Any:
    """`path` as bytes where `given` is bytes, else as text."""
    return os.fsencode(path) if isinstance(given, bytes) else os.fsdecode(path)


def raise_as_tensorflow(function: Any, *args: Any, **kwargs: Any) -> Any:
    """What `function` returns; its OSError as the error that TensorFlow raises."""
    import tensorflow as tf

    try:
        return function(*args, **kwargs)
    except OSError as error:
        text = f"{os.fsdecode(error.filename or '')}; {error.strerror}"
        if isinstance(error, FileNotFoundError):
            raise tf.errors.NotFoundError(None, None, text) from None
        if isinstance(error, FileExistsError):
            raise tf.errors.AlreadyExistsError(None, None, text) from None
        if isinstance(error, PermissionError):
            raise tf.errors.PermissionDeniedError(None, None, text) from None
        raise tf.errors.FailedPreconditionError(None, None, text) from None


def list_matching(pattern: str) -> list[str]:
    """The paths that match TensorFlow's `pattern`, in the order of the disk, folder by folder.

    TensorFlow looks into several folders at once and gives what is in them in an order that is another each time, so
    that ranks would not agree. As there, names that begin with a dot are like others.
    """
    start = _WILD.search(pattern)
    if start is None:
        return [pattern] if pattern and os.path.exists(pattern) else []
    if not os.path.dirname(pattern[: start.start()]):
        pattern = os.path.join(".", pattern)
    return _match_pattern(pattern.rstrip("/"))


def _match_pattern(pattern: str) -> list[str]:
    if not _WILD.search(pattern):
        return [pattern]
    folder, name = os.path.split(pattern)
    name = re.sub(r"\\(.)", r"[\1]", name).replace("[^", "[!")
    found = []
    for each in _match_pattern(folder):
        try:
            entries = os.listdir(each)
        except OSError:  # no folder, or none that may be read: TensorFlow finds nothing there, either
            continue
        found += [os.path.join(each, entry) for entry in entries if fnmatch.fnmatchcase(entry, name)]
    return found


@HOOKS.replace("tensorflow.python.lib.io.tf_record", "TFRecordWriter.__init__", _LOST)
def _wrap_writer(original: Any) -> Any:
    def __init__(self, path, *args, **kwargs):
        journal.note_change(path)
        return original(
            self,
            match_type(path, raise_as_tensorflow(find_real_path, path, "w")) if is_local(path) else path,
            *args,
            **kwargs,
        )

    return __init__


def find_real_folder(path: Any) -> Any:
    """Where a log folder really is; made, on the ranks that are not the first, as TensorFlow would make it."""
    if hasattr(path, "numpy"):
        path = path.numpy()
    if not is_local(path):
        return path
    journal.note_change(path)
    if overlay.get_view() is None:
        return path
    raise_as_tensorflow(os.makedirs, path, exist_ok=True)
    return match_type(path, find_real_path(path, "a"))


@HOOKS.replace("tensorflow.python.ops.summary_ops_v2", "create_file_writer create_file_writer_v2", _LOST)
@HOOKS.replace("tensorflow", "summary.create_file_writer compat.v2.summary.create_file_writer", _LOST)
@HOOKS.replace("tensorflow.python.profiler.profiler_v2", "start", _LOST, later=True)
def _wrap_log_folder(original: Any) -> Any:
    def function(logdir, *args, **kwargs):
        return original(find_real_folder(logdir), *args, **kwargs)

    return function


@HOOKS.replace(
    "tensorflow.python.summary.writer.event_file_writer",
    "EventFileWriter.__init__",
    _LOST,
    later=True,
)
def _wrap_summary_writer(original: Any) -> Any:
    def __init__(self, logdir, *args, **kwargs):
        return original(self, find_real_folder(logdir), *args, **kwargs)

    return __init__
