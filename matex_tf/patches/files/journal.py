"""Python's files on rank 0: what it makes, changes or removes is noted for the ranks that are not there yet."""

from __future__ import annotations

import builtins
import io
import os
import shutil
from typing import Any

from matex_tf.io import layers, overlay
from matex_tf.runtime import real_files
from matex_tf.runtime.replace import replace

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
"""The flags of `os.open` by which a file is made or changed."""


def install() -> None:
    """On rank 0: note what is made, changed or removed from now on."""
    replace(builtins, "open", _note_open)
    replace(io, "open", _note_open)
    replace(os, "open", _note_os_open)
    replace(os, "mkdir", _note_made)
    for name in ("remove", "unlink", "rmdir"):
        replace(os, name, _note_removed)
    replace(shutil, "rmtree", _note_removed)
    replace(os, "truncate", _note_made)
    for name in ("rename", "replace"):
        replace(os, name, _note_renamed)
    for name in ("link", "symlink"):
        replace(os, name, _note_linked)


def _note(path: Any, removed: bool = False) -> None:
    """Tell the ranks that are not there yet that `path` is about to be made or changed, or removed."""
    if overlay.news() is None or real_files.inside_plain() or isinstance(path, int) or path is None:
        return
    with real_files.plainly():
        try:
            text = os.path.abspath(os.fsdecode(path))
        except (TypeError, ValueError):
            return  # the original says what is wrong
        key = os.path.join(os.path.realpath(os.path.dirname(text)), os.path.basename(text))
        if layers.is_system(key):
            return
        is_there = os.path.lexists(key)
        if removed and is_there:
            overlay.news().removed(key)
        elif is_there:
            overlay.news().changed(key)
        elif not removed:
            overlay.news().made(key)


def note_made(path: Any) -> None:
    """Where something other than Python is about to make `path`."""
    _note(path)


def note_removed(path: Any) -> None:
    """Where something other than Python is about to remove `path`."""
    _note(path, removed=True)


def _note_open(original: Any) -> Any:
    def open(file, mode="r", *args, **kwargs):
        if isinstance(mode, str) and any(letter in mode for letter in "wax+"):
            _note(file)
        return original(file, mode, *args, **kwargs)

    return open


def _note_os_open(original: Any) -> Any:
    def open(path, flags, mode=0o777, *, dir_fd=None):
        if flags & WRITING and dir_fd is None:
            _note(path)
        return original(path, flags, mode, dir_fd=dir_fd)

    return open


def _note_made(original: Any) -> Any:
    def make(path, *args, **kwargs):
        if kwargs.get("dir_fd") is None:
            _note(path)
        return original(path, *args, **kwargs)

    return make


def _note_removed(original: Any) -> Any:
    def remove(path, *args, **kwargs):
        if kwargs.get("dir_fd") is None:
            _note(path, removed=True)
        return original(path, *args, **kwargs)

    return remove


def _note_linked(original: Any) -> Any:
    def link(src, dst, *args, **kwargs):
        _note(dst)
        return original(src, dst, *args, **kwargs)

    return link


def _note_renamed(original: Any) -> Any:
    def rename(src, dst, **kwargs):
        if not any(kwargs.values()):
            _note(dst)
            _note(src, removed=True)
        return original(src, dst, **kwargs)

    return rename
