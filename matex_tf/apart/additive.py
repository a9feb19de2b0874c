"""Rewrites the graph of a step so that it adds to variables in memory that the ranks share, in place of assigning them.

An assignment `w = w - 0.1 * g` would undo the updates that other ranks made since w was read. Written as the addition
of `-0.1 * g` to w, it keeps them. So each assignment to a shared variable is expressed as `keep` times its old value
plus `more` (`affine`; here keep is 1). With keep 1 it becomes an op that adds `more`; else an op that sets the
variable to `keep * present value + more`, as for a moving average.

`shared_step` makes the rewritten copy of a step with `Additions`. `find_obstacle` then checks the copy for uses of
variables that would get wrong values by additions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from matex_tf import ops
from matex_tf.apart import affine, own_rows, variable_uses
from matex_tf.lazy import tf
from matex_tf.rewrite.compiled import CALLS
from matex_tf.rewrite.emit import Copy
from matex_tf.rewrite.graph_ops import BRANCHES
from matex_tf.rewrite.nodes import Decision, Node, Value
from matex_tf.rewrite.pieces import ASSIGNS
from matex_tf.rewrite.placement import WHOLE
from matex_tf.rewrite.programs import Program
from matex_tf.rewrite.propagate import Reader
from matex_tf.steps import slices
from matex_tf.steps.variables import find_name

# Types of ops that take the handle of a variable; `_CHANGES` has prefixes of types.
_READS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape")
_CHANGES = ("Assign", "ResourceApply", "ResourceSparseApply", "ResourceScatter", "ResourceStrided", *variable_uses.ADDS)
_SIGNS = {"AssignAddVariableOp": 1, "AssignSubVariableOp": -1, "ResourceScatterAdd": 1, "ResourceScatterSub": -1}


class _FlatReader(Reader):
    """Reads a graph with the ops of called functions inlined. All values are whole: nothing is divided among ranks."""

    def reads_functions(self, op: Any, inputs: Iterable[Value]) -> bool:
        """Whether the functions that `op` calls are read."""
        return op.type in CALLS

    def decide(self, node: Node) -> Decision:
        return node.decide_whole()


def read_step(graph: Any) -> Program:
    """The ops of a step's graph, including the ops of functions that it calls."""
    return _FlatReader(takes_batches=False).read(graph, [WHOLE] * len(graph.inputs))


