"""Elastic runs (`--elastic`): after a rank is lost, the other ranks continue without a restart.

`attempt_work` makes an attempt: a call of a step, or collectives outside of steps. After a loss it shrinks the world to
the surviving ranks, undoes the attempt, and repeats it. If rank 0 was lost, another rank becomes rank 0, and takes over
its output and files. If a rank is lost outside an attempt, for example in the script's own loop, the run ends, and
`matex run` restarts it from its saved state.
"""

from __future__ import annotations

import contextlib
import gc
import io
from collections.abc import Callable
from typing import Any, NamedTuple

from matex_tf import errors, ops, settings
from matex_tf.files import overlay
from matex_tf.runtime import excepthook, losses, script_frames, shutdown, watchdog
from matex_tf.servers.pieces import piece_copies
from matex_tf.steps import events
from matex_tf.thread_flag import is_main_thread
from matex_tf.world import exit_codes, membership, script_knowledge, shrinking, terminal, time_limit, world

reported: set[int] = set()
"""Lost ranks that `apart.rescue`, for asynchronous ranks, has reported before the survivors agreed on the loss."""

_in_attempt = False  # this process is within an attempt


def is_on() -> bool:
    return settings.get_settings().elastic and world.is_active()


def enable_attempts() -> None:
    """Install the hooks of elastic runs. Call this before any work that a lost rank could interrupt."""
    if is_on():
        membership.set_retry(attempt_work)
        shutdown.script_ended.append(_flush_files)
        events.world_changed.add_listener(overlay.take_over_files)


def attempt_work(description: str, work: Callable[[], Any], undo: Callable[[], None] | None = None) -> Any:
    """Call `work` until all surviving ranks have completed it; returns its result. Collective.

    1. Each rank calls `work`. If MPI fails in it, other ranks may wait for the lost rank without end. So the rank
       revokes the communicators: all collectives then fail on all ranks.
    2. The ranks agree whether all have succeeded, by MPI's user-level failure mitigation. The agreement holds even if
       a rank is lost during it, so all ranks are always in the same attempt.
    3. Without success, they shrink the world, call `undo`, perhaps several times, and begin again.

    The replicas are the backup, as planned in section III-B of the MaTEx-TensorFlow paper: each rank has all variables,
    and the pieces of a variable that ranks divide have copies on another rank. Only the lost rank's share of the
    attempt is lost with it.

    Within another attempt, and in other threads, `work` is just called: the outer attempt handles its errors.

    Args:
        description: a description of the work, for messages.
        work: collectives, and computations that may be repeated after `undo`.
        undo: restores the state before `work`; None if there is nothing to restore.

    Raises:
        LostRankError: the survivors cannot continue. It ends the run, even if the script would catch it.
    """
    if not is_on() or _in_attempt or not is_main_thread():
        return work()
    try:
        # A loss in an operation outside of attempts, which cannot be repeated:
        failure = ops.read_failure()
        if ops.find_cause(failure) is ops.Cause.MPI:
            raise membership.make_loss_error(f"an operation of the script itself has failed: {failure}")
        while True:
            attempt = _attempt_once(work)
            if attempt.is_done:
                return attempt.result
            _shrink_world(description, attempt.error)
            _undo_attempt(undo)
    except errors.LostRankError as error:
        excepthook.end_for_loss(error)
        raise


class _Attempt(NamedTuple):
    """A call of `work`, after all ranks have agreed on its success."""

    is_done: bool  # on all ranks
    result: Any  # on this rank
    error: Exception | None  # on this rank


def _attempt_once(work: Callable[[], Any]) -> _Attempt:
    """Call `work` once, and agree with all ranks whether all have completed it. Collective.

    Ranks other than 0 store their output, to print it if they become rank 0 (`terminal`). Drop stored output that must
    not be printed twice:

    - after a success all of it, because rank 0 has printed it;
    - after a loss the output of this attempt, because the repeated attempt prints it.

    A thread of the script may print at other times on each rank. Then nobody knows what rank 0 has printed, and the
    stored output remains.
    """
    global _in_attempt
    result, error = None, None
    is_output_repeatable = not script_frames.find_thread_at_work()
    lengths = terminal.measure_text()  # of the stored output before the attempt
    _in_attempt = True
    try:
        result = work()
    except Exception as raised:
        if isinstance(raised, errors.LostRankError) or not losses.is_loss_of_another(raised):
            raise
        error = raised
        shrinking.revoke_communicators()
    finally:
        _in_attempt = False
    # Rank 0 decides whether the output may be dropped; the other ranks agree.
    may_forget = world.get_world().rank > 0 or not script_frames.find_thread_at_work()
    terminal.flush_text()  # before the agreement: after it, rank 0 has printed the output of this attempt
    is_done, may_forget = _is_done_by_all(error is None, may_forget)
    if is_done and may_forget:
        terminal.forget_text()
    elif not is_done and is_output_repeatable:
        terminal.forget_after(lengths)
    return _Attempt(is_done, result, error)


