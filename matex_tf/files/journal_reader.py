"""The journal as the other ranks read it (see `journal`): one file of notes, a line of JSON each, in the order in which
rank 0 has written them.

A note holds for a rank, which then reads the old content, until the rank has completed more collectives than rank 0 had
at the note. Then the rank drops the note.
"""

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
from matex_tf.world import script_knowledge, world

NAME = "notes"
HEAD = 8
"""Size in bytes of the header: the number of bytes written, which the ranks of one host share by memory mapping."""
SYSTEM = ("/dev", "/proc", "/sys", "/run")
NOT_MOVED = -1
"""In place of an inode: the note replaces the note of a moved file, whose old content is in a copy now."""
_MAX_NOTE_SECONDS = 60.0
"""A script that knows its rank may wait in a loop for a file of rank 0, without a collective. Then a note would hide
the file for ever. So for such a script a note holds this long at most.
"""


def count_collectives() -> int:
    """The number of collectives that this rank has completed, without the rendezvous after failed steps."""
    return sum(ops.count_completed(kind) for kind in ops.Kind if kind is not ops.Kind.FAILURE)


@dataclass(frozen=True)
class _Note:
    """A change of one path by rank 0.

    order: the number of the line, smaller for an older note.
    number: the number of collectives that rank 0 had completed.
    copy: the path of the old content, or of the moved file; "": the path did not exist; None: not copied, too large.
    inode: the inode of the moved file; 0 if the file was not moved.
    until: the time, of `time.monotonic`, until which the note holds for a script that knows its rank.
    """

    order: int
    number: int
    copy: str | None
    inode: int
    until: float


def make_file(folder: str) -> None:
    """Create the file of a journal in `folder`."""
    with open(os.path.join(folder, NAME), "wb") as file:
        file.write(HEAD.to_bytes(HEAD, "little"))


def _lock_method(method: Callable[..., Any]) -> Callable[..., Any]:
    """Make a method thread-safe: several threads of a script may read files."""

    @functools.wraps(method)
    def locked(self: Notes, *args: Any, **kwargs: Any) -> Any:
        with self.lock:
            return method(self, *args, **kwargs)

    return locked


