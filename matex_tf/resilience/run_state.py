"""Keeps the state of a run, and goes on from it when the run is started again, by no line of the script.

"Restarts" in docs/reliability.md says what is kept and what happens then. Calls of `fit`, counted, are where the state
is put back. Rank 0 keeps it, of which all ranks have copies; nothing in it depends on their number.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from matex_tf import errors, settings
from matex_tf.resilience import async_writer, elastic, random_state, script_file, serialization, state_files
from matex_tf.runtime import notes, objects, rank_records, real_files, shutdown, watchdog
from matex_tf.world import exit_codes, file_locks, membership, terminal, world

_run: Run | None = None


def open_run() -> None:
    """Where MATEX_STATE names a folder, see what is kept there. Collective."""
    global _run
    if settings.get_settings().state:
        _run = Run(os.path.abspath(os.path.expanduser(settings.get_settings().state)))


def is_kept() -> bool:
    """Whether the state of this run is kept."""
    return _run is not None


def read_entropy() -> int | None:
    """What the run began with, where this is one that goes on: its random numbers are to be the same."""
    return None if _run is None else _run.entropy


def keep_entropy(entropy: int) -> None:
    """Keep the random numbers that all ranks have agreed to begin with."""
    if _run is not None:
        _run.keep_entropy(entropy)


def get_current() -> Run | None:
    """The run whose state is kept; None where none is, and in threads that do not train."""
    return _run if threading.current_thread() is threading.main_thread() else None


@dataclass
class _Found:
    """What a rank finds in the folder: the newest state within a call of fit, and which calls have ended."""

    number: int
    fit: int
    ends: list[int]
    begin: dict[str, Any]


class Run:
    """What is kept of this run, on all ranks."""

    entropy: int | None
    source: int | None  # the rank that has what is to be put back
    fit: int
    ends: set[int]
    number: int
    saved: Any

    def __init__(self, path: str):
        self.path = path
        self.script = script_file.digest_script()
        self.fits = self.epochs = 0  # calls that have begun, epochs that have ended, since the very first start
        self.within: Any = None  # the `fit_state.Fit` of the call that is under way
        self.asked: str | None = None
        self.has_trained = False
        self.saved_at = time.monotonic()
        self.writer: async_writer.Writer | None = None
        with real_files.use_real_files():
            self.folder = self._open_folder()
            self._resume_newest()
        shutdown.hear_requests(self._handle_request, self._finish_writing)
        shutdown.at_end.append(self._end_run)
        elastic.after_loss.append(self._handle_loss)

    def _open_folder(self) -> state_files.Folder | None:
        """The folder, where this rank sees it. Rank 0 makes it and is alone in writing to it."""
        me = world.get_world()
        folder, error = None, None
        try:
            if me.rank == 0:
                folder = state_files.Folder(self.path)
                self.writer = async_writer.Writer(folder)
                if not self._hold_folder(folder):
                    error = "another run that has not ended keeps its state there"
            elif os.path.isdir(self.path):
                folder = state_files.Folder(self.path)
        except OSError as raised:
            error = str(raised)
        for rank, text in enumerate(objects.allgather(error, "opening the folder of the run's state")):
            if text is not None:
                raise errors.SetupError(
                    f"MATEX_STATE={self.path} cannot be used on rank {rank} ({me.hosts[rank]}): {text}. Set it to a "
                    "folder of your own, on a file system that all hosts share, that no other run uses."
                )
        return folder

    def _hold_folder(self, folder: state_files.Folder) -> bool:
        """Whether no other run uses the folder; one that has just been lost may take a moment to be gone."""
        follows = "A second run that keeps its state there is not noticed: give each run its own MATEX_STATE"

        def tell(error: OSError) -> None:
            notes.print_note(file_locks.describe_lack(self.path, error, follows))

        for _ in range(20):
            self._lock = folder.hold_lock(tell)
            if self._lock is not None:
                return True
            time.sleep(0.5)
        return False

    def _handle_loss(self, became_first: bool) -> None:
        # Who has what was kept, if it is to be put back.
        left = membership.survivors
        source_is_lost = self.source is not None and self.source not in left
        if self.source is not None:
            self.source = 0 if source_is_lost else left.index(self.source)
        if not became_first:
            return
        with real_files.use_real_files():
            self.folder = state_files.Folder(self.path)
            self.writer = async_writer.Writer(self.folder)
            if not self._hold_folder(self.folder):
                notes.print_note(
                    f"{self.path}, in which the state of the run is kept, is still held by the rank that was lost"
                )
            self.number = max([self.number, *self.folder.list_numbers("state")])
            if source_is_lost and self.fits <= self.fit:
                _, self.saved = self.folder.find_newest()

    def _resume_newest(self) -> None:
        """Find the newest state on any rank, and go on drawing random numbers from where the run began."""
        me = world.get_world()
        self.saved = None
        mine = self._find_own() if me.local_rank == 0 else None
        kept = None if mine is None else (len(mine.ends), mine.number, -me.rank)
        everyone = objects.allgather(kept, "looking for the state of the run")
        newest = max((one for one in everyone if one is not None), default=None)
        self.source = None if newest is None else -newest[2]
        if self.source is None:
            self.entropy, self.ends, self.fit, self.number = None, set(), -1, -1
            if self.writer is not None:
                self.writer.folder.clear_files()
            return
        if me.rank != self.source:
            mine, self.saved = None, None
        found = objects.broadcast(mine, "what is kept of the run", root=self.source)
        self.entropy, self.ends, self.fit, self.number = (
            found.begin["entropy"], set(found.ends), found.fit, found.number
        )  # fmt: skip
        random_state.restore_states(found.begin["random"])

    def _find_own(self) -> _Found | None:
        if self.folder is None or os.path.exists(self.folder.locate_file(state_files.ENDED)):
            return None
        if (begin := self.folder.read_file(state_files.BEGIN)) is None:
            return None
        if begin["script"] != self.script:
            notes.print_note(f"the script has changed since its state was kept in {self.path}, so it begins anew")
            return None
        number, self.saved = self.folder.find_newest()
        fit = -1 if self.saved is None else self.saved["fit"]
        return _Found(number, fit, self.folder.list_numbers("end"), begin)

    def keep_entropy(self, entropy: int) -> None:
        """Write down what a run begins with that goes on from nothing."""
        if self.writer is None or self.source == 0:
            return
        arrays: list[np.ndarray] = []
        content = {"script": self.script, "entropy": entropy, "random": random_state.copy_states()}
        packed = serialization.pack_value(content, arrays)
        with real_files.use_real_files():
            state_files.write_state(self.writer.folder.locate_file(state_files.BEGIN), packed, arrays)

    # What is put back

    def load_state(self, fit: int) -> Any:
        """What is kept of the call of fit with that number: of its end, else within it; None if nothing. Collective."""
        found = None
        if fit in self.ends:
            with real_files.use_real_files():
                found = self._send_state(lambda: self._read_end(fit))
        if found is None and fit == self.fit:
            found = self._send_state(lambda: self.saved)
        if fit >= self.fit:
            self.saved = None
        return found

    def _read_end(self, fit: int) -> Any:
        assert self.folder is not None  # the rank that has the state found it there
        return self.folder.read_file(state_files.name_file("end", fit))

    def _send_state(self, read: Callable[[], Any]) -> Any:
        """What `read_state` gives on the rank that has the state, on every rank; arrays go one by one."""
        what = "the state of the run"
        arrays: list[np.ndarray] = []
        packed = None
        assert self.source is not None  # where there is what is to be put back
        if world.get_world().rank == self.source:
            packed = serialization.pack_value(read(), arrays)
        packed, number = objects.broadcast((packed, len(arrays)), what, root=self.source)
        arrays = [
            objects.broadcast(arrays[index] if arrays else None, what, root=self.source) for index in range(number)
        ]
        return serialization.unpack_value(packed, arrays)

    # What is kept

    def may_save(self, fit: int) -> bool:
        """Whether what is kept of this call of fit would be the newest: not where one before was damaged."""
        return fit >= max([self.fit, *(end + 1 for end in self.ends)])

    def write_state(self, kind: str, number: int, content: Any) -> None:
        assert self.writer is not None  # rank 0's
        self.writer.write(kind, number, content)

    def is_due(self) -> bool:
        """Whether rank 0 is to save."""
        seconds = settings.get_settings().save_seconds
        is_late = bool(seconds) and time.monotonic() - self.saved_at >= seconds
        return is_late and self.writer is not None and not self.writer.is_busy

    # The end, asked for or not

    def _handle_request(self, name: str) -> None:
        self.asked = name
        # Rank 0 ends the others once all is on its disk; if it was not asked, the next call of fit ends all.
        if self.within is None and self.writer is not None:
            self._leave_at_once()

    def _finish_writing(self) -> None:
        if self.writer is not None:
            self.writer.flush()

    def _leave_at_once(self) -> None:
        """The script is where there is nothing to save: what it has kept is whole."""
        self._finish_writing()
        next_run = self._explain_restart(is_sure=rank_records.note(asks_again=True))
        terminal.write_text(f"matex_tf: {self.asked}: ended between calls of fit; {next_run}\n")
        shutdown.abort_all_ranks(exit_codes.EXIT_REQUEUE)

    def leave_run(
        self, asked: str | None, where: str, mark: Callable[[], None] | None = None, change: str = ""
    ) -> None:
        """End all ranks, which have come to this together, once all is on the disk. Collective.

        Where `matex run` starts them again at once, of which `mark` tells it, they end only if the state could be kept.
        If not, one line says that there is no `change`.
        """
        failed = None
        if self.writer is not None:
            with watchdog.excuse_wait(f"saving the state of the run to {self.path}", watchdog.SAVING):
                self.writer.flush()
            failed = self.writer.failed
        failed = objects.broadcast(failed, "whether the state of the run is on the disk")
        if mark is not None:
            if failed:
                notes.print_note(
                    f"--adapt: {change}: the state could not be kept for that ({failed}), so all ranks stay where they "
                    "are in this call of fit"
                )
                return
            mark()
        is_known = mark is not None or rank_records.note(asks_again=True)
        if mark is None and world.get_world().rank == 0:
            saved = f"the state could not be saved ({failed})" if failed else f"saved at {where}"
            terminal.write_text(f"matex_tf: {asked}: {saved}; {self._explain_restart(is_sure=True)}\n")
        if any(objects.allgather(is_known, "whether `matex run` knows why the ranks leave")):
            rank_records.note_leaving()
            self.writer = None  # what is kept is to stay
            sys.exit(0)  # of another code mpirun would have much to say
        sys.exit(exit_codes.EXIT_REQUEUE)

    def _explain_restart(self, is_sure: bool) -> str:
        code = f"exit code {exit_codes.EXIT_REQUEUE}; " if is_sure else ""  # another rank may have ended first
        return f"the same command goes on from there ({code}state in {self.path})"

    def _end_run(self) -> None:
        """All ranks have ended their script: well, and nothing is kept any more, or not."""
        for number in shutdown.REQUESTS:  # Python ends with the system's handlers, which would end a rank that is done
            signal.signal(number, signal.SIG_IGN)
        if self.writer is None:
            return
        with watchdog.excuse_wait(f"saving the state of the run to {self.path}", watchdog.SAVING):
            self.writer.flush()
        if exit_codes.exit_code == 0:
            with real_files.use_real_files():
                self.writer.folder.close_folder(remove=not settings.get_settings().proof)
