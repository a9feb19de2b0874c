"""Replacements of Python's file functions on ranks other than 0: they act on this rank's view of the files (`view`).

The view names a file by its key, a canonical absolute path, and finds the real path of its bytes. Rank 0 may change the
disk while a function reads there. So a function that reads asks again if rank 0 has written notes meanwhile. `python`
installs these hooks, if this rank has a view of its own.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import inspect
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from matex_tf.files import journal, overlay
from matex_tf.files.view import make_error
from matex_tf.runtime import real_files
from matex_tf.runtime.hooks import Table

HOOKS = Table()

_IF_HOOK_MISSING = "a rank does not see the files that it wrote itself"
_lstat = os.lstat  # the original function


class Proxy:
    """Has the attributes of `original`, except for attributes that a subclass defines."""

    def __init__(self, original: Any):
        self._original = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def find_key(path: Any, kwargs: dict | None = None, follow: bool = True, question: bool = False) -> str | None:
    """The key of `path` if the view handles it, else None.

    question: the caller only reads; None is returned if the view equals the disk, so that the original function
    answers.
    """
    if real_files.uses_real_files() or isinstance(path, int) or path is None:
        return None
    if kwargs and any(kwargs.get(name) is not None for name in ("dir_fd", "src_dir_fd", "dst_dir_fd")):
        return None
    with real_files.use_real_files():
        view = overlay.get_own_view()
        if question and view.is_untouched():
            return None
        try:
            return view.find_key(path, follow)
        except (TypeError, ValueError):
            return None  # the original function reports the error


def find_real_path(path: Any, mode: str | None, creates_others: bool = False) -> Any:
    """The real path of `path`, for a library that opens files itself: to read (mode None) or to write.

    Mode "w" replaces the file, "x" and "w-" create a new one, other modes keep the content. creates_others: the library
    also creates other files in the same folder.
    """
    key = find_key(path) if overlay.has_view() else None
    if key is None:  # the view does not handle it
        return path
    with real_files.use_real_files():
        view = overlay.get_own_view()
        if mode is None:
            return view.ask_until_steady(lambda: view.locate_readable(key))
        if mode == "r+" and not view.exists(key):
            return view.locate_real(key)
        place = view.prepare_write(key, keep=mode != "w", exclusive=mode in ("x", "w-"))
        view.stop_caching(os.path.dirname(key) if creates_others else key)
        return place


def wrap_argument(name: str, convert: Callable[[Any], Any]) -> Any:
    """For Python functions: replaces their argument `name` by `convert(argument)`. The hook fails if there is none."""

    def make(original: Any) -> Any:
        index = list(inspect.signature(original).parameters).index(name)

        def function(*args, **kwargs):
            if name in kwargs:
                kwargs[name] = convert(kwargs[name])
            elif len(args) > index:
                args = (*args[:index], convert(args[index]), *args[index + 1 :])
            return original(*args, **kwargs)

        return function

    return make


def _ask_steadily(ask: Any, drop: Any = None) -> Any:
    """`View.ask_until_steady`, or one call if this thread uses the real files."""
    return ask() if real_files.uses_real_files() else overlay.get_own_view().ask_until_steady(ask, drop)


def _find_known(path: Any) -> str | None:
    """The place of `path` by the cache of this rank's view; None if it must be searched."""
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if type(text) is not str or real_files.uses_real_files():
        return None
    return overlay.get_own_view().known.find(text)


def _is_quiet() -> bool:
    """Whether no note of rank 0 holds for this rank, so that a known place is still right."""
    return overlay.get_own_view().news.is_quiet()


# Opening


@HOOKS.replace("builtins", "open", _IF_HOOK_MISSING)
def _wrap_open(original: Any) -> Any:
    def open(file, mode="r", buffering=-1, encoding=None, errors=None, newline=None, closefd=True, opener=None):
        if opener is None and not isinstance(file, int) and not real_files.uses_real_files():
            opener = _open_for_all
        return original(file, mode, buffering, encoding, errors, newline, closefd, opener)

    return open


def _open_for_all(path: Any, flags: int) -> int:
    """The `opener` of Python's `open`: as without one, but through the replaced `os.open`."""
    return os.open(path, flags, 0o666)


@HOOKS.replace("os", "open", _IF_HOOK_MISSING)
def _wrap_os_open(original: Any) -> Any:
    def open(path, flags, mode=0o777, *, dir_fd=None):
        writes = bool(flags & journal.WRITING)

        def open_by_view():
            key = find_key(path, {"dir_fd": dir_fd}, question=not writes)
            if key is None:
                return original(path, flags, mode, dir_fd=dir_fd)
            return _open_descriptor(key, path, flags, mode)

        # The fast way: open the known place, unless this is a write to a file that the rank has not written yet.
        place = None if dir_fd is not None or flags & os.O_EXCL else _find_known(path)
        is_on_disk = place is not None and place == os.fspath(path)
        if place is not None and not (writes and is_on_disk):
            try:
                descriptor = original(place, flags | os.O_NOFOLLOW, mode)
            except OSError as error:
                # A link is searched: its target may have another place.
                if is_on_disk and error.errno != errno.ELOOP and _is_quiet():
                    raise  # the error of the disk is the right one
            else:
                # Rank 0 may have changed the file while it was opened. Then it is opened again below.
                if _is_quiet() or not _close_file(descriptor):
                    return descriptor
        return open_by_view() if writes else _ask_steadily(open_by_view, _close_file)

    return open


