"""A cache of the real locations of files, by folder, so that a query such as `os.stat` takes little longer than a query
of the disk alone.

A file that a script reads may be in one of two layers (`layers`): the disk, or the upper layer, this rank's private
folder. `functions` asks the cache first, and searches both layers only if the cache has no answer. For each folder that
the script has asked about, the cache holds the names whose files may be elsewhere than at their own path on the disk:
for most folders none. It is updated or cleared when this rank changes files, and cleared when rank 0 notes a change of
its own (`journal`). The key of a file is its canonical absolute path.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from matex_tf.runtime import real_files

_MAX_FOLDERS = 4096
_SHARED = "changed"  # the file of the shared memory
# Last parts of a path that name no entry of the folder, as in `a/..`. Such a path is searched in both layers. All
# cached folders have these names; a folder without further names equals the disk (`is_untouched`).
_NO_NAMES: dict[str, str | None] = dict.fromkeys(("", os.curdir, os.pardir))

IS_OWN = os.sep
"""A marker among the names of a folder that also exists in the upper layer. No file can have this name."""
Places = dict[str, str | None]
"""The real locations of a folder's entries, by name; None: both layers must be searched. A name that is missing here is
on the disk, at its own path, or nowhere (but see `OwnPlaces`). None in place of `Places`: the folder is not cached.
"""


class OwnPlaces(dict[str, str | None]):
    """The locations in a folder that this rank has removed, or that is no folder, as it or a parent is a file of this
    rank. The files on the disk must not be used.

    `KnownPlaces.find_place` calls `get(name, path)`, where `path` is the location on the disk. For an unknown name, a
    plain dict returns `path`. This class returns None: both layers are searched, and the search finds no file.
    """

    def get(self, name: str, _path: Any = None, /) -> Any:
        return super().get(name)


class KnownPlaces:
    """The cache. `key_of` returns the key of a path, `places_in` the locations in the folder of a key.
    `is_elsewhere(path, key)` is whether the path of a folder may lead to another folder on the disk than `key`, through
    links of this rank. Such a folder is not cached.

    A child process of the rank does not use the cache, because it does not learn of later changes by its parent. When
    it changes a file, it stores the time in shared memory, and its parent then clears the cache.

    _by_path, _by_key: the known locations, by the folder's path as the script writes it, and by its key.
    _version: the number of changes of the cache.
    _child_time: in shared memory, the time of the last change by a child process, in ns of `time.monotonic_ns`.
    _seen_time: the `_child_time` at which the cache was last cleared for a child process.
    """

    def __init__(
        self,
        folder: str,
        key_of: Callable[[str], str | None],
        places_in: Callable[[str], Places | None],
        is_elsewhere: Callable[[str, str], bool],
    ):
        """folder: the private folder, in which the file of the shared memory is created."""
        self._key_of = key_of
        self._places_in = places_in
        self._is_elsewhere = is_elsewhere
        self._by_path: dict[str, Places] = {}
        self._by_key: dict[str, Places] = {}
        self._version = 0
        self._is_in_child = False
        with real_files.use_real_files(), open(os.path.join(folder, _SHARED), "a+b") as file:
            file.truncate(8)
            self._child_time = memoryview(mmap.mmap(file.fileno(), 8)).cast("Q")
        self._seen_time = 0
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self.note_child)

    def note_child(self) -> None:
        """Record that this process is a child process of the rank."""
        self._lock = threading.Lock()  # another thread of the parent may have held the old lock during the fork
        self._is_in_child = True

    def has_child_changed(self) -> bool:
        """Whether a child process of the rank has created or removed a file so far."""
        return bool(self._child_time[0])

    def forget_places(self) -> None:
        """Clear the cache: files were created or removed, or are about to be."""
        with self._lock:
            self._version += 1
            self._by_path, self._by_key = {}, {}
        if self._is_in_child:
            self._child_time[0] = time.monotonic_ns()

    def update_place(self, key: str, place: str | None = None) -> None:
        """Record that only `key` was created or removed. `place`: where the file now is; None: search both layers."""
        with self._lock:
            self._version += 1
            places = self._by_key.get(os.path.dirname(key))
            if places is not None:
                places[os.path.basename(key)] = place
            # If `key` is a folder, the upper layer now has it, too: `is_untouched` becomes False. After the removal of
            # a folder, the whole cache is cleared instead.
            inside = self._by_key.get(key)
            if inside is not None:
                inside[IS_OWN] = None
        if self._is_in_child:
            self._child_time[0] = time.monotonic_ns()

    def find_place(self, path: str) -> str | None:
        """The real location of `path`, possibly `path` itself; None if both layers must be searched."""
        head, sep, name = path.rpartition(os.sep)
        places = self._get_places(head or sep)  # "/" for "/name", "" (the working folder) for "name"
        return None if places is None else places.get(name, path)

    def is_untouched(self, folder: str) -> bool:
        """Whether the view of `folder` is known to equal the disk."""
        # No `OwnPlaces`, and no names but `_NO_NAMES`, which each cached folder has.
        places = self._get_places(folder)
        return type(places) is dict and len(places) == len(_NO_NAMES)

    def _get_places(self, head: str) -> Places | None:
        """The places in the folder `head`, cached or new; None if both layers must be searched."""
        if self._is_in_child:
            return None
        if self._child_time[0] != self._seen_time:
            self._seen_time = self._child_time[0]
            self.forget_places()
        return self._by_path.get(head) or self._read_places(head)

    def _read_places(self, head: str) -> Places | None:
        """Find and store the places in the folder `head`; None if they are not cached, or files changed meanwhile."""
        version = self._version
        with real_files.use_real_files():
            key = self._key_of(head or os.curdir)
            if key is not None and self._is_elsewhere(head or os.curdir, key):
                return None
            # Without a key, the view does not handle the folder: all its files are on the disk. With a key, the folder
            # may be cached already, under another path. Otherwise its places are listed.
            places: Places | None = {} if key is None else self._by_key.get(key)
            if key is not None and places is None:
                places = self._places_in(key)
        if places is None:
            return None
        places.update(_NO_NAMES)  # so no cached dict is empty, and `is_untouched` compares lengths
        with self._lock:
            if self._version != version:
                return None
            if len(self._by_path) >= _MAX_FOLDERS:
                self._by_path.clear()
                self._by_key.clear()
            self._by_path[head] = places
            if key is not None:
                self._by_key[key] = places
        return places
