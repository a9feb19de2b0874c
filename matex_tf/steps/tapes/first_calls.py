"""The first calls of each kind, which are the script's own: they reveal behavior that shared calls could not have.

Hooks of TensorFlow count reads of eager tensors, and random numbers that no variable holds the state of. `watch_call`
compares the counts, and follows the results of the call to the computation of their gradients.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from matex_tf.lazy import tf
from matex_tf.steps import agreement, whole_code
from matex_tf.steps.arguments import attach_tensors, list_attached
from matex_tf.steps.tapes.call_plan import SECOND_ORDER
from matex_tf.steps.tapes.kinds import Kind

READS = "its Python reads the values of tensors"
OTHER_RESULTS = "its results are not tensors alone"
CHOSEN = "MATEX_EAGER=whole says so"

_state = threading.local()


def note_read(tensor: Any) -> None:
    """Record that values of an eager tensor are read. In a trace there are none, and Python code might take another
    path.

    A single bool or integer is exempt: TensorFlow's branches, loops and arrays read it in eager code.
    """
    if tensor.shape.rank == 0 and (tensor.dtype.is_bool or tensor.dtype.is_integer):
        return
    _state.reads = getattr(_state, "reads", 0) + 1


def note_draw() -> None:
    """Record that a random number is drawn from a state that is not a variable."""
    _state.draws = getattr(_state, "draws", 0) + 1


def get_tapes() -> list[Any]:
    """The tapes that record in this thread, outermost first."""
    tapes: list[Any] = _state.__dict__.setdefault("tapes", [])
    return tapes


def may_be_shared() -> bool:
    """Whether ranks may share a call that tapes record now. If the setting forbids it, that is the step's reason."""
    may_be = agreement.is_sharing_eager_calls()
    if not may_be and agreement.is_watched():
        whole_code.note_reason(get_tapes(), CHOSEN)
    return may_be


def count_draws() -> int:
    """The number of calls of `note_draw` in this thread."""
    return getattr(_state, "draws", 0)


def watch_call(plain: Callable[[], Any], kind: Kind) -> Any:
    """The result of `plain()`. Behavior that a shared call could not have is recorded, now or in its gradients."""
    from tensorflow.python.eager import record

    whole_code.leave_unreported(get_tapes())
    reads_before = getattr(_state, "reads", 0)
    result = plain()
    if getattr(_state, "reads", 0) != reads_before:
        kind.refuse(READS)

    def pass_on(gradient: Any) -> list[Any]:
        if record.could_possibly_record() or not tf.executing_eagerly():
            kind.refuse(SECOND_ORDER)
        return [gradient]

    def follow(leaf: Any) -> Any:
        if not isinstance(leaf, tf.Tensor):
            if leaf is not None:
                kind.refuse(OTHER_RESULTS)
            return leaf
        if not leaf.dtype.is_floating:
            return leaf
        with record.stop_recording():
            same = tf.identity(leaf)
        record.record_operation("Watched", [same], [leaf], pass_on)
        attach_tensors(same, {name: follow(tensor) for name, tensor in list_attached(leaf).items()})
        return same

    return tf.nest.map_structure(follow, result, expand_composites=True)