@HOOKS.replace("io", "FileIO", _IF_HOOK_MISSING)
def _make_file_class(original: Any) -> Any:
    """`io.FileIO` opens files itself."""

    class Meta(type(original)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, original) if cls is FileIO else super().__instancecheck__(instance)

    class FileIO(original, metaclass=Meta):
        def __init__(self, file, mode="r", closefd=True, opener=None):
            if opener is None and not isinstance(file, int):
                opener = _open_for_all
            super().__init__(file, mode, closefd, opener)

    return FileIO


def _close_file(descriptor: int) -> bool:
    """Close a regular file, to open it again. Returns False for others, such as pipes, whose other end would notice."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        return False
    os.close(descriptor)
    return True


def _open_descriptor(key: str, path: Any, flags: int, mode: int) -> int:
    """`os.open` of the file `key` in this rank's view; errors name `path`."""
    with real_files.use_real_files():
        view = overlay.get_own_view()
        try:
            if not flags & journal.WRITING or flags & os.O_DIRECTORY:
                return os.open(view.locate_readable(key), flags, mode)
            if not flags & os.O_CREAT and not view.exists(key):
                raise make_error(errno.ENOENT, path)
            place = view.prepare_write(key, keep=not flags & os.O_TRUNC, exclusive=bool(flags & os.O_EXCL))
            descriptor = os.open(place, flags, mode)
        except OSError as error:
            raise type(error)(error.errno, error.strerror, path) from None
        view.known.forget()
        return descriptor


# Queries


def _wrap_question(original: Any, of_link: bool = False) -> Any:
    """For functions that return information about one path."""
    is_state = original in (os.stat, _lstat)

    def ask(path, *args, **kwargs):
        follow = not of_link and kwargs.get("follow_symlinks", True)

        def answer():
            key = find_key(path, kwargs, follow=follow, question=True)
            if key is None:
                return original(path, *args, **kwargs)
            with real_files.use_real_files():
                try:
                    return original(overlay.get_own_view().locate_real(key), *args, **kwargs)
                except OSError as error:
                    raise type(error)(error.errno, error.strerror, path) from None

        if is_state and not kwargs and not args:  # the fast way
            state = _read_known_state(path, of_link)
            if state is not None:
                return state
        return _ask_steadily(answer)

    return ask


HOOKS.replace("os", "stat access statvfs getxattr listxattr", _IF_HOOK_MISSING)(_wrap_question)
HOOKS.replace("os", "lstat readlink", _IF_HOOK_MISSING)(functools.partial(_wrap_question, of_link=True))


def _read_known_state(path: Any, of_link: bool) -> os.stat_result | None:
    """The state of `path` by the cache; None if it must be searched. Raises OSError if it does not exist."""
    place = _find_known(path)
    if place is None:
        return None
    try:
        state = _lstat(place)
    except OSError:
        if place == os.fspath(path) and _is_quiet():
            raise
        return None
    must_follow = stat.S_ISLNK(state.st_mode) and not of_link
    return None if must_follow or not _is_quiet() else state


# Folders


def _wrap_listing(list_disk: Callable[[Any, Any], Any], make: Callable[[Any, list[str]], Any]) -> Any:
    """Wrap a function that lists a folder.

    list_disk: `list_disk(original, path)` lists the disk. make: `make(path, names)` returns a result of the same type.
    """

    def wrap(original: Any) -> Any:
        def listing(path="."):
            path = "." if path is None else path
            if real_files.uses_real_files() or isinstance(path, int):
                return original(path)

            view = overlay.get_own_view()
            # The fast way: this rank's view of the folder is known to equal the disk.
            if type(path) is str and view.known.is_untouched(path):
                with contextlib.suppress(OSError):
                    entries = list_disk(original, path)
                    if _is_quiet():
                        return entries

            def list_view():
                key = find_key(path, question=True)
                if key is None:
                    return list_disk(original, path)
                with real_files.use_real_files():
                    return make(path, view.list_names(key))

            return _ask_steadily(list_view)

        return listing

    return wrap


class _Entry:
    """An entry of `os.scandir` for a folder with two layers."""

    def __init__(self, folder: Any, name: str):
        self.name = os.fsencode(name) if isinstance(folder, bytes) else name
        self.path = os.path.join(folder, self.name)

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self.path, follow_symlinks=follow_symlinks)

    def inode(self) -> int:
        return self.stat(follow_symlinks=False).st_ino

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return os.path.isdir(self.path) and (follow_symlinks or not self.is_symlink())

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return os.path.isfile(self.path) and (follow_symlinks or not self.is_symlink())

    def is_symlink(self) -> bool:
        return os.path.islink(self.path)

    def is_junction(self) -> bool:
        return False


