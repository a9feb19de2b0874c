"""What rank 0 has made, changed and removed and the other ranks have not come to yet.

Before rank 0 touches a path, it notes how many collectives it has completed, and where the path is as it was. A rank
that has completed no more of them looks there. Nobody waits for anybody.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import sys
import time
import urllib.parse
from collections.abc import Iterator
from typing import Any

from matex_tf.files import journal_reader, private_folder
from matex_tf.ops import cache
from matex_tf.runtime import real_files, shutdown, temp_folders
from matex_tf.world import world

_PREFIX = "matex_tf-journal-"
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
"""The flags of `os.open` by which a file is made or changed."""
_OF_SQLITE = ("", "-journal", "-wal", "-shm")
"""What SQLite adds to a database's name for the files of a transaction."""
_EVENTS = set(
    "open os.mkdir os.truncate os.remove os.rmdir shutil.rmtree os.rename os.link os.symlink sqlite3.connect".split()
)
"""Of the interpreter's audit events, by which Python tells of whatever in it is about to change a file."""
# What is copied and may still be asked for. More is rarely read and changed in one go.
_MOST_BYTES = 64 << 20


class Journal(journal_reader.Notes):
    """The notes of this run: `note_change` writes them, on rank 0. Keys are canonical absolute paths, as in `layers`.

    A rank that asks `if not os.path.exists(folder)` must be answered as the script alone would be, though rank 0 has
    often been there first.
    """

    def __init__(self, folder: str, is_on_one_host: bool = True):
        super().__init__(folder, is_on_one_host)
        self._noted: dict[str, int] = {}
        self._touched: dict[str, tuple[int, ...] | None] = {}  # with what each was before, as what is tried may fail
        self._moved: dict[str, tuple[int, str]] = {}
        self._copies: list[tuple[int, str, int]] = []
        self._is_over = False

    def remove_at_end(self) -> None:
        """Remove the journal when all ranks have ended their scripts: nobody asks for what is changed after that."""
        shutdown.at_end.append(self._remove)

    def _remove(self) -> None:
        self._is_over = True
        _remove_path(self.folder)

    def take_over(self) -> None:
        """Write from here on: the rank that did was lost."""
        temp_folders.hold_folder(self.folder)
        self.remove_at_end()
        self.start_writing()

    def start_writing(self) -> None:
        """Note what this process changes from here on, whatever in Python does."""
        global _writer
        _hear_changes()
        _writer = self

    @journal_reader.lock_method
    def write_note(self, key: str, removed: bool = False, to: str = "") -> None:
        """Rank 0 is about to make or change `key`, or to remove it with all that is in it, or to move it `to` there.

        Once is enough: when the others have come to that, they have made or removed `key` for themselves.
        """
        if self._is_over:
            return
        number = journal_reader.count_collectives() or self.met_before_fork  # a forked process is where it was forked
        state = journal_reader.read_file_state(key)
        if key in self._moved and state is not None:  # where others find what is to them still in its old place
            before, source = self._moved.pop(key)
            self._write_line(
                before, source, to or self._keep_copy(number, key), state[0] if to else journal_reader.NOT_MOVED
            )
        if state is None:
            if removed:
                return  # an error
            if number not in (self._noted.get(key), self._noted.get(os.path.dirname(key))):
                self._noted[key] = number
                self._write_line(number, key, "")  # unless the note of its new folder says so
        elif self._is_touched(key) or not (removed or os.path.isfile(key)):
            return  # it is rank 0's own, or a folder, in which the ones to be made are noted, or a pipe
        else:
            self._write_line(number, key, to or self._keep_copy(number, key), state[0] if to else 0)
            if to:
                self._moved[to] = (number, key)
        self._touched[key] = state

    def _is_touched(self, key: str) -> bool:
        return key in self._touched and self._touched[key] != journal_reader.read_file_state(key)

    def mark_delivered(self, key: str) -> None:
        """All ranks have the file `key` as it is now."""
        self._touched.pop(key, None)

    def mark_caught_up(self) -> None:
        """All ranks have all files as they are now."""
        self._touched.clear()

    def _write_line(self, number: int, key: str, copy: str | None, inode: int = 0) -> None:
        handle = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(handle, (json.dumps([number, key, copy, inode]) + "\n").encode())
            if self._count is not None:
                self._count[0] = os.fstat(handle).st_size
        finally:
            os.close(handle)

    def _keep_copy(self, number: int, key: str) -> str | None:
        """A copy of what is at `key`, without what rank 0 has made there itself."""
        # A collective is completed when all have entered it, and so have completed the one before.
        for old in [one for one in self._copies if one[0] < number - 1]:
            self._copies.remove(old)
            _remove_path(old[1])
        place = os.path.join(self.folder, f"{os.getpid()}-{time.monotonic_ns()}")
        try:
            size = sum(os.lstat(path).st_size for path in self._list_untouched(key))
            if size + sum(each for _, _, each in self._copies) > _MOST_BYTES:
                return None
            self._copies.append((number, place, size))
            if os.path.isdir(key) and not os.path.islink(key):
                shutil.copytree(key, place, symlinks=True, ignore=self._list_touched)
            else:
                shutil.copy2(key, place)
        except (OSError, shutil.Error):  # not to be read, or a pipe
            return None
        return place

    def _list_untouched(self, key: str) -> Iterator[str]:
        if not os.path.isdir(key) or os.path.islink(key):
            yield key
            return
        for folder, folders, names in os.walk(key):
            touched = self._list_touched(folder, folders + names)
            folders[:] = [name for name in folders if name not in touched]
            yield from (os.path.join(folder, name) for name in names if name not in touched)

    def _list_touched(self, folder: str, names: list[str]) -> set[str]:
        return {name for name in names if self._is_touched(os.path.join(folder, name))}