class Notes:
    """The notes in `folder`, which rank 0 adds and other ranks read incrementally.

    on_change: called when there are new notes, and when notes are dropped.
    completed_by_parent: in a child process of a rank, the rank's number of completed collectives at its start.
    _count: `_count[0]` is the number of bytes in the file, in mapped memory; None if the ranks have several hosts.
    _notes: the notes that hold for this rank, by path.
    _offset: the number of bytes in the lines that were read.
    _line_count: the number of lines that were read.
    _number: the number of collectives at which notes were dropped last; -1: new notes have come since.
    _quiet_at: the number of bytes in the file when no note held for this rank; -1 if a note holds.
    """

    def __init__(self, folder: str, is_on_one_host: bool = True, completed_by_parent: int = 0):
        self.folder = folder
        self._path = os.path.join(folder, NAME)
        self._count = self._map_count() if is_on_one_host else None
        self._notes: dict[str, list[_Note]] = {}
        self._offset = HEAD
        self._line_count = 0
        self._number = self._quiet_at = -1
        self.on_change: Callable[[], None] = lambda: None
        self._renew_lock()
        self.completed_by_parent = completed_by_parent
        os.register_at_fork(before=self._keep_number, after_in_child=self._renew_lock)

    def _renew_lock(self) -> None:
        """A new lock, also in a forked process, which may have copied a held one."""
        self.lock = threading.RLock()

    def describe(self) -> tuple[str, bool, int]:
        """The arguments of `Notes` in a child process that is not forked."""
        return self.folder, self._count is not None, self.count_completed()

    def _keep_number(self) -> None:
        """Before a fork: keep the number of collectives for the new process, which counts none itself."""
        self.completed_by_parent = self.count_completed()

    def count_completed(self) -> int:
        """The number of collectives that this rank has completed; of a child process, the number at its start."""
        return count_collectives() or self.completed_by_parent

    def _map_count(self) -> Any:
        """Map the number of bytes written, so that reading it needs no system call."""
        try:
            with open(self._path, "r+b") as file:
                return memoryview(mmap.mmap(file.fileno(), HEAD)).cast("Q")
        except FileNotFoundError:
            return [HEAD]  # rank 0 uses another disk

    def get_version(self) -> int:
        """A number that grows with every note of rank 0."""
        if self._count is not None:
            return self._count[0]
        with real_files.use_real_files():  # the view calls this method before it answers
            try:
                # Opening refreshes the attributes on a network file system.
                descriptor = os.open(self._path, os.O_RDONLY)
            except FileNotFoundError:
                return self._offset  # rank 0 has ended
            try:
                return os.fstat(descriptor).st_size
            finally:
                os.close(descriptor)

    def add_line(self, number: int, key: str, copy: str | None, inode: int = 0) -> None:
        """On rank 0: write one note; see `_Note`. `inode` may also be NOT_MOVED."""
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(descriptor, (json.dumps([number, key, copy, inode]) + "\n").encode())
            if self._count is not None:
                self._count[0] = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)

    def is_quiet(self) -> bool:
        """Whether there are no notes that concern this rank, so that it sees the disk as it is."""
        return self.get_version() == self._quiet_at

    @_lock_method
    def has_news(self) -> bool:
        """Whether there are notes of changes that this rank has not reached."""
        self._update_notes()
        return bool(self._notes)

    @_lock_method
    def find_before(self, key: str) -> str | None:
        """The path of the old content of `key`; "" if it did not exist; None if no note of `key` holds for this rank.

        Of a file that was too large to copy, the path of the new content; of a removed folder that was too large, "".
        """
        note, noted_path = self._find_note(key)
        if note is None:
            return None
        if note.copy:  # of `key`, or of a folder that contains it
            path = note.copy + key[len(noted_path) :]
            return path if os.path.lexists(path) else ""
        # The file itself was too large to copy: its new content. Else `key` did not exist, or its content is lost.
        return key if note.copy is None and noted_path == key and os.path.isfile(key) else ""

    @_lock_method
    def is_gone(self, key: str) -> bool:
        """Whether the content of `key` that this rank should see is lost, because it was too large to copy."""
        note, _ = self._find_note(key)
        return note is not None and note.copy is None

    @_lock_method
    def list_before(self, folder: str) -> list[str]:
        """Names that this rank may see in `folder` in addition to the names there on the disk."""
        self._update_notes()
        copy = self.find_before(folder)
        names = os.listdir(copy) if copy and copy != folder and os.path.isdir(copy) else []
        return names + [os.path.basename(key) for key in self._notes if os.path.dirname(key) == folder]

    def _find_note(self, key: str) -> tuple[_Note | None, str]:
        """The oldest note that holds for `key` or for a folder that contains it; and the path of the note.

        Rank 0 may move a folder, and create the path `key` later. Then the note of the folder has the old content.
        """
        self._update_notes()
        oldest_note, noted_path = None, key
        if self._notes:
            # A child process, which may live long, does not know whether the script has asked for its rank since.
            may_expire = script_knowledge.knows_ranks or not world.is_active()
            now = time.monotonic() if may_expire else 0.0  # 0.0: notes do not expire
            for path in list_parents(key):
                # A note of a move comes before the move. It holds once the file is at its new path.
                valid_notes = (
                    note
                    for note in self._notes.get(path, ())
                    if note.until > now and (not note.inode or _read_inode(note.copy) == note.inode)
                )
                note = next(valid_notes, None)
                if note is not None and (oldest_note is None or note.order < oldest_note.order):
                    oldest_note, noted_path = note, path
        return oldest_note, noted_path

    def _update_notes(self) -> None:
        """Read new notes, and drop the notes that this rank has reached."""
        version = self.get_version()
        if version != self._offset:
            self._read_lines()
            self._number = -1
            self.on_change()
        completed_count = self.count_completed() if self._notes else 0
        if self._notes and completed_count != self._number:
            recent_notes = {
                key: [note for note in notes if note.number >= completed_count] for key, notes in self._notes.items()
            }
            self._notes = {key: notes for key, notes in recent_notes.items() if notes}
            self._number = completed_count
            self.on_change()
        self._quiet_at = -1 if self._notes else version

    def _read_lines(self) -> None:
        """Read the complete lines that rank 0 has written since the last call."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                new_bytes = file.read()
        except FileNotFoundError:
            return
        complete_lines = new_bytes[: new_bytes.rfind(b"\n") + 1]
        self._offset += len(complete_lines)
        until = time.monotonic() + _MAX_NOTE_SECONDS
        for line in complete_lines.decode().splitlines():
            number, key, copy, inode = json.loads(line)
            notes = self._notes.setdefault(key, [])
            # A moved file may be moved again or changed. Then the new note, with an inode or NOT_MOVED, has the number
            # of the note of the first move, and comes before it: the older one holds if the later move has failed.
            # Other notes are appended: `index` is the end of the list.
            moved_indexes = (
                index for index, note in enumerate(notes) if note.inode and inode and note.number == number
            )
            index = next(moved_indexes, len(notes))
            order = notes[index].order if index < len(notes) else self._line_count
            notes.insert(index, _Note(order, number, copy, max(inode, 0), until))
            self._line_count += 1


def read_file_state(key: str) -> tuple[int, ...] | None:
    """The inode of `key` and, of a file, numbers that differ after a change; None if `key` is missing."""
    try:
        state = os.lstat(key)
    except OSError:
        return None
    return (state.st_ino,) if stat.S_ISDIR(state.st_mode) else (state.st_ino, state.st_size, state.st_mtime_ns)


def _read_inode(key: str | None) -> int:
    """The inode of `key`; 0 if it does not exist."""
    return (read_file_state(key) or (0,))[0] if key else 0


def list_parents(key: str) -> Iterator[str]:
    """Yields `key` and its parent folders, innermost first."""
    while True:
        yield key
        parent = os.path.dirname(key)
        if parent == key:
            return
        key = parent


def is_system(key: str) -> bool:
    """Whether `key` is in a virtual file system of the kernel, the same for every process."""
    return any(path in SYSTEM for path in list_parents(key))
