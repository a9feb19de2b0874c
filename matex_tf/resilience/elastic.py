"""Goes on without a lost rank, in the same processes: those left undo what was tried together and make it again.

`attempt_work` is one attempt. What is no part of one, such as a loop of the script's own, ends the run when a rank is
lost; `matex run` then starts it again from its kept state.
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
from matex_tf.runtime import excepthook, script_frames, shutdown, watchdog
from matex_tf.servers.pieces import piece_copies
from matex_tf.steps import events
from matex_tf.world import exit_codes, membership, terminal, time_limit, world

after_loss: list[Callable[[bool], None]] = []
"""Called on the ranks that are left when a rank was lost; with whether this rank has become the first."""

said: set[int] = set()
"""The ranks of whose loss a line was printed before the others have come to agree on it."""

_inside = False


def is_on() -> bool:
    return settings.get_settings().elastic and world.is_active()


def enable_attempts() -> None:
    """Before anything that can be lost is made."""
    if is_on():
        membership.set_retry(attempt_work)
        shutdown.script_ended.append(_flush_files)
        after_loss.append(overlay.take_over_files)


def attempt_work(what: str, work: Callable[[], Any], undo: Callable[[], None] | None = None) -> Any:
    """What `work` gives, when all ranks that are left have completed it. Collective.

    The replicas are the backup, as section III-B of the MaTEx-TensorFlow paper plans: each rank has all variables, and
    of pieces another rank has copies, so that what is lost with a rank is its part of one attempt. At its end the ranks
    agree whether all that are left have completed it (by MPI's user-level failure mitigation: the agreement holds
    whoever is lost in it). If not, they revoke their communicators, so that nobody waits in one, and shrink the world.
    So all are in the same attempt.

    Where a rank is lost meanwhile, `undo` is called, perhaps several times, and then `work` again, with the smaller
    world. Within another attempt, and in other threads, `work` is only called: its errors are the other attempt's.

    Args:
        what: for people, what is tried.
        work: collectives, and what may be done again once `undo` was called.
        undo: makes everything as it was before `work`; None where there is nothing to undo.
    """
    if not is_on() or _inside or threading.current_thread() is not threading.main_thread():
        return work()
    try:
        if membership.LOST in (failure := ops.read_failure()):
            raise membership.make_loss_error(f"what the script does by itself has failed: {failure}")
        while True:
            is_done, result, failed = _try_once(work)
            if is_done:
                return result
            _shrink_world(what, failed)
            _go_back(undo)
    except errors.LostRankError as error:
        excepthook.end_for_loss(error)
        raise


def _try_once(work: Callable[[], Any]) -> tuple[bool, Any, Exception | None]:
    """Whether all ranks have completed `work`; what it gave here, or how it failed. Collective.

    A rank votes when all that it has printed is out. So, once all have agreed, there is nothing to be printed for one
    that is lost later but what comes after this, and what threads print, which keep no step with those of other ranks.
    """
    global _inside
    result, failed = None, None
    is_alone = not script_frames.find_thread_at_work()
    printed = terminal.measure_text()
    _inside = True
    try:
        result = work()
    except Exception as error:
        if isinstance(error, errors.LostRankError) or not membership.is_loss_of_another(error):
            raise
        failed = error
        world.revoke_communicators()
    finally:
        _inside = False
    is_first_alone = world.get_world().rank > 0 or not script_frames.find_thread_at_work()
    terminal.flush_text()
    is_done, is_first_alone = _is_done_by_all(failed is None, is_first_alone)
    if is_done and is_first_alone:
        terminal.forget_text()
    elif not is_done and is_alone:
        terminal.forget_after(printed)
    return is_done, result, failed


def _go_back(undo: Callable[[], None] | None) -> None:
    """Undo an attempt on the ranks that are left, and give these what the lost ones had alone. Collective."""
    while True:
        if undo is not None:
            undo()
        is_done, settle, failed = _try_once(piece_copies.restore_lost)
        if is_done:
            settle()
            return
        _shrink_world("restoring what lost ranks had", failed)


def _is_done_by_all(done: bool, alone: bool) -> tuple[bool, bool]:
    """Whether all ranks have completed what they tried, and are `alone`; the same answer on all that are left."""
    # The watchdog has gone with the communicators that were revoked.
    me, what = world.get_world(), "knows of a lost rank, and waits for the others to agree on going on"
    with contextlib.nullcontext() if done else time_limit.limit_wait(me.rank, me.size, what, end=_end_job):
        return world.agree_on_success(done, alone)


def _end_job() -> None:
    shutdown.abort_all_ranks(exit_codes.EXIT_STALLED)


def _shrink_world(what: str, failed: Exception | None) -> None:
    """Make the world that of the ranks which are left, and all that depends on it. Collective among them."""
    me = world.get_world()
    before, hosts = me.rank, me.hosts
    watchdog.stop_watching()
    left = world.shrink_world()
    if len(left) == len(hosts):
        raise errors.RankError(f"MPI failed in {what}, though no rank was lost: {failed}") from failed
    ops.restart_engine(lambda numbers: _find_largest(me, numbers))
    watchdog.start_watching()
    membership.note_survivors(left)
    events.world_changed()
    became_first = before > 0 and me.rank == 0
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
        if settings.get_settings().output != "all" and (why := _find_thread_at_work()):  # begun since
            raise membership.make_loss_error(f"the first rank was lost, and {why}")
    gone = {rank: host for rank, host in enumerate(hosts) if rank not in left and rank not in said}
    said.clear()
    if gone and me.rank == 0:
        say_loss(gone, len(left), f"at: {what}")


def _find_obstacle() -> str:
    """Why this rank may lack what rank 0 had printed and written, or cannot hand on its own; empty where it can.

    All ranks had agreed on what they did last, and none has come past what they try now. So this rank has done all
    that rank 0 has, where the script does the same on all ranks.
    """
    if settings.get_settings().output == "all":
        return ""  # each rank prints and writes for itself
    if world.script_knows_ranks:
        return "no other may have what it was to print and to write, as the script asks for its rank"
    if shutdown.have_all_ended():
        return "all were past the end of the script, where it writes what no other has"
    return _find_thread_at_work() or overlay.find_private_use()


def _find_thread_at_work() -> str:
    thread = script_frames.find_thread_at_work()
    return f"{thread}, may have printed or written here what it had not there" if thread else ""


def _flush_files() -> None:
    """Write what files of Python hold that the script has not closed: once all have ended, no other would do it."""
    for one in gc.get_objects():
        if issubclass(type(one), (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)) and terminal.is_open(one):
            with contextlib.suppress(OSError, ValueError):  # Python tries again where it ends
                one.flush()


def say_loss(gone: dict[int, str], left: int, more: str) -> None:
    """Say that ranks are lost, with their hosts, and how many go on."""
    if not settings.get_settings().quiet:
        terminal.write_text(f"matex_tf: {_describe_loss(gone, left)}, {more}\n")


def _describe_loss(hosts: dict[int, str], left: int) -> str:
    gone = [f"{rank} ({host})" for rank, host in hosts.items()]
    lost = f"rank {gone[0]} is lost" if len(gone) == 1 else f"ranks {', '.join(gone)} are lost"
    them = "it" if len(gone) == 1 else "them"
    return f"{lost}; " + (f"1 rank goes on without {them}" if left == 1 else f"{left} go on without {them}")


def _find_largest(me: world.World, numbers: list[int]) -> list[int]:
    everyone = me.life.allgather(numbers)
    return [max(column) for column in zip(*everyone)]
