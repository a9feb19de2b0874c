"""Rank 0's notes of its files (see `journal`), as the other ranks read them."""

from __future__ import annotations

import functools
import json
import mmap
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from matex_tf import ops
from matex_tf.runtime import real_files
from matex_tf.world import world

NAME = "notes"
HEAD = 8
"""Bytes before the first note, for the number of bytes that are written, which ranks of one host share."""
SYSTEM = ("/dev", "/proc", "/sys", "/run")
NOT_MOVED = -1
"""In place of the inode of what is moved: what was moved before is in a copy now."""
_KINDS = range(1, 8)
# A script that knows of ranks may wait for a file of rank 0 without any collective; it must not wait for ever.
_SECONDS = 60.0


def count_collectives() -> int:
    """How many collectives this rank has completed."""
    return sum(ops.count_completed(kind) for kind in _KINDS)


@dataclass(frozen=True)
class _Note:
    number: int  # of collectives before it
    copy: str | None  # of what was there, or where it is moved; "": nothing was, None: it is too large to be copied
    inode: int  # of what is moved
    until: float


def lock_method(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that several threads of a script may come to, to read files."""

    @functools.wraps(method)
    def locked(self: Notes, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            return method(self, *args, **kwargs)

    return locked


class Notes:
    """The file of the notes in `folder`."""

    def __init__(self, folder: str, is_on_one_host: bool):
        self.folder = folder
        self._path = os.path.join(folder, NAME)
        self._count = self._map_count() if is_on_one_host else None
        self._notes: dict[str, list[_Note]] = {}
        self._seen = self._offset = HEAD
        self._number = self._quiet_at = -1
        self.heard: Callable[[], None] = lambda: None  # called when there are notes
        self._renew_lock()
        self.met_before_fork = 0
        os.register_at_fork(before=self._keep_number, after_in_child=self._renew_lock)

    def _renew_lock(self) -> None:
        self._lock = threading.RLock()

    def _keep_number(self) -> None:
        self.met_before_fork = count_collectives() or self.met_before_fork

    def _map_count(self) -> Any:
        """The number of bytes that are written, which costs a rank nothing to look at."""
        try:
            with open(self._path, "r+b") as file:
                return memoryview(mmap.mmap(file.fileno(), HEAD)).cast("Q")
        except FileNotFoundError:
            return [HEAD]  # rank 0 is on a disk of its own

    def get_version(self) -> int:
        """A number that grows with rank 0's notes."""
        if self._count is not None:
            return self._count[0]
        with real_files.use_real_files():  # the view asks for this number before it answers
            try:
                handle = os.open(self._path, os.O_RDONLY)  # asks a file server anew
            except FileNotFoundError:
                return self._offset  # rank 0 has ended
            try:
                return os.fstat(handle).st_size
            finally:
                os.close(handle)

    def is_quiet(self) -> bool:
        """Whether nothing is known to be new, gone or changed, so that the disk is as this rank is to see it."""
        return self.get_version() == self._quiet_at

    @lock_method
    def has_news(self) -> bool:
        self._read_news()
        return bool(self._notes)

    @lock_method
    def find_before(self, key: str) -> str | None:
        """Where `key` is as it was when the ranks last met, "" if nowhere; None if nothing has changed since.

        A large file is as it is now, of a large folder that was removed nothing is left.
        """
        note, above = self._note_of(key)
        if note is None:
            return None
        if note.copy:
            place = note.copy + key[len(above) :]
            return place if os.path.lexists(place) else ""
        return key if note.copy is None and above == key and os.path.isfile(key) else ""

    @lock_method
    def is_gone(self, key: str) -> bool:
        """Whether rank 0 removed `key`, which was too large to be copied, since the ranks last met."""
        note, _ = self._note_of(key)
        return note is not None and note.copy is None

    @lock_method
    def list_before(self, folder: str) -> list[str]:
        """The names of what may have been in `folder` when the ranks last met, beside what is there now."""
        self._read_news()
        place = self.find_before(folder)
        listed = os.listdir(place) if place and place != folder and os.path.isdir(place) else []
        return listed + [os.path.basename(key) for key in self._notes if os.path.dirname(key) == folder]

    def _note_of(self, key: str) -> tuple[_Note | None, str]:
        """The first recent note of `key`, or of the innermost folder around it that has one, and whose it is."""
        self._read_news()
        if self._notes and world.is_active():  # to a forked child, which is no rank, things are as they are
            now = time.monotonic() if world.script_knows_ranks else 0.0
            for path in list_parents(key):
                for note in self._notes.get(path, ()):
                    # What was to be moved may still be in its place.
                    if note.until > now and (not note.inode or _read_inode(note.copy) == note.inode):
                        return note, path
        return None, key

    def _read_news(self) -> None:
        """Read what is new, and forget what this rank has come to."""
        known = self.get_version()
        if known != self._seen:
            self._read_notes()
            self._seen, self._number = known, -1
            self.heard()
        number = count_collectives() if self._notes else 0
        if self._notes and number != self._number:
            recent = {key: [note for note in notes if note.number >= number] for key, notes in self._notes.items()}
            self._notes = {key: notes for key, notes in recent.items() if notes}
            self._number = number
        self._quiet_at = -1 if self._notes else known

    def _read_notes(self) -> None:
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                text = file.read()
        except FileNotFoundError:
            return
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        until = time.monotonic() + _SECONDS
        for line in whole.decode().splitlines():
            number, key, copy, inode = json.loads(line)
            notes = self._notes.setdefault(key, [])
            moved = (at for at, note in enumerate(notes) if note.inode and inode and note.number == number)
            at = next(moved, len(notes))
            notes[at : at + 1] = [_Note(number, copy, max(inode, 0), until)]  # in place of where it was until now


def read_file_state(key: str) -> tuple[int, ...] | None:
    """What tells whether `key` was changed, for a folder whether it is another; None where it is not there."""
    try:
        state = os.lstat(key)
    except OSError:
        return None
    return (state.st_ino,) if stat.S_ISDIR(state.st_mode) else (state.st_ino, state.st_size, state.st_mtime_ns)


def _read_inode(key: str | None) -> int:
    return (read_file_state(key) or (0,))[0] if key else 0


def list_parents(key: str) -> Iterator[str]:
    """`key` and the folders that it is in, the innermost first."""
    while True:
        yield key
        above = os.path.dirname(key)
        if above == key:
            return
        key = above


def is_system(key: str) -> bool:
    """Whether `key` is no file but a door to the kernel, the same for every process."""
    return any(path in SYSTEM for path in list_parents(key))
