"""Variables of a session: equal on all ranks before a shared run.

`session_runs` finds the variables that a run uses, changes and trains, by the ops of the graph. `SessionVariables`
records for each session which of them are known to be equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from matex_tf import tags
from matex_tf.lazy import tf
from matex_tf.rewrite.rules.randoms import has_no_seed
from matex_tf.runtime import objects
from matex_tf.steps import session_graphs, variables
from matex_tf.thread_flag import ThreadFlag

is_inside = ThreadFlag()
"""Whether this thread is inside of a run of the library."""
_KINDS = ("VarHandleOp", "VariableV2", "Variable")
_READS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp")
_READERS = "readers of variables"


def list_variables(needed: Iterable[Any]) -> list[Any]:
    """The variable ops among the ops of a run, without variables of strings."""
    return [op for op in needed if op.type in _KINDS and op.get_attr("dtype").as_numpy_dtype is not object]


def list_changed(needed: Sequence[Any], has_feeds: bool) -> set[str]:
    """The names of variables that were equal on all ranks, and that a run of the ops `needed` may leave different.

    A run without feeds, of ops whose only state is variables and seeds, gives equal results on all ranks.
    """
    if not has_feeds and not any(map(_may_differ, needed)):
        return set()
    return _list_used(needed, lambda op, tensor: op.type not in _READS and _may_write(op, tensor))


def list_trained(graph: Any, needed: Sequence[Any], changed: set[str]) -> set[str]:
    """The names of the weights among `changed` that the run also reads: a run that only assigns
    weights trains nothing.
    """
    weights = {one.op.name for one in graph.get_collection(tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES)}
    return changed & weights & _list_used(needed, _reads)


def _list_used(needed: Iterable[Any], is_used: Callable[[Any, Any], bool]) -> set[str]:
    """The names of the variables that an op uses through an input for which `is_used(op, tensor)` holds."""
    return {
        one.name
        for op in needed
        for tensor in op.inputs
        if _is_reference(tensor) and is_used(op, tensor)
        for one in _find_variables(tensor)
    }


def _reads(op: Any, tensor: Any) -> bool:
    """Whether an op reads the value of the variable to which this input refers."""
    if tensor.dtype._is_ref_dtype:
        return not _may_write(op, tensor)
    return op.op_def is None or not op.type.startswith(("Assign", "VarIsInitialized", "VariableShape"))


def _may_write(op: Any, tensor: Any) -> bool:
    """Whether an op may change the variable to which this input refers."""
    if tensor.dtype._is_ref_dtype:
        return op.op_def is None or any(one.is_ref for one in op.op_def.input_arg)
    return tensor.dtype.name == "resource"


def _may_differ(op: Any) -> bool:
    """Whether an op may return or do something different on each rank."""
    stateful = op.op_def is None or op.op_def.is_stateful
    if not stateful or op.type in _KINDS or any(map(_is_reference, op.inputs)):
        return False
    return has_no_seed(op) or "seed2" not in op.node_def.attr


def _is_reference(tensor: Any) -> bool:
    return tensor.dtype.name == "resource" or tensor.dtype._is_ref_dtype


def _find_variables(tensor: Any) -> list[Any]:
    """The variables that a handle, or a reference from an assignment, may refer to."""
    found, pending, seen = [], [tensor.op], set()
    while pending:
        op = pending.pop()
        if op in seen:
            continue
        seen.add(op)
        if op.type in _KINDS:
            found.append(op)
        pending += [one.op for one in op.inputs if _is_reference(one)]
    return found


class SessionVariables:
    """The known state of a session's variables.

    agreed: the names of variables that are equal on all ranks.
    started: the names of random ops whose sequences of numbers have started.
    """

    def __init__(self) -> None:
        self.agreed: set[str] = set()
        self.started: set[str] = set()

    def start(self, session: Any, starts: Mapping[str, Any]) -> None:
        """Start sequences of random numbers in the session, unless they have started. starts: see `SessionCopy`."""
        if new := [operation for name, operation in starts.items() if name not in self.started]:
            with is_inside.set():
                session.run(new)
            self.started.update(starts)

    def forget(self, names: Iterable[str]) -> None:
        """Record that ranks may have changed these variables differently."""
        self.agreed.difference_update(names)

    def agree(self, session: Any, chosen: Iterable[Any]) -> None:
        """Give every rank rank 0's values of variables that differ. Collective, if not all are known to be equal."""
        new = [op for op in chosen if op.name not in self.agreed]
        if not new:
            return
        with is_inside.set():
            readers = _find_readers(session.graph, new)
            values = _read(session, [read for read, _, _ in readers])
            names = [op.name for op in new]
            differing = variables.find_differing(names, values, "comparing the variables before a run of a session")
            for index in differing:
                value = objects.broadcast(values[index], f"sending variable '{names[index]}' from rank 0")
                _, new_value, assign = readers[index]
                session.run(assign, {new_value: value})
        self.agreed.update(names)


def _find_readers(graph: Any, new: Sequence[Any]) -> list[tuple[Any, Any, Any]]:
    """For each variable: its value; the placeholder of a new value; and the operation that assigns it."""
    known: dict[str, tuple[Any, Any, Any]] = tags.get_or_make_tag(graph, _READERS, dict)
    missing = [op for op in new if op.name not in known]
    if missing:
        with session_graphs.add_to(graph):
            known.update((op.name, _make_reader(op)) for op in missing)
    return [known[op.name] for op in new]


def _read(session: Any, tensors: Sequence[Any]) -> list[np.ndarray]:
    """The values of variables; an empty vector for a variable without a value."""
    try:
        return [np.asarray(one) for one in session.run(tensors)]
    except tf.errors.FailedPreconditionError:
        if len(tensors) == 1:
            return [np.zeros([0])]
    return [_read(session, [tensor])[0] for tensor in tensors]


def _make_reader(op: Any) -> tuple[Any, Any, Any]:
    variable, dtype = op.outputs[0], op.get_attr("dtype")
    new_value = tf.compat.v1.placeholder(dtype)
    if op.type == "VarHandleOp":
        read = tf.raw_ops.ReadVariableOp(resource=variable, dtype=dtype)
        return read, new_value, tf.raw_ops.AssignVariableOp(resource=variable, value=new_value)
    return tf.identity(variable), new_value, tf.raw_ops.Assign(ref=variable, value=new_value, validate_shape=False)
