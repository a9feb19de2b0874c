"""Elastic runs (`--elastic`): after a rank is lost, the other ranks continue without a restart.

The work of ranks consists of attempts: calls of steps, and collectives outside of steps. `attempt_work` makes an
attempt; after a loss it shrinks the world to the surviving ranks, undoes the attempt, and repeats it. If a rank is lost
outside an attempt, for example in the script's own loop, the run ends, and `matex run` restarts it from its saved
state.
"""

from __future__ import annotations

import contextlib
import gc
import io
import threading
from collections.abc import Callable
from typing import Any

from matex_tf import errors, ops, settings
from matex_tf.files import overlay
from matex_tf.runtime import excepthook, losses, script_frames, shutdown, watchdog
from matex_tf.servers.pieces import piece_copies
from matex_tf.steps import events
from matex_tf.world import exit_codes, membership, terminal, time_limit, world

after_loss: list[Callable[[bool], None]] = []
"""Called on the surviving ranks after the world has shrunk; the argument tells whether this rank has become rank 0."""

reported: set[int] = set()
"""Ranks whose loss was already reported, before the survivors agreed on it."""

_in_attempt = False


def is_on() -> bool:
    return settings.get_settings().elastic and world.is_active()


def enable_attempts() -> None:
    """Install the hooks of elastic runs. Call this before any work that a lost rank could interrupt."""
    if is_on():
        membership.set_retry(attempt_work)
        shutdown.script_ended.append(_flush_files)
        after_loss.append(overlay.take_over_files)


def attempt_work(what: str, work: Callable[[], Any], undo: Callable[[], None] | None = None) -> Any:
    """Call `work` until all surviving ranks have completed it; returns its result. Collective.

    The replicas are the backup, as planned in section III-B of the MaTEx-TensorFlow paper: each rank has all variables,
    and a variable's pieces have copies on another rank. A lost rank therefore takes only its share of the current
    attempt with it. At the end of an attempt the ranks agree on success, by MPI's user-level failure mitigation; the
    agreement holds even if a rank is lost during it. Without success they revoke their communicators, so that no rank
    waits in a collective, and shrink the world. All ranks are thus in the same attempt.

    After a loss, `undo` is called, perhaps several times, and then `work` again, in the smaller world. Within another
    attempt, and in other threads, `work` is called without these steps: the outer attempt handles its errors.

    Args:
        what: a description of the work, for messages.
        work: collectives, and computations that may be repeated after `undo`.
        undo: restores the state before `work`; None if there is nothing to restore.
    """
    if not is_on() or _in_attempt or threading.current_thread() is not threading.main_thread():
        return work()
    try:
        if ops.has_mpi_failed(failure := ops.read_failure()):
            raise membership.make_loss_error(f"an operation of the script itself has failed: {failure}")
        while True:
            is_done, result, error = _attempt_once(work)
            if is_done:
                return result
            _shrink_world(what, error)
            _undo_attempt(undo)
    except errors.LostRankError as error:
        excepthook.end_for_loss(error)
        raise


def _attempt_once(work: Callable[[], Any]) -> tuple[bool, Any, Exception | None]:
    """Call `work`. Returns whether all ranks have completed it, and its result or error on this rank. Collective.

    Ranks other than rank 0 store their output, to print it if they become rank 0. A rank agrees after it has flushed
    its output. So stored output from before an agreement is not needed: rank 0 has printed it. That holds only if no
    thread of the script prints meanwhile, as threads are not in step with other ranks.
    """
    global _in_attempt
    result, failed = None, None
    has_no_thread = not script_frames.find_thread_at_work()
    printed = terminal.measure_text()
    _in_attempt = True
    try:
        result = work()
    except Exception as error:
        if isinstance(error, errors.LostRankError) or not losses.is_loss_of_another(error):
            raise
        failed = error
        world.revoke_communicators()
    finally:
        _in_attempt = False
    has_first_no_thread = world.get_world().rank > 0 or not script_frames.find_thread_at_work()
    terminal.flush_text()
    is_done, has_first_no_thread = _is_done_by_all(failed is None, has_first_no_thread)
    if is_done and has_first_no_thread:
        terminal.forget_text()
    elif not is_done and has_no_thread:
        terminal.forget_after(printed)  # the repeated attempt prints it again
    return is_done, result, failed


