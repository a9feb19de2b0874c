"""Replacements of Python's file functions on ranks other than 0: they act on this rank's view of the files.

Such a rank writes to a private folder. Its view has two layers (`layers`): the files of this folder hide the files of
the disk. The view names a file by its key, a canonical absolute path, and finds the real path in one of the layers.
Rank 0 changes the disk itself and may be ahead in the script. So before each change it writes a note (`journal`), by
which another rank finds the old content until it reaches the change.

To ask both layers at each call would be slow. So functions that read have a fast way: they look into a cache of
locations (`known_places`), and use its answer if no note of rank 0 holds for this rank. Otherwise they ask the view,
and ask again if rank 0 writes notes in the meantime. `python` installs the replacements.
"""

from __future__ import annotations

import contextlib
import errno
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

_open_plainly, _lstat = os.open, os.lstat  # the original functions


class Proxy:
    """Has the attributes of `original`, except for attributes that a subclass defines."""

    def __init__(self, original: Any):
        self._original = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def find_key(path: Any, kwargs: dict | None = None, follow: bool = True, reads_only: bool = False) -> str | None:
    """The key of `path` if the view handles it; None: the caller calls the original function with `path` itself.

    kwargs: arguments of the function. A path relative to the descriptor of a folder is not handled. follow: replace a
    final link by its target. reads_only: the result is also None if the view equals the disk.
    """
    if real_files.uses_real_files() or isinstance(path, int) or path is None:
        return None
    if kwargs and any(kwargs.get(name) is not None for name in ("dir_fd", "src_dir_fd", "dst_dir_fd")):
        return None
    with real_files.use_real_files():
        view = overlay.get_own_view()
        if reads_only and view.is_untouched():
            return None
        try:
            return view.find_key(path, follow)
        except (TypeError, ValueError):
            return None  # the original function reports the error


def find_real_path(path: Any, mode: str | None, creates_more_files: bool = False) -> Any:
    """The real path of `path`, for a library that opens files itself: to read (mode None) or to write.

    Mode "w" replaces the file, "x" and "w-" create a new one, other modes keep the content. creates_more_files: the
    library also creates other files in the folder of the file.
    """
    key = find_key(path) if overlay.get_view() is not None else None
    if key is None:  # the view does not handle it
        return path
    with real_files.use_real_files():
        view = overlay.get_own_view()
        if mode is None:
            return view.ask_until_steady(lambda: view.locate_readable(key))
        if mode == "r+" and not view.exists(key):
            return view.locate_real(key)  # no file is there, so that the library reports the error
        place = view.prepare_write(key, keep=mode != "w", exclusive=mode in ("x", "w-"))
        # The library creates further files later, at a time that the view does not learn.
        view.stop_caching(os.path.dirname(key) if creates_more_files else key)
        return place


def wrap_argument(name: str, convert: Callable[[Any], Any]) -> Any:
    """For Python functions with an argument `name`: replaces it by `convert(argument)`."""

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
    """`ask()`, again if rank 0 wrote notes meanwhile (`Layers.ask_until_steady`); once if the thread uses real files.

    drop: closes an outdated answer.
    """
    return ask() if real_files.uses_real_files() else overlay.get_own_view().ask_until_steady(ask, drop)


def _find_text(path: Any) -> str | None:
    """`path` as text for a look into the cache; None for bytes, descriptors, and code that uses the real files."""
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    return text if type(text) is str and not real_files.uses_real_files() else None


def _is_cache_valid() -> bool:
    """Whether no note of rank 0 holds for this rank, so that a cached location is still valid."""
    return overlay.get_own_view().notes.is_quiet()


# Opening


def wrap_open(original: Any) -> Any:
    """For `open`: its `opener` is a function that calls the replaced `os.open`."""

    def open(file, mode="r", buffering=-1, encoding=None, errors=None, newline=None, closefd=True, opener=None):
        if opener is None and not isinstance(file, int) and not real_files.uses_real_files():
            opener = open_for_all
        return original(file, mode, buffering, encoding, errors, newline, closefd, opener)

    return open


def open_for_all(path: Any, flags: int) -> int:
    """The `opener` for Python's `open`: opens as `open` does without one, but through the replaced `os.open`."""
    return os.open(path, flags, 0o666)


