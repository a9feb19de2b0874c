"""Gives whole values to an op in which rows of the batch, or a figure of all rows, meet, while a step is traced.

`watch_graph` begins to look at a graph, and `_create_whole_op` makes the op anew. What comes before it stays sharded.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from matex_tf import tags
from matex_tf.analysis import interpreter, programs, verdict
from matex_tf.analysis.placement import PARTIAL, SHARDED, UNKNOWN
from matex_tf.analysis.rules import randoms
from matex_tf.gradients import redistribute
from matex_tf.runtime import script_frames
from matex_tf.thread_flag import ThreadFlag

_CONTROL = ("If", "While", "Case", "StatelessIf", "StatelessWhile", "StatelessCase", "Switch", "Merge", "Enter", "Exit")
_CALLS = ("PartitionedCall", "StatefulPartitionedCall", "While", "StatelessWhile")
_ASSIGNS = ("Assign", "ResourceScatter")
_OPAQUE = ("resource", "variant")
_PRODUCTS = set(
    """MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3 Einsum Conv2D Conv3D Conv DepthwiseConv2dNative
    Conv2DBackpropInput Conv3DBackpropInputV2""".split()
)
"""Ops of which a step's work consists."""

_WATCH = "rows that meet"

_state = threading.local()
_resolved = ThreadFlag()


class _Watch:
    """What is known of a graph in which values are made whole: the first reason, and how its products are computed."""

    def __init__(self, graph: Any):
        self.found = interpreter.make_interpreter(graph)
        self.wholes: dict[str, Any] = {}
        self._tapes = 0  # what `_state.tapes` was when they were made
        self.first: verdict.Reason | None = None
        self.sharded = self.whole = 0

    def make_whole(self, tensors: list[Any]) -> list[Any]:
        """Those that were made so before are made anew if a tape that records now may not know of that."""
        from tensorflow.python.eager import record

        records = record.could_possibly_record()
        if records and self._tapes != _count_tape_changes():
            self.wholes, self._tapes = {}, _count_tape_changes()
        wholes = redistribute.make_whole(tensors, self.found, self.wholes if records else dict(self.wholes))
        for tensor, whole in zip(tensors, wholes):
            if whole is not tensor:  # which may be one that stands for another
                programs.stand_for(whole, tensor)
        return wholes


def resolve_mixing(are: bool = True) -> contextlib.AbstractContextManager[None]:
    """Within it, where `are`, graphs that are traced for slices have values made whole where their rows meet."""
    return _resolved.set(are)


def are_resolved() -> bool:
    return bool(_resolved)


def note_tape_change() -> None:
    """Other tapes record from here on, or they watch more."""
    _state.tapes = _count_tape_changes() + 1


def _count_tape_changes() -> int:
    return getattr(_state, "tapes", 0)


def watch_graph(graph: Any) -> None:
    """The placements of the arguments of `graph`, which is about to be built, were declared."""
    if are_resolved() and _find_watch(graph) is None:
        watch = _Watch(graph)
        tags.set_tag(graph, _WATCH, watch)
        graph._create_op_internal = functools.partial(_create_op, watch, type(graph)._create_op_internal)


def _find_watch(graph: Any) -> _Watch | None:
    return tags.get_tag(graph, _WATCH)


def make_all_whole(tensors: list[Any]) -> list[Any] | None:
    """Tensors of the graph being built as whole values; None where one cannot be, and the step is not sharded."""
    import tensorflow as tf

    graph = tf.compat.v1.get_default_graph()
    watch = _find_watch(graph) or _Watch(graph)
    for tensor in tensors:
        placement = watch.found.find_placement(tensor)
        if not redistribute.can_be_whole(tensor, placement):
            known = verdict.find_reason(placement) if placement.why else None
            verdict.note_failure(graph, known or verdict.Reason("rows meet others that are whole", tensor.op))
            return None
    return watch.make_whole(tensors)


def is_whole(tensor: Any) -> bool:
    """Whether every rank has all of `tensor`, of the graph being built, in which rows have met."""
    watch = None if hasattr(tensor, "numpy") else _find_watch(tensor.graph)
    return watch is not None and watch.found.find_placement(tensor).is_same


def explain_no_gain(graph: Any) -> verdict.Reason | None:
    """Why sharding the step that `graph` is would gain nothing, though it can be; None if it gains."""
    watch = _find_watch(graph)
    if watch is None or watch.first is None or watch.sharded > watch.whole / 2:
        return None
    return watch.first


def has_gain(operations: Iterable[Any], found: interpreter.Interpreter) -> bool:
    """Whether of these ops, of the graph of `found`, as much work is sharded as to gain by it."""
    sharded = whole = 0
    for op in operations:
        if op.type in _PRODUCTS:
            is_sharded = any(found.find_placement(made).kind in (SHARDED, PARTIAL) for made in op.outputs)
            sharded, whole = sharded + is_sharded, whole + (not is_sharded)
    return whole == 0 or sharded > whole / 2


