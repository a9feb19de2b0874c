"""The journal: changes of files by rank 0 that the other ranks have not reached yet in the script.

Another rank may still be at an earlier line of the script, which reads the old content. So before rank 0 changes a
path, it writes a note: the number of collectives that it has completed, and the location of the old content, for
example of a copy. Let rank 0 overwrite a file after 7 collectives.
A rank that has completed 8 has passed the place of the change in the script, and reads the file. A rank that has
completed 7 or fewer may be before that place, and reads the old content (`journal_reader`). No rank waits for another.

An audit hook of Python reports most changes; code that changes files in another way calls `note_change`.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
import time
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from matex_tf.files import journal_reader, private_folder
from matex_tf.ops import cache
from matex_tf.runtime import real_files, shutdown, temp_folders
from matex_tf.world import world

_PREFIX = "matex_tf-journal-"
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
"""The flags of `os.open` that create or change a file."""
_OF_SQLITE = ("", "-journal", "-wal", "-shm")  # suffixes of the files that SQLite creates for a transaction
_MAX_COPY_BYTES = 64 << 20
"""The limit of all copies that may still be needed. Few scripts read and change more between two collectives."""


class _Copy(NamedTuple):
    """A copy of old content."""

    number: int  # of collectives that rank 0 had completed
    path: str
    size: int  # in bytes


class _Move(NamedTuple):
    """A file that rank 0 was about to move. For a rank that has not reached the move, the file is at its old path."""

    number: int  # of collectives that rank 0 had completed before the move
    old_path: str
    inode: int


@dataclass
class _PathState:
    """What rank 0 knows of a path that it was about to change.

    before: `read_file_state` of the path before the change, which may have failed: see `Journal._is_touched`.
    created_at: the number of collectives in the note of its creation; None if there is none.
    move: the move by which the file came here. It may have failed, so it counts only if the file here has its inode.
    """

    before: tuple[int, ...] | None
    created_at: int | None = None
    move: _Move | None = None


class Journal:
    """The journal as rank 0 writes it, by `note_change`.

    Folders have notes, too: `os.path.exists(folder)` must return on every rank what it returns in the script alone,
    although rank 0 often creates the folder first.

    paths: the states of the paths that rank 0 was about to change, by key. A child process adopts those of its rank:
        without them, it would note the rank's own files as old contents.
    _copies: the copies of old contents that other ranks may still need.
    _move_targets: the paths to which rank 0 has moved files.
    """

    def __init__(self, notes: journal_reader.Notes, paths: dict[str, _PathState] | None = None):
        self.notes = notes
        self.paths = {} if paths is None else paths
        self._copies: list[_Copy] = []
        self._move_targets = {path for path, state in self.paths.items() if state.move is not None}

    def start_writing(self) -> None:
        """Record all changes that Python makes in this process from now on."""
        global _writer
        _hear_changes()
        _writer = self

    def write_note(self, key: str, removed: bool = False, new_path: str = "") -> None:
        """Record that rank 0 is about to create or change `key`.

        Only the first change of a path needs a note: a rank that has passed it in the script has made this change
        itself, in its private folder, and reads its own file there.

        Args:
            removed: `key` is about to be removed, with its contents.
            new_path: the path to which `key` is about to be moved, and `removed` is True. "": `key` is not moved.
        """
        with self.notes.lock:
            completed_count = self.notes.count_completed()
            before = journal_reader.read_file_state(key)
            if before is not None:
                self._note_existing(completed_count, key, before, removed, new_path)
            elif not removed:  # else the script's removal of a missing file fails
                self._note_creation(completed_count, key)

    def _note_creation(self, completed_count: int, key: str) -> None:
        """The path does not exist yet: ranks that have not reached its creation must not see it."""
        state = self.paths.setdefault(key, _PathState(before=None))
        state.before = None
        folder = self.paths.get(os.path.dirname(key), _PathState(None))
        # Between two collectives one note of a path is enough. The note of a new folder covers its contents.
        if completed_count not in (state.created_at, folder.created_at):
            state.created_at = completed_count
            self.notes.add_line(completed_count, key, copy="")  # "": it does not exist yet

    def _note_existing(
        self, completed_count: int, key: str, before: tuple[int, ...], removed: bool, new_path: str
    ) -> None:
        """The path exists: ranks that have not reached its change must see what it has before."""
        inode, removes_folder = before[0], removed and _is_folder(key)
        if removes_folder:  # also what rank 0 has moved into the folder
            for path in [path for path in self._move_targets if path.startswith(key + os.sep)]:
                self._move_targets.remove(path)
                if path in self.paths and self.paths[path].move is not None:
                    self.write_note(path, removed=True)
        self._renew_move(completed_count, key, inode, new_path)
        # No note if the content is rank 0's own, because other ranks write and read their own. But a folder that rank 0
        # has made may contain files that were saved for all ranks.
        if self._is_touched(key) and not removes_folder:
            return
        if not removed and not os.path.isfile(key):
            return  # a folder, whose entries have notes of their own; or a pipe
        # The content is common to all ranks, for example from before the run, or saved for all in a folder that rank 0
        # has made. Ranks that are behind still read it.
        copy = new_path or self._keep_copy(completed_count, key)
        self.notes.add_line(completed_count, key, copy, inode if new_path else 0)
        if new_path:  # later changes of the moved file replace its note
            self._set_move(new_path, _Move(completed_count, key, inode))
        self.paths.setdefault(key, _PathState(before)).before = before

    def _renew_move(self, completed_count: int, key: str, inode: int, new_path: str) -> None:
        """If rank 0 has moved the file `key` here, renew the note of its old path, where ranks that have not reached
        the move read it: its content is about to be changed, or moved to `new_path`.
        """
        state = self.paths.get(key)
        move = None if state is None else state.move
        if state is None or move is None or move.inode != inode:
            return
        if new_path:  # This move may fail, so both paths are kept.
            self._set_move(new_path, move)
        else:
            state.move = None
        copy = new_path or self._keep_copy(completed_count, key)
        self.notes.add_line(move.number, move.old_path, copy, inode if new_path else journal_reader.NOT_MOVED)

    def _set_move(self, new_path: str, move: _Move) -> None:
        self.paths.setdefault(new_path, _PathState(journal_reader.read_file_state(new_path))).move = move
        self._move_targets.add(new_path)

    def _is_touched(self, key: str) -> bool:
        """Whether rank 0 has changed `key`, so that the present content is its own."""
        return key in self.paths and self.paths[key].before != journal_reader.read_file_state(key)

    def mark_delivered(self, key: str) -> None:
        """Record that all ranks have the current content of the file `key`: the next change needs a note again."""
        self.paths.pop(key, None)

    def mark_caught_up(self) -> None:
        """Record that all ranks have the current content of all files: the next change of each needs a note again."""
        self.paths.clear()

    def _keep_copy(self, completed_count: int, key: str) -> str | None:
        """Copy `key`; of a folder, only unchanged files. Returns the copy's path; None if too large or unreadable."""
        # All ranks have entered the last collective that rank 0 has completed, so they have completed the one before.
        for outdated_copy in [copy for copy in self._copies if copy.number < completed_count - 1]:
            self._copies.remove(outdated_copy)
            _remove_path(outdated_copy.path)
        copy_path = os.path.join(self.notes.folder, f"{os.getpid()}-{time.monotonic_ns()}")
        try:
            size = sum(os.lstat(file).st_size for file in self._list_untouched(key))
            if size + sum(copy.size for copy in self._copies) > _MAX_COPY_BYTES:
                return None
            self._copies.append(_Copy(completed_count, copy_path, size))
            if _is_folder(key):
                shutil.copytree(key, copy_path, symlinks=True, ignore=self._list_touched)
            else:
                shutil.copy2(key, copy_path, follow_symlinks=False)
        except (OSError, shutil.Error):  # unreadable, or a pipe
            return None
        return copy_path

    def _list_untouched(self, key: str) -> Iterator[str]:
        """The files of `key` that rank 0 has not changed."""
        if not _is_folder(key):
            yield key
            return
        for folder, _, names in os.walk(key):
            touched = self._list_touched(folder, names)
            yield from (os.path.join(folder, name) for name in names if name not in touched)

    def _list_touched(self, folder: str, names: list[str]) -> set[str]:
        """The `names` in `folder` that rank 0 has changed, other than folders, which may hold files saved for all."""
        paths = {name: os.path.join(folder, name) for name in names}
        return {name for name, path in paths.items() if self._is_touched(path) and not _is_folder(path)}


