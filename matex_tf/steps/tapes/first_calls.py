"""Watches the first calls of a model or function under a `tf.GradientTape`, before ranks share such calls.

These calls show behavior that a shared call could not have: Python code that reads values of tensors, or that draws
random numbers whose state is in no variable, and gradients of gradients. Hooks of TensorFlow count the reads and draws.
`watch_call` compares the counts of reads, and follows the results of a call to the computation of their gradients.
"""

from __future__ import annotations

import threading
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from matex_tf import settings, tags
from matex_tf.lazy import tf
from matex_tf.runtime import objects
from matex_tf.steps import agreement, capture, whole_code
from matex_tf.steps.arguments import attach_tensors, list_attached
from matex_tf.steps.tapes.call_plan import BETWEEN_RESULTS, SECOND_ORDER, CallPlan, find_computed

READS = "its Python reads the values of tensors"
OTHER_RESULTS = "its results are not tensors alone"
CHOSEN = "MATEX_EAGER=whole says so"

_KINDS = "_matex_kinds_of_calls"
_FOLLOWED = "the result that it follows, and the kind of the call"


class _Observed(threading.local):
    """Observations in this thread.

    reads, draws: the numbers of reads of eager tensors, and of random numbers from a state that is not a variable.
    _started: weak references to the tapes that have started to record, in order; some may have stopped.
    """

    def __init__(self) -> None:
        self.reads = self.draws = 0
        self._started: list[Callable[[], Any]] = []

    @property
    def tapes(self) -> list[Any]:
        """The tapes that record, outermost first."""
        return [tape for reference in self._started if (tape := reference()) is not None and tape._recording]

    def note_tape(self, tape: Any) -> None:
        other_tapes = [other_tape for other_tape in self.tapes if other_tape is not tape]
        self._started = list(map(weakref.ref, [*other_tapes, tape]))


observed = _Observed()


class Trace:
    """The graph of a call.

    outer: the tensors that the graph captures.
    key: a digest of the ops, and the ids of captured variables. Traces with equal keys have one plan.
    """

    def __init__(self, graph: Any, outer: Sequence[Any]):
        self.graph, self.outer = graph, list(outer)
        handles = tuple(id(tensor) for tensor in outer if tensor.dtype == tf.resource)
        self.key = capture.digest_graph(graph), handles


class Kind:
    """How calls of one kind are computed.

    why: the reason why every rank computes the calls whole; empty if ranks share them by plans, or do not know yet.
    restore: undoes the changes by Python code that has run for a trace of the present call; None if no code has run.
    is_agreed: the ranks have agreed on `why`.
    first_step: the step of the first call, by the number of gradient computations before it.
    trace: the last trace of a call. It is valid for the next call, too, if `is_trace_valid()`.
    function_type: the types of the arguments in the trace of a `tf.function`.
    plans: the plans of calls, by trace, by the inputs whose gradients may be requested, and by the number of ranks.
    """

    def __init__(self) -> None:
        self.why = ""
        self.restore: Callable[[], None] | None = None
        self.is_agreed = False
        self.first_step = whole_code.gradient_count
        self.trace: Trace | None = None
        self.function_type: Any = None
        self.is_trace_valid: Callable[[], bool] = lambda: False
        self.plans: dict[Any, CallPlan] = {}

    def refuse(self, why: str) -> None:
        """Let every rank compute the calls whole for this reason; the first reason stays. Empty: no effect."""
        self.why = self.why or why

    def agree(self, place: str) -> None:
        """Agree whether all ranks share such calls: each rank has observed its own first calls. Collective."""
        self.is_agreed = True
        reasons = objects.allgather(self.why, f"what the first step has shown of {place}")
        self.why = next(filter(None, reasons), "")


def find_kinds(owner: Any) -> dict[Any, Kind]:
    """The kinds of the calls of a model or function, by keys of arguments."""
    # Neither `setattr` nor a bare dict, which code that tracks attributes, as Keras does, would save with the model.
    return vars(owner).setdefault(_KINDS, types.SimpleNamespace(by_key={})).by_key


