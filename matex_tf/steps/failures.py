"""An error that one rank's rows cause in a step is raised on every rank.

For example, an assertion of the script fails for a row that only rank 1 has. In the script alone the step would fail,
and the script could handle the error and run the next step. With ranks, rank 1 would raise the error alone, while the
other ranks wait for it in a collective of the step. So rank 1 announces the error, and all ranks raise it.
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

_UNKNOWN_LINES = re.compile(
    r"(Detected at node (\S+) defined at \(most recent call last\):\n)<stack traces unavailable>\n"
)
"""TensorFlow's text for an op without known source lines: a head with the op's name, and a line in their place."""


class fail_together:
    """A context around a call of a shared step: an error on one rank is raised on all.

    The failed rank announces its error by a rendezvous of the kind `FAILURE`. It ends the collective in which the other
    ranks wait; they learn of it by `ops.count_completed`. All ranks then exchange their errors. Some ranks may have
    assigned variables before the error and others not, so all ranks take rank 0's values of the variables `may_assign`.

    place: names the step in messages.
    may_assign: the variables that the step may assign.
    graph: the script's graph of the step. The error shows source lines from it.

    Raises tf.errors.OpError on every rank, of the kind of the error on the lowest failed rank; the text names the rank.
    If all ranks failed with errors of one kind, each rank raises its own error, as the script alone does.

    It is a class because `contextlib.contextmanager` would add a frame to the traceback of such an error.
    """

    def __init__(self, place: str, may_assign: Iterable[Any] = (), graph: Any = None):
        self.place, self.may_assign, self.graph = place, may_assign, graph

    def __enter__(self) -> None:
        self.failures_before = ops.count_completed(ops.Kind.FAILURE)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if not isinstance(error, tf.errors.OpError):
            return
        if self.graph is not None:
            error._message = _UNKNOWN_LINES.sub(lambda match: _add_lines(match, self.graph), error.message)
        # `ops.read_failure` returns a text if all further collectives fail, so that ranks cannot exchange errors.
        if not world.is_active() or ops.read_failure():
            return
        # If another rank has announced an error during the step, the error here is only that a collective has failed.
        # Otherwise it is an error of this rank, which announces it.
        is_of_other_rank = ops.count_completed(ops.Kind.FAILURE) != self.failures_before
        if not is_of_other_rank:
            # If other ranks wait in a collective of the step, they meet this rendezvous with another kind. This is a
            # mismatch: it raises MismatchError here, and the collectives fail there. The ranks exchange errors below.
            with contextlib.suppress(errors.MismatchError):
                ops.rendezvous(ops.Kind.FAILURE, 0, f"{self.place}: {error.message}")
            if ops.read_failure():  # for example, some rank was not within a step: the sequence has ended for good
                return
        # Exchange the errors (None: this rank has no error of its own), and raise the first one on all ranks.
        own_error = None if is_of_other_rank else (error.error_code, error.message)
        failures = objects.allgather(own_error, "which ranks failed in a step")
        variables.synchronize_variables(self.may_assign, "comparing variables after an error in a step")
        have_all_failed = None not in failures
        if have_all_failed and len({code for code, _ in failures}) == 1:  # errors of one kind: each rank raises its own
            return
        failed_ranks = [(rank, *rank_error) for rank, rank_error in enumerate(failures) if rank_error]
        # A collective that another rank has left fails with FAILED_PRECONDITION. Such an error is the consequence of
        # another one. So the error of the lowest rank with another code is raised, if there is one.
        causes = [failure for failure in failed_ranks if failure[1] != tf.errors.FAILED_PRECONDITION]
        rank, code, message = (causes or failed_ranks)[0]
        error_class = tf.compat.v1.errors.exception_type_from_error_code(code)
        host = world.get_world().hosts[rank]
        # `from None`: `error` would add nothing. The new text has the cause; the frames of `error` are in TensorFlow.
        raise error_class(None, None, f"rank {rank} ({host}) failed in {self.place}: {message}") from None


def _add_lines(match: re.Match[str], graph: Any) -> str:
    """The text of `_UNKNOWN_LINES` with the source lines of the op in the script's graph, if the graph has this op.

    TensorFlow does not find the lines itself, since many ops of a copy are in functions without line information.
    """
    for inner_graph in iterate_graphs(graph):
        if match[2] in inner_graph._nodes_by_name:
            lines = traceback.format_list(inner_graph.get_operation_by_name(match[2]).traceback)
            return match[1] + "".join(lines)
    return match[0]
