"""A cache of the names that this rank has changed, by folder, so that a query such as `os.stat` takes little longer
than a query of the disk alone.

A name that this rank has not changed is on the disk, or nowhere; a changed name is in the upper layer, or else both
layers are searched. The cache is cleared when this rank changes a file, and when rank 0 notes a change of its own.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Collection
from typing import NamedTuple

from matex_tf.runtime import real_files

_MAX_FOLDERS = 4096
_SHARED = "changed"  # the file of the shared memory
_NO_NAMES = ("", os.curdir, os.pardir)  # last parts of a path that name no entry of the folder, as in `a/..`


class Folder(NamedTuple):
    """A folder as this rank sees it.

    changed: the names that this rank may have created, changed or removed there; None: any name.
    upper: the path of the folder in the upper layer.
    """

    changed: Collection[str] | None
    upper: str


class KnownPlaces:
    """The cache. `read_folder(path)` describes the folder `path`; None: the folder is not cached.

    A child process of the rank does not use the cache, because it does not learn of later changes by its parent. When
    it changes a file, it stores the time in shared memory, and its parent then clears the cache.

    _folders: by the path as the script writes it.
    _child_time: in shared memory, the time of the last change by a child process, in ns of `time.monotonic_ns`.
    _seen_time: the `_child_time` at which the cache was last cleared for a child process.
    """

    def __init__(self, folder: str, read_folder: Callable[[str], Folder | None]):
        """folder: the private folder, in which the file of the shared memory is created."""
        self._read_folder = read_folder
        self._folders: dict[str, Folder] = {}
        self._is_in_child = False
        with real_files.use_real_files(), open(os.path.join(folder, _SHARED), "a+b") as file:
            file.truncate(8)
            self._child_time = memoryview(mmap.mmap(file.fileno(), 8)).cast("Q")
        self._seen_time = 0
        os.register_at_fork(after_in_child=self.note_child)

    def note_child(self) -> None:
        """Record that this process is a child process of the rank."""
        self._is_in_child = True

    def has_child_changed(self) -> bool:
        """Whether a child process of the rank has created or removed a file so far."""
        return bool(self._child_time[0])

    def forget(self) -> None:
        """Clear the cache, after a change."""
        self._folders = {}
        if self._is_in_child:
            self._child_time[0] = time.monotonic_ns()

    def find_place(self, path: str) -> str | None:
        """The real location of `path`, possibly `path` itself; None if both layers must be searched.

        If there is no file at a location other than `path`, both layers must be searched, too.
        """
        head, separator, name = path.rpartition(os.sep)
        folder = self._get_folder(head or separator)  # "/" for "/name", "" (the working folder) for "name"
        if folder is None or name in _NO_NAMES:
            return None
        is_changed = folder.changed is None or name in folder.changed
        return f"{folder.upper}/{name}" if is_changed else path

    def is_untouched(self, path: str) -> bool:
        """Whether the view of the folder `path` is known to equal the disk."""
        folder = self._get_folder(path)
        return folder is not None and folder.changed is not None and not folder.changed

    def _get_folder(self, path: str) -> Folder | None:
        if self._is_in_child:
            return None
        child_time = self._child_time[0]
        if child_time != self._seen_time:
            self.forget()  # first, so that no other thread uses the former answers
            self._seen_time = child_time
        folders = self._folders  # if another thread clears the cache meanwhile, the answer goes to this former dict
        folder = folders.get(path)
        if folder is None:
            folder = self._read_folder(path or os.curdir)
            if folder is not None:
                if len(folders) >= _MAX_FOLDERS:
                    folders.clear()
                folders[path] = folder
        return folder
