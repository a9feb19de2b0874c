"""The overlapped reduction in graphs: gradients are summed over ranks while the step still computes other gradients.

One op announces the update: a collective, which all ranks reach at the same place in their sequence. Its output
`ticket` (not a ticket of `tf.data`) is the number of this announcement. Then each gradient has an op of its own, which
hands the gradient and the number to the engine as soon as the gradient is computed, and ends when its sum is ready.
Gradients are summed in the order of the list, so the list begins with the gradient that is ready first. An update that
is not overlapped is inline: one op sums all gradients. `collectives/reduce_gradients.py` calls this module if
`is_chosen`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from matex_tf import settings
from matex_tf.lazy import tf
from matex_tf.thread_flag import ThreadFlag
from matex_tf.world import world

from .library import get_library
from .order import make_in_order

_ANNOUNCE, _HAND_OVER = OP_TYPES = "MatexAnnounceUpdate", "MatexHandOverGradient"

_state = threading.local()
is_for_xla = ThreadFlag()
"""Set while functions are traced for compilation by XLA: updates are then inline."""


@contextlib.contextmanager
def trace_as(is_overlapped: bool) -> Iterator[None]:
    """Within it, with `MATEX_OVERLAP=auto`, updates are traced as overlapped (True) or inline (False).

    `adapt/step_trials.py` traces a step in both ways and keeps the faster one.
    """
    outer_choice, _state.is_overlapped = _get_choice(), is_overlapped
    try:
        yield
    finally:
        _state.is_overlapped = outer_choice


def _get_choice() -> bool | None:
    """The argument of the innermost `trace_as`; None outside."""
    return getattr(_state, "is_overlapped", None)


def is_usual() -> bool:
    """The default: whether `MATEX_OVERLAP=auto` overlaps updates outside of `trace_as`."""
    return world.get_world().has_several_nodes


def is_chosen(tensors: Sequence[Any] | None = None) -> bool:
    """Whether an update of these gradients, by default of any gradients, is to be overlapped in the current graph."""
    from tensorflow.python.framework import ops

    is_in_function = not tf.executing_eagerly() and ops.inside_function()
    if tensors == [] or not world.is_active() or not is_in_function:  # not active: the process is no rank
        return False
    # Code compiled by XLA cannot contain these ops. MPI must allow calls from several threads, because a communication
    # thread sums. The announcement needs the shapes of the gradients before they are computed.
    has_known_shapes = all(tensor.shape.is_fully_defined() for tensor in tensors or ())
    if is_for_xla or not world.has_threads() or not has_known_shapes:
        return False
    setting = settings.get_settings().overlap
    if setting != "auto":
        return setting == "on"
    choice = _get_choice()
    return is_usual() if choice is None else choice


def reduce_gradients(
    tensors: Sequence[Any],
    names: Sequence[str],
    weight: Any,
    place: str,
    checked: bool,
    variables: Sequence[int],
    cuts: Sequence[Sequence[int]] = (),
    part_of: str = "",
    has_more: bool = False,
) -> list[Any]:
    """As `ops.reduce_gradients`, which describes the arguments. Only if `is_chosen`: the shapes are known, and the
    current graph is of a function.
    """
    library = get_library().ops
    _let_gradients_run_in_any_order()
    ticket = make_in_order(
        library.matex_announce_update,
        weight=weight,
        T=[tensor.dtype for tensor in tensors],
        names=names,
        shapes=[tensor.shape for tensor in tensors],
        variables=list(variables),
        place=place,
        of=part_of,
        more=has_more,
        checked=checked,
        cuts=flatten_cuts(cuts),
    )
    return [
        library.matex_hand_over_gradient(gradient=tensor, ticket=ticket, entry=entry)
        for entry, tensor in enumerate(tensors)
    ]


def flatten_cuts(cuts: Sequence[Sequence[int]]) -> list[int]:
    """The attribute `cuts` of an op, from the argument of `ops.reduce_gradients`: ranks + 1 numbers for each tensor.

    Zeros stand for a tensor that is not divided into pieces. The list is empty if no tensor is divided.
    """
    if not any(cuts):
        return []
    undivided = [0] * (world.get_world().size + 1)
    return [cut for entry_cuts in cuts for cut in (entry_cuts or undivided)]


def _let_gradients_run_in_any_order() -> None:
    """Tell TensorFlow that hand-overs need no order: by default it runs stateful ops of a function one after another.

    All of them must run, because other ranks wait for each one.
    """
    from tensorflow.python.framework import auto_control_deps

    op_types = auto_control_deps.MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS
    if _HAND_OVER not in op_types:
        auto_control_deps.MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS = op_types | {_HAND_OVER}
