"""Python's files on rank 0: what it makes, changes or removes is noted for the ranks that are not there yet."""

from __future__ import annotations

import os
from typing import Any

from matex_tf.io import layers, overlay
from matex_tf.runtime import real_files
from matex_tf.runtime.hooks import Table

HOOKS = Table()
"""Installed where this rank is, or becomes, the first."""

_LOST = "ranks do not see a change of rank 0 to the files"

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
"""The flags of `os.open` by which a file is made or changed."""


def _note_change(path: Any, removed: bool = False, to: Any = "") -> None:
    """Tell the ranks that are not there yet that `path` is about to be made or changed, or removed or moved `to`."""
    news = overlay.get_journal()
    if news is None or real_files.uses_real_files() or isinstance(path, int) or path is None:
        return
    with real_files.use_real_files():
        try:
            text = os.path.abspath(os.fsdecode(path))
        except (TypeError, ValueError):
            return  # the original says what is wrong
        # What is removed is the link itself, what is changed is the file that it names.
        above, name = os.path.split(text)
        key = os.path.join(os.path.realpath(above), name) if removed else os.path.realpath(text)
        if not layers.is_system(key):
            news.note_change(key, removed, os.path.realpath(os.fsdecode(to)) if to else "")


def note_made(path: Any) -> None:
    """Where something other than Python is about to make `path`."""
    _note_change(path)


def note_removed(path: Any) -> None:
    """Where something other than Python is about to remove `path`."""
    _note_change(path, removed=True)


@HOOKS.replace("builtins io", "open", _LOST)
def _wrap_open(original: Any) -> Any:
    def open(file, mode="r", *args, **kwargs):
        if isinstance(mode, str) and any(letter in mode for letter in "wax+"):
            _note_change(file)
        return original(file, mode, *args, **kwargs)

    return open


@HOOKS.replace("os", "open", _LOST)
def _wrap_os_open(original: Any) -> Any:
    def open(path, flags, mode=0o777, *, dir_fd=None):
        if flags & WRITING and dir_fd is None:
            _note_change(path)
        return original(path, flags, mode, dir_fd=dir_fd)

    return open


@HOOKS.replace("os", "mkdir truncate", _LOST)
def _wrap_make(original: Any) -> Any:
    def make(path, *args, **kwargs):
        if kwargs.get("dir_fd") is None:
            _note_change(path)
        return original(path, *args, **kwargs)

    return make


@HOOKS.replace("os", "remove unlink rmdir", _LOST)
@HOOKS.replace("shutil", "rmtree", _LOST)
def _wrap_remove(original: Any) -> Any:
    def remove(path, *args, **kwargs):
        if kwargs.get("dir_fd") is None:
            _note_change(path, removed=True)
        return original(path, *args, **kwargs)

    return remove


@HOOKS.replace("os", "link symlink", _LOST)
def _wrap_link(original: Any) -> Any:
    def link(src, dst, *args, **kwargs):
        _note_change(dst)
        return original(src, dst, *args, **kwargs)

    return link


@HOOKS.replace("os", "rename replace", _LOST)
def _wrap_rename(original: Any) -> Any:
    def rename(src, dst, **kwargs):
        if not any(kwargs.values()):
            _note_change(dst, removed=os.path.lexists(dst))  # what is replaced
            _note_change(src, removed=True, to=dst)
        return original(src, dst, **kwargs)

    return rename
