"""Writes the output and the open files of the script to disk before this rank is killed, in a limited time."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import stat
import sys
import threading
from typing import Any

from matex_tf.thread_flag import starts_own

_FLUSH_SECONDS = 5.0
_LIBRARY_FILES = (
    ("h5py", "File", "flush"),
    ("netCDF4", "Dataset", "sync"),
    ("tensorflow.python.lib.io.file_io", "FileIO", "flush"),
    ("tensorflow.python.lib.io.tf_record", "TFRecordWriter", "flush"),
    ("tensorflow.python.summary.writer.writer", "FileWriter", "flush"),
    ("tensorflow.python.ops.summary_ops_v2", "SummaryWriter", "flush"),
)
"""The classes of files that libraries have open, and the methods that write what is not on the disk yet."""


def flush_files() -> None:
    """Write the output and the buffers of the script's open files to disk: an abort does not, unlike the end of Python.

    Pipes are left out, because they could block. A disk may block, too, and so may a file whose lock is held by a
    stuck thread, or by the code that a signal has interrupted. So a thread writes, for a limited time.
    """
    thread = threading.Thread(target=_flush_open_files, name="matex_tf flush", daemon=True)
    with contextlib.suppress(RuntimeError, KeyboardInterrupt):  # no thread can be started; the user does not wait
        with starts_own.set():
            thread.start()
        thread.join(_FLUSH_SECONDS)


def _flush_open_files() -> None:
    stream_types = io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom  # the first has a buffer on top of the others
    library_types = [(getattr(sys.modules.get(module), name, ()), method) for module, name, method in _LIBRARY_FILES]
    files: list[Any] = []
    for tracked_object in gc.get_objects():
        # Not `isinstance`, which asks each object for its class: a weak reference to a lost object raises an error.
        object_type = type(tracked_object)
        if issubclass(object_type, stream_types):
            files.append(tracked_object)
        for library_class, method in library_types:
            if issubclass(object_type, library_class):
                with contextlib.suppress(Exception):  # as below
                    getattr(tracked_object, method)()
    for file in sorted(files, key=lambda file: not issubclass(type(file), io.TextIOWrapper)):
        with contextlib.suppress(Exception):  # a full disk; a closed file; a wrapper of no file; a class of the script
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                file.flush()
    with contextlib.suppress(Exception):
        sys.stdout.flush()  # last: it may be a pipe
