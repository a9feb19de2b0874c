"""Summaries that a training run of a `tf.compat.v1` session fetches: of the global values, as other fetches are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_MERGED = "MergeSummary"
_PLAIN = ("ScalarSummary", "HistogramSummary", "ImageSummary")


def _list_writers(leaf: Any) -> list[Any]:
    """The ops that write the summaries of which `leaf`, a serialised one, is made."""
    op = getattr(leaf, "op", None)
    if op is None or op.type not in (_MERGED, *_PLAIN):
        return []
    return [op] if op.type in _PLAIN else [found for tensor in op.inputs for found in _list_writers(tensor)]


def is_summary(leaf: Any) -> bool:
    """Whether `leaf` is a serialised summary that is known to be one."""
    return bool(_list_writers(leaf))


def list_values(leaves: Sequence[Any]) -> list[Any]:
    """The tensors that the summaries among `leaves` show."""
    return [op.inputs[1] for leaf in leaves for op in _list_writers(leaf)]


def rebuild_summaries(leaves: Sequence[Any], replaced: Mapping[int, Any]) -> dict[int, Any]:
    """By the ids of the summaries among `leaves` that show a tensor in `replaced`: ones that show the global value."""
    result = {}
    for leaf in leaves:
        if any(id(op.inputs[1]) in replaced for op in _list_writers(leaf)):
            result[id(leaf)] = _rebuild_leaf(leaf, replaced)
    return result


def _rebuild_leaf(leaf: Any, replaced: Mapping[int, Any]) -> Any:
    import tensorflow as tf

    op = leaf.op
    if op.type == _MERGED:
        return tf.raw_ops.MergeSummary(inputs=[_rebuild_leaf(tensor, replaced) for tensor in op.inputs])
    # What shows nothing of the rows stays as it is: a variable is read at the same time as ever.
    if op.type not in _PLAIN or id(op.inputs[1]) not in replaced:
        return leaf
    tag, value = op.inputs[0], replaced[id(op.inputs[1])]
    if op.type == "ScalarSummary":
        return tf.raw_ops.ScalarSummary(tags=tag, values=value)
    if op.type == "HistogramSummary":
        return tf.raw_ops.HistogramSummary(tag=tag, values=value)
    return tf.raw_ops.ImageSummary(tag=tag, tensor=value, max_images=op.get_attr("max_images"))
