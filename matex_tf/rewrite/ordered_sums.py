"""Sums of three or more replicated tensors: every rank adds the terms in the script's order, so the bits are equal.

TensorFlow's AddN begins with the first term whose buffer it may overwrite, which depends on the time when other ops
release their inputs. Grappler, the graph optimizer of TensorFlow, turns several Add ops into an AddN. Partial sums and
rows differ between ranks anyway, so their terms may have any order.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from matex_tf.lazy import tf
from matex_tf.rewrite.nodes import Node
from matex_tf.rewrite.placement import WHOLE

_UNORDERED = ("AddN", "AccumulateNV2")
_STAYS_AN_ADD = "_grappler_ArithmeticOptimizer_AddOpsRewriteStage"
"""Grappler marks an Add op with this attribute when it has decided on the op."""


def is_unordered(node: Node) -> bool:
    """Whether the op of a node may add replicated terms in an order that differs between ranks."""
    if node.type not in _UNORDERED or len(node.inputs) < 3:
        return False
    return _is_replicated(node) and node.outputs[0].dtype != tf.variant  # AddV2 takes no lists


def list_marks(node: Node) -> dict[str, Any]:
    """Attributes, by name, that the node's op gets in a copy, so that Grappler keeps a replicated Add as it is."""
    is_marked = node.type in ("Add", "AddV2") and _is_replicated(node)
    return {_STAYS_AN_ADD: _make_true()} if is_marked else {}


def add_in_order(terms: Sequence[Any]) -> Any:
    """The sum of tensors of one dtype and shape, from the first to the last."""
    return functools.reduce(_add, terms)


def _is_replicated(node: Node) -> bool:
    return node.outputs[0].placement is WHOLE


def _add(first: Any, second: Any) -> Any:
    total = tf.raw_ops.AddV2(x=first, y=second)
    total.op._set_attr(_STAYS_AN_ADD, _make_true())
    return total


@functools.cache
def _make_true() -> Any:
    from tensorflow.core.framework import attr_value_pb2

    return attr_value_pb2.AttrValue(b=True)
