"""TensorFlow's files: `tf.io.gfile`, records, summaries, and the ops that read and write files.

The functions of TensorFlow that take a path, also the functions that create ops, are replaced: they pass on the real
path. On rank 0, which has no view, they note its writes in the journal.
"""

from __future__ import annotations

import errno
import fnmatch
import inspect
import os
import re
import shutil
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from matex_tf.files import journal, journal_reader, overlay
from matex_tf.files.paths import find_real_path, is_local
from matex_tf.files.wrappers import Proxy, wrap_argument
from matex_tf.lazy import tf
from matex_tf.runtime import real_files
from matex_tf.runtime.hooks import Table, list_parameters, put_function

HOOKS = Table(when=overlay.is_on)

_IF_HOOK_MISSING = "what TensorFlow reads and writes is not the rank's own file"

_WILD = re.compile(r"[*?\[\\]")
"""A character that makes a path a pattern to TensorFlow."""
_INDEX_SUFFIX = ".index"
"""The suffix of a file that exists once a dataset's cache, or a checkpoint, is complete."""
_FILE_STREAM = "file://"
"""The beginning of a stream of `tf.print` that is a file. The path follows."""


# Paths. Functions `_find_...` map a path of the script to the real path. They return the URL of remote storage,
# such as gs://..., as it is; also a tensor, except for `_find_all_readable`, which finds the paths in it.


def _match_type(script_path: Any, path: Any) -> Any:
    """`path` as bytes if `script_path` is bytes, else as text."""
    return os.fsencode(path) if isinstance(script_path, bytes) else os.fsdecode(path)


def _raise_as_tensorflow(function: Any, *args: Any, **kwargs: Any) -> Any:
    """The result of `function`. An OSError becomes the error that TensorFlow raises."""
    try:
        return function(*args, **kwargs)
    except OSError as error:
        raise _make_error(error.errno, error.filename or "") from None


def _make_error(error_number: Any, path: Any) -> Exception:
    error_names = {errno.ENOENT: "NotFoundError", errno.EEXIST: "AlreadyExistsError"}
    error_names |= dict.fromkeys((errno.EACCES, errno.EPERM), "PermissionDeniedError")
    error_type: type[Exception] = getattr(tf.errors, error_names.get(error_number, "FailedPreconditionError"))
    return error_type(None, None, f"{os.fsdecode(path)}; {os.strerror(error_number)}")


def _find_readable(path: Any) -> Any:
    return find_real_path(path, "r")


def _find_writable(path: Any, mode: str = "w") -> Any:
    return _raise_as_tensorflow(find_real_path, path, mode)


def _find_folder(path: Any) -> Any:
    """The real path of a log folder. Ranks with a view create the folder, as TensorFlow would."""
    _create_folder(path)
    return _find_writable(path, "a")


def _create_folder(path: Any) -> None:
    """Ranks with a view create the folder `path` in it; "": the working folder."""
    if is_local(path) and overlay.get_view() is not None:
        _raise_as_tensorflow(os.makedirs, path or os.curdir, exist_ok=True)


# TensorFlow's functions on files, records and checkpoints


