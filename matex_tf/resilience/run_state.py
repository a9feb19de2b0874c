"""Saves the state of a run, and resumes from it when the run is restarted; the script stays unchanged.

Calls of `fit` have the numbers 0, 1, and so on. A restarted script runs from its beginning: ended calls are skipped,
and the call with the newest state resumes from it. All ranks have the same state, which does not depend on the number
of ranks. So rank 0 saves and reads it for all, after it has copied the newest state of all hosts. "Restarts" in
docs/reliability.md describes the state.

`Run` also ends the run on request: after a signal, after the epochs that a rung of `matex tune --rungs` grants, or for
a change of the ranks by `--adapt=ranks`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from matex_tf import errors, settings
from matex_tf.resilience import async_writer, random_state, script_file, serialization, state_files
from matex_tf.runtime import end_requests, notes, objects, rank_records, real_files, shutdown
from matex_tf.steps import events
from matex_tf.thread_flag import is_main_thread
from matex_tf.world import exit_codes, file_locks, membership, terminal, world

_run: Run | None = None


class _FolderState(NamedTuple):
    """What a folder tells about the run. For the last three see `Run`."""

    begin: dict[str, Any]  # the beginning of the run: script, entropy, random states
    ended_fits: set[int]
    saved_fit: int
    state_number: int


def open_run() -> Run | None:
    """Open the folder that MATEX_STATE names, and find its newest state. Collective. None if it names no folder."""
    global _run
    if settings.get_settings().state:
        _run = Run(os.path.abspath(os.path.expanduser(settings.get_settings().state)))
    return _run


def get_current() -> Run | None:
    """The run whose state is saved; None if there is none, or in a thread other than the main thread."""
    return _run if is_main_thread() else None


class Run:
    """The saved state of this run. Before a call of `fit`, `load_state` returns its saved state on all ranks."""

    entropy: int | None  # of a run that resumes: the entropy of its random numbers, which are the same again
    saved_fit: int  # the number of the call that the newest state is inside of; -1 if there is none
    ended_fits: set[int]  # the numbers of the calls whose end is saved
    state_number: int  # of the newest state inside a call; -1 if there is none

    def __init__(self, path: str):
        self.path = path
        self.script = script_file.digest_script()
        self.fits = self.epochs = 0  # calls begun and epochs ended since the first start of the run
        self.current_fit: Any = None  # the running call, a `fit_state.Fit`, which sets this
        self.end_request: str | None = None  # why the run is to end soon, such as a signal
        self.has_trained = False  # a step has trained since this start
        self.saved_at = time.monotonic()  # of the last state; at first, the start
        self.writer: async_writer.Writer | None = None  # on rank 0, which holds the lock
        self._newest: Any = None  # on rank 0, the content of the newest state until its call has begun
        with real_files.use_real_files():
            membership.attempt_collectives("opening the folder of the run's state", self._open_folder)
        end_requests.hear_requests(self._handle_request, self._finish_writing)
        shutdown.at_end.append(self._end_run)
        events.world_changed.add_listener(self._handle_loss)

    def _open_folder(self) -> None:
        """Open the folder on the first rank of each host, and resume from the newest state. Collective.

        Only rank 0 creates, locks and changes the folder.

        Raises:
            SetupError: on all ranks, if the folder cannot be used.
        """
        me, folder, failure = world.get_world(), None, None
        try:
            if self.writer is not None:  # `attempt_collectives` repeats this call if a rank is lost
                folder = self.writer.folder
            elif me.rank == 0:
                folder = state_files.Folder(self.path)
                if self._lock_folder(folder):
                    self.writer = async_writer.Writer(folder)
                else:
                    failure = "another run is using the folder"
            elif me.local_rank == 0 and os.path.isdir(self.path):
                folder = state_files.Folder(self.path)
        except OSError as raised:
            failure = str(raised)
        for rank, cause in enumerate(objects.allgather(failure, "opening the folder of the run's state")):
            if cause is not None:
                raise errors.SetupError(
                    f"MATEX_STATE={self.path} cannot be used on rank {rank} ({me.hosts[rank]}): {cause}. Set it to a "
                    "folder of your own, on a file system that all hosts share, that no other run uses."
                )
        self._resume_newest(folder)

    def _lock_folder(self, folder: state_files.Folder) -> bool:
        """Lock the folder; False if another run has the lock. Tries for 10 s: a killed process may still have it."""
        consequence = "A second run in the same folder is not detected: give each run its own MATEX_STATE"

        def report_lack(error: OSError) -> None:
            notes.print_note(file_locks.describe_lack(self.path, error, consequence))

        for _ in range(20):
            self._lock = folder.hold_lock(report_lack)
            if self._lock is not None:
                return True
            time.sleep(0.5)
        return False

    def _handle_loss(self, became_first: bool) -> None:
        """A new rank 0 takes over the folder."""
        if not became_first:
            return
        with real_files.use_real_files():
            folder = state_files.Folder(self.path)
            self.writer = async_writer.Writer(folder)
            if not self._lock_folder(folder):
                notes.print_note(f"{self.path}, the folder of the run's state, is still locked by the lost rank")
            self.state_number = max([self.state_number, *folder.list_numbers("state")])
            if self.fits <= self.saved_fit:  # the call with this state has not begun
                _, self._newest = folder.find_newest()
                if self._newest is None or self._newest["fit"] != self.saved_fit:
                    raise membership.make_loss_error(f"{self.path} on this host lacks the state to resume from")

    def _resume_newest(self, folder: state_files.Folder | None) -> None:
        """Find the newest state, and restore the random generators to the beginning of the run. Collective.

        Hosts need not share the folder: the newest state is the one with most ended calls, then the one with the
        largest number; of equal ones, that of the first rank.
        """
        state = None if folder is None else self._read_folder(folder)
        own_progress = (-1, -1) if state is None else (len(state.ended_fits), state.state_number)  # larger is newer
        progresses = objects.allgather(own_progress, "looking for the state of the run")
        root = progresses.index(max(progresses))
        if root > 0:
            self._copy_state(folder, state, root)
            # Rank 0 reads the copy.
            state = self._read_folder(folder) if folder is not None and self.writer is not None else None
        state = objects.broadcast(state, "the saved state of the run")
        if self.writer is None:
            self._newest = None  # only rank 0 sends the state in `load_state`
        if state is not None:
            self.ended_fits, self.saved_fit, self.state_number = state.ended_fits, state.saved_fit, state.state_number
            self.entropy = state.begin["entropy"]
            random_state.restore_states(state.begin["random"])
            return
        self.entropy, self.ended_fits, self.saved_fit, self.state_number = None, set(), -1, -1
        if self.writer is not None:
            self.writer.folder.clear_files()

    def _copy_state(self, folder: state_files.Folder | None, state: _FolderState | None, root: int) -> None:
        """Copy the newest state to rank 0. Collective. `state`: on rank `root`, the result of `_read_folder`."""
        me = world.get_world()
        begin, ended_fits, _, newest_number = objects.broadcast(state, "the newest state of all hosts", root)
        files = [("end", fit_number) for fit_number in sorted(ended_fits)]
        files += [("state", newest_number)] if newest_number >= 0 else []
        target_folder = None if self.writer is None else self.writer.folder
        if target_folder is not None:
            notes.print_note(
                f"{self.path} on {me.hosts[root]} has a newer state of the run than on {me.hosts[0]}, which gets a copy"
            )
            own_begin = target_folder.read_file(state_files.BEGIN)
            if own_begin is None or own_begin["entropy"] != begin["entropy"]:  # of another run
                target_folder.clear_files()
            for number in target_folder.list_numbers("state"):
                if number > newest_number:
                    os.unlink(target_folder.locate_file(state_files.name_file("state", number)))
        for kind, number in files:
            name = state_files.name_file(kind, number)
            content = self._send_state(folder.read_file(name) if folder and me.rank == root else None, root)
            if target_folder is not None and content is not None:
                target_folder.write_file(kind, number, serialization.pack_value(content))
        self._write_begin(begin)  # at last: a folder without this file has no state

    def _read_folder(self, folder: state_files.Folder) -> _FolderState | None:
        """Read the newest state. None if there is no state of this script to resume."""
        if (begin := folder.read_file(state_files.BEGIN)) is None:
            return None
        if begin["script"] != self.script:
            notes.print_note(f"the script has changed since its state was saved in {self.path}, so it starts over")
            return None
        number, self._newest = folder.find_newest()
        saved_fit = -1 if self._newest is None else self._newest["fit"]
        return _FolderState(begin, set(folder.list_numbers("end")), saved_fit, number)

    def keep_entropy(self, entropy: int) -> None:
        """Save the beginning of a run that does not resume, with the `entropy` on which all ranks have agreed."""
        if self.entropy is None:
            self._write_begin({"script": self.script, "entropy": entropy, "random": random_state.copy_states()})

    def _write_begin(self, content: dict[str, Any]) -> None:
        if self.writer is not None:
            with real_files.use_real_files():
                path = self.writer.folder.locate_file(state_files.BEGIN)
                state_files.write_state(path, serialization.pack_value(content))

    # Restoring

    def load_state(self, fit_number: int) -> Any:
        """The saved state of call `fit_number`: its end, or a state inside it; None if there is none. Collective."""
        saved_state = None
        if fit_number in self.ended_fits:
            content = None
            if self.writer is not None:
                with real_files.use_real_files():
                    content = self.writer.folder.read_file(state_files.name_file("end", fit_number))
            saved_state = self._send_state(content)
        if saved_state is None and fit_number == self.saved_fit:
            saved_state = self._send_state(self._newest)
        if fit_number >= self.saved_fit:
            self._newest = None  # no later call needs it
        return saved_state

    def _send_state(self, content: Any, root: int = 0) -> Any:
        """Broadcast `content` of rank `root` to every rank, array by array."""
        purpose = "the state of the run"
        own = serialization.pack_value(content if world.get_world().rank == root else None)
        form, count = objects.broadcast((own.json, len(own.arrays)), purpose, root)
        arrays = [objects.broadcast(own.arrays[index] if own.arrays else None, purpose, root) for index in range(count)]
        return serialization.unpack_value(serialization.Packed(form, arrays))

    # Saving

    def may_save(self, fit_number: int) -> bool:
        """Whether a state of this call would be the newest."""
        # A call whose saved end is damaged is repeated, although later calls may have saved states.
        return fit_number >= max([self.saved_fit, *(ended_number + 1 for ended_number in self.ended_fits)])

    def is_due(self) -> bool:
        """Whether this rank is rank 0, and should save now."""
        seconds = settings.get_settings().save_seconds
        is_late = bool(seconds) and time.monotonic() - self.saved_at >= seconds
        return is_late and self.writer is not None and not self.writer.is_busy

    # The end of the run

    def _handle_request(self, name: str) -> None:
        """Called for a signal `name` that asks the process to end. Within `fit`, ranks leave at their next vote."""
        self.end_request = name
        # Outside of `fit`, rank 0 ends the other ranks after its writes are complete. If rank 0 got no signal, the next
        # call of `fit` ends all ranks.
        if self.current_fit is None and self.writer is not None:
            self._finish_writing()
            next_run = self._explain_restart(is_code_known=rank_records.note(asks_again=True))  # True under `matex run`
            terminal.write_text(f"matex_tf: {name}: ended between calls of fit; {next_run}\n")
            shutdown.abort_all_ranks(exit_codes.EXIT_REQUEUE)

    def _finish_writing(self) -> None:
        if self.writer is not None:
            self.writer.flush()

    def leave_run(
        self, request: str | None, position: str, mark: Callable[[], None] | None = None, change: str = ""
    ) -> None:
        """End all ranks together, after the state is on disk. Collective.

        Returns only if a change is requested and the state could not be saved; a note then reports this.

        Args:
            request: why the run is to end; None for a change.
            position: the saved position, for a message.
            mark: asks `matex run` to restart the ranks with the change; None if the run is to end.
            change: the change, for a message.
        """
        failure = None
        if self.writer is not None:
            self.writer.flush()
            failure = self.writer.failed
        failure = objects.broadcast(failure, "whether the state of the run is on the disk")
        if mark is None:  # the run is to end
            is_reason_known = rank_records.note(asks_again=True)  # whether `matex run` gets this rank's record
            if world.get_world().rank == 0:
                saved_text = f"the state could not be saved ({failure})" if failure else f"saved at {position}"
                terminal.write_text(f"matex_tf: {request}: {saved_text}; {self._explain_restart(is_code_known=True)}\n")
        elif failure:
            notes.print_note(
                f"--adapt: {change}: the state could not be saved ({failure}), so no change is made in this call of fit"
            )
            return
        else:  # the run is to be changed
            is_reason_known = True
            mark()
        if any(objects.allgather(is_reason_known, "whether `matex run` knows why the ranks leave")):
            rank_records.note_leaving()
            self.writer = None  # the saved state remains
            sys.exit(0)  # mpirun reports any other exit code at length
        sys.exit(exit_codes.EXIT_REQUEUE)

    def _explain_restart(self, is_code_known: bool) -> str:
        """How the run continues, for a message. Without `matex run`, another rank may end first with another code."""
        code_text = f"exit code {exit_codes.EXIT_REQUEUE}; " if is_code_known else ""
        return f"the same command goes on from there ({code_text}state in {self.path})"

    def _end_run(self) -> None:
        """Called after all ranks have ended their script. After a success, the saved state is removed."""
        # Python restores the system's handlers at exit; a signal would then kill a finished rank.
        for signal_number in end_requests.REQUESTS:
            signal.signal(signal_number, signal.SIG_IGN)
        if self.writer is None:
            return
        self.writer.flush()
        if exit_codes.exit_code == 0:
            with real_files.use_real_files():
                self.writer.folder.remove_folder()
