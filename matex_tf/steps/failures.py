"""An error that one rank's rows cause in a step is raised on every rank, so all ranks may then run the next step.

For example, an assertion of the script fails for a row that only rank 1 has. In the script alone the step would fail.
"""

from __future__ import annotations

import contextlib
import re
import traceback
from collections.abc import Iterable
from typing import Any

from matex_tf import errors, ops
from matex_tf.lazy import tf
from matex_tf.rewrite.graph_ops import iterate_graphs
from matex_tf.runtime import objects
from matex_tf.steps import variables
from matex_tf.world import world

_FAILURE = 8
"""The `kind` of `ops.rendezvous` by which a rank announces that a step has raised an error."""
_UNKNOWN_LINES = re.compile(
    r"(Detected at node (\S+) defined at \(most recent call last\):\n)<stack traces unavailable>\n"
)
"""TensorFlow's text for an op without known source lines: a head with the op's name, and a line in their place."""


class fail_together:
    """A context around a call of a shared step: an error on one rank is raised on all.

    The failed rank announces its error, and the collective in which the other ranks wait fails. All ranks then exchange
    their errors. Some ranks may have assigned variables before the error and others not, so all ranks take rank 0's
    values of the variables `used`.

    place: names the step in messages.
    used: the variables that the step may assign.
    graph: the script's graph of the step. The error shows source lines from it.

    Raises tf.errors.OpError on every rank, of the kind of the error on the lowest failed rank; the text names the rank.
    If all ranks failed with errors of one kind, each rank raises its own error, as the script alone does.

    It is a class because `contextlib.contextmanager` would add a frame to the traceback of such an error.
    """

    def __init__(self, place: str, used: Iterable[Any] = (), graph: Any = None):
        self.place, self.used, self.graph = place, used, graph

    def __enter__(self) -> None:
        self.failures_before = ops.count_completed(_FAILURE)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if not isinstance(error, tf.errors.OpError):
            return
        if self.graph is not None:
            error._message = _UNKNOWN_LINES.sub(lambda match: _add_lines(match, self.graph), error.message)
        if not world.is_active() or ops.read_failure():
            return  # there is no other rank, or every further collective fails, so ranks cannot exchange errors
        # If another rank has announced an error during the step, the error here is only that a collective has failed.
        # Otherwise it is an error of this rank: announce it, which ends the collective in which the other ranks wait.
        is_of_other_rank = ops.count_completed(_FAILURE) != self.failures_before
        if not is_of_other_rank:
            # If other ranks wait in a collective, the rendezvous fails, there and here. The errors are exchanged below.
            with contextlib.suppress(errors.MismatchError):
                ops.rendezvous(_FAILURE, 0, f"{self.place}: {error.message}")
            if ops.read_failure():  # the other ranks are not within a step, so the sequence has ended
                return
        # Exchange the errors (None: this rank has no error of its own), and raise the first one on all ranks.
        mine = None if is_of_other_rank else (error.error_code, error.message)
        everyone = objects.allgather(mine, "which ranks failed in a step")
        variables.synchronize_variables(self.used, "comparing variables after an error in a step")
        if None not in everyone and len({code for code, _ in everyone}) == 1:
            return
        failed = [(rank, *code_and_message) for rank, code_and_message in enumerate(everyone) if code_and_message]
        # A collective that another rank has left fails with FAILED_PRECONDITION. Such an error is the consequence of
        # another one, so any other error comes first.
        rank, code, message = min(failed, key=lambda failure: failure[1] == tf.errors.FAILED_PRECONDITION)
        first_kind = tf.compat.v1.errors.exception_type_from_error_code(code)
        host = world.get_world().hosts[rank]
        # `from None`: the new text has the text of `error`, and the frames of `error` are inside of TensorFlow.
        raise first_kind(None, None, f"rank {rank} ({host}) failed in {self.place}: {message}") from None


def _add_lines(match: re.Match[str], graph: Any) -> str:
    """The text of `_UNKNOWN_LINES` with the source lines of the op in the script's graph, if the graph has this op.

    TensorFlow does not find the lines itself, since many ops of a copy are in functions without line information.
    """
    for part in iterate_graphs(graph):
        if match[2] in part._nodes_by_name:
            lines = traceback.format_list(part.get_operation_by_name(match[2]).traceback)
            return match[1] + "".join(lines)
    return match[0]
