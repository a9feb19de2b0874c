"""Work that rank 0 does for all ranks, such as saving a file."""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import pickle
from collections.abc import Callable
from typing import Any

from matex_tf.runtime import objects, watchdog
from matex_tf.world import world


def run_on_first(work: Callable[[], Any], what: str, doing: str, factor: float = math.inf) -> Any:
    """Call `work` on rank 0; return its result, or raise its exception, on every rank. Collective.

    Args:
        what: the purpose, the same on all ranks.
        doing, factor: what rank 0 does, and how long other ranks wait (`watchdog.excuse_wait`).
    """
    result, error = catch_on_first(work, what, doing, factor)
    if error is not None:
        raise error
    return result


def catch_on_first(
    work: Callable[[], Any], what: str, doing: str, factor: float = math.inf
) -> tuple[Any, Exception | None]:
    """`run_on_first` for callers that act before they raise the exception: returns the result, and the exception."""
    outcome = None
    if world.get_world().rank == 0:
        with watchdog.excuse_wait(doing, factor):
            outcome = _catch_outcome(work)
    received: tuple[Any, Exception | None] = objects.broadcast(outcome, what)
    return outcome or received  # rank 0 keeps its own exception, with its traceback


def _catch_outcome(work: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """The result of `work`, or its exception, in a form that can be sent to the other ranks."""
    try:
        outcome: tuple[Any, Exception | None] = work(), None
        pickle.dumps(outcome)  # raises if the result cannot be sent
    except Exception as error:
        outcome = None, _find_sendable(error)
    return outcome


def _find_sendable(error: Exception) -> Exception:
    """`error`; if it cannot be sent, or not be created on the other ranks, the nearest error that can, with `error` as
    its cause on this rank. So all ranks handle the same error.
    """
    found, makers = error, list[Callable[[], Exception]]([lambda: error])
    if hasattr(error, "node_def"):  # an error of TensorFlow: without its op, which is of this process
        makers.append(lambda: type(error)(None, None, str(error)))
    bases = [base for base in type(error).__mro__[1:] if issubclass(base, Exception) and base is not Exception]
    makers += [functools.partial(base, f"{type(error).__name__}: {error}") for base in (*bases, RuntimeError)]
    for make in makers:
        with contextlib.suppress(Exception):
            found = make()
            pickle.dumps(found)
            if type(copy.copy(found)) is type(found):  # a copy is created as on another rank, from class and arguments
                break
    if found is not error:
        found.__cause__ = error
    return found