def _create_op(watch: _Watch, original: Callable[..., Any], kind: str, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    graph = watch.found.graph
    # What our own code makes, or has others make, is meant as it is: moments of a slice, backward passes, updates of
    # metrics. The stack tells which it is.
    if not _is_being_built(graph) or script_frames.is_ours(sys._getframe(1)):
        return original(graph, kind, inputs, *args, **kwargs)
    if kind.startswith(_ASSIGNS):
        with programs.mark_ours():
            inputs = _prepare_assigned(watch, inputs)
        return original(graph, kind, inputs, *args, **kwargs)
    op = original(graph, kind, inputs, *args, **kwargs)
    if _is_mixing(watch, op) and _may_be_made_anew(op):
        with programs.mark_ours():  # the op that the script made stays, so that its program is what it is
            op = _create_whole_op(watch, op, functools.partial(original, graph, kind), args, kwargs)
    _count_work(watch, op)
    return op


def _is_being_built(graph: Any) -> bool:
    import tensorflow as tf

    return not tf.executing_eagerly() and tf.compat.v1.get_default_graph() is graph


def _may_be_made_anew(op: Any) -> bool:
    if not op.outputs or not op.inputs or interpreter.is_stateful(op):
        return False
    if op.type in _CONTROL or op.type in _CALLS or op.type in randoms.DRAWS or op.type.startswith("Matex"):
        return False
    return not any(part.dtype.name in _OPAQUE for part in (*op.inputs, *op.outputs))


def _is_mixing(watch: _Watch, op: Any) -> bool:
    """Whether nothing is proved of `op`, though something is of each of its inputs."""
    if all(watch.found.find_placement(made).kind != UNKNOWN for made in op.outputs):
        return False
    return all(watch.found.find_placement(part).kind != UNKNOWN for part in op.inputs)


def _create_whole_op(
    watch: _Watch, op: Any, make: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """`op` made once more: of whole figures; if that does not do, of whole rows, too; itself where it cannot be.

    Of whole figures rows stay sharded. Of whole rows every rank computes it, and what is made of it.
    """
    parts = list(op.inputs)
    placements = [watch.found.find_placement(part) for part in parts]
    if not all(redistribute.can_be_whole(part, one) for part, one in zip(parts, placements)):
        return op
    figures = [at for at, one in enumerate(placements) if one.is_figure or one.is_mixed]
    others = [at for at, one in enumerate(placements) if not one.is_same]
    named = {**kwargs, "name": "whole"} if "name" in kwargs else kwargs
    reason = watch.found.find_placement(
        next(made for made in op.outputs if watch.found.find_placement(made).kind == UNKNOWN)
    )
    open_figures = [at for at in figures if not placements[at].is_same]
    for chosen in [open_figures] * (0 < len(open_figures) < len(others)) + [others]:
        inputs = list(parts)
        for at, one in zip(chosen, watch.make_whole([parts[at] for at in chosen])):
            inputs[at] = one
        made = make(inputs, *args, **named)
        for plain, one in zip(op.outputs, made.outputs):
            one.set_shape(plain.shape)  # of constants that whole inputs hide: else Python sees other sizes than alone
        if all(watch.found.find_placement(one).kind != UNKNOWN for one in made.outputs):
            for plain, one in zip(op.outputs, made.outputs):
                programs.stand_for(one, plain)
            watch.first = watch.first or verdict.find_reason(reason)
            return made
    return op


def _prepare_assigned(watch: _Watch, inputs: Any) -> list[Any]:
    """The inputs of an op that assigns to a variable: whole values, unless each rank keeps its part of a sum there."""
    inputs = list(inputs)
    if watch.found.find_variable_placement(inputs[0]).kind == PARTIAL:
        return inputs
    for at, part in enumerate(inputs[1:], 1):
        if getattr(part, "graph", None) is not watch.found.graph:
            continue
        placement = watch.found.find_placement(part)
        if placement.kind != UNKNOWN and not placement.is_same and redistribute.can_be_whole(part, placement):
            (inputs[at],) = watch.make_whole([part])
    return inputs


def _count_work(watch: _Watch, op: Any) -> None:
    """Note of an op that is much work whether it is sharded."""
    if op.type not in _PRODUCTS and op.type not in _CALLS:
        return
    kinds = {watch.found.find_placement(made).kind for made in op.outputs}
    if kinds & {SHARDED, PARTIAL}:
        watch.sharded += 1
    elif op.type in _PRODUCTS:
        watch.whole += 1
