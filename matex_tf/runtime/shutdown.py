"""How a run of several ranks ends: all come to the end of their scripts together, or one ends them all."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from matex_tf import errors, ops, settings
from matex_tf.ops import cache
from matex_tf.runtime import objects, rank_records, real_files
from matex_tf.world import (
    exit_codes,
    membership,
    mpi_calls,
    task_environment,
    terminal,
    time_limit,
    world,
)

REQUESTS = (signal.SIGTERM, signal.SIGUSR1)
"""The signals by which a run is asked to end, to go on later."""
_KIND = 7  # see `ops.rendezvous`


script_ended: list[Callable[[], None]] = []
"""Called when this rank's script has ended, before it meets the others there."""
at_end: list[Callable[[], None]] = []
"""Called on all ranks when all have ended their script, before MPI ends."""
before_finalize: list[Callable[[], None]] = []
"""Called right before MPI ends."""
after_end: list[Callable[[], None]] = []
"""Called when this process ends, after it has met the others for the last time."""
before_abort: list[Callable[[], None]] = []
"""Called where a rank is about to end the job; what the ranks do there they do each alone."""

_aborting = False
_have_all_ended = False


def have_all_ended() -> bool:
    """Whether all ranks have come to the end of the script."""
    return _have_all_ended


def run_after_end() -> None:
    """Do what is left to do where this process ends."""
    while after_end:
        after_end.pop(0)()


atexit.register(run_after_end)  # functions that are registered later are called before it


def register_end() -> None:
    """Have this rank end together with the others, as the script ends or calls `MPI.Finalize`."""
    from mpi4py import MPI

    plain = MPI.Finalize

    def Finalize() -> None:
        end_rank()
        if not MPI.Is_finalized():
            plain()

    MPI.Finalize = Finalize
    atexit.register(end_rank)


def run_before_abort() -> None:
    """Do what is to be done before the job is ended; whatever goes wrong with that, it ends."""
    while before_abort:
        try:
            before_abort.pop(0)()
        except Exception as error:  # the error that ends the job is the one that matters
            print(f"matex_tf: {type(error).__name__}: {error}", file=sys.stderr)


def abort_with_error(text: str, code: int, follows: bool = False, is_loss: bool = False) -> None:
    """End all ranks for an error of this one, of which the run shows the first (see `rank_records`)."""
    run_before_abort()
    sys.stdout.flush()
    code, me = exit_codes.correct_failure_code(code), world.get_world()
    said: dict[str, Any] = {"size": me.size, "host": me.host, "number": ops.read_waiting().number, "aborts": code}
    try:
        with real_files.use_real_files():
            shared = cache.find_cache_folder() if me.has_several_hosts else None
            rank_records.report_error(text, me.rank, shared, follows=follows, is_loss=is_loss, **said)
    finally:  # whatever goes wrong with that
        _end_all(code)


def abort_all_ranks(code: int) -> None:
    """End all ranks now, with the exit code `code`, or 1 in place of 0."""
    code = exit_codes.correct_failure_code(code)
    run_before_abort()
    with contextlib.suppress(OSError):  # whatever goes wrong with that, they end
        rank_records.note(aborts=code, number=ops.read_waiting().number, time=time.time())
    _end_all(code)


def _end_all(code: int) -> None:
    global _aborting
    _aborting = True
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue  # a closed stream has nothing left to say
    mpi_calls.abort_job(code)


def abort_unjoined(task: task_environment.Task) -> None:
    """End all ranks, with code 1, for a wrong setting of this one, which has not joined them.

    Where MPI cannot be loaded it returns. MPI is started first, with the limits of the defaults: Open MPI's mpirun may
    crash, or never end, if a rank ends while another one connects to it.
    """
    what = "has waited for the others to start MPI, to end them for its error"
    with time_limit.limit_wait(task.rank, task.size, what, world.UNREACHABLE, settings.Settings({})):
        try:
            mpi_calls.start_mpi()
        except (ImportError, RuntimeError):
            return
    mpi_calls.abort_job(1)


