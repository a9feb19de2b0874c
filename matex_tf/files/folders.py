"""What a folder holds, and the folder in which a script is, as the files of this rank have it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from matex_tf.files import overlay, queries
from matex_tf.runtime import real_files


def wrap_listdir(original: Any) -> Any:
    def listdir(path="."):
        def listed():
            key = queries.find_key(path, question=True)
            if key is None:
                return original(path)
            with real_files.use_real_files():
                found = overlay.get_own_view().list_names(key)
            return [os.fsencode(name) for name in found] if isinstance(path, bytes) else found

        is_of_disk, found = queries.ask_disk(path, lambda: original(path))
        return found if is_of_disk else queries.ask_steadily(listed)

    return listdir


class _Entry:
    """What `os.scandir` yields for one name of a folder of two layers."""

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


class _Entries:
    """The iterator and context that `os.scandir` returns."""

    def __init__(self, entries: Sequence[_Entry | os.DirEntry]):
        self._entries = iter(entries)

    def __iter__(self) -> _Entries:
        return self

    def __next__(self) -> _Entry | os.DirEntry:
        return next(self._entries)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())


def wrap_scandir(original: Any) -> Any:
    def scandir(path="."):
        path = "." if path is None else path

        def entries_of_disk():
            with original(path) as found:
                return _Entries(list(found))

        def entries():
            key = queries.find_key(path, question=True)
            if key is None:
                return original(path) if real_files.uses_real_files() or isinstance(path, int) else entries_of_disk()
            with real_files.use_real_files():
                found = overlay.get_own_view().list_names(key)
            return _Entries([_Entry(path if isinstance(path, bytes) else os.fspath(path), name) for name in found])

        is_of_disk, found = queries.ask_disk(path, entries_of_disk)
        return found if is_of_disk else queries.ask_steadily(entries)

    return scandir


def wrap_chdir(original: Any) -> Any:
    def chdir(path):
        try:
            key = queries.find_key(path)
            if key is None:
                return original(path)
            with real_files.use_real_files():
                view = overlay.get_own_view()
                if not view.is_own(key) or os.path.isdir(key):
                    return original(key)  # the folder on disk, where there is one, for what is not Python
                view.stop_caching(key)  # for processes that are started there
                return original(view.locate_upper(key))
        finally:
            overlay.get_own_view().known.forget_places()  # what relative paths are

    return chdir


def wrap_fchdir(original: Any) -> Any:
    def fchdir(fd):
        try:
            return original(fd)
        finally:
            overlay.get_own_view().known.forget_places()

    return fchdir


def wrap_getcwd(original: Any) -> Any:
    def getcwd():
        folder, root = original(), overlay.get_own_view().root
        inside = not real_files.uses_real_files() and (folder == root or folder.startswith(root + os.sep))
        return (folder[len(root) :] or os.sep) if inside else folder

    return getcwd