def note_read(tensor: Any) -> None:
    """Record that values of an eager tensor are read. A trace has none, and Python code might take another path there.

    A single bool or integer is exempt: TensorFlow's branches, loops and arrays read it in eager code.
    """
    if tensor.shape.rank == 0 and (tensor.dtype.is_bool or tensor.dtype.is_integer):
        return
    observed.reads += 1


def may_be_shared() -> bool:
    """Whether ranks may share a call that tapes record now. If the setting forbids it, that is the step's reason."""
    if not agreement.is_watched():
        return False
    is_allowed = settings.get_settings().eager == "auto"
    if not is_allowed:
        whole_code.note_reason(observed.tapes, CHOSEN)
    return is_allowed


def watch_call(plain: Callable[[], Any], kind: Kind, links_results: bool) -> Any:
    """The result of `plain()`. Behavior that a shared call could not have is recorded, now or in its gradients.

    The script gets a copy of each floating-point tensor. The tape records the copy with the gradient function
    `pass_on`, which sees whether the script requests gradients of gradients.

    links_results: see `call_plan.CallPlan`.
    """
    from tensorflow.python.eager import record

    whole_code.leave_unreported(observed.tapes)  # no message says that this step is whole: the next may be shared
    reads_before = observed.reads
    result = plain()
    if observed.reads != reads_before:
        kind.refuse(READS)

    def pass_on(gradient: Any) -> list[Any]:
        if record.could_possibly_record() or not tf.executing_eagerly():
            kind.refuse(SECOND_ORDER)
        return [gradient]

    are_linked = links_results and len(tf.nest.flatten(result, expand_composites=True)) > 1

    def follow(leaf: Any) -> Any:
        if not isinstance(leaf, tf.Tensor):
            if leaf is not None:
                kind.refuse(OTHER_RESULTS)
            return leaf
        if not leaf.dtype.is_floating:
            return leaf
        with record.stop_recording():
            tensor_copy = tf.identity(leaf)
        record.record_operation("Watched", [tensor_copy], [leaf], pass_on)
        if are_linked:
            tags.set_tag(tensor_copy, _FOLLOWED, (leaf, kind))
        attach_tensors(tensor_copy, {name: follow(tensor) for name, tensor in list_attached(leaf).items()})
        return tensor_copy

    return tf.nest.map_structure(follow, result, expand_composites=True)


def compute_gradients(compute: Callable[[Any, Any], Any], sources: Any, unconnected: Any) -> Any:
    """The result of `compute(sources, unconnected)`, the gradients of a tape. Sources may be results of calls.

    In `features, prediction = model(x)` the prediction is computed from the features, and a script may ask for its
    gradient with respect to the features. There are two cases:
    - Watched calls return copies (`watch_call`), but the prediction was computed from the original of `features`. So
      the gradient with respect to the original is taken; if there is none, the gradient with respect to the copy.
    - For a tape, the results of a shared call do not depend on one another. So such a gradient is an error.

    unconnected: what TensorFlow gives in place of None.

    Raises UnsupportedError if the target depends on results of a shared call that were computed from a source.
    """
    flat_sources = tf.nest.flatten(sources)
    indexed_tags = ((index, tags.get_tag(source, _FOLLOWED)) for index, source in enumerate(flat_sources))
    followed = {index: tag for index, tag in indexed_tags if tag is not None}
    computed_results = find_computed(flat_sources)
    if not followed and not computed_results:
        return compute(sources, unconnected)
    for _, kind in followed.values():
        kind.refuse(BETWEEN_RESULTS)
    source_gradients, original_gradients, gradients_of_results = compute(
        [flat_sources, [tensor for tensor, _ in followed.values()], [results for results, _ in computed_results]],
        tf.UnconnectedGradients.NONE,
    )
    for gradients, (_, plan) in zip(gradients_of_results, computed_results):
        if any(gradient is not None for gradient in gradients):
            plan.refuse_gradients(BETWEEN_RESULTS)
    for index, gradient in zip(followed, original_gradients):
        source_gradients[index] = source_gradients[index] if gradient is None else gradient
    if unconnected == tf.UnconnectedGradients.ZERO:
        source_gradients = [
            tf.zeros_like(source) if gradient is None else gradient
            for source, gradient in zip(flat_sources, source_gradients)
        ]
    return tf.nest.pack_sequence_as(sources, source_gradients)
