"""Reading together: what fails on one rank is raised on all, so that none goes on alone or waits for one that left."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from matex_tf import world
from matex_tf.readers.formats import ReaderError

Result = TypeVar("Result")


def on_all_ranks(action: Callable[[], Result], what: str, describe: Callable[[Result], str] | None = None) -> Result:
    """`action()` on every rank. Collective: every rank has to call it, with the same `what`.

    Where it fails on any rank, every rank raises: those where it failed their own error, the others a ReaderError
    that names the first of them. With `describe`, its text has to be the same on all ranks, or all raise a
    ReaderError that shows both.
    """
    result, error = None, None
    try:
        result = action()
        description = describe(result) if describe else ""
    except Exception as raised:  # whatever it is, the other ranks wait for this one
        error, description = raised, f"{type(raised).__name__}: {raised}"
    # `what` may hold a path of this rank's own; what ranks meet for is the same on all.
    reports = world.control.allgather((error is not None, description), "agreeing on what a DataSet has opened or read")
    if error is not None:
        raise error
    for rank, (failed, text) in enumerate(reports):
        if failed:
            raise ReaderError(f"{what} failed on rank {rank} ({world.current().hosts[rank]}): {text}")
    for rank, (_, text) in enumerate(reports):
        if text != reports[0][1]:
            hosts = world.current().hosts
            raise ReaderError(
                f"{what}: the ranks see different files. Expected what rank 0 ({hosts[0]}) has: {reports[0][1]}; "
                f"found on rank {rank} ({hosts[rank]}): {text}"
            )
    return result  # type: ignore[return-value]