_writer: Journal | None = None


def get_writer() -> Journal | None:
    """The journal, if this rank writes it, else None."""
    return _writer


def note_change(path: Any, removed: bool = False, new_path: Any = "") -> None:
    """Record that `path` is about to be created, changed, removed, or moved to `new_path`.

    Called by code that changes files other than through Python.
    """
    writer = _writer  # another thread may end the writing meanwhile
    if writer is None or real_files.uses_real_files() or isinstance(path, int) or path is None:
        return
    with real_files.use_real_files():
        try:
            text = os.path.abspath(os.fsdecode(path))
        except (TypeError, ValueError):
            return  # the original function reports the error
        # A removal or a move concerns a link itself, a change the target of the link.
        key = _find_entry(text) if removed else os.path.realpath(text)
        if not journal_reader.is_system(key):
            writer.write_note(key, removed, _find_entry(os.path.abspath(os.fsdecode(new_path))) if new_path else "")


def note_move(source: Any, target: Any) -> None:
    """Record that `source` is about to be moved to `target`, where it replaces a file or an empty folder."""
    note_change(target, removed=os.path.lexists(target))
    note_change(source, removed=True, new_path=target)


def _is_folder(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _find_entry(path: str) -> str:
    """The canonical path of the entry `path` of a folder, which may be a link."""
    folder, name = os.path.split(path)
    return os.path.join(os.path.realpath(folder), name)


def _note_opening(path: Any, mode: Any, flags: int) -> None:
    if flags & WRITING:
        note_change(path)


def _note_database(name: Any) -> None:
    """Note the files that SQLite creates and removes for a database, which may be named "file:PATH?OPTIONS"."""
    text = os.fsdecode(name)
    text = urllib.parse.unquote(urllib.parse.urlsplit(text).path) if text.startswith("file:") else text
    if text and ":memory:" not in text:
        for suffix in _OF_SQLITE:
            note_change(text + suffix)


_EVENTS: dict[str, tuple[Callable[..., None], int]] = {
    "open": (_note_opening, 0),
    "os.truncate": (lambda path, length: note_change(path), 0),
    "sqlite3.connect": (_note_database, 0),
    "os.mkdir": (lambda path, *_: note_change(path), 1),
    "os.symlink": (lambda target, path, _: note_change(path), 1),
    "os.link": (lambda source, path, *_: note_change(path), 2),
    "os.rename": (lambda source, target, *_: note_move(source, target), 2),
    **dict.fromkeys(("os.remove", "os.rmdir", "shutil.rmtree"), (lambda path, *_: note_change(path, removed=True), 1)),
}
"""The audit events that the Python interpreter raises before it changes a file: the function that notes the change, and
how many of the last arguments are descriptors of folders to which paths are relative (-1: the working folder).
"""


@functools.cache
def _hear_changes() -> None:
    """Install the audit hook, once in a process: audit hooks cannot be removed."""
    sys.addaudithook(_hear_event)


def _hear_event(event: str, arguments: tuple[Any, ...]) -> None:
    """The audit hook: note the change that Python is about to make, if `event` is one."""
    # Files may be changed after Python has cleared this module's globals.
    if not _EVENTS or event not in _EVENTS or _writer is None:
        return
    note, descriptor_count = _EVENTS[event]
    descriptors = arguments[len(arguments) - descriptor_count :]
    if not any(isinstance(descriptor, int) and descriptor != -1 for descriptor in descriptors):
        note(*arguments)  # else the path is relative to an open folder, and not known


def share_journal() -> journal_reader.Notes:
    """Create the journal of this run on rank 0 and open it on all ranks. Collective, before the sequence is checked."""
    me = world.get_world()
    folder = None
    if me.rank == 0:
        # One host can use any disk. Several hosts share only the folders that users share.
        parent_folder = os.fspath(cache.find_cache_folder()) if me.has_several_hosts else private_folder.choose_parent()
        folder = private_folder.make_folder(_PREFIX, parent_folder)
        journal_reader.make_file(folder)
        shutdown.at_end.append(functools.partial(_end_writing, folder))
    return journal_reader.Notes(world.get_communicator("control").bcast(folder), not me.has_several_hosts)


def take_over(notes: journal_reader.Notes) -> None:
    """Write the journal on this rank from now on, because the writing rank was lost."""
    temp_folders.hold_folder(notes.folder)
    shutdown.at_end.append(functools.partial(_end_writing, notes.folder))
    Journal(notes).start_writing()


def _end_writing(folder: str) -> None:
    """Remove the journal in `folder`: all ranks have ended their scripts, so that later changes need no notes."""
    global _writer
    _writer = None
    _remove_path(folder)


def _remove_path(path: str) -> None:
    """Remove `path` if it exists: sweeps of temporary folders may have removed it."""
    if os.path.isdir(path):
        shutil.rmtree(path, ignore_errors=True)
    elif os.path.lexists(path):
        os.remove(path)
