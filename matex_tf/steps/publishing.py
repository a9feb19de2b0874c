"""Publishes weights of which each rank has updated a piece: through shared memory, or by messages.

Every rank holds the whole weight, and must get the other ranks' pieces. For each weight there is a small variable, the
piece, to which the step's own assignment is applied:

- `x += value` and `x -= value` read the piece. So `matex_lend` first lets it refer to this rank's piece of the weight,
  and the assignment changes the weight in place. If another tensor still uses the weight's value, the piece is a copy.
- `x = value` reads nothing, so there is no `matex_lend`.

`matex_publish` copies the piece into the weight, unless it is there already, and brings the other ranks' pieces. It
does this for a group of weights of one type at once:

- Ranks of one host keep the weights in shared memory, where a piece that one rank has changed needs no message. A
  *holding* is a group of weights with shared memory, known to the engine by its number. Its first publication travels
  in messages, and makes the memory, to which the next one moves the weights.
- Ranks of several hosts send their pieces at the end of the step, or, with overlap, while the next step computes (the
  argument `later`).
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from typing import Any

from matex_tf import ops, settings
from matex_tf.lazy import tf
from matex_tf.ops.order import make_in_order
from matex_tf.rewrite.sharing import Publication
from matex_tf.world import world

_TYPES = ("float16", "bfloat16", "float32", "float64")
_MIN_GROUP_BYTES = 256 << 10
"""Each group costs a synchronization, 0.1 ms over Ethernet. These bytes take 2 ms at 1 Gbit/s."""
_MAX_GROUPS = 8
_holdings: dict[tuple[int, ...], int] = {}
"""The numbers of holdings, by the ids of their variables' handles."""
_numbers = itertools.count()


def can_publish(handle: Any, dtype: Any) -> bool:
    """Whether new values of a variable may be written in place.

    The ops exist for `_TYPES` and for the CPU only. The variable has to be known outside of the function, since
    `publish` sorts by it. An elastic run keeps the old values, with which it undoes a step (`elastic_step`).
    """
    outer_handle = _find_outer(handle)
    is_on_host = outer_handle is not None and "GPU" not in outer_handle.device
    return is_on_host and dtype.name in _TYPES and not settings.get_settings().elastic


def publish(publications: Sequence[Publication], place: str) -> list[Any]:
    """The operations after which the variables, in host memory, have the new values on every rank. Collective."""
    # In the order in which the variables were created, which is the same on all ranks.
    ordered = sorted(publications, key=lambda publication: _find_outer(publication.handle)._id)
    operations: list[Any] = []
    for dtype in dict.fromkeys(publication.value.dtype for publication in ordered):
        groups = _group([publication for publication in ordered if publication.value.dtype == dtype])
        # The last group comes first: the gradients of the last layers are known first. The next step needs the groups
        # in the other order, in which they are numbered.
        for number, group in reversed(list(enumerate(groups))):
            with tf.control_dependencies(operations[-1:]):
                operations.append(_publish_group(group, place, number))
    return operations


def _publish_group(group: Sequence[Publication], place: str, number: int) -> Any:
    """The operation that updates this rank's pieces of a group of variables, and brings the other ranks' pieces.

    number: 0 for the group that the next step needs first, 1 for the second, and so on.
    """
    from tensorflow.python.ops.resource_variable_ops import ResourceVariable

    dtype = group[0].value.dtype
    with tf.init_scope():  # variables in eager code, which are to refer to pieces of the weights
        pieces = [ResourceVariable(tf.zeros([0], dtype), trainable=False, shape=[None]) for _ in group]
    piece_handles = [piece.handle for piece in pieces]
    read_indices = [index for index, publication in enumerate(group) if publication.kind != "AssignVariableOp"]
    if read_indices:
        with tf.control_dependencies([op for index in read_indices for op in group[index].before]):
            lend_operation = ops.get_library().ops.matex_lend(
                wholes=[group[index].handle for index in read_indices],
                pieces=[piece_handles[index] for index in read_indices], T=dtype,
                cuts=[cut for index in read_indices for cut in group[index].cuts],
            )  # fmt: skip
    updates = []
    for index, publication in enumerate(group):
        with tf.control_dependencies([lend_operation] if index in read_indices else publication.before):
            assign = getattr(tf.raw_ops, publication.kind)
            updates.append(assign(resource=piece_handles[index], value=publication.value))
    others_text = f" and {len(group) - 1} more" if len(group) > 1 else ""
    with tf.control_dependencies(updates):
        return make_in_order(
            ops.get_library().ops.matex_publish,
            wholes=[publication.handle for publication in group],
            pieces=piece_handles,
            T=dtype,
            cuts=[cut for publication in group for cut in publication.cuts],
            place=f"new weights of {place}",
            names=[f"weight {index}{others_text}" for index in range(len(group))],
            holding=-1 if _are_pieces_sent() else _find_holding(group),  # -1: no shared memory, ranks send their pieces
            later=_is_later(),
            needed=number,
        )


def _are_pieces_sent() -> bool:
    """Whether pieces travel in messages: between hosts, or if the user has chosen an algorithm for messages."""
    return settings.get_settings().algorithm != "auto" or world.get_world().has_several_nodes


def _is_later() -> bool:
    """Whether new weights arrive during the next step: the argument `later` of `matex_publish`."""
    return _are_pieces_sent() and world.has_threads() and settings.get_settings().overlap != "off"


def _group(publications: list[Publication]) -> list[list[Publication]]:
    """Group the variables that are published together, in the order in which a step needs them.

    New weights that arrive during the next step form several groups: early layers need not wait for the rest. They are
    filled from the last weight back, so that only the group needed first may be smaller than `group_bytes`.
    """
    if not _is_later():
        return [publications]
    # The last cut is the number of entries of the whole weight.
    sizes = [publication.cuts[-1] * publication.value.dtype.size for publication in publications]
    group_bytes = max(_MIN_GROUP_BYTES, sum(sizes) // _MAX_GROUPS)
    groups: list[list[Publication]] = [[]]
    missing_bytes = group_bytes
    for publication, size in zip(reversed(publications), reversed(sizes)):
        if missing_bytes <= 0:
            groups.insert(0, [])
            missing_bytes = group_bytes
        groups[0].insert(0, publication)
        missing_bytes -= size
    return groups


def _find_outer(handle: Any) -> Any:
    """The eager tensor that a function has captured as `handle`; `handle` itself if eager; None if not captured."""
    while not hasattr(handle, "numpy"):  # which eager tensors have
        captures = getattr(handle.graph, "captures", ())
        handle = next((outer_tensor for outer_tensor, inner_tensor in captures if inner_tensor is handle), None)
        if handle is None:
            return None
    return handle


def _find_holding(group: Sequence[Publication]) -> int:
    """The number of the holding of these variables, a new one if needed. All ranks publish the same groups in the same
    order, so they have the same numbers. The holding ends when the handle of the first variable is deleted.
    """
    outer_handles = [_find_outer(publication.handle) for publication in group]
    key = tuple(handle._id for handle in outer_handles)
    if key not in _holdings:
        number = _holdings[key] = next(_numbers)
        weakref.finalize(outer_handles[0], _drop_memory, key, number).atexit = False
    return _holdings[key]


def _drop_memory(key: tuple[int, ...], number: int) -> None:
    _holdings.pop(key, None)
    ops.get_library().c.matex_drop_homes(number)  # "homes": the engine's name for the shared memory of variables
