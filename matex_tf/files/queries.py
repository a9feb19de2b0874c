"""Replacements of Python's functions that ask about files, on ranks other than 0: they answer by this rank's view.

To search both layers at each call would be slow. So functions that read have a fast way: they look into a cache
(`known_places`), and use its answer if no note of rank 0 holds for this rank. Otherwise they ask the view, and ask
again if rank 0 writes notes in the meantime.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from matex_tf.files import overlay
from matex_tf.files.paths import find_key, use_view
from matex_tf.runtime import real_files
from matex_tf.runtime.hooks import Table

HOOKS = Table()
"""Installed if this rank has a view of its own (`python`)."""
IF_HOOK_MISSING = "a rank does not see the files that it wrote itself"
_lstat = os.lstat  # the original function


def ask_steadily(ask: Any, drop: Any = None) -> Any:
    """`ask()`, again if rank 0 wrote notes meanwhile (`Layers.ask_until_steady`); once if the thread uses real files.

    drop: closes an outdated answer.
    """
    return ask() if real_files.uses_real_files() else overlay.get_own_view().ask_until_steady(ask, drop)


def find_known_place(path: Any) -> str | None:
    """The location of `path` by the cache; None if both layers must be searched."""
    text = _find_text(path)
    return None if text is None else overlay.get_own_view().known.find_place(text)


def _find_text(path: Any) -> str | None:
    """`path` as text for a look into the cache; None for bytes, descriptors, and code that uses the real files."""
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    return text if type(text) is str and not real_files.uses_real_files() else None


def ask_known(path: Any, place: str | None, ask: Callable[[str], Any], drop: Any = None) -> Any:
    """The fast way: `ask(place)`; None if both layers must be searched.

    Raises the error of the disk, if `place` is there.

    Args:
        place: the location of `path` by the cache; None: unknown.
        drop: see `ask_steadily`.
    """
    if place is None:
        return None
    is_valid = overlay.get_own_view().notes.is_quiet  # whether no note of rank 0 holds, so that the cache does
    try:
        answer = ask(place)
    except OSError as error:
        is_link = error.errno == errno.ELOOP  # the target of the link may be in the other layer
        if place == os.fspath(path) and not is_link and is_valid():
            raise
        return None
    if is_valid():
        return answer
    is_kept = drop is not None and not drop(answer)
    return answer if is_kept else None


# Queries


def _wrap_query(original: Any, of_link: bool = False) -> Any:
    """For functions that return information about one path. of_link: about a link itself, not about its target."""
    is_state = original in (os.stat, _lstat)

    def query(path, *args, **kwargs):
        follow = not of_link and kwargs.get("follow_symlinks", True)

        def ask_view():
            try:
                key = find_key(path, kwargs, follow=follow, reads_only=True)
            except OSError:  # a loop of links
                if original.__name__ == "access":
                    return False
                raise
            if key is None:
                return original(path, *args, **kwargs)
            with use_view(path) as view:
                return original(view.locate_real(key), *args, **kwargs)

        if is_state and not kwargs and not args:
            state = ask_known(path, find_known_place(path), _lstat)
            if state is not None and (of_link or not stat.S_ISLNK(state.st_mode)):
                return state
        return ask_steadily(ask_view)

    return query


HOOKS.replace("os", "stat access statvfs getxattr listxattr", IF_HOOK_MISSING)(_wrap_query)
HOOKS.replace("os", "lstat readlink", IF_HOOK_MISSING)(functools.partial(_wrap_query, of_link=True))


# Folders


def _wrap_listing(list_disk: Callable[[Any, Any], Any], make_result: Callable[[Any, list[Any]], Any]) -> Any:
    """Wrap a function that lists a folder.

    list_disk: `list_disk(original, path)` lists the disk, at once, so that the answer can be checked afterwards.
    make_result: `make_result(path, names)` returns a result of the same type.
    """

    def wrap(original: Any) -> Any:
        def listing(path="."):
            path = "." if path is None else path

            def list_both():
                key = find_key(path, reads_only=True)
                if key is None:
                    needs_no_check = real_files.uses_real_files() or isinstance(path, int)
                    return original(path) if needs_no_check else list_disk(original, path)
                with real_files.use_real_files():
                    names = overlay.get_own_view().list_names(key)
                return make_result(path, list(map(os.fsencode, names)) if isinstance(path, bytes) else names)

            text = _find_text(path)
            is_untouched = text is not None and overlay.get_own_view().known.is_untouched(text)
            entries = ask_known(path, text if is_untouched else None, lambda _: list_disk(original, path))
            return ask_steadily(list_both) if entries is None else entries

        return listing

    return wrap


class _Entry:
    """An entry of `os.scandir`. Queries find what rank 0 has changed since.

    entry: of the disk, if the folder has one layer. Then the kind of the entry is known.
    """

    def __init__(self, folder: Any, name: Any, entry: os.DirEntry | None = None):
        self.name, self.path = name, os.path.join(folder, name)
        self._entry = entry
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
        return self._is_kind("is_dir", os.path.isdir, follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return self._is_kind("is_file", os.path.isfile, follow_symlinks)

    def _is_kind(self, method: str, ask: Callable[[Any], bool], follow: bool) -> bool:
        is_link = self.is_symlink()
        if self._entry is None or (is_link and follow):
            return ask(self.path) and (follow or not is_link)
        return bool(getattr(self._entry, method)(follow_symlinks=False))

    def is_symlink(self) -> bool:
        return os.path.islink(self.path) if self._entry is None else self._entry.is_symlink()

    def is_junction(self) -> bool:
        return False


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
        return _Entries([_Entry(os.fspath(path), entry.name, entry) for entry in entries])


HOOKS.replace("os", "scandir", IF_HOOK_MISSING)(
    _wrap_listing(_scan_disk, lambda path, names: _Entries([_Entry(os.fspath(path), name) for name in names]))
)
HOOKS.replace("os", "listdir", IF_HOOK_MISSING)(
    _wrap_listing(lambda original, path: original(path), lambda path, names: names)
)


@HOOKS.replace("os", "chdir", IF_HOOK_MISSING)
def _wrap_chdir(original: Any) -> Any:
    def chdir(path):
        try:
            key = find_key(path)
            return original(path) if key is None else ask_steadily(lambda: _change_folder(original, key, path))
        finally:
            overlay.get_own_view().known.forget()  # relative paths change

    return chdir


def _change_folder(original: Any, key: str, path: Any) -> None:
    """`os.chdir` to the folder `key` in this rank's view; errors name `path`."""
    with use_view(path) as view:
        # On the disk if possible, also for code outside Python.
        place = key if view.is_folder_of_disk(key) else view.locate_readable(key)
        if place != key and os.path.isdir(place):
            view.stop_caching(key)  # a process that is started there may create files
            place = view.ensure_folder(key)
        return original(place)


@HOOKS.replace("os", "fchdir", IF_HOOK_MISSING)
def _wrap_fchdir(original: Any) -> Any:
    def fchdir(fd):
        try:
            return original(fd)
        finally:
            overlay.get_own_view().known.forget()

    return fchdir


@HOOKS.replace("os", "getcwd", IF_HOOK_MISSING)
def _wrap_getcwd(original: Any) -> Any:
    """For `os.getcwd`: a working folder in the private folder (`root`) is called by its path in the view."""

    def getcwd():
        return original() if real_files.uses_real_files() else overlay.get_own_view().strip_root(original())

    return getcwd
