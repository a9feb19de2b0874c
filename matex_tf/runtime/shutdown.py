"""The end of a run: all ranks reach the end of their scripts together, or one rank aborts all.

At the end of its script a rank calls `end_rank`, by `atexit`: ranks agree that all scripts are over, exchange exit
codes, and finalize MPI. For an error, `abort_with_error` records it and aborts the job. `hear_requests` handles the
signals that ask for an end.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import io
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from matex_tf import errors, ops, settings
from matex_tf.ops import cache
from matex_tf.runtime import losses, objects, rank_records, real_files
from matex_tf.thread_flag import starts_own
from matex_tf.world import (
    exit_codes,
    launcher_processes,
    membership,
    mpi_calls,
    task_environment,
    terminal,
    time_limit,
    world,
)

REQUESTS = (signal.SIGTERM, signal.SIGUSR1)
"""The signals that ask a run to end and to resume later."""
_FLUSH_SECONDS = 5.0  # the limit for writing open files before an abort

script_ended: list[Callable[[], None]] = []
"""Called at the end of this rank's script, before the rank meets the others."""
at_end: list[Callable[[], None]] = []
"""Called on all ranks after all have ended their scripts, before MPI is finalized."""
before_finalize: list[Callable[[], None]] = []
"""Called immediately before MPI is finalized."""
after_end: list[Callable[[], None]] = []
"""Called at the end of this process, after its last communication."""
before_abort: list[Callable[[], None]] = []
"""Called on a rank that is about to abort the job. These functions must not communicate."""
after_failure: list[Callable[[str], None]] = []
"""Called on a rank that aborts the job for an error of the script, with the error in few words. They may wait."""

_is_aborting = False  # this rank is ending all ranks
_have_all_ended = False  # see `have_all_ended`


def have_all_ended() -> bool:
    """Whether all ranks have reached the end of the script."""
    return _have_all_ended


def run_after_end() -> None:
    """Call the functions of `after_end`."""
    while after_end:
        after_end.pop(0)()


atexit.register(run_after_end)  # atexit calls functions in reverse order of registration


def register_end() -> None:
    """Make this rank end together with the others, at the end of the script or in `MPI.Finalize`."""
    from mpi4py import MPI

    original_finalize = MPI.Finalize

    def Finalize() -> None:
        end_rank()
        if not MPI.Is_finalized():
            original_finalize()

    MPI.Finalize = Finalize
    atexit.register(end_rank)


_LIBRARY_FILES = (
    ("h5py", "File", "flush"),
    ("netCDF4", "Dataset", "sync"),
    ("tensorflow.python.lib.io.file_io", "FileIO", "flush"),
    ("tensorflow.python.lib.io.tf_record", "TFRecordWriter", "flush"),
    ("tensorflow.python.summary.writer.writer", "FileWriter", "flush"),
    ("tensorflow.python.ops.summary_ops_v2", "SummaryWriter", "flush"),
)
"""The classes of files that libraries have open, and the methods that write what is not on the disk yet."""


def flush_files() -> None:
    """Write the output and the buffers of the script's open files to disk: an abort does not, unlike the end of Python.

    Pipes are left out, because they could block. A disk may block, too, and so may a file whose lock is held by a
    stuck thread, or by the code that a signal has interrupted. So a thread writes, for a limited time.
    """
    thread = threading.Thread(target=_flush_open_files, name="matex_tf flush", daemon=True)
    with contextlib.suppress(RuntimeError, KeyboardInterrupt):  # no thread can be started; the user does not wait
        with starts_own.set():
            thread.start()
        thread.join(_FLUSH_SECONDS)


def _flush_open_files() -> None:
    stream_types = io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom  # the first has a buffer on top of the others
    library_types = [(getattr(sys.modules.get(module), name, ()), method) for module, name, method in _LIBRARY_FILES]
    files: list[Any] = []
    for tracked_object in gc.get_objects():
        # Not `isinstance`, which asks each object for its class: a weak reference to a lost object raises an error.
        object_type = type(tracked_object)
        if issubclass(object_type, stream_types):
            files.append(tracked_object)
        for library_class, method in library_types:
            if issubclass(object_type, library_class):
                with contextlib.suppress(Exception):  # as below
                    getattr(tracked_object, method)()
    for file in sorted(files, key=lambda file: not issubclass(type(file), io.TextIOWrapper)):
        with contextlib.suppress(Exception):  # a full disk; a closed file; a wrapper of no file; a class of the script
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                file.flush()
    with contextlib.suppress(Exception):
        sys.stdout.flush()  # last: it may be a pipe


