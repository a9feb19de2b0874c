"""What an update in pieces takes of others, and gives them: sums of gradients, and the new weights.

In host memory a piece lies in the whole variable, and only what other ranks have updated is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matex_tf import ops, settings, tags
from matex_tf.gradients import reduction
from matex_tf.ops import order
from matex_tf.servers.pieces import piece_variables
from matex_tf.servers.pieces.sharded_slots import Holding, Part, Places
from matex_tf.servers.variable_swap import find_handle, find_inner
from matex_tf.world import world

_REDUCTION = "MatexReduceGradients"
_TAKEN = "taken in pieces"


def take_piece(gradient: Any, part: Part, places: Places) -> Any:
    """This rank's piece of a gradient that belongs to the variable of `part`, in the graph being built."""
    piece = part.cut_own(gradient, places)
    flat = piece.op.inputs[0].op
    if gradient.op.type == _REDUCTION and gradient.graph is flat.graph and _is_memory_shared():
        noted: list[tuple[Any, Part, Any]] = tags.get_or_make_tag(gradient.graph, _TAKEN, list)
        noted.append((gradient, part, flat))
    return piece


def settle_graph(graph: Any) -> None:
    """Of a function that is traced: have its reductions give gradients, that are taken in pieces only, in pieces."""
    cuts: dict[Any, dict[int, list[int]]] = {}
    for gradient, part, flat in tags.remove_tag(graph, _TAKEN) or []:
        if gradient.consumers() == [flat] and all(output is not gradient for output in graph.outputs):
            cuts.setdefault(gradient.op, {})[gradient.value_index] = part.list_cuts()
    for op, of_outputs in cuts.items():
        whole = [0] * (world.get_world().size + 1)
        _set_list(op, "cuts", [cut for index in range(len(op.outputs)) for cut in of_outputs.get(index, whole)])


def _set_list(op: Any, name: str, numbers: Sequence[int]) -> None:
    from tensorflow.core.framework import attr_value_pb2

    op._set_attr(name, attr_value_pb2.AttrValue(list=attr_value_pb2.AttrValue.ListValue(i=numbers)))


def lend_weights(of: Holding, parts: Sequence[Part]) -> None:
    """In a graph: give the piece of each of `parts`, all of one holding and in its order, what its variable has."""
    if are_lent(parts):
        ops.get_library().ops.matex_lend(**_list_pieces(of, parts))
        return
    places = of.find_places()
    for part in parts:
        part.piece.assign(part.cut_own(find_inner(part.variable).read_value(), places))


def publish_weights(of: Holding, parts: Sequence[Part]) -> None:
    """In a graph: give every rank the whole of what the ranks have updated since `lend_weights` of the same parts."""
    import tensorflow as tf

    name = f"the new {reduction.find_name(parts[0].variable)} and {len(parts) - 1} more"
    if are_lent(parts):
        number = of.number if _is_memory_shared() else -1
        order.make_in_order(ops.get_library().ops.matex_publish, place=name, holding=number, **_list_pieces(of, parts))
        return
    wholes = [find_inner(part.variable) for part in parts]
    everything = piece_variables.gather_pieces(tf.concat([part.piece.read_value() for part in parts], 0), name)
    sizes = [whole.shape.num_elements() for whole in wholes]
    for whole, value in zip(wholes, tf.split(tf.ensure_shape(everything, [sum(sizes)]), sizes)):
        whole.assign(tf.reshape(value, whole.shape))


def are_lent(parts: Sequence[Part]) -> bool:
    """Whether pieces lie in the whole variables, in host memory, and a trace has their places in its ops.

    With MATEX_ELASTIC a function that a step calls keeps its trace when ranks are lost.
    """
    is_on_device = any("GPU" in find_handle(find_inner(part.variable)).device for part in parts)
    return not is_on_device and not settings.get_settings().elastic


def _is_memory_shared() -> bool:
    """Whether ranks may read each other's weights where they lie."""
    chosen = settings.get_settings()
    return chosen.algorithm == "auto" and not chosen.elastic and not world.get_world().has_several_nodes


def _list_pieces(of: Holding, parts: Sequence[Part]) -> dict[str, Any]:
    return {
        "wholes": [find_handle(find_inner(part.variable)) for part in parts],
        "pieces": [find_handle(part.piece) for part in parts],
        "T": find_inner(parts[0].variable).dtype,
        "starts": of.list_starts(parts),
    }
