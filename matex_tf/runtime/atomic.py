"""Atomic saving: files are written next to their path, and moved there when they are complete.

A move within a file system is atomic. A save of several files, such as a checkpoint, has an index file, by which the
other files are found. The old index file is removed first, and the new one moves last. So a run that is killed
meanwhile may leave no save, but never a mixture of two.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import socket
import stat
from collections.abc import Iterator
from typing import Any

from matex_tf.runtime import temp_folders

_PREFIX = ".matex_tf-saving-"
# The index files of a save: without them, its other files are not recognized.
_INDEX_NAMES = ("saved_model.pb", "saved_model.pbtxt", "config.json")
_INDEX_ENDINGS = (".index", ".weights.json")
_STATE_FILE = "checkpoint"  # names the newest save in its folder, so it moves after this save
_NO_FOLDER = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG}
"""Errors for which no folder can be created, although the file itself may be writable."""
_NO_MOVE = {errno.EXDEV, errno.EBUSY, errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}
"""Errors for which a file cannot be moved, although it can be copied. A full disk is not among them: a copy would fail
after the old file is lost.
"""


@contextlib.contextmanager
def write_beside(path: str, make_folder: bool = False) -> Iterator[str]:
    """Yield a temporary path at which to write what `path` is to be: a file, a folder, or several files with this
    prefix.

    At the end everything written there is moved to `path`; after an error, nothing is. Yields `path` itself if it must
    be written in place: a pipe, a device, a read-only file, or a file in a folder in which no other folder can be
    created.

    `make_folder`: whether the writer would create the folder of `path`.
    """
    target = os.path.realpath(path)
    try:
        folder_and_descriptor = _make_folder_beside(target, make_folder)
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror} (creating a temporary folder for the file)", path) from None
    if folder_and_descriptor is None:
        yield path
        return
    folder, descriptor = folder_and_descriptor
    # The last part of the path stays: writers may choose a format by its ending.
    name = os.path.basename(path.rstrip(os.sep))
    if name in (os.curdir, os.pardir):
        name = os.path.basename(target)
    temporary_path = os.path.join(folder, name) + (os.sep if path.endswith(os.sep) else "")
    try:
        with _rename_in_logs(temporary_path, path):
            yield temporary_path
        _move_all(folder, name, target)
    except Exception as error:
        _rename_in_error(error, temporary_path, path)
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _make_folder_beside(target: str, make_folder: bool) -> tuple[str, int] | None:
    """A locked temporary folder on the file system of `target`, and its lock; None: write `target` in place."""
    parent, name = os.path.split(target)
    if not name or not _may_be_replaced(target):
        return None
    try:
        if make_folder:
            os.makedirs(parent, exist_ok=True)
        # If a file system is mounted at `target`, files next to it are on another one, and cannot be moved into it.
        parent = target if os.path.ismount(target) else parent
        remove_unfinished(parent)
        return temp_folders.make_folder(_make_prefix(), parent)
    except OSError as error:
        if error.errno in _NO_FOLDER:
            return None  # if the file cannot be written in place either, the writer raises its own error
        raise


def remove_unfinished(folder: str) -> None:
    """Remove from `folder` the unfinished files of killed processes of this host."""
    temp_folders.sweep_folders(_make_prefix(), folder, min_seconds=0)


def _make_prefix() -> str:
    """The prefix of names that processes of this host and container use.

    Files of other hosts remain, because their locks may be invisible here.
    """
    return f"{_PREFIX}{socket.gethostname()}@{os.stat('/proc/self/ns/pid').st_ino}-"


def _may_be_replaced(target: str) -> bool:
    if not os.path.lexists(target):
        return True
    mode = os.stat(target).st_mode
    return (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) and os.access(target, os.W_OK)


def _move_all(folder: str, name: str, target: str) -> None:
    """Move the entries of `folder` next to `target`; the prefix `name` becomes the name of the target."""
    parent, target_name = os.path.split(target)
    moves = []
    for entry in os.listdir(folder):
        new_name = target_name + entry[len(name) :] if entry.startswith(name) else entry
        moves += list(_list_moves(os.path.join(folder, entry), os.path.join(parent, new_name)))
    moves.sort(key=lambda move: _get_move_order(move[0]))
    if len(moves) > 1:  # one move alone is atomic, and replaces an old index file
        # Remove the old index files first, so that no old index refers to new files.
        for source, destination in moves:
            if _get_move_order(source) == 1 and os.path.isfile(destination):
                os.unlink(destination)
    for source, destination in moves:
        if os.path.isfile(source):
            sync_to_disk(source)
            if os.path.isfile(destination):
                shutil.copymode(destination, source)
        try:
            os.replace(source, destination)
        except OSError as error:
            if error.errno not in _NO_MOVE:
                raise
            _copy(source, destination)


def _list_moves(source: str, destination: str) -> Iterator[tuple[str, str]]:
    """The moves that bring `source` to `destination`: one move, or those of the entries if both are folders."""
    if os.path.isdir(source) and os.path.isdir(destination):
        for name in os.listdir(source):
            yield from _list_moves(os.path.join(source, name), os.path.join(destination, name))
        return
    if os.path.isdir(source):  # it moves as a whole: write its files to the disk before
        for parent, _, names in os.walk(source):
            for name in names:
                sync_to_disk(os.path.join(parent, name))
    yield source, destination


def _copy(source: str, destination: str) -> None:
    """For a target to which files cannot be moved: a mounted file, a link to another disk, a store without renaming."""
    if os.path.isdir(source):
        shutil.copytree(source, destination, dirs_exist_ok=True)
    else:
        shutil.copyfile(source, destination)


def _get_move_order(source: str) -> int:
    """0 for data, which moves first; 1 for an index file; 2 for the state file."""
    name = os.path.basename(source)
    if name == _STATE_FILE:
        return 2
    return int(name in _INDEX_NAMES or name.endswith(_INDEX_ENDINGS))


def sync_to_disk(path: str) -> None:
    """Write the file to the disk: after a power failure, a file that was only in memory would be empty."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _rename_in_logs(temporary_path: str, path: str) -> Iterator[None]:
    """A context in which TensorFlow's log messages show `path` instead of `temporary_path`."""

    def correct_record(record: logging.LogRecord) -> bool:
        record.msg, record.args = record.getMessage().replace(temporary_path, path), ()
        return True

    logger = logging.getLogger("tensorflow")
    logger.addFilter(correct_record)
    try:
        yield
    finally:
        logger.removeFilter(correct_record)


def _rename_in_error(error: Any, temporary_path: str, path: str) -> None:
    """Replace `temporary_path` by `path` in the texts of `error`."""

    def correct_value(value: Any) -> Any:
        if isinstance(value, bytes):
            return value.replace(os.fsencode(temporary_path), os.fsencode(path))
        return value.replace(temporary_path, path) if isinstance(value, str) else value

    error.args = tuple(map(correct_value, error.args))
    for attribute in ("strerror", "filename", "filename2", "_message", "message"):
        if isinstance(getattr(error, attribute, None), (str, bytes)):
            with contextlib.suppress(AttributeError):  # a read-only property derived from another attribute
                setattr(error, attribute, correct_value(getattr(error, attribute)))
