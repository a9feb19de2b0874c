"""How a run of several ranks ends: all come to the end of their scripts together, or one ends them all."""

from __future__ import annotations

import atexit
import contextlib
import sys
from collections.abc import Callable
from typing import Any

from matex_tf import ops
from matex_tf.ops import cache
from matex_tf.runtime import exit_marks, objects, real_files
from matex_tf.world import error_records, membership, mpi_timeout, world

_KIND = 7  # see `ops.rendezvous`


script_ended: list[Callable[[], None]] = []
"""Called when this rank's script has ended, before it meets the others there."""
at_end: list[Callable[[], None]] = []
"""Called on all ranks when all have ended their script, before MPI ends."""
before_finalize: list[Callable[[], None]] = []
"""Called right before MPI ends."""
before_abort: list[Callable[[], None]] = []
"""Called where a rank is about to end the job; what the ranks do there they do each alone."""

_exit_code = 0
_exit_text = ""
_aborting = False


def register_end() -> None:
    """Have this rank end together with the others, as the script ends or calls `MPI.Finalize`."""
    from mpi4py import MPI

    plain = MPI.Finalize

    def Finalize() -> None:
        end_rank()
        if not MPI.Is_finalized():
            plain()

    Finalize.plain = plain  # type: ignore[attr-defined]
    MPI.Finalize = Finalize
    atexit.register(end_rank)


def run_before_abort() -> None:
    """Do what is to be done before the job is ended; whatever goes wrong with that, it ends."""
    while before_abort:
        try:
            before_abort.pop(0)()
        except Exception as error:  # the error that ends the job is the one that matters
            print(f"matex_tf: {type(error).__name__}: {error}", file=sys.stderr)


def abort_with_error(text: str, exception: str, code: int, follows: bool = False, is_loss: bool = False) -> None:
    """End all ranks for an error of this one, of which the run shows the first (see `error_records`)."""
    run_before_abort()
    sys.stdout.flush()
    me = world.get_world()
    record = error_records.ErrorRecord(
        me.rank, me.size, me.host, exception, text, ops.read_waiting().number, follows, is_loss
    )
    try:
        with real_files.use_real_files():
            error_records.show_record(record, cache.find_cache_folder() if me.has_several_hosts else None)
    finally:  # whatever goes wrong with that
        abort_all_ranks(code)


def abort_all_ranks(code: int) -> None:
    """End all ranks now."""
    global _aborting
    _aborting = True
    run_before_abort()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue  # a closed stream has nothing left to say
    from mpi4py import MPI

    MPI.COMM_WORLD.Abort(code if 0 < code < 256 else 1)


def remember_exit_code(code: Any) -> None:
    """Called with the argument of `sys.exit`, so that a rank that must abort others ends them with its own code."""
    global _exit_code, _exit_text
    _exit_code = code if isinstance(code, int) else int(code is not None)
    _exit_text = "" if code is None or isinstance(code, int) else str(code)


def get_exit_code() -> int:
    """What the script has given to `sys.exit`, as a number; 0 if it has not."""
    return _exit_code


def await_cause() -> None:
    """Let the rank at which an error began end the job; returns only if it has caught that error."""
    try:
        ops.rendezvous(_KIND, 0, "the end of its script, for an error of another rank")
    except ops.MismatchError as error:
        _await_others_at_end(error)


def _await_others_at_end(error: ops.MismatchError) -> None:
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
    from mpi4py import MPI

    if not world.is_active() or _aborting or MPI.Is_finalized():
        return
    for work in script_ended:
        work()
    ended = "the end of its script" + (f", {membership.LEFT_WITH} {_exit_code}" if _exit_code else "")
    if _exit_text:
        ended += f" ({_exit_text})"
    try:
        membership.attempt_collectives(ended, lambda: ops.rendezvous(_KIND, 0, ended))
    except ops.MismatchError as error:
        # Those that are still at work raise this error where they are, and show the line of the script.
        _await_others_at_end(error)
        abort_with_error(f"matex_tf: {error}\n", f"MismatchError: {error}", _exit_code or 1, follows=True)
    try:
        for work in at_end:
            work()
    except world.RankError as error:  # on all ranks
        abort_with_error(f"matex_tf: {error}\n", f"RankError: {error}", 1)
    objects.barrier("what is done after the script")
    me = world.get_world()
    with mpi_timeout.limit_time(me.rank, me.size, "has waited for MPI to end, after all have come to the script's end"):
        exit_marks.mark_ended()
        for work in before_finalize:
            work()
        if not me.has_lost:  # else MPI may wait for those that were lost
            MPI.Finalize.plain()  # type: ignore[attr-defined]
