"""Publishes weights of which each rank has updated a piece: through shared memory, or by messages.

In host memory a piece lies in the whole variable, so only the pieces of other ranks are copied.
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
_LEAST_BYTES = 256 << 10
"""Seconds for one more group: a synchronization of its own, 0.1 ms over Ethernet; these bytes take 2 ms at 1 Gbit/s."""
_MOST_GROUPS = 8
_holdings: dict[tuple[int, ...], int] = {}
_numbers = itertools.count()
_unsettled: list[tuple[list[Any], dict[str, Any]]] = []
"""Handles of variables that must still move to shared memory, with the arguments of the op that moves them."""


def can_publish(handle: Any, dtype: Any) -> bool:
    """Whether new values of a variable may be written in place."""
    outer = _find_outer(handle)
    on_host = outer is not None and "GPU" not in outer.device
    return on_host and dtype.name in _TYPES and not settings.get_settings().elastic


def publish(publications: Sequence[Publication], place: str) -> list[Any]:
    """The operations after which the variables, in host memory, have the new values on every rank. Collective."""
    found = sorted(publications, key=lambda one: _find_outer(one.handle)._id)
    made: list[Any] = []
    for dtype in dict.fromkeys(one.value.dtype for one in found):
        for number, group in reversed(list(enumerate(_group([one for one in found if one.value.dtype == dtype])))):
            with tf.control_dependencies(made[-1:]):
                made.append(_publish_group(group, place, number))
    return made


def _publish_group(group: Sequence[Publication], place: str, number: int) -> Any:
    dtype = group[0].value.dtype
    with tf.init_scope():
        pieces = _make_pieces(len(group), dtype)
    handles = [one.handle for one in pieces]
    lent = [at for at, one in enumerate(group) if one.kind != "AssignVariableOp"]
    if lent:
        with tf.control_dependencies([op for at in lent for op in group[at].before]):
            lend = ops.get_library().ops.matex_lend(
                wholes=[group[at].handle for at in lent], pieces=[handles[at] for at in lent], T=dtype,
                cuts=[cut for at in lent for cut in group[at].cuts],
            )  # fmt: skip
    updates = []
    for at, one in enumerate(group):
        with tf.control_dependencies([lend] if at in lent else one.before):
            updates.append(getattr(tf.raw_ops, one.kind)(resource=handles[at], value=one.value))
    several = f" and {len(group) - 1} more" if len(group) > 1 else ""
    arguments = {
        "T": dtype,
        "cuts": [cut for one in group for cut in one.cuts],
        "place": f"new weights of {place}",
        "names": [f"weight {at}{several}" for at in range(len(group))],
    }
    arguments["holding"] = -1 if _is_sent() else _find_holding(group, arguments)
    with tf.control_dependencies(updates):
        return make_in_order(
            ops.get_library().ops.matex_publish,
            wholes=[one.handle for one in group],
            pieces=handles,
            later=_is_later(),
            needed=number,
            **arguments,
        )


def _make_pieces(count: int, dtype: Any) -> list[Any]:
    """Variables in eager code that refer to the pieces of others."""
    from tensorflow.python.ops.resource_variable_ops import ResourceVariable

    return [ResourceVariable(tf.zeros([0], dtype), trainable=False, shape=[None]) for _ in range(count)]


def leave() -> None:
    """Leave the weights of copies that do not run where they are."""
    _unsettled.clear()


def settle() -> None:
    """Move published weights to shared memory before the first step allocates anything else. Collective.

    So their old memory is free for the variables of the optimizer.
    """
    library = ops.get_library().ops
    while _unsettled:
        wholes, arguments = _unsettled.pop(0)
        dtype = arguments["T"]
        kept = _make_pieces(len(wholes), dtype)
        pieces = [one.handle for one in kept]
        library.matex_lend(wholes=wholes, pieces=pieces, T=dtype, cuts=arguments["cuts"])
        library.matex_publish(wholes=wholes, pieces=pieces, order=[], **arguments)


def _is_sent() -> bool:
    """Whether ranks may not read each other's weights in place."""
    return settings.get_settings().algorithm != "auto" or world.get_world().has_several_nodes


def _is_later() -> bool:
    """Whether new weights arrive during the next step."""
    return _is_sent() and world.has_threads() and settings.get_settings().overlap != "off"


def _group(publications: list[Publication]) -> list[list[Publication]]:
    """Group the variables that are published together, in the order in which a step needs them.

    New weights that arrive during the next step form several groups: early layers need not wait for the rest.
    """
    if not _is_later():
        return [publications]
    sizes = [one.cuts[-1] * one.value.dtype.size for one in publications]
    least = max(_LEAST_BYTES, sum(sizes) // _MOST_GROUPS)
    groups: list[list[Publication]] = [[]]
    room = least
    for one, size in zip(reversed(publications), reversed(sizes)):
        if room <= 0:
            groups.insert(0, [])
            room = least
        groups[0].insert(0, one)
        room -= size
    return groups


def _find_outer(handle: Any) -> Any:
    """The tensor in eager code that a function has captured as this handle; None if it is no captured handle."""
    while not hasattr(handle, "numpy"):
        captures = getattr(handle.graph, "captures", ())
        handle = next((outer for outer, inner in captures if inner is handle), None)
        if handle is None:
            return None
    return handle


def _find_holding(group: Sequence[Publication], arguments: dict[str, Any]) -> int:
    """The number of the shared memory of these variables, which belongs to the first of them.

    arguments: those of the op that publishes the variables.
    """
    outer = [_find_outer(one.handle) for one in group]
    key = tuple(one._id for one in outer)
    if key not in _holdings:
        number = _holdings[key] = next(_numbers)
        weakref.finalize(outer[0], _drop_memory, key, number).atexit = False
        _unsettled.append((outer, {**arguments, "holding": number}))
    return _holdings[key]


def _drop_memory(key: tuple[int, ...], number: int) -> None:
    _holdings.pop(key, None)
    ops.get_library().c.matex_drop_homes(number)
