"""A cache of the places of files, by folder, so that a function on a file costs at most twice as much as a plain one.

For each folder that the script has asked about, the cache has the entries that are not on the disk at their own paths:
of most folders none. It is cleared when a process of the rank changes the private folder, and when rank 0 writes notes.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable

_MAX_FOLDERS = 4096
_SHARED = "changed"  # the file of the shared memory
IS_OWN = os.sep
"""A marker among the names of a folder that also exists in the private folder."""
Places = dict[str, str | None]
"""By name: the place of a file in the private folder. An entry with None must be searched."""
_NO_NAMES: Places = dict.fromkeys(("", os.curdir, os.pardir))  # the ends of paths that must be searched
_getcwd = os.getcwd  # the original function


class KnownPlaces:
    """The cache.

    _read: returns the places in a folder; None if the folder must be searched each time.
    _folders: the known places, by the absolute paths of folders that the script uses.
    _changed: the time of the last change, ns of `time.monotonic_ns`, in memory that the processes of the rank share.
    _since: the last such time seen.
    """

    def __init__(self, folder: str, own: str, read: Callable[[str], Places | None]):
        """folder: the private folder, with a file for the shared memory. own: the folder of the rank's own files."""
        self._own, self._read = own, read
        self._folders: dict[str, Places] = {}
        with open(os.path.join(folder, _SHARED), "a+b") as file:
            file.truncate(8)
            self._changed = memoryview(mmap.mmap(file.fileno(), 8)).cast("Q")
        self._since = 0

    def forget(self) -> None:
        """Clear the cache in all processes of the rank. Called after a change."""
        self._changed[0] = time.monotonic_ns()

    def find(self, path: str) -> str | None:
        """The place of `path`: `path` itself if it is not in the private folder; None if it must be searched."""
        folder, separator, name = path.rpartition(os.sep)
        places = self._get_places(folder or separator)
        return None if places is None else places.get(name, path)

    def is_untouched(self, folder: str) -> bool:
        """Whether `folder` is known to have the same entries in the view as on the disk."""
        places = self._get_places(folder)
        return places is not None and len(places) == len(_NO_NAMES)

    def _get_places(self, folder: str) -> Places | None:
        if not folder.startswith(os.sep):
            folder = os.path.join(_getcwd(), folder)
            if folder.startswith(self._own):
                return None
        if self._changed[0] != self._since:
            # A thread that still reads a folder stores its outdated places in the former dict.
            self._folders, self._since = {}, self._changed[0]
        folders = self._folders
        places = folders.get(folder)
        if places is None and (read := self._read(folder)) is not None:
            if len(folders) >= _MAX_FOLDERS:
                folders.clear()
            places = folders[folder] = {**_NO_NAMES, **read}
        return places
