"""Reading through the two layers of a rank.

Rank 0 changes the disk itself, and may be ahead of this rank in the script. Until this rank reaches the change in the
script, its lower layer has the old content at that path, by rank 0's note.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from typing import Any

from matex_tf import settings
from matex_tf.files import journal_reader, known_places
from matex_tf.ops import cache
from matex_tf.runtime import real_files

_MAX_TRIES = 10  # of a query, while rank 0 writes notes
_MAX_LINKS = 40  # on the way of one path: more are a loop


class Layers:
    """The two layers of this rank; the upper one is in `folder`. `view.View` adds methods that change them.

    root: the folder of the upper layer.
    notes: the journal.
    hidden: whether a key of the disk is hidden from this rank (`view`).
    is_left: this rank has left the layers and uses the real files: rank 0 was lost, and this rank has become the first.
    known: a cache of the two layers (`known_places`), by which most queries need not ask both.
    _changed: the names that this process may have created, changed or removed, by the key of their folder.
    _has_links: `has_links` by changes of this process.
    _excluded: paths that the view does not handle.
    _uncached: keys of folders that are not cached, with their contents: code outside Python, or another process, may
        create files there at any moment.
    """

    def __init__(self, folder: str, notes: journal_reader.Notes):
        self.root = os.path.join(os.path.realpath(folder), "files")
        self.notes = notes
        self.hidden: dict[str, bool] = {}
        self._changed: dict[str, set[str]] = {}
        self._has_links = False
        self.is_left = False
        self._excluded = {
            *journal_reader.SYSTEM,
            os.path.realpath(notes.folder),
            os.path.realpath(cache.find_cache_folder()),
        }
        if settings.get_settings().log_dir:
            self._excluded.add(os.path.realpath(settings.get_settings().log_dir))
        os.makedirs(folder, exist_ok=True)
        self.known = known_places.KnownPlaces(folder, self._read_folder)
        notes.on_change = self.known.forget
        self._uncached: set[str] = set()

    @property
    def used(self) -> bool:
        """Whether the upper layer may have files."""
        return bool(self._changed) or self.known.has_child_changed()

    @property
    def has_links(self) -> bool:
        """Whether symbolic links of this rank may differ from those of the disk: the upper layer may have some, with
        the targets that the script has given, or this rank has removed some.
        """
        return self._has_links or self.known.has_child_changed()

    def find_key(self, path: Any, follow: bool = True) -> str | None:
        """The key of `path`; None if the view does not handle it. `follow`: replace a final link by its target."""
        key = self.strip_root(os.path.abspath(os.fsdecode(path)))
        if follow:
            key = self._follow_links(key)
        else:
            key = os.path.join(self._follow_links(os.path.dirname(key)), os.path.basename(key))
        is_excluded = not self._excluded.isdisjoint(journal_reader.list_parents(key))
        return None if self.is_left or is_excluded else key

    def strip_root(self, path: str) -> str:
        """A path in the upper layer, such as the working folder of C code, as the script has it; others as they are."""
        is_upper = path == self.root or path.startswith(self.root + os.sep)
        return (path[len(self.root) :] or os.sep) if is_upper else path

    def _follow_links(self, path: str) -> str:
        """`os.path.realpath` of an absolute path through the links as this rank sees them.

        Raises OSError for a loop of links: in the upper layer it would lead to the disk.
        """
        if not self.has_links and not self.notes.has_news():
            return os.path.realpath(path)  # all links are on the disk
        resolved, pending_names, link_count = os.sep, path.split(os.sep)[::-1], 0
        while pending_names:
            name = pending_names.pop()
            if name in ("", os.curdir, os.pardir):
                resolved = os.path.dirname(resolved) if name == os.pardir else resolved
                continue
            entry = os.path.join(resolved, name)
            place = self.locate_real(entry)
            if not os.path.islink(place):
                resolved = entry
                continue
            if link_count == _MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            target, link_count = os.readlink(place), link_count + 1
            if target == entry and os.path.exists(entry) and not self.is_hidden(entry):
                resolved = entry  # a mirror's link in the upper layer to the disk (mirror.py)
                continue
            resolved = os.sep if os.path.isabs(target) else resolved
            pending_names += target.split(os.sep)[::-1]
        return resolved

    def exclude_path(self, path: str) -> None:
        """Do not handle `path` and its contents: they belong to this rank already."""
        self._excluded.add(os.path.realpath(path))

    def locate_upper(self, key: str) -> str:
        return self.root + key

    def list_upper(self, key: str = "") -> Iterator[str]:
        """The keys of all that the upper layer has in the folder `key`, "" for all; a folder before its contents."""
        for folder, folders, names in os.walk(self.root + key):
            yield from (f"{folder[len(self.root) :]}/{name}" for name in folders + names)

    def is_own(self, key: str) -> bool:
        """Whether `key` is in the upper layer."""
        return os.path.lexists(self.locate_upper(key))

    def is_hidden(self, key: str) -> bool:
        """Whether this rank has removed `key` or a parent folder, and rank 0 has not saved `key` for all since."""
        states = map(self.hidden.get, journal_reader.list_parents(key))
        return next((is_hidden for is_hidden in states if is_hidden is not None), False)  # the innermost path decides

    def _is_in_own_file(self, key: str) -> bool:
        """Whether a parent of `key` is a file of this rank. Rank 0 may have replaced its file by a folder or a link."""
        try:
            os.lstat(self.locate_upper(key))
        except OSError as error:
            return error.errno == errno.ENOTDIR
        return False

    def locate_lower(self, key: str) -> str | None:
        """The path of `key` in the lower layer, as this rank sees it; None if it does not exist there."""
        if self.is_hidden(key) or (self.used and self._is_in_own_file(key)):
            return None
        # Rank 0 writes its note before it changes the disk. So the disk is read first: if it is already changed, the
        # note is found below. In the other order, a change between both would be taken for the old content.
        is_on_disk = os.path.lexists(key)
        old_path = self.notes.find_before(key)
        if old_path is None:  # no note: the disk has the content for this rank
            return key if is_on_disk else None
        return old_path or None  # "": the key did not exist before the change

    def mark_changed(self, key: str) -> None:
        """Record that this rank has created, changed or removed `key`, or is about to."""
        folder, name = os.path.split(key)
        self._changed.setdefault(folder, set()).add(name)
        self.known.forget()

    def stop_caching(self, key: str) -> None:
        """Do not cache the folder `key` and its contents from now on; see `_uncached`."""
        self._uncached.add(key)
        self.known.forget()

    def _read_folder(self, path: str) -> known_places.Folder | None:
        """For the cache: the folder `path`; None: it is not cached."""
        with real_files.use_real_files():
            key = self.find_key(path)
            if key is None:  # the view does not handle the folder: all its files are on the disk
                return known_places.Folder((), "")
            # With links of this rank, the path may lead to another folder on the disk than its key.
            is_through_link = self.has_links and os.path.abspath(path) != key
            if is_through_link or not self._uncached.isdisjoint(journal_reader.list_parents(key)):
                return None
            upper = self.locate_upper(key)
            changed = self._changed.get(key, ())
            # Nothing on the disk may be used if this rank has removed the folder, or if it or a parent is a file of
            # this rank. A folder that this rank has created may not be on the disk. The names that a child process has
            # changed are not known.
            is_replaced = self.is_hidden(key) or self._is_in_own_file(os.path.join(key, os.curdir))
            may_differ = is_replaced or (os.path.isdir(upper) and (not changed or self.known.has_child_changed()))
            return known_places.Folder(None if may_differ else changed, upper)

    def ask_until_steady(self, ask: Callable[[], Any], drop: Callable[[Any], bool] | None = None) -> Any:
        """Return `ask()`, or raise its OSError. If rank 0 has written notes during the call, repeat it, because the
        answer may be outdated; a few times at most.

        `drop`: releases an outdated answer; returns False if the answer cannot be released and must be used.
        """
        for _ in range(_MAX_TRIES - 1):
            version = self.notes.get_version()
            try:
                answer = ask()
            except OSError:
                if self.notes.get_version() == version:
                    raise
                continue
            if self.notes.get_version() == version or (drop is not None and not drop(answer)):
                return answer
        return ask()

    def locate(self, key: str) -> str | None:
        """The real location of `key`; None if it does not exist for this rank."""
        return self.locate_upper(key) if self.is_own(key) else self.locate_lower(key)

    def exists(self, key: str) -> bool:
        return self.locate(key) is not None

    def is_folder(self, key: str) -> bool:
        return os.path.isdir(self.locate_real(key))

    def is_plain_folder(self, key: str) -> bool:
        """Whether `key` is a folder itself, and no link to one."""
        return self.is_folder(key) and not os.path.islink(self.locate_real(key))

    def locate_real(self, key: str) -> str:
        """The real location of `key`, for a query about it. A missing file has a location that does not exist."""
        return self.locate(key) or self.locate_upper(key)

    def list_names(self, key: str) -> list[str]:
        """The names in the folder `key`, in the order of the disk; names that are not on the disk come last."""
        if not self.is_folder(key):
            return os.listdir(self.locate_real(key))  # raises the appropriate error
        names = []
        try:
            names = os.listdir(key)
        except OSError as error:  # in the upper layer only, or rank 0 has removed or replaced it
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise
        names += self.notes.list_before(key)  # after the disk: removed entries, which it lacks, have notes by now
        names = [name for name in dict.fromkeys(names) if self.exists(os.path.join(key, name))]
        if os.path.isdir(self.locate_upper(key)):
            listed_names = set(names)
            names += [name for name in os.listdir(self.locate_upper(key)) if name not in listed_names]
        return names

    def has_only_own(self, key: str) -> bool:
        """Whether the folder `key` and its subfolders contain only files of this rank, as this rank sees them."""
        if not os.path.isdir(self.locate_upper(key)):
            return False
        for name in self.list_names(key):
            entry = os.path.join(key, name)
            if not (self.has_only_own(entry) if self.is_folder(entry) else self.is_own(entry)):
                return False
        return True

    def is_untouched(self) -> bool:
        """Whether this rank's view equals the disk."""
        return not self.used and not self.notes.has_news()


def list_open_files(process: str) -> Iterator[tuple[str, str, tuple[int, int]]]:
    """The open files and the working folder of a process, as (descriptor, path, (device, inode)); nothing of another
    user's process.

    The process may end, or close a file, meanwhile. The working folder has "../cwd" as its descriptor.
    """
    with contextlib.suppress(OSError):
        for descriptor in [*os.listdir(f"/proc/{process}/fd"), "../cwd"]:
            place = f"/proc/{process}/fd/{descriptor}"
            with contextlib.suppress(OSError):
                state = os.stat(place)
                yield descriptor, os.readlink(place), (state.st_dev, state.st_ino)
