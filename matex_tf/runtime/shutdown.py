"""The end of a run: all ranks reach the end of their scripts together, or one rank aborts all.

At the end of its script a rank calls `end_rank`, by `atexit`: ranks agree that all scripts are over, exchange exit
codes, and finalize MPI. For an error, `abort_with_error` records it and aborts the job. `hear_requests` handles the
signals that ask for an end.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
import time
from collections.abc import Callable

from matex_tf import errors, ops, settings
from matex_tf.lazy import MPI
from matex_tf.ops import cache
from matex_tf.runtime import losses, objects, open_files, rank_records, real_files
from matex_tf.world import (
    exit_codes,
    membership,
    mpi_calls,
    task_environment,
    terminal,
    time_limit,
    world,
)

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


def run_before_abort() -> None:
    """Write the script's output and files, and call the functions of `before_abort`, whatever fails."""
    open_files.flush_files()
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
    try:
        with real_files.use_real_files():
            # Recorded first, because this rank may be killed while it waits for rank 0.
            is_recorded = rank_records.note_error(
                text, me.rank, size=me.size, host=me.host, number=ops.read_waiting().number, abort_code=code,
                follows=follows, is_loss=is_loss,
            )  # fmt: skip
            for function in after_failure if failure else ():
                with contextlib.suppress(Exception, KeyboardInterrupt):  # the error itself matters more
                    function(failure)
            if not is_recorded:
                # Ranks find out by files in this folder, which all see, which error is the first.
                rank_records.show_error(text, me.rank, cache.find_cache_folder() if me.has_several_hosts else None)
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
    if losses.is_loss_of_another(error):
        return
    with ops.announce_exchange("the end of scripts that have parted"), contextlib.suppress(MPI.Exception):
        world.get_communicator("control").Barrier()


def end_rank() -> None:
    """The last act of a rank: agree with the others that the script is over, then finalize MPI. Collective."""
    global _have_all_ended
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