@HOOKS.replace("tensorflow.python.lib.io.file_io", "_pywrap_file_io", _IF_HOOK_MISSING)
class _Files(Proxy):
    """TensorFlow's file functions; for local paths they see the files as Python does."""

    def _has_view(self, *paths: Any) -> bool:
        """Whether this rank has a view of the files, in which `paths` are."""
        return overlay.get_view() is not None and not real_files.uses_real_files() and all(map(is_local, paths))

    def _call(self, name: str, of_python: Callable[..., Any], path: Any) -> Any:
        """The result of a function on one path: in this rank's view the result of Python's function `of_python`."""
        if self._has_view(path):
            return _raise_as_tensorflow(of_python, path)
        return getattr(self._original, name)(path)

    def BufferedInputStream(self, name: Any, *args: Any) -> Any:
        return self._original.BufferedInputStream(_find_readable(name), *args)

    def WritableFile(self, name: Any, mode: Any) -> Any:
        letters = os.fsdecode(mode).replace("b", "")
        return self._original.WritableFile(_find_writable(name, "r+" if letters == "r+" else letters[0]), mode)

    def FileExists(self, path: Any) -> Any:
        if not self._has_view(path):
            return self._original.FileExists(path)
        if not os.path.exists(path):  # for any reason, as in TensorFlow
            raise _make_error(errno.ENOENT, path)

    def IsDirectory(self, path: Any) -> Any:
        return self._call("IsDirectory", os.path.isdir, path)

    def Stat(self, path: Any) -> Any:
        if self._has_view(path):
            _raise_as_tensorflow(os.stat, path)  # the error of a missing file names `path`, not the real path
        return self._original.Stat(_find_readable(path))

    def GetChildren(self, path: Any) -> Any:
        return self._call("GetChildren", lambda folder: os.listdir(os.fsdecode(folder)), path)

    def GetMatchingFiles(self, pattern: Any) -> Any:
        return _list_matching(os.fsdecode(pattern)) if is_local(pattern) else self._original.GetMatchingFiles(pattern)

    def CreateDir(self, path: Any) -> Any:
        journal.note_change(path)
        return self._call("CreateDir", os.mkdir, path)

    def RecursivelyCreateDir(self, path: Any) -> Any:
        if is_local(path):
            folders = list(journal_reader.list_parents(os.path.abspath(os.fsdecode(path))))
            for folder in reversed([folder for folder in folders if not os.path.lexists(folder)]):
                journal.note_change(folder)
        return self._call("RecursivelyCreateDir", lambda name: os.makedirs(name or os.curdir, exist_ok=True), path)

    def DeleteFile(self, path: Any) -> Any:
        journal.note_change(path, removed=True)
        return self._call("DeleteFile", os.remove, path)

    def DeleteRecursively(self, path: Any) -> Any:
        journal.note_change(path, removed=True)
        return self._call("DeleteRecursively", shutil.rmtree if os.path.isdir(path) else os.remove, path)

    def RenameFile(self, source: Any, target: Any, overwrite: bool) -> Any:
        if self._has_view(source, target):
            self._check_missing(target, overwrite)
            return _raise_as_tensorflow(os.replace, source, target)
        journal.note_move(source, target)
        return self._original.RenameFile(source, target, overwrite)

    def CopyFile(self, source: Any, target: Any, overwrite: bool) -> Any:
        if self._has_view(target):
            self._check_missing(target, overwrite)
            if is_local(source):
                return _raise_as_tensorflow(shutil.copyfile, source, target)
        return self._original.CopyFile(_find_readable(source), _find_writable(target), overwrite)

    def _check_missing(self, path: Any, overwrite: bool) -> None:
        """Raise the error of an existing file, unless it is to be overwritten."""
        if not overwrite and os.path.exists(path):
            raise _make_error(errno.EEXIST, path)


@HOOKS.replace("tensorflow.python.lib.io.tf_record", "_pywrap_record_io", _IF_HOOK_MISSING, when=overlay.has_view)
class _Records(Proxy):
    """TensorFlow's readers of files of records, which see the files as Python does."""

    def RecordIterator(self, path: Any, *args: Any) -> Any:
        return self._original.RecordIterator(_find_readable(path), *args)

    def RandomRecordReader(self, path: Any) -> Any:
        return self._original.RandomRecordReader(_find_readable(path))


def _find_list(paths: Any) -> Any:
    """The real paths of files to read, if `paths` is a list; a tensor is returned as it is."""
    return [_find_readable(path) for path in paths] if isinstance(paths, (list, tuple)) else paths


def _find_prefix(prefix: Any) -> Any:
    """The real path of a checkpoint to read. The path of a checkpoint is the prefix of the paths of its files."""
    if not is_local(prefix):
        return prefix
    index_path = os.fsdecode(prefix) + _INDEX_SUFFIX
    real_path = find_real_path(index_path, "r")
    if real_path == os.path.realpath(index_path):  # on the disk, perhaps behind links: the script's own path is right
        return prefix
    return _match_type(prefix, real_path.removesuffix(_INDEX_SUFFIX))


def _replace_argument(module: str, name: str, argument: str, find: Callable[[Any], Any], **options: Any) -> None:
    """Needed on ranks with a view only, unless `options` of `Table.replace` say otherwise."""
    options.setdefault("when", overlay.has_view)
    HOOKS.replace(module, name, _IF_HOOK_MISSING, **options)(wrap_argument(argument, find))


_OF = "tensorflow.python"
_replace_argument(f"{_OF}.lib.io.tf_record", "TFRecordWriter.__init__", "path", _find_writable, when=overlay.is_on)
_replace_argument(
    f"{_OF}.summary.writer.event_file_writer", "EventFileWriter.__init__", "logdir", _find_folder, later=True
)
_replace_argument(f"{_OF}.profiler.profiler_v2", "start", "logdir", _find_folder, later=True)
_replace_argument(f"{_OF}.checkpoint.checkpoint", "TrackableSaver.restore", "save_path", _find_prefix)
_replace_argument(f"{_OF}.training.saver", "Saver.restore", "save_path", _find_prefix)
_replace_argument(f"{_OF}.training.py_checkpoint_reader", "NewCheckpointReader", "filepattern", _find_prefix)
_replace_argument("tensorflow", "compat.v1.train.string_input_producer", "string_tensor", _find_list)


# TensorFlow's functions that create ops


def _find_all_readable(paths: Any) -> Any:
    """The real paths of files to read. paths: a path, or a list or tensor of paths."""
    return _find_in_tensor(_find_list(_find_readable(paths)), _find_readable)


