"""What runs under a tape in eager code, op by op: enough to make the same of a part of the rows, in a graph.

Every op that TensorFlow runs is seen as it is run, with its inputs and outputs, and whether the tape recorded it. What
is recorded without an op, such as the gradient function of a `tf.custom_gradient`, is noted as `opaque`.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from matex_tf import tags

READS = ("ReadVariableOp", "ResourceGather")
"""Ops that give values of a variable, with respect to which a tape takes gradients."""
TWO_TAPES = "two tapes record at once"
_LONG = "more than {} ops run under the tape"
_MOST = 4096
_DRAWS = ("Random", "Multinomial", "TruncatedNormal", "Shuffle")
"""Parts of the names of ops that draw numbers: those that were drawn are what they are."""
_OPAQUE = ("resource", "variant")
_RECORDING = "what runs under it"
_UNKNOWN = "a read of a variable"

_state = threading.local()


class Op(NamedTuple):
    """An op that ran. `inputs` are the numbers that TensorFlow gives tensors.

    followed: the tape recorded it, so that gradients go back through it.
    """

    kind: str
    inputs: tuple[int, ...]
    attributes: tuple[Any, ...]
    dtypes: tuple[Any, ...]
    followed: bool


class Recording:
    """Of one tape."""

    def __init__(self) -> None:
        self.why = ""
        self._listens = False
        self._clear_ops()

    def _clear_ops(self) -> None:
        self.ops: list[Op] = []
        self.made: dict[int, tuple[int, int]] = {}
        """Of a tensor's number the place of its op, and which output it is."""
        self.leaves: dict[int, Any] = {}
        """Tensors of which no op is known that could be run again: they are what they are."""
        self.reads: dict[int, tuple[Op, int]] = {}
        """Of what was read of a variable, the op, and the number of the variable's handle."""
        self.opaque: dict[int, str] = {}
        """Tensors that the tape knows the way back from, though no op says which: of what kinds they are."""
        self.watched: set[int] = set()

    def start_recording(self) -> None:
        from tensorflow.python.framework import op_callbacks

        if not self.why and not self._listens:
            op_callbacks.add_op_callback(self.note_op)
            self._listens = True
            _state.touched = []

    def stop_recording(self, why: str = "") -> None:
        """Record no more for now, or, where there is a reason, at all."""
        from tensorflow.python.framework import op_callbacks

        if self._listens:
            op_callbacks.remove_op_callback(self.note_op)
            self._listens = False
            _state.touched = None
        if why:
            self.why = why
            self._clear_ops()

    def note_op(
        self, kind: Any, inputs: Any, attrs: Any, outputs: Any, op_name: str | None = None, graph: Any = None
    ) -> None:  # as TensorFlow calls it
        from tensorflow.python.eager import record

        if graph is not None:
            return
        name = kind.decode() if isinstance(kind, bytes) else kind
        followed = record.should_record_backprop(list(inputs))
        op = Op(name, tuple(one._id for one in inputs), attrs, tuple(one.dtype for one in outputs), followed)
        if name in READS and followed:
            self.reads[outputs[0]._id] = op, inputs[0]._id
        is_leaf = _may_differ(name) or any(one.dtype.name in _OPAQUE for one in (*inputs, *outputs))
        for one in inputs:
            if one.dtype.name not in _OPAQUE and one._id not in self.made:
                self.leaves.setdefault(one._id, one)
                if followed:
                    self._find_origin(one)
        _state.touched = []
        if is_leaf:
            self.leaves.update((one._id, one) for one in outputs)
            if followed and name not in READS:
                self.opaque.update((one._id, name) for one in outputs)
            return
        self.made.update((one._id, (len(self.ops), index)) for index, one in enumerate(outputs))
        self.ops.append(op)
        if len(self.ops) > _MOST:
            self.stop_recording(_LONG.format(_MOST))

    def _find_origin(self, leaf: Any) -> None:
        """See where a tensor comes from that no op made: an op may itself have read a variable that it was given.

        It asks for the variable's handle then, and the one that it asked for is the one, if no other fits.
        """
        from tensorflow.python.eager import record

        number = leaf._id
        if number in self.reads or number in self.opaque or number in self.watched:
            return
        if not record.should_record_backprop([leaf]):
            return
        fitting = {
            one.handle._id for one in list(_state.touched) if one.dtype == leaf.dtype and one.shape == leaf.shape
        }
        if len(fitting) == 1:
            (handle,) = fitting
            self.reads[number] = Op(READS[0], (handle,), (), (leaf.dtype,), True), handle
        else:
            self.opaque[number] = _UNKNOWN


def note_touched(variable: Any) -> None:
    """The handle of a variable is asked for, by Python or by an op that reads it."""
    touched = getattr(_state, "touched", None)
    if touched is not None:
        touched.append(variable)


@functools.cache
def _may_differ(kind: str) -> bool:
    """Whether an op may give something else when it is run again, or for some of the rows, or calls functions."""
    from tensorflow.python.framework import op_def_registry

    definition = op_def_registry.get(kind)
    if definition is None or definition.is_stateful or any("func" in one.type for one in definition.attr):
        return True
    return any(word in kind for word in _DRAWS)


def find_recording(tape: Any) -> Recording | None:
    return tags.get_tag(tape, _RECORDING)


def begin_recording(tape: Any, outer: Sequence[Any]) -> None:
    """The tape begins to record, or goes on, in eager code, while those in `outer` do."""
    mine = tags.get_or_make_tag(tape, _RECORDING, Recording)
    for other in outer:
        known = find_recording(other)
        if known is not None:
            known.stop_recording(TWO_TAPES)
    if outer:
        mine.stop_recording(TWO_TAPES)
    mine.start_recording()


def pause_recording(tape: Any) -> None:
    known = find_recording(tape)
    if known is not None:
        known.stop_recording()


def forget_recording(tape: Any) -> None:
    known = find_recording(tape)
    if known is not None:
        known.stop_recording()
        tags.remove_tag(tape, _RECORDING)


def note_watched(tape: Any, tensors: Sequence[Any]) -> None:
    known = find_recording(tape)
    if known is not None:
        known.watched.update(one._id for one in tensors if hasattr(one, "_id"))


def note_own_gradient(tapes: Sequence[Any], kind: Any, outputs: Sequence[Any], inputs: Sequence[Any]) -> None:
    """The tapes are told how to go back from `outputs`, by a function and no op."""
    from tensorflow.python.eager import record

    if not tapes or not record.should_record_backprop(list(inputs)):
        return
    for known in map(find_recording, tapes):
        if known is not None:
            known.opaque.update((one._id, _strip_name(kind)) for one in outputs)


def _strip_name(kind: Any) -> str:
    """The name of a function without what each trace of it has of its own."""
    return re.sub(r"^b?'?(__forward_|__inference_)?|(_\d+)?'?$", "", str(kind))