class Additions:
    """A copy of a step in the graph being built, in which assignments to some variables are additions.

    Ranks read and write without synchronization, so a step sees some concurrent changes of other ranks. It changes a
    variable after all of its own reads.

    variables: TensorFlow variables that ranks share.
    states: the variables among them that no optimizer changes, such as moving averages.
    """

    def __init__(self, variables: Sequence[Any], states: Iterable[Any]):
        self.variables = list(variables)
        self.parts: list[int] = []  # for each addition, the index of its variable
        self.why_not = ""  # the reason why the copy is wrong; "" if it is right
        self._states = set(map(id, states))
        self._indices: dict[str, int] = {}  # the index of a variable, by the name of its handle in the copy

    def copy_step(self, program: Program, inputs: Sequence[Any]) -> list[Any]:
        """Add a copy of `program` with these inputs to the current graph. Returns its outputs."""
        graph = tf.compat.v1.get_default_graph()
        self._indices = {graph.capture(variable.handle).name: index for index, variable in enumerate(self.variables)}
        tensors = dict(zip(map(id, program.inputs), inputs, strict=True))
        copy = Copy(slices.make_empty_slice(), own_rows.OwnExchanger(""))  # all values are whole: nothing is exchanged
        last_ops: dict[int, list[Any]] = {}  # of each node's copy, for control dependencies
        for node in program.nodes:
            node_inputs = [tensors[id(value)] for value in node.inputs]
            with tf.control_dependencies([op for control in node.controls for op in last_ops.get(id(control), ())]):
                if not self._replace_change(node.type, node_inputs):
                    tensors.update(zip(map(id, node.outputs), copy.create_op(node, node_inputs)))
            last_ops[id(node)] = [graph.get_operations()[-1]]
        return [tensors[id(value)] for value in program.outputs]

    def _replace_change(self, kind: str, inputs: Sequence[Any]) -> bool:
        """Replace an op of type `kind` by an addition. Returns False if it does not change a shared variable."""
        if not inputs or inputs[0].name not in self._indices:
            return False
        handle, *values = inputs
        variable = self.variables[self._indices[handle.name]]
        if kind == "AssignVariableOp":
            self._assign_sum(variable, handle, affine.find_sum(values[0], handle), value=values[0])
        elif kind in ("AssignAddVariableOp", "AssignSubVariableOp"):
            added_sum = affine.find_sum(values[0], handle)
            if added_sum.more is values[0]:  # the added value does not contain the variable as a term
                self._assign_sum(variable, handle, affine.Sum(1, values[0]), sign=_SIGNS[kind])
            else:  # the new value is the old one, `Sum(1, None)`, plus or minus the added one
                self._assign_sum(variable, handle, affine.Sum(1, None).add_sum(added_sum, _SIGNS[kind]))
        elif kind in _SIGNS:
            self._create_addition("matex_add_rows", handle, indices=values[0], values=values[1], sign=_SIGNS[kind])
        else:
            return False
        return True

    def _assign_sum(self, variable: Any, handle: Any, new_sum: affine.Sum, value: Any = None, sign: int = 1) -> None:
        """Assign `new_sum` to a variable, by one of two ops:

        - If keep is 1, `matex_add` adds `more`.
        - Otherwise `matex_move` sets the variable to `keep * present value + more`. Two cases are exceptions, in which
          `matex_add` adds the difference between the new and the present value: integers, which `matex_move` lacks;
          and a weight that an optimizer replaces, because its new value would overwrite updates of other ranks.

        value: `new_sum` as a tensor; None if the graph has no such tensor.
        sign: 1 adds `new_sum.more`, -1 subtracts it.
        """
        dtype, shape = variable.dtype, variable.shape
        more = tf.zeros(shape, dtype) if new_sum.more is None else new_sum.more
        if more.shape != shape:
            more = tf.broadcast_to(more, shape)
        is_added = isinstance(new_sum.keep, int) and new_sum.keep == 1  # old value + more
        is_replaced = isinstance(new_sum.keep, int) and new_sum.keep == 0  # more alone
        # A state must be added to or be a moving average, `keep * old + more`, where neither factor nor term depends on
        # the old value. Any other new value of one rank would overwrite the values of other ranks.
        is_dependent = affine.is_dependent(new_sum.keep, handle) or affine.is_dependent(more, handle)
        if (is_dependent or is_replaced) and id(variable) in self._states:
            variable_name = find_name(variable).partition(":")[0]
            self.why_not = self.why_not or f"each batch assigns a new value to '{variable_name}'"
        is_replaced_weight = is_replaced and bool(variable.trainable)
        if not is_added and (dtype.is_integer or is_replaced_weight):
            present_value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
            new_value = new_sum.evaluate_at(present_value) if value is None else value
            is_added, more = True, new_value - present_value
        if is_added:
            self._create_addition("matex_add", handle, values=more, sign=sign)
        else:
            self._create_addition("matex_move", handle, keep=tf.cast(new_sum.keep, dtype), more=more)

    def _create_addition(self, op_name: str, handle: Any, **inputs: Any) -> None:
        """Add an op that changes a variable in the store, after all ops so far that use the variable's value."""
        part = len(self.parts)
        self.parts.append(self._indices[handle.name])
        with tf.control_dependencies(variable_uses.list_users(handle)):
            getattr(ops.get_library().ops, op_name)(variable=handle, part=part, **inputs)


def list_written(graph: Any, variables: Sequence[Any]) -> list[Any]:
    """The `variables` that the ops of a graph change, including ops of called functions."""
    uses = variable_uses.list_uses(graph)
    return [variable for variable in variables if _find_change(uses.get(id(variable.handle), ()))]


def _find_change(uses: Iterable[variable_uses.Use]) -> variable_uses.Use | None:
    """The first use that changes the variable; None if there is none."""
    return next((use for use in uses if use.kind.startswith(_CHANGES)), None)


