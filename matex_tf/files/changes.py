"""Replacements of Python's functions that open or change files, on ranks other than 0: they act on this rank's view."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
from collections.abc import Callable
from typing import Any

from matex_tf.files import journal, overlay
from matex_tf.files.paths import find_key, use_view
from matex_tf.files.queries import HOOKS, IF_HOOK_MISSING, ask_known, ask_steadily, find_known_place
from matex_tf.files.view import make_error
from matex_tf.runtime import real_files

_open_plainly = os.open  # the original function


# Opening


@HOOKS.replace("builtins io", "open", IF_HOOK_MISSING)
def _wrap_open(original: Any) -> Any:
    """For `open`: its `opener` is a function that calls the replaced `os.open`."""

    def open(file, mode="r", buffering=-1, encoding=None, errors=None, newline=None, closefd=True, opener=None):
        if opener is None and not isinstance(file, int) and not real_files.uses_real_files():
            opener = open_for_all
        return original(file, mode, buffering, encoding, errors, newline, closefd, opener)

    return open


def open_for_all(path: Any, flags: int) -> int:
    """The `opener` for Python's `open`: opens as `open` does without one, but through the replaced `os.open`."""
    return os.open(path, flags, 0o666)


@HOOKS.replace("os", "open", IF_HOOK_MISSING)
def _wrap_os_open(original: Any) -> Any:
    def open(path, flags, mode=0o777, *, dir_fd=None):
        writes = bool(flags & journal.WRITING)

        def open_by_view():
            key = find_key(path, {"dir_fd": dir_fd}, reads_only=not writes)
            if key is None:
                return original(path, flags, mode, dir_fd=dir_fd)
            return _open_descriptor(key, path, flags, mode)

        place = find_known_place(path) if dir_fd is None else None
        # The fast way is not for a write that creates a file, or that would change the file of the disk: the view makes
        # this rank's own file first.
        if place is not None and writes and (flags & os.O_EXCL or place == os.fspath(path)):
            place = None
        # No O_CREAT: if a changed file is not in the upper layer, both layers must be searched. O_NOFOLLOW: a link may
        # lead to the other layer.
        fast_flags = flags & ~os.O_CREAT | os.O_NOFOLLOW
        descriptor = ask_known(path, place, lambda known: _open_plainly(known, fast_flags, mode), _close_file)
        if descriptor is not None:
            return descriptor
        return open_by_view() if writes else ask_steadily(open_by_view, _close_file)

    return open


def _close_file(descriptor: int) -> bool:
    """Close a file or folder, to open it again. Returns False for a pipe and the like, whose other end would notice."""
    kind = os.fstat(descriptor).st_mode
    if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
        return False
    os.close(descriptor)
    return True


def _open_descriptor(key: str, path: Any, flags: int, mode: int) -> int:
    """`os.open` of the file `key` in this rank's view; errors name `path`."""
    with use_view(path) as view:
        if not flags & journal.WRITING or flags & os.O_DIRECTORY:
            return os.open(view.locate_readable(key), flags, mode)
        if not flags & os.O_CREAT and not view.exists(key):
            raise make_error(errno.ENOENT, path)
        place = view.prepare_write(key, keep=not flags & os.O_TRUNC, exclusive=bool(flags & os.O_EXCL))
        return os.open(place, flags, mode)


# Changes


def _replace_change(names: str, act: Callable[..., Any], module: str = "os", follow: bool = True) -> None:
    """Call `act(view, original, key, path, ...)`, with the further arguments, in place of functions that change a path,
    or with `follow` the target of a link.
    """

    def make(original: Any) -> Any:
        def change(path, *args, **kwargs):
            key = find_key(path, kwargs, follow and kwargs.get("follow_symlinks", True))
            if key is None:
                return original(path, *args, **kwargs)
            with real_files.use_real_files():
                return act(overlay.get_own_view(), original, key, path, *args, **kwargs)

        return change

    HOOKS.replace(module, names, IF_HOOK_MISSING)(make)


def _change_copy(view, original, key, path, *args, **kwargs):
    """Change a copy of the file in the upper layer. If there is no file, `original` raises the error."""
    return original(view.copy_file(key) if view.exists(key) else view.locate_real(key), *args, **kwargs)


def _remove_tree(view, original, key, path, ignore_errors=False, onerror=None, *, onexc=None, dir_fd=None):
    """`shutil.rmtree` on the view; an error is handled as its options say."""
    try:
        view.remove_tree(key)
    except OSError as error:
        if onexc is not None:
            onexc(os.lstat, path, error)
        elif onerror is not None:
            onerror(os.lstat, path, sys.exc_info())
        elif not ignore_errors:
            raise


_replace_change("truncate utime chmod chown setxattr removexattr", _change_copy)
_replace_change("mkdir", lambda view, _, key, path, mode=0o777, dir_fd=None: view.make_folder(key, mode), follow=False)
_replace_change("remove unlink", lambda view, _, key, path, dir_fd=None: view.remove_file(key), follow=False)
_replace_change("rmdir", lambda view, _, key, path, dir_fd=None: view.remove_file(key, folder=True), follow=False)
_replace_change("rmtree", _remove_tree, module="shutil", follow=False)


@HOOKS.replace("os", "rename replace", IF_HOOK_MISSING)
def _wrap_rename(original: Any) -> Any:
    def rename(src, dst, **kwargs):
        if find_key(src, kwargs, follow=False) is None and find_key(dst, kwargs, follow=False) is None:
            return original(src, dst, **kwargs)
        with real_files.use_real_files():
            return overlay.get_own_view().move_file(src, dst)

    return rename


@HOOKS.replace("os", "link", IF_HOOK_MISSING)
def _wrap_link(original: Any) -> Any:
    """For `os.link`: the view makes a copy in place of a hard link."""

    def link(src, dst, **kwargs):
        source_key, target_key = find_key(src, kwargs), find_key(dst, kwargs, follow=False)
        if target_key is None and source_key is None:
            return original(src, dst, **kwargs)
        with real_files.use_real_files():
            view = overlay.get_own_view()
            source_path = src if source_key is None else view.copy_up(source_key)
            if os.path.lexists(dst) if target_key is None else view.exists(target_key):
                raise make_error(errno.EEXIST, dst)
            shutil.copy2(
                source_path, dst if target_key is None else view.prepare_write(target_key, keep=False, exclusive=True)
            )

    return link


@HOOKS.replace("os", "symlink", IF_HOOK_MISSING)
def _wrap_symlink(original: Any) -> Any:
    def symlink(src, dst, target_is_directory=False, *, dir_fd=None):
        key = find_key(dst, {"dir_fd": dir_fd}, follow=False)
        if key is None:
            return original(src, dst, target_is_directory, dir_fd=dir_fd)
        with real_files.use_real_files():
            view = overlay.get_own_view()
            if view.exists(key):
                raise make_error(errno.EEXIST, dst)
            view.add_link(os.fspath(src), key)

    return symlink