def _undo_attempt(undo: Callable[[], None] | None) -> None:
    """Undo an attempt on the surviving ranks, and restore pieces that only lost ranks held. Collective."""
    while True:
        if undo is not None:
            undo()
        is_done, assign_values, error = _attempt_once(piece_copies.restore_lost)
        if is_done:
            assign_values()
            return
        _shrink_world("restoring the pieces of lost ranks", error)


def _is_done_by_all(is_done: bool, has_first_no_thread: bool) -> tuple[bool, bool]:
    """Whether both hold on all ranks. All survivors get the same answer. Collective."""
    me, what = world.get_world(), "knows of a lost rank, and waits for the other ranks' agreement to continue"
    # The watchdog stopped when this rank revoked the communicators, so the wait has a limit of its own.
    with contextlib.nullcontext() if is_done else time_limit.limit_wait(me.rank, me.size, what, end=_end_job):
        return world.agree_on_success(is_done, has_first_no_thread)


def _end_job() -> None:
    shutdown.abort_all_ranks(exit_codes.EXIT_STALLED)


def _shrink_world(what: str, failed: Exception | None) -> None:
    """Shrink the world to the surviving ranks, and update all objects that depend on it. Collective among them.

    Args:
        what: the work that a loss interrupted, for messages.
        failed: its error on this rank.
    """
    me = world.get_world()
    old_rank, hosts = me.rank, me.hosts
    watchdog.stop_watching()
    survivors = world.shrink_world()
    if len(survivors) == len(hosts):
        raise errors.RankError(f"MPI failed in {what}, though no rank was lost: {failed}") from failed
    ops.restart_engine(lambda numbers: _find_largest(me, numbers))
    watchdog.start_watching()
    membership.note_survivors(survivors)
    events.world_changed()
    became_first = old_rank > 0 and me.rank == 0
    if became_first and (why := _find_obstacle()):
        raise membership.make_loss_error(f"the first rank was lost, and {why}")
    try:
        for work in after_loss:
            work(became_first)
    except OSError as error:
        raise membership.make_loss_error(
            f"the files of the first rank, which was lost, cannot be taken over: {error}"
        ) from error
    if became_first:
        terminal.print_text()
        if settings.get_settings().output != "all" and (why := _find_thread_at_work()):  # a thread started since
            raise membership.make_loss_error(f"the first rank was lost, and {why}")
    gone = {rank: host for rank, host in enumerate(hosts) if rank not in survivors and rank not in reported}
    reported.clear()
    if gone and me.rank == 0:
        report_loss(gone, len(survivors), f"at: {what}")


def _find_obstacle() -> str:
    """Why this rank cannot take over rank 0's output and files; "" if it can.

    The ranks agreed on their previous attempt, and none is past the current one. This rank has therefore done all that
    rank 0 has done, if the script does the same on all ranks.
    """
    if settings.get_settings().output == "all":
        return ""  # each rank has its own output and files
    if world.script_knows_ranks:
        return "other ranks may lack its output and files, because the script asks for its rank"
    if shutdown.have_all_ended():
        return "all ranks were past the end of the script, where only the first rank writes"
    return _find_thread_at_work() or overlay.find_private_use()


def _find_thread_at_work() -> str:
    thread = script_frames.find_thread_at_work()
    return f"{thread}, may have printed or written other text here than there" if thread else ""


def _flush_files() -> None:
    """Flush Python's open files: after all ranks have ended, no other rank could write their content."""
    for one in gc.get_objects():
        if issubclass(type(one), (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)) and terminal.is_open(one):
            with contextlib.suppress(OSError, ValueError):  # Python retries at exit
                one.flush()


def report_loss(gone: dict[int, str], survivors: int, more: str) -> None:
    """Report lost ranks with their hosts, and the number of ranks that continue."""
    if not settings.get_settings().quiet:
        terminal.write_text(f"matex_tf: {_describe_loss(gone, survivors)}, {more}\n")


def _describe_loss(hosts: dict[int, str], survivors: int) -> str:
    gone = [f"{rank} ({host})" for rank, host in hosts.items()]
    lost = f"rank {gone[0]} is lost" if len(gone) == 1 else f"ranks {', '.join(gone)} are lost"
    them = "it" if len(gone) == 1 else "them"
    return f"{lost}; " + (f"1 rank goes on without {them}" if survivors == 1 else f"{survivors} go on without {them}")


def _find_largest(me: world.World, numbers: list[int]) -> list[int]:
    numbers_of_ranks = me.life.allgather(numbers)
    return [max(column) for column in zip(*numbers_of_ranks)]