def _find_in_tensor(names: Any, find: Callable[[Any], Any]) -> Any:
    """Apply `find` to each path of a tensor; returns another value, and on a rank without a view the tensor, as it is.

    The files of a tensor of a graph are found when the graph runs, also if this rank's view equals the disk now. Before
    a later run of the graph, this rank may write files, or rank 0 may be ahead.
    """
    if overlay.get_view() is None or not isinstance(names, tf.Tensor) or names.dtype != tf.string:
        return names

    def find_all(values: Any) -> Any:
        paths = [find(name) if is_local(name) else name for name in np.ravel(values).tolist()]
        return np.array(paths, object).reshape(np.shape(values))

    if hasattr(names, "numpy"):  # an eager tensor
        return tf.constant(find_all(names.numpy()), tf.string)
    paths = tf.numpy_function(find_all, [names], tf.string, name=real_files.PLACES_OF_FILES)
    paths.set_shape(names.shape)
    return paths


def _prepare_file(path: Any) -> Any:
    """The real path of a file that an op writes. Creates the folder of the file, as the op would."""
    _create_folder(os.path.dirname(path))
    return _find_writable(path)


def _find_stream(stream: Any) -> Any:
    """The stream of `tf.print`, with the real path if it is a file, to whose end the op writes."""
    if not isinstance(stream, str) or not stream.startswith(_FILE_STREAM):
        return stream
    return _FILE_STREAM + _find_writable(stream.removeprefix(_FILE_STREAM), "a")


_replace_argument(f"{_OF}.ops.gen_logging_ops", "print_v2", "output_stream", _find_stream, when=overlay.is_on)


def _find_snapshot(path: Any) -> Any:
    """The real path of a dataset's snapshot, a folder: to read if this rank sees the folder, else to write."""
    return _find_readable(path) if os.path.isdir(path) else _find_folder(path)


def _find_cache(name: Any) -> Any:
    """The real path of a dataset's cache: to read if this rank sees a complete cache, else to write.

    To write, its folder is created here, because `find_real_path` needs it: the script may create the folder after
    this call, before TensorFlow writes the cache.
    """
    if not os.fspath(name):
        return name
    index_path = os.fsdecode(name) + _INDEX_SUFFIX
    mode = "r" if os.path.exists(index_path) else "w"
    if mode == "w":
        _create_folder(os.path.dirname(index_path))
    real_path = _raise_as_tensorflow(find_real_path, index_path, mode, creates_more_files=True)
    return _match_type(name, real_path[: -len(_INDEX_SUFFIX)])


# Which arguments of an op `_wrap_op` replaces by real paths:
# - of an op in `_OF_OP`: the argument given there;
# - of another op whose name begins as in `_WRITING_OPS`: none;
# - of any other op: the arguments in `_READ_ARGUMENTS`.
_OF_OP: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "writefile": ("filename", _prepare_file),
    "datasettotfrecord": ("filename", _prepare_file),
    "savedataset": ("path", _find_folder),
    "savedatasetv2": ("path", _find_folder),
    "loaddataset": ("path", _find_readable),
    "snapshotdataset": ("path", _find_snapshot),
    "snapshotdatasetv2": ("path", _find_snapshot),
    "cachedataset": ("filename", _find_cache),
    "cachedatasetv2": ("filename", _find_cache),
    "createsummaryfilewriter": ("logdir", _find_folder),
}
"""By the name of an op in lower case: the argument that is a path, and the function that finds its real path."""
_WRITING_OPS = ("write", "save", "merge", "experimentaldataset")
_READ_ARGUMENTS = ("filename", "filenames", "data_source_name")


def _put_into_ops(owner: Any, name: str, make: Any) -> None:
    """Replace all functions of the generated module `owner` that create ops on files, and the references of modules.

    `name` is one of these functions. TensorFlow's own classes, Keras and `tf.raw_ops` call them.
    """
    replacements: dict[Any, Any] = {}  # by the original function
    names = set[str]()  # by which other modules may refer to these functions: a search of all attributes would be slow
    for function_name, function in list(vars(owner).items()):
        is_private = function_name.startswith("_") or function_name.endswith("_eager_fallback")
        if is_private or not inspect.isfunction(function):
            continue
        put_function(owner, function_name, make)
        if getattr(owner, function_name) is not function:
            replacements[function] = getattr(owner, function_name)
            public_names = (*getattr(function, "_tf_api_names", ()), *getattr(function, "_tf_api_names_v1", ()))
            names.update(one.rpartition(".")[2] for one in (function_name, *public_names))
    # TensorFlow's public modules, and its modules of ops, have attributes that still refer to the originals.
    prefixes = ("tensorflow._api", "tensorflow.compat", "tensorflow.python.ops")
    for module_name, module in list(sys.modules.items()):
        if module_name == "tensorflow" or module_name.startswith(prefixes):
            attributes = vars(module)
            for attribute in names & attributes.keys():
                if inspect.isfunction(attributes[attribute]) and attributes[attribute] in replacements:
                    setattr(module, attribute, replacements[attributes[attribute]])