_writer: Journal | None = None


def get_writer() -> Journal | None:
    """The journal that this rank writes; None where it is not the first."""
    return _writer


def note_change(path: Any, removed: bool = False, to: Any = "") -> None:
    """Tell the ranks that are not there yet that `path` is about to be made or changed, or removed or moved `to`.

    Called by whatever makes files other than by Python.
    """
    if _writer is None or real_files.uses_real_files() or isinstance(path, int) or path is None:
        return
    with real_files.use_real_files():
        try:
            text = os.path.abspath(os.fsdecode(path))
        except (TypeError, ValueError):
            return  # the original says what is wrong
        # What is removed is the link itself, what is changed is the file that it names.
        above, name = os.path.split(text)
        key = os.path.join(os.path.realpath(above), name) if removed else os.path.realpath(text)
        if not journal_reader.is_system(key):
            _writer.write_note(key, removed, os.path.realpath(os.fsdecode(to)) if to else "")


@functools.cache
def _hear_changes() -> None:
    """Once in a process: what listens to its events cannot be removed."""
    sys.addaudithook(_hear_event)


def _hear_event(event: str, given: tuple[Any, ...]) -> None:
    # Files may still be changed when Python has taken this module apart.
    if not _EVENTS or event not in _EVENTS or _writer is None:
        return
    if event == "open":
        if given[2] & WRITING:
            note_change(given[0])
    elif event == "sqlite3.connect":
        _note_database(given[0])
    elif event == "os.truncate":
        note_change(given[0])
    elif any(isinstance(value, int) and value != -1 for value in given[-1 - (event in ("os.rename", "os.link")) :]):
        return  # below an open folder
    elif event == "os.rename":
        note_change(given[1], removed=os.path.lexists(given[1]))  # what is replaced
        note_change(given[0], removed=True, to=given[1])
    elif event in ("os.link", "os.symlink"):
        note_change(given[1])
    else:
        note_change(given[0], removed=event != "os.mkdir")


def _note_database(name: Any) -> None:
    """SQLite makes and removes files beside a database, which may be named as "file:PATH?OPTIONS"."""
    text = os.fsdecode(name)
    text = urllib.parse.unquote(urllib.parse.urlsplit(text).path) if text.startswith("file:") else text
    if text and ":memory:" not in text:
        for ending in _OF_SQLITE:
            note_change(text + ending)


def make_file(folder: str) -> None:
    """Make the file of a journal in `folder`."""
    with open(os.path.join(folder, journal_reader.NAME), "wb") as file:
        file.write(journal_reader.HEAD.to_bytes(journal_reader.HEAD, "little"))


def share_journal() -> Journal:
    """The one journal of this run. Collective, before the sequence of collectives begins to be checked."""
    me = world.get_world()
    path = None
    if me.rank == 0:
        # On one host any disk will do; several have a folder in common only where users share one.
        folder = os.fspath(cache.find_cache_folder()) if me.has_several_hosts else private_folder.choose_parent()
        path = private_folder.make_folder(_PREFIX, folder)
        make_file(path)
    journal = Journal(world.get_communicator("control").bcast(path), not me.has_several_hosts)
    if me.rank == 0:
        journal.remove_at_end()
    return journal


def _remove_path(path: str) -> None:
    """Remove `path` where it is still there: folders for temporary files may be swept."""
    if os.path.isdir(path):
        shutil.rmtree(path, ignore_errors=True)
    elif os.path.lexists(path):
        os.remove(path)
