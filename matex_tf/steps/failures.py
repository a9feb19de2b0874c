"""Errors of one rank's rows in a step are raised on every rank. All ranks may then run the next step."""

from __future__ import annotations

import contextlib
import re
import traceback
from collections.abc import Iterable, Iterator
from typing import Any

from matex_tf import errors, ops
from matex_tf.lazy import tf
from matex_tf.rewrite.graph_ops import iterate_graphs
from matex_tf.runtime import objects
from matex_tf.steps import variables
from matex_tf.world import world

_FAILURE = 8  # a kind of `ops.rendezvous`
_UNKNOWN_LINES = re.compile(
    r"(Detected at node (\S+) defined at \(most recent call last\):\n)<stack traces unavailable>\n"
)


@contextlib.contextmanager
def fail_together(place: str, used: Iterable[Any] = (), graph: Any = None) -> Iterator[None]:
    """A context around a call of a shared step: an error on one rank is raised on all.

    The failed rank announces its error, and the collective in which the other ranks wait fails. All ranks then exchange
    their errors, and take rank 0's values of the variables `used`, because some ranks may not have assigned them.

    place: names the step in messages.
    graph: the script's graph of the step, whose source lines the error shows.

    Raises tf.errors.OpError on every rank, of the kind of the first error, whose rank the text names. If all ranks
    failed alike, each raises its own.
    """
    failures_before = ops.count_completed(_FAILURE)
    try:
        yield
    except tf.errors.OpError as error:
        if graph is not None:
            error._message = _UNKNOWN_LINES.sub(lambda match: _add_lines(match, graph), error.message)
        if not world.is_active() or ops.read_failure():
            raise  # no collective continues
        # Announce an error of this rank, which ends the collective in which the other ranks wait.
        is_of_other_rank = ops.count_completed(_FAILURE) != failures_before
        if not is_of_other_rank:
            with contextlib.suppress(errors.MismatchError):  # the error that other ranks get, which names this rank
                ops.rendezvous(_FAILURE, 0, f"{place}: {error.message}")
            if ops.read_failure():
                raise
        # Exchange the errors, and raise the first one on all ranks.
        mine = None if is_of_other_rank else (error.error_code, error.message)
        everyone = objects.allgather(mine, "which ranks failed in a step")
        variables.synchronize_variables(used, "comparing variables after an error in a step")
        if None not in everyone and len({code for code, _ in everyone}) == 1:
            raise
        failed = [(rank, *code_and_message) for rank, code_and_message in enumerate(everyone) if code_and_message]
        # FAILED_PRECONDITION comes last: a collective that another rank has left fails with it.
        rank, code, message = min(failed, key=lambda failure: failure[1] == tf.errors.FAILED_PRECONDITION)
        kind = tf.compat.v1.errors.exception_type_from_error_code(code)
        host = world.get_world().hosts[rank]
        # The text has all of `error`, whose frames are TensorFlow's.
        raise kind(None, None, f"rank {rank} ({host}) failed in {place}: {message}") from None


def _add_lines(match: re.Match[str], graph: Any) -> str:
    """Add the source lines of the failed op: many ops of a copy are in functions without line information."""
    for part in iterate_graphs(graph):
        if match[2] in part._nodes_by_name:
            lines = traceback.format_list(part.get_operation_by_name(match[2]).traceback)
            return match[1] + "".join(lines)
    return match[0]