def find_amounts(graph: Any, variables: Sequence[Any]) -> list[tuple[Any, Any]]:
    """(variable, amount) pairs of those `variables` to which a step adds a constant amount, if it is not 0.

    An example is the state of a random generator.
    """
    # The graph has a handle of its own for each variable, `inner`, as an input.
    inner_handles = {id(outer): inner for outer, inner in variable_uses.list_handles(graph)}
    all_uses = variable_uses.list_uses(graph)
    pairs = []
    with graph.as_default():  # `affine` adds ops
        for variable in variables:
            handle = inner_handles.get(id(variable.handle))
            if handle is None or not _is_additive(handle, all_uses[id(variable.handle)]):
                continue
            amounts: list[Any] = []  # of each change; None if it is not a constant
            for op in handle.consumers():
                if op.type in ASSIGNS:
                    is_new = op.type == "AssignVariableOp"
                    more = affine.find_sum(op.inputs[1], handle).more if is_new else op.inputs[1]
                    amount = None if more is None else tf.get_static_value(more)
                    amounts.append(-amount if amount is not None and _SIGNS.get(op.type) == -1 else amount)
            if all(amount is not None for amount in amounts):
                total = sum(amounts, np.zeros(variable.shape, variable.dtype.as_numpy_dtype))
                if np.any(total):
                    pairs.append((variable, total))
    return pairs


def find_obstacle(graph: Any, variables: Sequence[Any], sums: Sequence[Any], own: Sequence[Any]) -> str:
    """The reason why ranks cannot share a step by additions; "" if they can.

    graph: the graph of a copy (`Additions`).
    variables: TensorFlow variables that may be shared.
    sums: variables that each rank has for itself; over the ranks they add up to the sum of all batches.
    own: other variables that each rank has for itself, which the step may change in any way.
    """
    shared_names = {id(variable.handle): find_name(variable) for variable in variables}
    sum_names = {id(variable.handle): find_name(variable) for variable in sums}
    private_ids = {id(variable.handle) for variable in own} - set(sum_names)
    inner_handles = {id(outer): inner for outer, inner in variable_uses.list_handles(graph)}
    for handle_id, uses in variable_uses.list_uses(graph).items():
        if handle_id in private_ids:
            continue
        # A metric: its sum over the ranks is right only if each step adds to it.
        if handle_id in sum_names:
            if not _is_additive(inner_handles[handle_id], uses):
                return f"the metric variable '{sum_names[handle_id]}' is not a sum over batches"
            continue
        # A variable outside of the model: the ranks' changes could not be combined.
        if handle_id not in shared_names:
            if change := _find_change(uses):
                return f"it changes a variable that is not a weight of the model ({change.name})"
            continue
        # A shared variable: only reads and additions, in every step, and no use of an old value after an addition.
        name = shared_names[handle_id]
        for kind, within, _ in uses:  # within: the types of the ops whose functions it is in
            if kind.startswith(_CHANGES) and within & BRANCHES:
                return f"it changes '{name}' in some steps only"
            if kind not in (*_READS, *variable_uses.ADDS):
                return f"it changes '{name}' other than by addition ({kind})"
        if stale_op := variable_uses.find_stale_use(inner_handles[handle_id]):
            return f"it uses the old value of '{name}' after a change ({stale_op})"
    return ""


def _is_additive(handle: Any, uses: Sequence[variable_uses.Use]) -> bool:
    """Whether a step changes a variable only by adding values that do not depend on it."""
    if _find_change(use for use in uses if use.within):  # in a called function: not examined
        return False
    for op in handle.consumers():
        if not op.type.startswith(_CHANGES):
            continue
        if op.type not in ASSIGNS:
            return False
        new_sum = affine.find_sum(op.inputs[1], handle)
        # The factor of the old value in an assigned or added value.
        expected_keep = 1 if op.type == "AssignVariableOp" else 0
        is_expected = isinstance(new_sum.keep, int) and new_sum.keep == expected_keep
        if not is_expected or affine.is_dependent(new_sum.more, handle):
            return False
    return True
