"""Labels of tensors of the script's graph, and the assignment of the copy's sums to labels.

A gradient is labelled where the script computes it. Its sum over the ranks may be made before or after that place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from matex_tf import tags
from matex_tf.rewrite.nodes import Node, Value
from matex_tf.rewrite.placement import PARTIAL
from matex_tf.rewrite.programs import Program

_LABELS = "labels of tensors"


def set_label(tensor: Any, label: Any) -> None:
    labels: dict[int, tuple[Any, Any]] = tags.get_or_make_tag(tensor.graph, _LABELS, dict)
    labels[id(tensor)] = tensor, label


def get_labels(graph: Any) -> dict[int, tuple[Any, Any]]:
    """The labelled tensors of a graph, or of the graph that it is a part of, with their labels, by
    the ids of tensors.
    """
    labels: dict[int, tuple[Any, Any]] = tags.get_tag(getattr(graph, "of", graph), _LABELS, {})
    return labels


def label_waves(program: Program, waves: Sequence[Sequence[Value]]) -> list[list[Any]]:
    """The label of each value of each wave; None if the value belongs to no labelled tensor, or to several.

    A sum belongs to a tensor if the tensor is a linear combination of sums that include it, or is computed from the
    whole sum and other whole tensors. Among several sums of a tensor, the last ones count.
    """
    found: list[list[Any]] = [[None] * len(wave) for wave in waves]
    _spread_labels(program)
    if not any(value.label is not None for node in program.nodes for value in (*node.inputs, *node.outputs)):
        return found
    users: dict[int, list[Node]] = {}
    for node in program.nodes:
        for value in node.inputs:
            users.setdefault(id(value), []).append(node)
    known: set[int] = set()
    for labels, wave in zip(reversed(found), reversed(waves)):
        labels[:] = [_take_only(_list_before(value) or _list_after(value, users), known) for value in wave]
        known.update(map(id, labels))
    return found


def _spread_labels(program: Program) -> None:
    """An input of a branch or a loop has the label that it has outside."""
    for node in program.nodes:
        for body in node.bodies:
            for outer, inner in zip(reversed(node.inputs), reversed(body.inputs)):
                inner.label = inner.label or _take_only(_list_before(outer), set())


def _take_only(labels: Iterable[Any], known: set[int]) -> Any:
    found = list({id(one): one for one in labels}.values())
    return found[0] if len(found) == 1 and id(found[0]) not in known else None


def _list_before(value: Value) -> list[Any]:
    """The labels of the nearest tensors that a value is made of by sums alone."""
    found, pending, seen = [], [value], {id(value)}
    while pending:
        one = pending.pop()
        if one.label is not None:
            found.append(one.label)
        elif one.node is not None and one.placement.is_partial:
            given = [each for each in one.node.inputs if id(each) not in seen]
            seen.update(map(id, given))
            pending += [each for each in given if each.label is not None or each.placement.is_partial]
    return found


def _list_after(value: Value, users: dict[int, list[Node]]) -> list[Any]:
    """The labels of the nearest tensors that are made of a value after it became whole."""
    found, pending, seen = [], [value], {id(value)}
    while pending:
        for node in users.get(id(pending.pop()), ()):
            for one in node.outputs:
                if id(one) in seen or not one.placement.is_replicated:
                    continue
                seen.add(id(one))
                if one.label is not None:
                    found.append(one.label)
                else:
                    pending.append(one)
    return found


def are_looked_at(program: Program, types: Sequence[str]) -> bool:
    """Whether an op of these types takes whole tensors that are made of labelled tensors."""
    made: set[int] = set()
    for node in program.nodes:
        is_made = any(value.label is not None or id(value) in made for value in node.inputs)
        if is_made and node.type in types:
            return True
        if is_made:
            made.update(id(one) for one in node.outputs if one.placement.kind == PARTIAL or one.placement.is_replicated)
    return any(are_looked_at(body, types) for node in program.nodes for body in node.bodies)
