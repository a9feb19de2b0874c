"""What is stated of the tensors, variables and ops of graphs: the interpreter asks here before it asks an op."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

from matex_tf.analysis.placement import Placement

_declared: weakref.WeakKeyDictionary[Any, dict[str, Placement]] = weakref.WeakKeyDictionary()
_conditions: weakref.WeakKeyDictionary[Any, dict[str, Condition]] = weakref.WeakKeyDictionary()
_accounts: weakref.WeakKeyDictionary[Any, dict[int, Any]] = weakref.WeakKeyDictionary()
_exempt: dict[int, Any] = {}
_scalars: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()
_own_gradients: weakref.WeakKeyDictionary[Any, list[list[Any] | None]] = weakref.WeakKeyDictionary()


def declare_placement(tensor: Any, placement: Placement) -> None:
    """State the placement of the tensor of a graph, whatever its op."""
    _declared.setdefault(tensor.graph, {})[tensor.name] = placement


class Condition(NamedTuple):
    """The placement of a tensor where that of `source` holds; `why` is a clause for elsewhere."""

    placement: Placement
    source: Any
    holds: Callable[[Placement], bool]
    why: str


def declare_if(tensor: Any, placement: Placement, source: Any, holds: Callable[[Placement], bool], why: str) -> None:
    """State the placement of the tensor of a graph for where `holds` says so of that of `source`, of the same graph.

    Elsewhere, as in a function that is called with something else, it is unknown, which `why`, a clause, explains.
    """
    _conditions.setdefault(tensor.graph, {})[tensor.name] = Condition(placement, source, holds, why)


def find_declared(tensor: Any) -> Placement | None:
    return _declared.get(tensor.graph, {}).get(tensor.name)


def list_conditions(op: Any) -> list[Condition]:
    """The conditions that were declared of what `op` gives."""
    known = _conditions.get(op.graph)
    return [known[made.name] for made in op.outputs if made.name in known] if known else []


def has_declared(graph: Any) -> bool:
    """Whether anything was declared of tensors of `graph`."""
    return bool(_declared.get(graph))


def has_rows(graph: Any) -> bool:
    """Whether tensors of `graph` were declared to be rows that ranks have parts of."""
    return any(one.is_sharded for one in _declared.get(graph, {}).values())


def declare_accounts(graph: Any, handles: Iterable[Any]) -> None:
    """State that in the variables with these handles each rank keeps its own part of a sum, in and within `graph`."""
    known = _accounts.setdefault(graph, {})
    known.update((id(handle), handle) for handle in handles)


def is_account(graph: Any, handle: Any) -> bool:
    """Whether that was stated of the variable with `handle` in `graph` or around it."""
    while graph is not None:
        if id(handle) in _accounts.get(graph, {}):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def exempt_variable(handle: Any) -> None:
    """State that the variable with `handle` is none of the script's: in it each rank keeps what is its own."""
    _exempt[id(handle)] = handle


def is_exempt(handle: Any) -> bool:
    return id(handle) in _exempt


def declare_scalar(tensor: Any) -> None:
    """State that the tensor of a graph, whose number of dimensions is not known there, will be a scalar."""
    _scalars.setdefault(tensor.graph, set()).add(tensor.name)


def list_scalars(graph: Any) -> Collection[str]:
    """The names of the tensors of `graph` of which that was stated."""
    return _scalars.get(graph, ())


def note_own_gradient(graph: Any, inputs: Iterable[Placement] | None) -> None:
    """State that a gradient function of the script's own, called for an op of `graph`, is proved for these inputs.

    None: it is not proved.
    """
    _own_gradients.setdefault(graph, []).append(None if inputs is None else [one.form for one in inputs])


def has_own_gradients() -> bool:
    """Whether that was stated of any graph."""
    return bool(_own_gradients)


def are_own_gradients_proved(graph: Any, inputs: Sequence[Placement]) -> bool:
    """Whether all those called for ops of `graph` are proved where its inputs have these placements."""
    # Inputs that came later, as captures do, are none of those functions'.
    return all(
        known is not None and known == [one.form for one in inputs[: len(known)]]
        for known in _own_gradients.get(graph, ())
    )