def run_before_abort() -> None:
    """Write the script's output and files, and call the functions of `before_abort`, whatever fails."""
    flush_files()
    while before_abort:
        try:
            before_abort.pop(0)()
        except Exception as error:  # the error that aborts the job matters more
            print(f"matex_tf: {type(error).__name__}: {error}", file=sys.stderr)


def abort_with_error(text: str, code: int, follows: bool = False, is_loss: bool = False, failure: str = "") -> None:
    """Abort all ranks for an error of this rank. The run shows the first such error (see `rank_records`).

    Args:
        text: the complete message.
        code: the exit code.
        follows, is_loss: see `rank_records.Record`.
        failure: the error in few words, if rank 0 may first complete the output that precedes it (`after_failure`).
    """
    run_before_abort()
    code, me = exit_codes.correct_failure_code(code), world.get_world()
    fields: dict[str, Any] = {
        "size": me.size, "host": me.host, "number": ops.read_waiting().number, "abort_code": code,
        "time": time.time(), "follows": follows, "is_loss": is_loss,
    }  # fmt: skip
    try:
        with real_files.use_real_files():
            if failure:
                with contextlib.suppress(OSError):
                    rank_records.note(text=text, rank=me.rank, **fields)  # this rank may be killed while it waits
                for function in after_failure:
                    with contextlib.suppress(Exception, KeyboardInterrupt):  # the error itself matters more
                        function(failure)
            # Without `matex run` ranks find out by files in `shared_folder`, which all see, which error is the first.
            shared_folder = cache.find_cache_folder() if me.has_several_hosts else None
            rank_records.report_error(text, me.rank, shared_folder, **fields)
    finally:  # also after an error while reporting
        _end_all(code)


def abort_all_ranks(code: int) -> None:
    """Abort all ranks now with the exit code `code`, or with 1 if `code` is 0."""
    code = exit_codes.correct_failure_code(code)
    run_before_abort()
    with contextlib.suppress(OSError):  # an error while recording must not prevent the abort
        rank_records.note(abort_code=code, number=ops.read_waiting().number, time=time.time())
    _end_all(code)


def _end_all(code: int) -> None:
    global _is_aborting
    _is_aborting = True
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # a closed stream, one that a signal has interrupted, or an object of the script
            continue
    mpi_calls.abort_job(code)


def abort_unjoined(task: task_environment.Task) -> None:
    """Abort all ranks with code 1 for an invalid setting of this rank, which has not joined them.

    Returns if MPI cannot be loaded. MPI is started first, with the default time limits: Open MPI's mpirun may crash or
    hang if a rank ends while another one connects to it.
    """
    activity = "has waited for the others to start MPI, to end them for its error"
    with time_limit.limit_wait(task.rank, task.size, activity, world.UNREACHABLE, settings.Settings({})):
        try:
            mpi_calls.start_mpi()
        except (ImportError, RuntimeError):
            return
    mpi_calls.abort_job(1)


def hear_requests(handle: Callable[[str], None], finish: Callable[[], None]) -> None:
    """From now on, call `handle` with the name of a signal that asks this rank or `matex run` to end.

    After a loss, mpirun sends SIGTERM to the other ranks. So a SIGTERM from mpirun is an abort, not a request: `finish`
    is called, and the process ends. `matex run` passes its requests to the ranks as SIGUSR1. A signal from an unknown
    sender is a request. The sender is unknown without `matex run`, or if a later handler replaced this one.
    """
    engine, launchers = ops.get_library().c, list(launcher_processes.get_launchers())

    def hear(signal_number: int, frame: Any) -> None:
        is_from_launcher = bool(engine.matex_came_from_launchers(signal_number))
        if is_from_launcher and signal_number == signal.SIGTERM:
            finish()
            signal.signal(signal_number, signal.SIG_DFL)
            os.kill(os.getpid(), signal_number)
        else:
            request = rank_records.read_request() if is_from_launcher else None
            handle(request or signal.Signals(signal_number).name)

    thread_data = threading.local()  # `mask`: the signals that the thread blocked before its fork

    def block() -> None:
        thread_data.mask = signal.pthread_sigmask(signal.SIG_BLOCK, REQUESTS)

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, thread_data.mask)

    def restore_default() -> None:
        for signal_number in REQUESTS:
            if signal.getsignal(signal_number) is hear:
                signal.signal(signal_number, signal.SIG_DFL)
        unblock()

    # A forked child is no rank, so a signal ends it. The signals are blocked until the child has restored the default,
    # because an earlier signal would call `hear` in the child.
    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=restore_default)
    for signal_number in REQUESTS:
        signal.signal(signal_number, hear)
        if engine.matex_watch_sender(signal_number, (ctypes.c_int * len(launchers))(*launchers), len(launchers)):
            raise errors.RankError(f"the senders of signal {signal_number} cannot be told apart")