def wrap_os_open(original: Any) -> Any:
    def open(path, flags, mode=0o777, *, dir_fd=None):
        writes = bool(flags & journal.WRITING)

        def open_by_view():
            key = find_key(path, {"dir_fd": dir_fd}, reads_only=not writes)
            if key is None:
                return original(path, flags, mode, dir_fd=dir_fd)
            return _open_descriptor(key, path, flags, mode)

        # The fast way: open the cached location, unless this is a write to a file that the rank has not written yet.
        text = _find_text(path) if dir_fd is None else None
        place = None if text is None else overlay.get_own_view().known.find_place(text)
        is_on_disk = place == text  # the cached location is the path itself
        must_search = writes and (flags & os.O_EXCL or is_on_disk)
        if place is not None and not must_search:
            try:
                # Without O_CREAT: a changed file that is not in the upper layer is searched in both.
                descriptor = _open_plainly(place, flags & ~os.O_CREAT | os.O_NOFOLLOW, mode)
            except OSError as error:
                is_link = error.errno == errno.ELOOP  # the target of the link may be in the other layer
                if is_on_disk and not is_link and _is_cache_valid():
                    raise  # the error of the disk is the right one
            else:
                # Rank 0 may have changed the file while it was opened. Then it is opened again below, unless it is a
                # pipe or the like, which is not closed.
                if _is_cache_valid() or not _close_file(descriptor):
                    return descriptor
        return open_by_view() if writes else _ask_steadily(open_by_view, _close_file)

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
    with real_files.use_real_files():
        view = overlay.get_own_view()
        try:
            if not flags & journal.WRITING or flags & os.O_DIRECTORY:
                return os.open(view.locate_readable(key), flags, mode)
            if not flags & os.O_CREAT and not view.exists(key):
                raise make_error(errno.ENOENT, path)
            place = view.prepare_write(key, keep=not flags & os.O_TRUNC, exclusive=bool(flags & os.O_EXCL))
            return os.open(place, flags, mode)
        except OSError as error:
            raise type(error)(error.errno, error.strerror, path) from None


# Queries


def wrap_query(original: Any, of_link: bool = False) -> Any:
    """For functions that return information about one path. of_link: about a link itself, not about its target."""
    is_state = original in (os.stat, _lstat)

    def ask(path, *args, **kwargs):
        follow = not of_link and kwargs.get("follow_symlinks", True)

        def answer():
            key = find_key(path, kwargs, follow=follow, reads_only=True)
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


def _read_known_state(path: Any, of_link: bool) -> os.stat_result | None:
    """The state of `path` from the cache; None if both layers must be searched. Raises OSError if it is missing."""
    text = _find_text(path)
    place = None if text is None else overlay.get_own_view().known.find_place(text)
    if place is None:
        return None
    try:
        state = _lstat(place)
    except OSError:
        is_on_disk = place is text
        if is_on_disk and _is_cache_valid():
            raise
        return None
    must_follow = stat.S_ISLNK(state.st_mode) and not of_link
    return None if must_follow or not _is_cache_valid() else state


# Folders


def _wrap_listing(list_disk: Callable[[Any, Any], Any], make: Callable[[Any, list[str]], Any]) -> Any:
    """Wrap a function that lists a folder.

    list_disk: `list_disk(original, path)` lists the disk, at once, so that the answer can be checked afterwards.
    make: `make(path, names)` returns a result of the same type.
    """

    def wrap(original: Any) -> Any:
        def listing(path="."):
            path = "." if path is None else path
            text = _find_text(path)
            # The fast way: this rank's view of the folder is known to equal the disk.
            if text is not None and overlay.get_own_view().known.is_untouched(text):
                try:
                    entries = list_disk(original, path)
                except OSError:
                    if _is_cache_valid():
                        raise
                else:
                    if _is_cache_valid():
                        return entries

            def list_both():
                key = find_key(path, reads_only=True)
                if key is None:
                    needs_no_check = real_files.uses_real_files() or isinstance(path, int)
                    return original(path) if needs_no_check else list_disk(original, path)
                with real_files.use_real_files():
                    names = overlay.get_own_view().list_names(key)
                return make(path, names)

            return _ask_steadily(list_both)

        return listing

    return wrap


class _Entry:
    """An entry of `os.scandir` for a folder with two layers."""

    def __init__(self, folder: Any, name: str):
        self.name = os.fsencode(name) if isinstance(folder, bytes) else name
        self.path = os.path.join(folder, self.name)
        self._states: dict[bool, os.stat_result] = {}  # by `follow_symlinks`, once asked

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        if follow_symlinks not in self._states:
            # Without options these functions have a fast way.
            self._states[follow_symlinks] = os.stat(self.path) if follow_symlinks else os.lstat(self.path)
        return self._states[follow_symlinks]

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


class _DiskEntry(_Entry):
    """An entry of a folder on the disk: its kind is known, and queries find what rank 0 has changed since."""

    def __init__(self, entry: os.DirEntry):
        self.name, self.path, self.is_symlink = entry.name, entry.path, entry.is_symlink  # type: ignore[method-assign]
        self._entry, self._states = entry, {}

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        if follow_symlinks and self.is_symlink():
            return super().is_dir()
        return self._entry.is_dir(follow_symlinks=False)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        if follow_symlinks and self.is_symlink():
            return super().is_file()
        return self._entry.is_file(follow_symlinks=False)