class _Entries(Iterator, contextlib.AbstractContextManager):
    """The iterator and context manager that `os.scandir` returns."""

    def __init__(self, entries: Iterable[_Entry | os.DirEntry]):
        self._entries = iter(entries)

    def __next__(self) -> _Entry | os.DirEntry:
        return next(self._entries)

    def __exit__(self, *error: Any) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())


def _scan_disk(original: Any, path: Any) -> _Entries:
    with original(path) as entries:
        return _Entries(list(entries))


def _make_entries(path: Any, names: list[str]) -> _Entries:
    return _Entries([_Entry(path if isinstance(path, bytes) else os.fspath(path), name) for name in names])


HOOKS.replace("os", "scandir", _IF_HOOK_MISSING)(_wrap_listing(_scan_disk, _make_entries))
HOOKS.replace("os", "listdir", _IF_HOOK_MISSING)(
    _wrap_listing(
        lambda original, path: original(path),
        lambda path, names: list(map(os.fsencode, names)) if isinstance(path, bytes) else names,
    )
)


@HOOKS.replace("os", "chdir", _IF_HOOK_MISSING)
def _wrap_chdir(original: Any) -> Any:
    def chdir(path):
        key = find_key(path)
        if key is None:
            return original(path)
        with real_files.use_real_files():
            view = overlay.get_own_view()
            # The folder on disk, if any, for code outside Python.
            return original(view.locate_upper(key) if view.is_own(key) and not os.path.isdir(key) else key)

    return chdir


@HOOKS.replace("os", "getcwd", _IF_HOOK_MISSING)
def _wrap_getcwd(original: Any) -> Any:
    def getcwd():
        folder, root = original(), overlay.get_own_view().root
        inside = not real_files.uses_real_files() and (folder == root or folder.startswith(root + os.sep))
        return (folder[len(root) :] or os.sep) if inside else folder

    return getcwd


# Changes


def _replace_change(names: str, act: Callable[..., Any], module: str = "os", follow: bool = True) -> None:
    """Replace functions of one path by `act(view, original, key, path, ...)`.

    follow: whether they change the target of a link, and not the link.
    """

    def make(original: Any) -> Any:
        def change(path, *args, **kwargs):
            key = find_key(path, kwargs, follow)
            if key is None:
                return original(path, *args, **kwargs)
            with real_files.use_real_files():
                return act(overlay.get_own_view(), original, key, path, *args, **kwargs)

        return change

    HOOKS.replace(module, names, _IF_HOOK_MISSING)(make)


def _change(view, original, key, path, *args, **kwargs):
    """Change a copy of the file in the upper layer. If there is no file, `original` raises the error."""
    return original(view.prepare_write(key, keep=True) if view.exists(key) else view.locate_real(key), *args, **kwargs)


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


_replace_change("truncate utime chmod chown setxattr removexattr", _change)
_replace_change("mkdir", lambda view, _, key, path, mode=0o777, dir_fd=None: view.make_folder(key, mode))
_replace_change("remove unlink", lambda view, _, key, path, dir_fd=None: view.remove_file(key), follow=False)
_replace_change("rmdir", lambda view, _, key, path, dir_fd=None: view.remove_file(key, folder=True), follow=False)
_replace_change("rmtree", _remove_tree, module="shutil", follow=False)


@HOOKS.replace("os", "rename replace", _IF_HOOK_MISSING)
def _wrap_rename(original: Any) -> Any:
    def rename(src, dst, **kwargs):
        if find_key(src, kwargs, follow=False) is None and find_key(dst, kwargs, follow=False) is None:
            return original(src, dst, **kwargs)
        with real_files.use_real_files():
            return overlay.get_own_view().move_file(src, dst)

    return rename


@HOOKS.replace("os", "link", _IF_HOOK_MISSING)
def _wrap_link(original: Any) -> Any:
    def link(src, dst, **kwargs):
        source, target = find_key(src, kwargs), find_key(dst, kwargs, follow=False)
        if target is None and source is None:
            return original(src, dst, **kwargs)
        with real_files.use_real_files():
            view = overlay.get_own_view()
            place = src if source is None else view.copy_up(source)
            shutil.copy2(place, dst if target is None else view.prepare_write(target, keep=False, exclusive=True))
            view.known.forget()

    return link


@HOOKS.replace("os", "symlink", _IF_HOOK_MISSING)
def _wrap_symlink(original: Any) -> Any:
    def symlink(src, dst, target_is_directory=False, *, dir_fd=None):
        key = find_key(dst, {"dir_fd": dir_fd}, follow=False)
        if key is None:
            return original(src, dst, target_is_directory, dir_fd=dir_fd)
        with real_files.use_real_files():
            return overlay.get_own_view().make_link(os.fsdecode(src), key)

    return symlink
