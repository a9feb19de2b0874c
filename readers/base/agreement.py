"""Collective reading: an error on one rank is raised on all ranks, so that no rank waits for another one forever."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from matex_tf.readers.base.formats import ReaderError
from matex_tf.runtime import objects
from matex_tf.world import world

Result = TypeVar("Result")
_FAILED = 7
_state = threading.local()


class FailedElsewhere(Exception):
    """Another rank has failed, so this rank stops reading."""


def run_on_all_ranks(
    action: Callable[[], Result],
    what: str,
    describe: Callable[[Result], str] | None = None,
    share: Callable[[Result], Any] | None = None,
    difference: str = "see different files",
) -> tuple[Result, list[Any]]:
    """Run `action()` on every rank; return its result and the list of all ranks' `share(result)`. Collective.

    If the action fails on any rank, every rank raises: the failed ranks their own error, the others a ReaderError that
    names the first failed rank. Ranks that call `stop_if_others_failed` while they read notice it within seconds.
    With `describe`, all ranks raise a ReaderError if `describe(result)` is not the same text on all of them. The
    message shows two of the texts; `difference` is what it says of the ranks.
    """
    result, error, description, shared = None, None, "", None
    failed, messages = "", []
    _state.watching = world.is_active()
    try:
        result = action()
        description = describe(result) if describe else ""
        shared = share(result) if share else None
    except FailedElsewhere:
        pass
    except Exception as raised:  # after any exception the other ranks must be told
        error, failed = raised, f"{type(raised).__name__}: {raised}"
        messages = _notify_others()
    finally:
        _state.watching = False
    # `what` may contain a path of this rank; the name of the collective must be the same on all ranks.
    reports = objects.allgather((failed, description, shared), "agreeing on what a DataSet has opened or read")
    _take_messages(messages, [rank for rank, (text, _, _) in enumerate(reports) if text])
    if error is not None:
        raise error
    hosts = world.get_world().hosts
    for rank, (text, _, _) in enumerate(reports):
        if text:
            raise ReaderError(f"{what} failed on rank {rank} ({hosts[rank]}): {text}")
    for rank, (_, text, _) in enumerate(reports):
        if text != reports[0][1]:
            raise ReaderError(
                f"{what}: the ranks {difference}. Expected what rank 0 ({hosts[0]}) has: {reports[0][1]}; "
                f"found on rank {rank} ({hosts[rank]}): {text}"
            )
    return result, [value for _, _, value in reports]  # type: ignore[return-value]


class Together:
    """Calls an action on every rank; if it fails on one rank, all raise. With `alone`, no other rank takes part."""

    def __init__(self, alone: bool):
        self._alone = alone

    def __call__(
        self,
        action: Callable[[], Any],
        what: str,
        describe: Callable[[Any], str] | None = None,
        results: list[Any] | None = None,
        difference: str = "see different files",
    ) -> Any:
        """As `run_on_all_ranks`; returns this rank's result. The list `results` receives the results of all ranks."""
        share = None if results is None else lambda result: result
        if self._alone:
            result = action()
            found = [result]
        else:
            result, found = run_on_all_ranks(action, what, describe, share, difference)
        if results is not None:
            results[:] = found
        return result


def stop_if_others_failed() -> None:
    """Called between the blocks of a long read: raises FailedElsewhere if another rank has failed."""
    if getattr(_state, "watching", False) and world.get_communicator("readers").Iprobe(tag=_FAILED):
        raise FailedElsewhere


def _notify_others() -> list[Any]:
    """Send the other ranks the messages that `stop_if_others_failed` looks for; returns the requests."""
    if not world.is_active():
        return []
    me, comm = world.get_world(), world.get_communicator("readers")
    return [comm.isend(None, dest=rank, tag=_FAILED) for rank in range(me.size) if rank != me.rank]


def _take_messages(sent: list[Any], failed: list[int]) -> None:
    """Receive the messages of `_notify_others`, so that the next read does not find them."""
    if not world.is_active():
        return
    for rank in failed:
        if rank != world.get_world().rank:
            world.get_communicator("readers").recv(source=rank, tag=_FAILED)
    for request in sent:
        request.wait()