class _Entries(Iterator, contextlib.AbstractContextManager):
    """The iterator and context manager that `os.scandir` returns."""

    def __init__(self, entries: Iterable[_Entry]):
        self._entries = iter(entries)

    def __next__(self) -> _Entry:
        return next(self._entries)

    def __exit__(self, *error: Any) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())


def _scan_disk(original: Any, path: Any) -> _Entries:
    with original(path) as entries:
        return _Entries(list(map(_DiskEntry, entries)))


wrap_listdir = _wrap_listing(
    lambda original, path: original(path),
    lambda path, names: list(map(os.fsencode, names)) if isinstance(path, bytes) else names,
)
wrap_scandir = _wrap_listing(
    _scan_disk,
    lambda path, names: _Entries(
        [_Entry(path if isinstance(path, bytes) else os.fspath(path), name) for name in names]
    ),
)


def wrap_chdir(original: Any) -> Any:
    def chdir(path):
        view = overlay.get_own_view()
        try:
            key = find_key(path)
            return original(path) if key is None else _ask_steadily(lambda: _change_folder(original, view, key, path))
        finally:
            view.known.forget()  # relative paths change

    return chdir


def _change_folder(original: Any, view: Any, key: str, path: Any) -> None:
    """`os.chdir` to the folder `key` in this rank's view; errors name `path`."""
    with real_files.use_real_files():
        # On the disk if possible, also for code outside Python.
        place = key if view.is_folder_of_disk(key) else view.locate_readable(key)
        try:
            if place != key and os.path.isdir(place):
                view.stop_caching(key)  # a process that is started there may create files
                place = view.ensure_folder(key)
            return original(place)
        except OSError as error:
            raise type(error)(error.errno, error.strerror, path) from None


def wrap_fchdir(original: Any) -> Any:
    def fchdir(fd):
        try:
            return original(fd)
        finally:
            overlay.get_own_view().known.forget()

    return fchdir


def wrap_getcwd(original: Any) -> Any:
    """For `os.getcwd`: a working folder in the private folder (`root`) is called by its path in the view."""

    def getcwd():
        folder, root = original(), overlay.get_own_view().root
        inside = not real_files.uses_real_files() and (folder == root or folder.startswith(root + os.sep))
        return (folder[len(root) :] or os.sep) if inside else folder

    return getcwd


# Changes


def _wrap_change(act: Callable[..., Any], follow: bool = True) -> Any:
    """For a function that changes a path, or with `follow` the target of a link: `act` is called in its place."""

    def make(original: Any) -> Any:
        def change(path, *args, **kwargs):
            key = find_key(path, kwargs, follow and kwargs.get("follow_symlinks", True))
            if key is None:
                return original(path, *args, **kwargs)
            with real_files.use_real_files():
                return act(overlay.get_own_view(), original, key, path, *args, **kwargs)

        return change

    return make


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


wrap_change = _wrap_change(_change_copy)
wrap_mkdir = _wrap_change(lambda view, _, key, path, mode=0o777, dir_fd=None: view.make_folder(key, mode), follow=False)
wrap_remove = _wrap_change(lambda view, _, key, path, dir_fd=None: view.remove_file(key), follow=False)
wrap_rmdir = _wrap_change(lambda view, _, key, path, dir_fd=None: view.remove_file(key, folder=True), follow=False)
wrap_rmtree = _wrap_change(_remove_tree, follow=False)


def wrap_rename(original: Any) -> Any:
    def rename(src, dst, **kwargs):
        if find_key(src, kwargs, follow=False) is None and find_key(dst, kwargs, follow=False) is None:
            return original(src, dst, **kwargs)
        with real_files.use_real_files():
            return overlay.get_own_view().move_file(src, dst)

    return rename


def wrap_link(original: Any) -> Any:
    """For `os.link`: the view makes a copy in place of a hard link."""

    def link(src, dst, **kwargs):
        source, target = find_key(src, kwargs), find_key(dst, kwargs, follow=False)
        if target is None and source is None:
            return original(src, dst, **kwargs)
        with real_files.use_real_files():
            view = overlay.get_own_view()
            place = src if source is None else view.copy_up(source)
            if os.path.lexists(dst) if target is None else view.exists(target):
                raise make_error(errno.EEXIST, dst)
            shutil.copy2(place, dst if target is None else view.prepare_write(target, keep=False, exclusive=True))

    return link


def wrap_symlink(original: Any) -> Any:
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
