"""Repetitions of one row, such as the gradient of a mean: each rank repeats the row for its own rows only.

For example, the gradient of the mean of n losses is a vector of n equal numbers. Without `spread_rows`, a rank would
make n numbers, and slice them. If the repeated row is a partial sum, the n repeated rows would even be all-reduced, not
the one row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matex_tf.rewrite.nodes import Decision, Node, NoRuleError, Value, require
from matex_tf.rewrite.placement import WHOLE, Partial, Replicated, Sharded
from matex_tf.rewrite.rules.entrywise import TYPES
from matex_tf.rewrite.rules.sizes import find_need, replace_size

_SIZES = {"Tile": 1, "BroadcastTo": 1, "Fill": 0}
"""For each op that repeats entries: the number of its input with the numbers of repetitions, or with the new sizes."""
_KNOWN = TYPES.union(_SIZES)

Decide = Callable[[Node], Any]
"""Decides on a node by the rule for its op."""


def spread_rows(node: Node, decide: Decide) -> list[Node]:
    """New nodes that make this rank's rows of the inputs that `node` would otherwise slice. Its decision is known.

    The outputs of the new nodes replace these inputs of `node`. An input that cannot be made by rows stays.
    """
    added_nodes: list[Node] = []
    for index, need in enumerate(node.decision.needs):
        if isinstance(need, Sharded) and isinstance(node.inputs[index].placement, (Replicated, Partial)):
            new_nodes = _make_rows(node, index, need, (*node.key, "rows", index), decide)
            if new_nodes:
                added_nodes += new_nodes
                node.inputs[index] = new_nodes[-1].outputs[0]
    return added_nodes


def _make_rows(user: Node, index: int, need: Sharded, key: tuple[Any, ...], decide: Decide) -> list[Node]:
    """The nodes that make this rank's rows of input `index` of the node `user`, in the placement `need`.

    The last node, with the key `key`, is the op of the input again, for this rank's rows only. Before it come the nodes
    that make its own inputs. Returns no nodes if the input must be sliced.
    """
    # The input must be made by an op of a known type that waits for no other op, and must have the rows of the batch.
    source = user.inputs[index].node
    is_repeatable = source is not None and source.type in _KNOWN and not source.controls
    if source is None or not is_repeatable or not user.has_length(index, need):
        return []
    node = Node(source.op, key, list(source.inputs), [], source.rows, user.batch_rows, source.repeats)
    node.outputs = [Value(source.outputs[0].tensor, (*key, 0), need, node)]
    input_nodes: list[Node] = []
    try:
        if source.type in _SIZES:
            node.decide_on(_repeat_rows(node, need))
        else:
            input_nodes = _compute_rows(node, need, decide)
    except NoRuleError:
        return []
    is_decided = bool(node.decision.gives)  # `_compute_rows` decides nothing if the rule replaces the op by others
    return [*input_nodes, node] if is_decided and node.outputs[0].placement.has_layout(need) else []


def _repeat_rows(node: Node, need: Sharded) -> Decision:
    """The decision that the op repeats an entry for the rank's rows only."""
    sizes_input = _SIZES[node.type]
    if node.type != "Fill":
        shape = node.read_shape(0)
        # The axis of the rows in the input. The last axes of input and output correspond.
        axis = need.axis - len(node.outputs[0].whole_shape or []) + len(shape)
        require(axis < 0 or shape[axis] == 1)
    # The op gets the number of this rank's rows in place of the number of all rows.
    sizes = replace_size(node.read_sizes(sizes_input), need.axis, need.rows)
    sizes_need = find_need(node, sizes_input, sizes)
    return node.decide([sizes_need] if sizes_input == 0 else [WHOLE, sizes_need], need.plain)


def _compute_rows(node: Node, need: Sharded, decide: Decide) -> list[Node]:
    """Decide that an elementwise op computes the rank's rows from its inputs' rows. Returns the nodes that make these.

    The inputs are broadcast, so axes are counted from the end. An input with one entry along the axis serves all rows.
    """
    axis_count, added_nodes = len(node.outputs[0].whole_shape or []), list[Node]()
    for index in range(len(node.inputs)):
        shape = node.read_shape(index)
        axis = need.axis - axis_count + len(shape)
        if axis >= 0 and shape[axis] != 1:
            new_nodes = _make_rows(node, index, Sharded(axis, need.rows), (*node.key, index), decide)
            require(bool(new_nodes))
            added_nodes += new_nodes
            node.inputs[index] = new_nodes[-1].outputs[0]
    decision = decide(node)
    if isinstance(decision, Decision) and decision.emit is None:
        node.decide_on(decision)
    return added_nodes