def await_cause() -> None:
    """Wait for the rank at which an error began, because it is the one to end the job.

    Returns only if that rank has caught the error.
    """
    try:
        ops.rendezvous(ops.Kind.EXIT, 0, "the end of its script, for an error of another rank")
    except errors.MismatchError as error:
        _await_others_at_end(error)


def _await_others_at_end(error: errors.MismatchError) -> None:
    """Wait until all ranks have reached their ends, or one ends the job.

    Since `error`, all collectives of the library fail, so the ranks meet at a barrier of MPI. If MPI itself failed, the
    function does not wait, because the other ranks may not know of the failure.
    """
    from mpi4py import MPI

    if losses.is_loss_of_another(error):
        return
    with ops.announce_exchange("the end of scripts that have parted"), contextlib.suppress(MPI.Exception):
        world.get_communicator("control").Barrier()


def end_rank() -> None:
    """The last act of a rank: agree with the others that the script is over, then finalize MPI. Collective."""
    global _have_all_ended
    from mpi4py import MPI

    if not world.is_active() or _is_aborting or MPI.Is_finalized():
        return
    for function in script_ended:
        function()
    # Meet the other ranks. Ranks that are at another collective read this description in their error.
    code, exit_text = exit_codes.exit_code, exit_codes.exit_text
    description = f"the end of its script, with exit code {code}" if code else "the end of its script"
    if exit_text:
        description += f" ({exit_text})"
    try:
        membership.attempt_collectives(
            description, lambda: ops.rendezvous(ops.Kind.EXIT, 0, description, exit_code=code)
        )
    except errors.MismatchError as error:
        # Another rank is at another collective.
        if code and ops.find_cause(str(error)) is ops.Cause.ENDED:
            text = f"matex_tf: {_describe_exit()}, while others go on. All ranks end where one does.\n"
            abort_with_error(text, code, failure=f"exit code {code}")
        # The other rank raises this error, too, and shows the line of the script.
        _await_others_at_end(error)
        abort_with_error(f"matex_tf: {error}\n", code or 1, follows=True)
    _have_all_ended = True
    # All ranks have ended their scripts: clean up, exchange exit codes, finalize MPI.
    try:
        for function in at_end:
            function()
    except errors.RankError as error:  # raised on all ranks
        abort_with_error(f"matex_tf: {error}\n", 1)
    me = world.get_world()
    # A rank that writes files records that they are not complete until the end of its process. It does so before the
    # next collective, so before any rank can record that all have ended.
    if me.rank == 0 or settings.get_settings().output == "all":
        rank_records.note_writing()
    exits = objects.allgather((code, exit_text), "what is done after the script")
    _report_exits(exits)
    with time_limit.limit_wait(me.rank, me.size, "has waited for MPI to end, after all have come to the script's end"):
        rank_records.note_end({rank_code for rank_code, _ in exits})
        for function in before_finalize:
            function()
        if not me.has_lost:  # MPI may otherwise wait for lost ranks
            mpi_calls.end_mpi()


def _describe_exit() -> str:
    me = world.get_world()
    call = f" by sys.exit({exit_codes.exit_text!r})" if exit_codes.exit_text else ""
    return f"rank {me.rank} of {me.size} on {me.host} has ended its script{call}, with exit code {exit_codes.exit_code}"


def _report_exits(exits: list[tuple[int, str]]) -> None:
    """Print each different argument of `sys.exit`, on its first rank. Python itself prints rank 0's."""
    rank = world.get_world().rank
    if exit_codes.exit_text and exits.index(exits[rank]) == rank > 0:
        terminal.write_text(f"matex_tf: {_describe_exit()}\n")
