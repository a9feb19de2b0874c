"""Variables of a session: equal on all ranks before a run that ranks share.

Runs that every rank computes by itself may make variables differ: an initializer without a seed draws other weights on
each rank. `list_changed` names the variables that a run may leave different, and `SessionVariables` records for each
session which variables are known to be equal. Before a shared run, `agree` gives all ranks rank 0's values of the other
variables.

An op uses a variable through an input: its handle, of dtype resource, or a reference to its value (TensorFlow 1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from matex_tf import tags
from matex_tf.lazy import tf
from matex_tf.rewrite.rules.randoms import has_no_seed
from matex_tf.rewrite.subgraphs import reach
from matex_tf.runtime import objects
from matex_tf.steps import session_graphs, variables
from matex_tf.thread_flag import ThreadFlag

is_inside = ThreadFlag()
"""Whether this thread is inside of a run that the library itself makes, to read or assign variables."""
_VARIABLES = ("VarHandleOp", "VariableV2", "Variable")
_READS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp")
"""Ops that take a handle and do not change the variable."""
_WITHOUT_VALUE = ("Assign", "VarIsInitialized", "VariableShape")
"""Prefixes of ops that take a handle and do not read the value of the variable."""
_ACCESSES = "accesses to variables"


def list_variables(needed: Iterable[Any]) -> list[Any]:
    """The variable ops among the ops of a run, without variables of strings."""
    return [op for op in needed if op.type in _VARIABLES and op.get_attr("dtype").as_numpy_dtype is not object]


def list_changed(needed: Sequence[Any], has_feeds: bool) -> set[str]:
    """The names of variables that were equal on all ranks, and that a run of the ops `needed` may leave different.

    has_feeds: the run has feeds, which may differ between ranks. A run without feeds, of ops whose only state is
    variables and seeds, gives equal results on all ranks.
    """
    return _list_used(needed, _may_write) if has_feeds or any(map(_may_differ, needed)) else set()


def list_trained(graph: Any, needed: Sequence[Any]) -> set[str]:
    """The names of the weights that a run of the ops `needed` changes and also reads: an initializer trains none."""
    weights = {variable.op.name for variable in graph.get_collection(tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES)}
    return weights & _list_used(needed, _may_write) & _list_used(needed, _reads)


def _list_used(needed: Iterable[Any], is_used: Callable[[Any, Any], bool]) -> set[str]:
    """The names of the variables that an op uses through an input for which `is_used(op, tensor)` holds."""
    references = [(op, tensor) for op in needed for tensor in op.inputs if _is_reference(tensor)]
    return {
        variable_op.name for op, tensor in references if is_used(op, tensor) for variable_op in _find_variables(tensor)
    }


def _may_write(op: Any, tensor: Any) -> bool:
    """Whether an op may change the variable to which this input refers."""
    if tensor.dtype._is_ref_dtype:  # an op that only reads takes the value of the reference
        return op.op_def is None or any(argument.is_ref for argument in op.op_def.input_arg)
    return op.type not in _READS


def _reads(op: Any, tensor: Any) -> bool:
    """Whether an op reads the value of the variable to which this input refers."""
    if tensor.dtype._is_ref_dtype:
        return not _may_write(op, tensor)
    return op.op_def is None or not op.type.startswith(_WITHOUT_VALUE)


def _may_differ(op: Any) -> bool:
    """Whether an op may return or do something different on each rank, although its inputs are equal."""
    is_stateless = op.op_def is not None and not op.op_def.is_stateful
    if is_stateless or op.type in _VARIABLES or any(map(_is_reference, op.inputs)):  # its only state is a variable
        return False
    # Any other op with a state may differ, unless it draws random numbers by a seed.
    return has_no_seed(op) or "seed2" not in op.node_def.attr


def _is_reference(tensor: Any) -> bool:
    return tensor.dtype.name == "resource" or tensor.dtype._is_ref_dtype


def _find_variables(tensor: Any) -> list[Any]:
    """The variables to which a handle, or a reference from an assignment, may refer."""
    makers = reach([tensor.op], lambda op: [op_input.op for op_input in op.inputs if _is_reference(op_input)])
    return [op for op in makers if op.type in _VARIABLES]


class SessionVariables:
    """The known state of a session's variables.

    agreed: the names of variables that are equal on all ranks.
    started: the names of random ops whose sequences of numbers have started.
    """

    def __init__(self) -> None:
        self.agreed: set[str] = set()
        self.started: set[str] = set()

    def start(self, session: Any, starts: Mapping[str, Any]) -> None:
        """Start sequences of random numbers in the session that have not started. starts: see `SessionCopy`."""
        if new_starts := [operation for name, operation in starts.items() if name not in self.started]:
            with is_inside.set():
                session.run(new_starts)
            self.started.update(starts)

    def forget(self, names: Iterable[str]) -> None:
        """Record that ranks may have changed these variables differently."""
        self.agreed.difference_update(names)

    def agree(self, session: Any, used: Iterable[Any]) -> None:
        """Give every rank rank 0's values of `used` variables that differ. Collective, if not all are known equal."""
        unagreed_ops = [op for op in used if op.name not in self.agreed]
        if not unagreed_ops:
            return
        names = [op.name for op in unagreed_ops]
        with is_inside.set():
            accesses = _find_accesses(session.graph, unagreed_ops)
            values = _read(session, [access.value for access in accesses])
            _, differing_indices = variables.find_differing(
                names, values, "comparing the variables before a run of a session"
            )
            for index in differing_indices:
                value = objects.broadcast(values[index], f"sending variable '{names[index]}' from rank 0")
                session.run(accesses[index].assign, {accesses[index].new_value: value})
        self.agreed.update(names)


class _Access(NamedTuple):
    """The tensor of a variable's value, the placeholder of a new value, and the operation that assigns it."""

    value: Any
    new_value: Any
    assign: Any


def _find_accesses(graph: Any, ops: Sequence[Any]) -> list[_Access]:
    """The accesses to variables. Adds missing ones to the graph."""
    known_accesses: dict[str, _Access] = tags.get_or_make_tag(graph, _ACCESSES, dict)
    if missing_ops := [op for op in ops if op.name not in known_accesses]:
        with session_graphs.add_to(graph):
            known_accesses.update((op.name, _make_access(op)) for op in missing_ops)
    return [known_accesses[op.name] for op in ops]


def _make_access(op: Any) -> _Access:
    variable, dtype = op.outputs[0], op.get_attr("dtype")
    new_value = tf.compat.v1.placeholder(dtype)
    if op.type == "VarHandleOp":
        assign = tf.raw_ops.AssignVariableOp(resource=variable, value=new_value)
        return _Access(tf.raw_ops.ReadVariableOp(resource=variable, dtype=dtype), new_value, assign)
    assign = tf.raw_ops.Assign(ref=variable, value=new_value, validate_shape=False)
    return _Access(tf.identity(variable), new_value, assign)


def _read(session: Any, tensors: Sequence[Any]) -> list[np.ndarray]:
    """The values of variables; an empty vector for a variable without a value."""
    try:
        return [np.asarray(value) for value in session.run(tensors)]
    except tf.errors.FailedPreconditionError:
        if len(tensors) == 1:
            return [np.zeros([0])]
    return [_read(session, [tensor])[0] for tensor in tensors]