def _undo_attempt(undo: Callable[[], None] | None) -> None:
    """Undo an attempt on the surviving ranks, and restore pieces that only lost ranks held. Collective.

    If a rank is lost meanwhile, shrink the world and begin again.
    """
    while True:
        if undo is not None:
            undo()
        attempt = _attempt_once(piece_copies.restore_lost)
        if attempt.is_done:
            assign_values = attempt.result
            assign_values()
            return
        _shrink_world("restoring the pieces of lost ranks", attempt.error)


def _is_done_by_all(is_done: bool, may_forget: bool) -> tuple[bool, bool]:
    """Whether `is_done` on all ranks, and `may_forget` on all. All survivors get the same answer. Collective."""
    if is_done:
        return shrinking.agree_on_success(is_done, may_forget)
    # This rank has revoked all communicators, also the watchdog's. So the wait has a time limit of its own.
    me, activity = world.get_world(), "knows of a lost rank, and waits for the other ranks' agreement to continue"
    with time_limit.limit_wait(
        me.rank, me.size, activity, end=lambda: shutdown.abort_all_ranks(exit_codes.EXIT_STALLED)
    ):
        return shrinking.agree_on_success(is_done, may_forget)


def _shrink_world(description: str, error: Exception | None) -> None:
    """Shrink the world to the surviving ranks, and update all objects that depend on it. Collective among them.

    Args:
        description: the work that a loss interrupted, for messages.
        error: its error on this rank.

    Raises:
        RankError: no rank was lost.
        LostRankError: this rank cannot take over the output or files of rank 0.
    """
    me = world.get_world()  # `shrink_world` changes its fields
    old_rank, old_hosts = me.rank, me.hosts
    watchdog.stop_watching()
    survivors = shrinking.shrink_world()
    if len(survivors) == len(old_hosts):
        raise errors.RankError(f"MPI failed in {description}, though no rank was lost: {error}") from error
    # Ranks may have completed different numbers of collectives. All continue with the largest ones.
    ops.restart_engine(lambda numbers: list(map(max, zip(*world.get_world().life.allgather(numbers)))))
    watchdog.start_watching()
    membership.note_survivors(survivors)
    became_first = old_rank > 0 and me.rank == 0
    if became_first and (obstacle := _find_obstacle()):
        raise membership.make_loss_error(f"the first rank was lost, and {obstacle}")
    try:
        events.world_changed(became_first)
    except OSError as raised:
        raise membership.make_loss_error(
            f"the files of the first rank, which was lost, cannot be taken over: {raised}"
        ) from raised
    if became_first:
        terminal.print_text()
        # A thread may have started since `_find_obstacle`.
        if settings.get_settings().output != "all" and (obstacle := _find_thread_at_work()):
            raise membership.make_loss_error(f"the first rank was lost, and {obstacle}")
    lost_hosts = {rank: host for rank, host in enumerate(old_hosts) if rank not in survivors and rank not in reported}
    reported.clear()
    if lost_hosts and me.rank == 0:
        report_loss(lost_hosts, len(survivors), f"at: {description}")


def _find_obstacle() -> str:
    """Why this rank cannot take over rank 0's output and files; "" if it can.

    The ranks agreed on their previous attempt, and none is past the current one. This rank has therefore done all that
    rank 0 has done, if the script does the same on all ranks.
    """
    if settings.get_settings().output == "all":
        return ""  # each rank has its own output and files
    if script_knowledge.knows_ranks:
        return "other ranks may lack its output and files, because the script asks for its rank"
    if shutdown.have_all_ended():
        return "all ranks were past the end of the script, where only the first rank writes"
    return _find_thread_at_work() or overlay.find_private_use()


def _find_thread_at_work() -> str:
    thread = script_frames.find_thread_at_work()
    return f"{thread}, may have printed or written other text here than there" if thread else ""


def _flush_files() -> None:
    """Flush Python's open files: after all ranks have ended, no other rank could write their content."""
    for tracked_object in gc.get_objects():
        is_buffer = issubclass(type(tracked_object), (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom))
        if is_buffer and terminal.is_open(tracked_object):
            with contextlib.suppress(OSError, ValueError):  # Python retries at exit
                tracked_object.flush()


def report_loss(lost_hosts: dict[int, str], survivors: int, position: str) -> None:
    """Report lost ranks.

    Args:
        lost_hosts: the host of each lost rank.
        survivors: the number of ranks that continue.
        position: the end of the message: the place in the run.
    """
    if settings.get_settings().quiet:
        return
    names = [f"{rank} ({host})" for rank, host in lost_hosts.items()]
    lost_text, pronoun = (f"rank {names[0]} is", "it") if len(names) == 1 else (f"ranks {', '.join(names)} are", "them")
    survivors_text = "1 rank goes on" if survivors == 1 else f"{survivors} go on"
    terminal.write_text(f"matex_tf: {lost_text} lost; {survivors_text} without {pronoun}, {position}\n")
