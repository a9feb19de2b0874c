"""The known facts about calls of a model or function under tapes, by the kinds of their arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from matex_tf.lazy import tf
from matex_tf.runtime import objects
from matex_tf.steps import capture, whole_code
from matex_tf.steps.tapes.call_plan import CallPlan

_KINDS = "_matex_kinds_of_calls"


class Trace:
    """The graph of a call. outer: the tensors that it captures. key: equal for traces of one plan."""

    def __init__(self, graph: Any, outer: Sequence[Any]):
        self.graph, self.outer = graph, list(outer)
        handles = tuple(id(tensor) for tensor in outer if tensor.dtype == tf.resource)
        self.key = capture.digest_graph(graph), handles


class Kind:
    """How calls with arguments of one kind are computed: whole, for the reason `why`, or by the plan of their ops.

    next_why: the reason for all later calls; empty if there is none.
    undo: undoes the changes by Python code that ran for a trace; None if no code has run.
    is_agreed: the ranks have agreed on `why`.
    first_at: the number of gradient computations before the first call.
    trace: the last trace; it is valid for the next call, too, if `is_trace_valid()`.
    function_type: of the trace of a `tf.function`.
    plans: the plans of calls, by their traces and the inputs whose gradients are requested.
    """

    def __init__(self) -> None:
        self.why = self.next_why = ""
        self.undo: Callable[[], None] | None = None
        self.is_agreed = False
        self.first_at = whole_code.count_gradients()
        self.trace: Trace | None = None
        self.function_type: Any = None
        self.is_trace_valid: Callable[[], bool] = lambda: False
        self.plans: dict[Any, CallPlan] = {}

    def refuse(self, why: str) -> None:
        self.why = self.why or why

    def agree(self, place: str) -> None:
        """Agree whether all ranks share such calls: each rank has observed its own first calls. Collective."""
        self.is_agreed = True
        reasons = objects.allgather(self.why, f"what the first step has shown of {place}")
        self.why = next(filter(None, reasons), "")


class _Kinds:
    """The kinds of the calls of a model or function. Not a dict: code that tracks attributes finds nothing to save."""

    def __init__(self) -> None:
        self.by_key: dict[Any, Kind] = {}


def find_kinds(owner: Any) -> dict[Any, Kind]:
    """The kinds of the calls of a model or function, by keys of arguments."""
    attributes = vars(owner)  # not setattr: Keras tracks attributes that are set
    if _KINDS not in attributes:
        attributes[_KINDS] = _Kinds()
    return attributes[_KINDS].by_key
