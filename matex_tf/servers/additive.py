"""What a step changes by adding to it: in its graph that becomes additions in the memory that ranks share.

`Additions` has assignments become additions; `find_obstacle` says which steps cannot be shared so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from matex_tf import ops
from matex_tf.gradients import reduction
from matex_tf.servers import affine, variable_uses
from matex_tf.servers.variable_swap import find_inner

_READS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape")
_CHANGES = ("Assign", "ResourceApply", "ResourceSparseApply", "ResourceScatter", "ResourceStrided", *variable_uses.ADDS)

_kinds: dict[type, type] = {}
_under_way: list[Additions] = []


class Additions:
    """Within it, in a graph, assignments to some variables are additions in shared memory.

    All ranks read and write as they come, so that a step sees some of what the others do meanwhile; its own changes
    come after all that it reads of a variable. What the optimizer adds to a weight is added. An average that moves,
    `keep * v + more`, moves from where it is by then.

    Args:
        weights: what a model has, and does not count for its metrics.
        trained: those of them that its optimizer changes.
    """

    def __init__(self, weights: Sequence[Any], trained: Sequence[Any]):
        self.variables: list[Any] = []
        self.parts: list[int] = []  # of each addition which of the variables it changes
        self.why_not: str | None = None
        self._kinds: dict[int, type] = {}
        self._states = {id(find_inner(one)) for one in weights} - {id(find_inner(one)) for one in trained}
        self._weights = weights

    def __enter__(self) -> Additions:
        _under_way.append(self)
        self.include_variables(self._weights)
        return self

    def __exit__(self, *error: Any) -> None:
        _under_way.remove(self)
        for one in map(find_inner, self.variables):
            object.__setattr__(one, "__class__", self._kinds[id(one)])

    def include_variables(self, variables: Sequence[Any]) -> None:
        """Share these, too."""
        for one in variables:
            variable = find_inner(one)
            if id(variable) in self._kinds:
                continue
            kind = self._kinds[id(variable)] = type(variable)
            if kind not in _kinds:
                _kinds[kind] = type(kind.__name__, (_Added, kind), {"__module__": kind.__module__})
            object.__setattr__(variable, "__class__", _kinds[kind])
            self.variables.append(one)

    def count_part(self, variable: Any) -> int:
        """The number of an addition to `variable` that is about to be made: they are counted in `parts`."""
        places = {id(find_inner(one)): place for place, one in enumerate(self.variables)}
        self.parts.append(places[id(variable)])
        return len(self.parts) - 1

    def is_state(self, variable: Any) -> bool:
        """Whether it is a weight that no optimizer trains."""
        return id(variable) in self._states

    def refuse_variable(self, variable: Any) -> None:
        name = reduction.find_name(variable).partition(":")[0]
        self.why_not = self.why_not or f"it sets '{name}' anew in each batch"


@contextlib.contextmanager
def share_update(optimizer: Any, gradients: Sequence[Any], of: Sequence[Any]) -> Iterator[list[Any]]:
    """Around an update by an optimizer of Keras 3; gives the gradients, each of them there once all are.

    So no weight is changed before all of them are computed, and what the update reads it reads then.
    """
    import keras
    import tensorflow as tf

    if not optimizer.built and of is not None:
        with keras.name_scope(optimizer.name, caller=optimizer):
            optimizer.build(of)
    _under_way[-1].include_variables(optimizer.variables)
    there = [one for one in gradients if one is not None]
    with tf.control_dependencies(tf.nest.flatten(there, expand_composites=True)):
        kept = iter(tf.nest.map_structure(tf.identity, there, expand_composites=True))
        yield [None if one is None else next(kept) for one in gradients]


def list_changed(graph: Any, variables: Sequence[Any]) -> list[Any]:
    """Those of `variables` that `graph`, or a function that it calls, adds to."""
    uses = variable_uses.list_uses(graph)
    return [
        one
        for one in variables
        if any(use.kind in variable_uses.ADDS for use in uses.get(id(find_inner(one).handle), ()))
    ]


def find_obstacle(graph: Any, variables: Sequence[Any], sums: Sequence[Any], own: Sequence[Any]) -> str | None:
    """Why ranks cannot share a step by additions; None if they can.

    Args:
        graph: that of the step, traced within `Additions`.
        variables: those that may be shared.
        sums: those that each rank has for itself, and of which the sum over ranks is that of all batches.
        own: others that each rank has for itself, whatever the step does with them.
    """
    shared = {id(find_inner(one).handle): reduction.find_name(one) for one in variables}
    added_up = {id(find_inner(one).handle): reduction.find_name(one) for one in sums}
    private = {id(find_inner(one).handle) for one in own} - set(added_up)
    within_graph = {id(outer): within for outer, within in variable_uses.list_handles(graph)}
    for handle, uses in variable_uses.list_uses(graph).items():
        if handle in private:
            continue
        if handle in added_up:
            if not _is_additive(within_graph[handle], uses):
                return f"a metric's '{added_up[handle]}' is no sum over batches"
            continue
        name = shared.get(handle)
        for kind, within, op in uses:
            if name is None and kind.startswith(_CHANGES):
                return f"it changes a variable that is none of the model's weights ({op})"
            if name is not None and kind not in (*_READS, *variable_uses.ADDS):
                return f"it changes '{name}' otherwise than by adding to it ({kind})"
            if kind in variable_uses.ADDS and within & variable_uses.BRANCHES:
                return f"it changes '{name}' in some steps only"
        late = variable_uses.find_stale_use(within_graph[handle]) if name is not None else ""
        if late:
            return f"it uses the value that '{name}' had before it changed it ({late})"
    return None


class _Added:
    """A variable of TensorFlow, assignments to which are additions."""

    dtype: Any
    shape: Any
    handle: Any
    read_value: Any

    def assign_add(self, delta: Any, use_locking: Any = None, name: Any = None, read_value: Any = True) -> Any:
        return self._add_values(delta, 1)

    def assign_sub(self, delta: Any, use_locking: Any = None, name: Any = None, read_value: Any = True) -> Any:
        return self._add_values(delta, -1)

    def assign(self, value: Any, use_locking: Any = None, name: Any = None, read_value: Any = True) -> Any:
        import tensorflow as tf

        value = tf.convert_to_tensor(value, self.dtype)
        self._become_sum(affine.find_sum(value, _find_inside(self.handle)), value)
        return self

    def scatter_add(self, sparse_delta: Any, use_locking: Any = False, name: Any = None) -> Any:
        return self._add_rows(sparse_delta, 1)

    def scatter_sub(self, sparse_delta: Any, use_locking: Any = False, name: Any = None) -> Any:
        return self._add_rows(sparse_delta, -1)

    def _add_values(self, values: Any, sign: int) -> Any:
        import tensorflow as tf

        values = tf.convert_to_tensor(values, self.dtype)
        found = affine.find_sum(values, _find_inside(self.handle))
        if found.more is values:
            self._become_sum(affine.Sum(1, values), None, sign)
        else:
            self._become_sum(affine.Sum(1, None).add_sum(found, sign), None)
        return self

    def _become_sum(self, new: affine.Sum, value: Any, sign: int = 1) -> None:
        """From now on it is `new`; `value`: that in a tensor, if there is one. `sign` is that of what is added."""
        import tensorflow as tf

        handle = _find_inside(self.handle)
        more = tf.zeros(self.shape, self.dtype) if new.more is None else new.more
        if more.shape != self.shape:
            more = tf.broadcast_to(more, self.shape)
        is_added = isinstance(new.keep, int) and new.keep == 1
        is_set = isinstance(new.keep, int) and new.keep == 0
        current = _under_way[-1]
        of_itself = any(affine.is_dependent(one, handle) for one in (new.keep, more))
        if (of_itself or is_set) and current.is_state(self):
            current.refuse_variable(self)
        is_weight = bool(getattr(self, "trainable", False))
        if not is_added and (self.dtype.is_integer or (is_set and is_weight)):
            is_added, more = True, (new.evaluate_at(self.read_value()) if value is None else value) - self.read_value()
        with tf.control_dependencies(variable_uses.list_users(handle)):
            if is_added:
                ops.get_library().ops.matex_add(
                    variable=self.handle, values=more, sign=sign, part=current.count_part(self)
                )
            else:
                keep = tf.cast(new.keep, self.dtype)
                ops.get_library().ops.matex_move(
                    variable=self.handle, keep=keep, more=more, part=current.count_part(self)
                )

    def _add_rows(self, rows: Any, sign: int) -> Any:
        import tensorflow as tf

        values = tf.cast(rows.values, self.dtype)
        with tf.control_dependencies(variable_uses.list_users(_find_inside(self.handle))):
            ops.get_library().ops.matex_add_rows(
                variable=self.handle,
                indices=rows.indices,
                values=values,
                sign=sign,
                part=_under_way[-1].count_part(self),
            )
        return self


def _is_additive(handle: Any, uses: Sequence[variable_uses.Use]) -> bool:
    """Whether a step changes a variable only by what does not depend on it."""
    if any(use.kind.startswith(_CHANGES) for use in uses if use.within):
        return False
    for op in handle.consumers():
        if op.type in ("AssignAddVariableOp", "AssignSubVariableOp"):
            new = affine.find_sum(op.inputs[1], handle)
            new = new._replace(keep=new.keep + 1)
        elif op.type == "AssignVariableOp":
            new = affine.find_sum(op.inputs[1], handle)
        elif op.type.startswith(_CHANGES):
            return False
        else:
            continue
        if not (isinstance(new.keep, int) and new.keep == 1) or affine.is_dependent(new.more, handle):
            return False
    return True


def _find_inside(handle: Any) -> Any:
    """What the graph being built has for a handle from outside of it."""
    import tensorflow as tf

    return tf.compat.v1.get_default_graph().capture(handle)
