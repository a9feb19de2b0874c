"""What an update in pieces takes of others, and gives them: sums of gradients, and the new weights.

In host memory a piece lies in the whole variable, and only what other ranks have updated is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matex_tf import ops, settings, tags
from matex_tf.gradients import reduction
from matex_tf.ops import announcing, order
from matex_tf.servers.pieces import piece_variables
from matex_tf.servers.pieces.sharded_slots import Holding, Part, Places
from matex_tf.servers.variable_swap import find_handle, find_inner
from matex_tf.world import world

_REDUCTION = "MatexReduceGradients"
_LEND, _PUBLISH = "MatexLend", "MatexPublish"
_TAKEN = "taken in pieces"
_LEAST_BYTES = 256 << 10
"""Of a group: it takes a meeting of its own, some 0.1 ms over Ethernet, and this much 2 ms at 1 Gbit/s."""
_MOST_GROUPS = 8


def take_piece(gradient: Any, part: Part, places: Places) -> Any:
    """This rank's piece of a gradient that belongs to the variable of `part`, in the graph being built."""
    piece = part.cut_own(gradient, places)
    flat = piece.op.inputs[0].op
    is_reduced = gradient.op.type in (_REDUCTION, announcing.HAND_OVER)
    if is_reduced and gradient.graph is flat.graph and not settings.get_settings().elastic:
        noted: list[tuple[Any, Part, Any]] = tags.get_or_make_tag(gradient.graph, _TAKEN, list)
        noted.append((gradient, part, flat))
    return piece


def settle_graph(graph: Any) -> None:
    """Of a function that has been traced: have its reductions give gradients, that are taken in pieces only, in pieces;
    and have what reads weights wait for the new ones without holding a thread.
    """
    cuts: dict[Any, dict[int, list[int]]] = {}
    for gradient, part, flat in tags.remove_tag(graph, _TAKEN) or []:
        if gradient.consumers() == [flat] and all(output is not gradient for output in graph.outputs):
            op, index = gradient.op, gradient.value_index
            if op.type == announcing.HAND_OVER:
                op, index = op.inputs[1].op, op.get_attr("entry")
            cuts.setdefault(op, {})[index] = part.list_cuts()
    for op, of_entries in cuts.items():
        whole = [0] * (world.get_world().size + 1)
        entries = range(len(op.get_attr("names")))
        _set_list(op, "cuts", [cut for entry in entries for cut in of_entries.get(entry, whole)])
    published = tags.remove_tag(graph, _PUBLISH)
    if published:
        order = _find_order_of_operations(graph)
        wholes = [whole for op in published for whole in op.inputs[: len(op.get_attr("names"))]]
        with graph.as_default():
            for whole in wholes:
                _await_before_reads(whole, order)


def _await_before_reads(whole: Any, order: dict[Any, int]) -> None:
    """In a step that publishes a variable: have each op that reads it before wait until it has come, of the last step.

    Where a function that the step calls reads it, the read itself waits.
    """
    lent = min(order[op] for op in whole.consumers() if op.type == _LEND)
    reads = [op for op in whole.consumers() if op.type.startswith(("Read", "ResourceGather")) and order[op] < lent]
    if reads:
        awaited = ops.get_library().ops.matex_await_pull(variable=whole)
        for op in reads:
            op._add_control_input(awaited)


def _set_list(op: Any, name: str, numbers: Sequence[int]) -> None:
    from tensorflow.core.framework import attr_value_pb2

    op._set_attr(name, attr_value_pb2.AttrValue(list=attr_value_pb2.AttrValue.ListValue(i=numbers)))


def lend_weights(of: Holding, parts: Sequence[Part]) -> None:
    """In a graph: give the piece of each of `parts`, all of one holding and in its order, what its variable has."""
    if of.is_lent:
        ops.get_library().ops.matex_lend(**_list_pieces(parts))
        return
    places = of.find_places()
    for part in parts:
        part.piece.assign(part.cut_own(find_inner(part.variable).read_value(), places))


def group_parts(of: Holding, parts: Sequence[Part]) -> list[list[Part]]:
    """What is lent and published together, in the order in which a step needs it.

    New weights that come later are in several groups: the last layers' gradients are there first, and their weights are
    on their way while those of the first layers are still computed.
    """
    if not _is_published_later(of):
        return [list(parts)]
    parts = _sort_by_first_read(parts)
    sizes = [find_inner(part.variable).shape.num_elements() * of.width for part in parts]
    least = max(_LEAST_BYTES, sum(sizes) // _MOST_GROUPS)
    groups: list[list[Part]] = [[]]
    room = least
    for part, size in zip(reversed(parts), reversed(sizes)):
        if room <= 0:
            groups.insert(0, [])
            room = least
        groups[0].insert(0, part)
        room -= size
    return groups


def _is_published_later(of: Holding) -> bool:
    """Whether new weights come while the next step computes."""
    return of.is_sent and world.has_threads() and settings.get_settings().overlap != "off"


def publish_weights(of: Holding, parts: Sequence[Part], place: int = 0) -> None:
    """In a graph: give every rank the whole of what the ranks have updated since `lend_weights` of the same parts.

    `place`: that of the parts in the step; what is needed first comes first.
    """
    import tensorflow as tf

    name = f"the new {reduction.find_name(parts[0].variable)} and {len(parts) - 1} more"
    if of.is_lent:
        publish = order.make_in_order(
            ops.get_library().ops.matex_publish,
            place=name,
            holding=-1 if of.is_sent else of.number,
            later=_is_published_later(of),
            needed=place,
            names=[reduction.find_name(part.variable) for part in parts],
            **_list_pieces(parts),
        )
        if publish.get_attr("later"):
            tags.get_or_make_tag(publish.graph, _PUBLISH, list).append(publish)
        return
    wholes = [find_inner(part.variable) for part in parts]
    everything = piece_variables.gather_pieces(tf.concat([part.piece.read_value() for part in parts], 0), name)
    sizes = [whole.shape.num_elements() for whole in wholes]
    for whole, value in zip(wholes, tf.split(tf.ensure_shape(everything, [sum(sizes)]), sizes)):
        whole.assign(tf.reshape(value, whole.shape))


def _find_order_of_operations(graph: Any) -> dict[Any, int]:
    """Of the operations so far, in the order in which they were made."""
    return {op: place for place, op in enumerate(graph.get_operations())}


def _sort_by_first_read(parts: Sequence[Part]) -> list[Part]:
    """In the order in which the step being traced first reads the variables: the next one needs them so."""
    import tensorflow as tf

    graph = tf.compat.v1.get_default_graph()
    order = _find_order_of_operations(graph)

    def find_first(part: Part) -> int:
        handle = graph.capture(find_handle(find_inner(part.variable)))
        return min((order[op] for op in handle.consumers() if op in order), default=len(order))

    return sorted(parts, key=find_first)


def _list_pieces(parts: Sequence[Part]) -> dict[str, Any]:
    return {
        "wholes": [find_handle(find_inner(part.variable)) for part in parts],
        "pieces": [find_handle(part.piece) for part in parts],
        "T": find_inner(parts[0].variable).dtype,
        "cuts": [cut for part in parts for cut in part.list_cuts()],
    }
