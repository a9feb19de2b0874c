"""Runs reads on all ranks: an error on one rank is raised on all ranks, so that no rank waits for another one forever.

A failed rank sends the other ranks a message. They look for it between the blocks of a long read, and stop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from matex_tf.readers.base.formats import ReaderError
from matex_tf.runtime import objects
from matex_tf.thread_flag import ThreadFlag
from matex_tf.world import world

Result = TypeVar("Result")
_FAILURE_TAG = 7  # of messages from a rank that has failed
_is_watching = ThreadFlag()
"""Set in a thread that runs an action of all ranks; not in threads that read while a dataset is iterated, because there
each rank reads by itself."""


class FailedElsewhere(Exception):
    """Another rank has failed, so this rank stops reading."""


class Together:
    """Runs actions on every rank. If an action fails on any rank, every rank raises: the failed ranks their own error,
    the others a ReaderError that names the first failed rank.

    Ranks that call `stop_if_others_failed` while they read notice a failure within seconds.

    `alone`: the script has given the DataSet a rank= or size=, so this process runs actions without the other ranks.
    """

    def __init__(self, alone: bool):
        self._alone = alone

    def __call__(
        self,
        action: Callable[[], Any],
        action_name: str,
        describe: Callable[[Any], str] | None = None,
        difference: str = "see different files",
    ) -> Any:
        """Return this rank's result of `action()`, which messages call `action_name`. Collective.

        With `describe`, all ranks raise a ReaderError if `describe(result)` is not the same text on all of them. The
        message says "the ranks", `difference`, and two of the texts.
        """
        if self._alone:
            return action()
        result, texts = _run_on_all_ranks(action, action_name, describe or (lambda result: ""))
        for rank, text in enumerate(texts):
            if text != texts[0]:
                hosts = world.get_world().hosts
                raise ReaderError(
                    f"{action_name}: the ranks {difference}. Expected what rank 0 ({hosts[0]}) has: {texts[0]}; "
                    f"found on rank {rank} ({hosts[rank]}): {text}"
                )
        return result

    def gather(self, action: Callable[[], Result], action_name: str) -> list[Result]:
        """Return the results of `action()` of all ranks, in rank order. Collective."""
        return [action()] if self._alone else _run_on_all_ranks(action, action_name, lambda result: result)[1]


def _run_on_all_ranks(
    action: Callable[[], Result], action_name: str, get_shared: Callable[[Result], Any]
) -> tuple[Result, Any]:
    """Return the result of `action()`, and the list of `get_shared(result)` of all ranks."""
    result, error, shared_result, failure_text, requests = None, None, None, "", []
    try:
        with _is_watching.set(world.is_active()):
            result = action()
            shared_result = get_shared(result)
    except FailedElsewhere:
        pass  # the failed rank reports its error below
    except Exception as exception:  # after any exception the other ranks must be told
        error, failure_text = exception, f"{type(exception).__name__}: {exception}"
        requests = _notify_others()
    # `action_name` may contain a path of this rank; the name of the collective must be the same on all ranks.
    reports = objects.allgather((failure_text, shared_result), "agreeing on what a DataSet has opened or read")
    failures = {rank: text for rank, (text, _) in enumerate(reports) if text}
    _receive_messages(requests, failures)
    if error is not None:
        raise error
    for rank, text in failures.items():
        raise ReaderError(f"{action_name} failed on rank {rank} ({world.get_world().hosts[rank]}): {text}")
    return result, [value for _, value in reports]  # type: ignore[return-value]


def stop_if_others_failed() -> None:
    """Called between the blocks of a long read: raises FailedElsewhere if another rank has failed."""
    if _is_watching and world.get_communicator("readers").Iprobe(tag=_FAILURE_TAG):
        raise FailedElsewhere


def _notify_others() -> list[Any]:
    """Send the other ranks the messages that `stop_if_others_failed` looks for; returns the requests."""
    if not world.is_active():
        return []
    current_world, communicator = world.get_world(), world.get_communicator("readers")
    return [
        communicator.isend(None, dest=rank, tag=_FAILURE_TAG)
        for rank in range(current_world.size)
        if rank != current_world.rank
    ]


def _receive_messages(requests: list[Any], failed_ranks: Iterable[int]) -> None:
    """Receive the messages of `_notify_others`, so that the next read does not find them; wait for own `requests`."""
    if not world.is_active():
        return
    for rank in failed_ranks:
        if rank != world.get_world().rank:
            world.get_communicator("readers").recv(source=rank, tag=_FAILURE_TAG)
    for request in requests:
        request.wait()