def hear_requests(handle: Callable[[str], None], finish: Callable[[], None]) -> None:
    """From now on call `handle` with the name of the signal by which this rank, or `matex run`, is asked to end.

    mpirun sends SIGTERM to the ranks that are left when one is lost. `matex run` never has it do so: what it is asked
    itself it passes on as SIGUSR1. So SIGTERM of mpirun is no request, but the end: `finish` is called before it. A
    signal of an unknown sender is a request: of any without `matex run`, or where a handler was set after this one.
    """
    c, launchers = ops.get_library().c, list(task_environment.get_launchers())

    def hear(number: int, frame: Any) -> None:
        is_launchers = bool(c.matex_came_from_launchers(number))
        if is_launchers and number == signal.SIGTERM:
            finish()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        else:
            asked = rank_records.read_request() if is_launchers else None
            handle(asked or signal.Signals(number).name)

    for number in REQUESTS:
        signal.signal(number, hear)
        if c.matex_watch_sender(number, (ctypes.c_int * len(launchers))(*launchers), len(launchers)):
            raise errors.RankError(f"the senders of signal {number} cannot be told apart")


def await_cause() -> None:
    """Let the rank at which an error began end the job; returns only if it has caught that error."""
    try:
        ops.rendezvous(_KIND, 0, "the end of its script, for an error of another rank")
    except errors.MismatchError as error:
        _await_others_at_end(error)


def _await_others_at_end(error: errors.MismatchError) -> None:
    """Returns when all ranks have come to their ends, if none ends the job: after `error` all collectives fail on all.

    Where MPI has failed, the others may know nothing of it, and are not waited for.
    """
    from mpi4py import MPI

    if membership.is_loss_of_another(error):
        return
    with ops.announce_exchange("the end of scripts that have parted"), contextlib.suppress(MPI.Exception):
        world.get_communicator("control").Barrier()


def end_rank() -> None:
    """The last thing a rank does: agree with the others that the script is over, then finalize MPI."""
    global _have_all_ended
    from mpi4py import MPI

    if not world.is_active() or _aborting or MPI.Is_finalized():
        return
    for work in script_ended:
        work()
    code, said = exit_codes.exit_code, exit_codes.exit_text
    ended = f"{membership.LEFT_WITH} {code}" if code else "the end of its script"
    if said:
        ended += f" ({said})"
    try:
        membership.attempt_collectives(ended, lambda: ops.rendezvous(_KIND, 0, ended))
    except errors.MismatchError as error:
        if code and membership.LEFT_WITH in str(error):
            text = f"{_describe_exit()}, while others go on. All ranks end where one does."
            abort_with_error(f"matex_tf: {text}\n", code)
        # Those that are still at work raise this error where they are, and show the line of the script.
        _await_others_at_end(error)
        abort_with_error(f"matex_tf: {error}\n", code or 1, follows=True)
    _have_all_ended = True
    try:
        for work in at_end:
            work()
    except errors.RankError as error:  # on all ranks
        abort_with_error(f"matex_tf: {error}\n", 1)
    me = world.get_world()
    if me.rank == 0 or settings.get_settings().output == "all":  # before any rank can record that all have ended
        rank_records.note_writing()
    exits = objects.allgather((code, said), "what is done after the script")
    _tell_exits(exits)
    with time_limit.limit_wait(me.rank, me.size, "has waited for MPI to end, after all have come to the script's end"):
        rank_records.note_end({each for each, _ in exits})
        for work in before_finalize:
            work()
        if not me.has_lost:  # else MPI may wait for those that were lost
            mpi_calls.end_mpi()


def _describe_exit() -> str:
    me = world.get_world()
    said = f" by sys.exit({exit_codes.exit_text!r})" if exit_codes.exit_text else ""
    return f"rank {me.rank} of {me.size} on {me.host} has ended its script{said}, with exit code {exit_codes.exit_code}"


def _tell_exits(exits: list[tuple[int, str]]) -> None:
    """Say what ranks have said to `sys.exit`, by rank; what rank 0 has said, Python shows as that of all."""
    rank = world.get_world().rank
    if exit_codes.exit_text and exits.index(exits[rank]) == rank > 0:
        terminal.write_text(f"matex_tf: {_describe_exit()}\n")
