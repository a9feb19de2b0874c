"""Finds, for each sum over the ranks, the gradient to which it belongs.

The script's gradients have labels, which name their variables (`steps.gradients`). But the copy may add up other
tensors over the ranks than these. For a gradient `g = a + b`, it may add up `a` and `b`: both sums get the label of
`g`. If the script scales `g`, the copy may add up the scaled tensor: this sum gets the label of `g`, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from matex_tf import tags
from matex_tf.rewrite.nodes import Node, Value
from matex_tf.rewrite.placement import Partial, Replicated
from matex_tf.rewrite.programs import Program
from matex_tf.rewrite.subgraphs import reach
from matex_tf.rewrite.waves import Exchange

_LABELS = "labels of tensors"


def set_label(tensor: Any, label: Any) -> None:
    """Label a tensor. The table keeps the tensor alive, so that its id stays unique."""
    labels: dict[int, tuple[Any, Any]] = tags.get_or_make_tag(tensor.graph, _LABELS, dict)
    labels[id(tensor)] = tensor, label


def get_labels(graph: Any) -> dict[int, tuple[Any, Any]]:
    """The labelled tensors of a graph or a part of a graph, with their labels, by the ids of the tensors."""
    labels: dict[int, tuple[Any, Any]] = tags.get_tag(getattr(graph, "whole_graph", graph), _LABELS, {})
    return labels


def label_waves(program: Program, waves: Sequence[Sequence[Exchange]]) -> None:
    """Set the label of each exchange of each wave; it stays None if the value belongs to no labelled tensor, or to
    several.

    A sum belongs to a labelled tensor if it is a linear combination of terms, one of them this tensor, or if the tensor
    is computed from the whole sum and other whole tensors. If the sums of one tensor are in several waves, only the
    sums of the last of these waves get its label, because the tensor is not complete before.
    """
    _label_inner_inputs(program)
    users: dict[int, list[Node]] = {}
    for node in program.nodes:
        for value in node.inputs:
            users.setdefault(id(value), []).append(node)
    used_label_ids: set[int] = set()  # the ids of labels of later waves
    for wave in reversed(waves):
        for exchange in wave:
            labels = _list_labels_before(exchange.value) or _list_labels_after(exchange.value, users)
            exchange.label = _find_only(labels, used_label_ids)
        used_label_ids.update(id(exchange.label) for exchange in wave)


def is_labelled(value: Value) -> bool:
    """Whether some terms of the linear combination `value` have a label, and all of these the same label."""
    return _find_only(_list_labels_before(value), set()) is not None


def _label_inner_inputs(program: Program) -> None:
    """Give the inputs of branches and loops the labels that they have outside."""
    for node in program.nodes:
        for body in node.bodies:
            # From the end: the first input of a branch op is its condition.
            for outer, inner in zip(reversed(node.inputs), reversed(body.inputs)):
                inner.label = inner.label or _find_only(_list_labels_before(outer), set())


def _find_only(labels: Iterable[Any], used_label_ids: set[int]) -> Any:
    """The label, if all `labels` are the same and its id is not in `used_label_ids`; else None."""
    labels_by_id = {id(label): label for label in labels}
    if len(labels_by_id) != 1:
        return None
    ((label_id, label),) = labels_by_id.items()
    return None if label_id in used_label_ids else label


def _list_labels_before(value: Value) -> list[Any]:
    """The labels of the terms of a partial sum, found by going back from the sum. A labelled tensor ends the search."""

    def list_terms(current: Value) -> Sequence[Value]:
        if current.label is not None or current.node is None or not current.placement.is_row_sum:
            return ()
        return current.node.inputs

    return [term.label for term in reach([value], list_terms) if term.label is not None]


def _list_labels_after(value: Value, users: dict[int, list[Node]]) -> list[Any]:
    """The labels of whole tensors that are computed from a value, found by going on from the value."""

    def list_results(current: Value) -> list[Value]:
        nodes = users.get(id(current), ()) if current.label is None else ()
        return [output for node in nodes for output in node.outputs if isinstance(output.placement, Replicated)]

    return [result.label for result in reach([value], list_results) if result.label is not None]


def checks_labelled(program: Program, types: Sequence[str]) -> bool:
    """Whether an op of these types, such as IsFinite, takes whole tensors that are made of labelled tensors."""
    derived_ids: set[int] = set()  # the ids of values that are made of labelled tensors
    for node in program.iterate_nodes():
        is_derived = any(value.label is not None or id(value) in derived_ids for value in node.inputs)
        if is_derived and node.type in types:
            return True
        if is_derived:
            derived_ids.update(
                id(value) for value in node.outputs if isinstance(value.placement, (Partial, Replicated))
            )
    return False