def _wrap_op(original: Any) -> Any:
    """For functions that create ops; a function of an op without files stays."""
    op = original.__name__.lower().replace("_", "")
    if op == "matchingfiles":
        return _wrap_matching_files(original) if overlay.has_view() else original
    path_names: tuple[str, ...] = ()
    find_paths: Callable[[Any], Any] = _find_all_readable
    if op in _OF_OP:
        argument, find_path = _OF_OP[op]
        path_names, find_paths = (argument,), _apply_to_known(find_path)
    elif not op.startswith(_WRITING_OPS):
        path_names = _READ_ARGUMENTS
    acts_on_rank = overlay.has_view() or op in _OF_OP  # rank 0 notes what the ops of `_OF_OP` write
    parameter_names, _ = list_parameters(original) if acts_on_rank and path_names else ([], False)
    if set(path_names).isdisjoint(parameter_names):
        return original

    def create(*args, **kwargs):
        args = tuple(find_paths(value) if name in path_names else value for name, value in zip(parameter_names, args))
        kwargs = {name: find_paths(value) if name in path_names else value for name, value in kwargs.items()}
        return original(*args, **kwargs)

    return create


for _module, _name, _when in (
    ("io_ops", "write_file", overlay.is_on),
    ("experimental_dataset_ops", "csv_dataset", overlay.is_on),
    ("dataset_ops", "text_line_dataset", overlay.is_on),
    ("lookup_ops", "initialize_table_from_text_file", overlay.has_view),
    ("summary_ops", "create_summary_file_writer", overlay.is_on),
):
    HOOKS.replace(f"{_OF}.ops.gen_{_module}", _name, _IF_HOOK_MISSING, put=_put_into_ops, when=_when)(_wrap_op)


def _apply_to_known(find: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function that applies `find` to a path, or to the path in a tensor: at once if its value is known."""

    def find_known(path: Any) -> Any:
        static_path = _read_static(path)
        return find(static_path) if is_local(static_path) else _find_in_tensor(path, find)

    return find_known


def _read_static(value: Any) -> Any:
    """Of a tensor, its bytes or list of bytes; None if only a run of the graph computes them. Else `value` itself."""
    if not isinstance(value, tf.Tensor):
        return value
    static_value = tf.get_static_value(value)
    return static_value.tolist() if isinstance(static_value, np.ndarray) else static_value


def _wrap_matching_files(original: Any) -> Any:
    def matching_files(pattern, name=None):
        static_pattern = _read_static(pattern)
        patterns = [static_pattern] if is_local(static_pattern) else static_pattern
        are_paths = isinstance(patterns, (list, tuple)) and all(map(is_local, patterns))
        if not are_paths or _view_equals_disk():
            return original(pattern, name)
        paths = sorted(path for path_pattern in patterns for path in _list_matching(os.fsdecode(path_pattern)))
        return tf.constant(paths, tf.string, shape=(len(paths),), name=name or "MatchingFiles")

    return matching_files


def _view_equals_disk() -> bool:
    if real_files.uses_real_files():
        return True
    with real_files.use_real_files():
        return overlay.get_own_view().is_untouched()


def _list_matching(pattern: str) -> list[str]:
    """The paths that match TensorFlow's `pattern`, in the order of the disk, folder by folder.

    TensorFlow itself searches several folders in parallel, and the order differs each time and between ranks. As in
    TensorFlow, names that begin with a dot match.
    """
    wildcard = _WILD.search(pattern)
    if wildcard is None:
        return [pattern] if pattern and os.path.exists(pattern) else []
    if not os.path.dirname(pattern[: wildcard.start()]):
        pattern = os.path.join(".", pattern)
    return _match_pattern(pattern.rstrip("/"))


def _match_pattern(pattern: str) -> list[str]:
    """`_list_matching` of a pattern with a folder: first the folders that match, then the names in each of them."""
    if not _WILD.search(pattern):
        return [pattern]
    folder_pattern, name_pattern = os.path.split(pattern)
    # From TensorFlow's syntax to that of `fnmatch`.
    name_pattern = re.sub(r"\\(.)", r"[\1]", name_pattern).replace("[^", "[!")
    paths = []
    for folder in _match_pattern(folder_pattern):
        try:
            entries = os.listdir(folder)
        except OSError:  # no folder, or an unreadable one: TensorFlow finds nothing there, either
            continue
        paths += [os.path.join(folder, entry) for entry in entries if fnmatch.fnmatchcase(entry, name_pattern)]
    return paths
