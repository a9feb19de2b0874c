"""Decides when an overlapped update is announced, and in how many parts.

An update is the reduction of the gradients of one optimizer call. If it is overlapped, gradients are summed over ranks
while the step still computes others (`overlap.py`). Before the first sum, the ranks announce the update. This
announcement is a collective, so all ranks must reach it at the same place in the sequence of collectives, and a
gradient must not wait for a collective that comes after its announcement (docs/protocol.md). So the announcement
follows the last collective among the ancestors of the gradients.

If the backward pass has collectives, the update is announced in parts, so that early gradients need not wait for late
collectives. Let gradient 0 depend on none of them, gradient 1 on collective A, and gradient 2 on A and B. Then the
order is: announce 0, A, announce 1, B, announce 2.

For inline updates, in which one op sums all gradients, `hold_collectives` decides which gradients a collective waits
for. `overlap.py` and `collectives/reduce_gradients.py` call this module while a function is traced.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from matex_tf import tags

from . import readiness

ANNOUNCE, HAND_OVER = "MatexAnnounceUpdate", "MatexHandOverGradient"
"""The types of the ops of an overlapped update."""

_LEAST_BYTES = 256 << 10
"""The minimum size of a part: its rendezvous takes about 0.1 ms over Ethernet, and this many bytes 2 ms at 1 Gbit/s."""
_MAX_PARTS = 16


def _get_moved(graph: Any) -> dict[Any, Any]:
    """The announcements of `graph` that run before a collective that was created earlier. The value is this collective.

    TensorFlow runs collectives in the order of creation; for these announcements, control dependencies set the order.
    """
    return tags.get_or_make_tag(graph, "announcements that were moved", dict)


@dataclass
class Part:
    """Gradients that are announced together, and the collectives around the announcement."""

    entries: list[int] = field(default_factory=list)  # the indices of the gradients in the update
    bytes: int = 0  # of these gradients
    after: Any = None  # the part is announced after this collective; None: there is none
    before: Any = None  # the part is announced before this collective; None: there is none


class Parts:
    """The parts of an update: of gradients with known shapes, in the function that is being traced.

    With BatchNormalization over the global batch, the backward pass has a collective in each such layer. If the update
    had one part, gradients that are ready early would wait for all of these collectives.
    """

    def __init__(self, gradients: Sequence[Any], weight: Any, order: Any):
        """`weight`: the tensor that the announcements pass on; `order`: the handle that orders collectives (`order.py`:
        an input of each collective op, because of which TensorFlow runs them one after another).
        """
        from tensorflow.python.framework import ops

        self._gradients = gradients
        self._graph = ops.get_default_graph()
        # TensorFlow's manager of automatic control dependencies; None in a graph without them.
        self._manager = getattr(self._graph, "experimental_acd_manager", None)
        self._order = _Order(self._graph, self._graph.capture(order))
        # Ops that must not wait for gradients of this update: what earlier updates and announcements depend on.
        self._independent: set[Any] = set()
        self._parts = self._choose_parts(weight)
        if readiness.count_threads() == 1:
            # A hand-over of an earlier update ends when other ranks have the same gradient, so neither it nor its
            # ancestors may wait for gradients of this update.
            for op in self._graph.get_operations():
                if op.type == HAND_OVER:
                    gradient = op.inputs[0].op
                    ancestors = readiness.list_ancestors(gradient, self._independent, self._order.list_sources)
                    self._independent.update([op, *ancestors])
            readiness.chain_gradients(gradients, self._order.list_sources, self._order.find_position, self._independent)

    def __iter__(self) -> Iterator[Part]:
        return iter(self._parts)

    def is_last(self, part: Part) -> bool:
        return part is self._parts[-1]

    def _choose_parts(self, weight: Any) -> list[Part]:
        """Group the gradients by the last collective that each depends on, into parts of `_LEAST_BYTES` or more."""
        sequence = self._order.sequence  # of collectives; positions are indices in it, -1: before all
        indices = list(range(len(self._gradients)))
        # No part may be announced before its weight is known. Updates are reduced in the order of their announcements,
        # so no part may precede an earlier announcement.
        announcements = [position for position, op in enumerate(sequence) if op.type == ANNOUNCE]
        earliest = max([self._find_position(weight), *announcements[-1:]])
        positions = [max(earliest, self._find_position(gradient)) for gradient in self._gradients]
        computed = any(_is_in(self._graph, each) and readiness.list_direct_sources(each.op) for each in self._gradients)
        # One part, if there is no collective to put it before, or no gradient that is computed in this function.
        if self._manager is None or not computed or not sequence:
            return [Part(indices, after=sequence[-1] if sequence else None)]
        sizes = [gradient.shape.num_elements() * gradient.dtype.size for gradient in self._gradients]
        min_bytes = max(_LEAST_BYTES, sum(sizes) // _MAX_PARTS)
        parts = [Part()]
        for index in sorted(indices, key=positions.__getitem__):
            # A new part begins at a later position, once the last part is large enough.
            part = parts[-1]
            if part.bytes >= min_bytes and positions[index] > positions[part.entries[-1]]:
                part = Part()
                parts.append(part)
            part.entries.append(index)
            part.bytes += sizes[index]
        for part in parts:
            position = positions[part.entries[-1]]
            part.entries.sort()
            part.after = sequence[position] if position >= 0 else None
            part.before = sequence[position + 1] if position + 1 < len(sequence) else None
        return parts

    def _find_position(self, tensor: Any) -> int:
        """The position in the sequence of the last collective that `tensor` depends on; -1: none."""
        return self._order.find_position(tensor.op) if _is_in(self._graph, tensor) else -1

    def order_announcement(self, announcement: Any, part: Part) -> None:
        """Add the control dependencies of the op `announcement`, the newest of its function, so that it runs between
        the collectives of its part and before its gradients.
        """
        tensors = [self._gradients[index] for index in part.entries]
        gradients = [tensor.op for tensor in tensors if _is_in(self._graph, tensor)]
        # It runs right before the first gradient, on all ranks. If one rank announced at the start of its step and
        # another after its forward pass, each would wait for the other in turn.
        number = self._order.number
        computed = [op for op in gradients if op in number and readiness.list_direct_sources(op)]
        sources = [part.after] if part.after is not None else []
        if computed:
            sources += readiness.list_direct_sources(min(computed, key=number.__getitem__))
        for source in sources:
            announcement._add_control_input(source)
        if part.before is not None:
            assert self._manager is not None  # otherwise there is one part
            # TensorFlow would run it last, because all collectives appear to write to one variable.
            self._manager.run_independently(announcement)
            _get_moved(self._graph)[announcement] = part.before
            part.before._add_control_input(announcement)
        if readiness.count_threads() > 1:
            return
        # A single thread takes the newest op first, and no op of the step needs the announcement, so it could still run
        # last. Therefore the gradients that are no ancestors of the announcement wait for it.
        self._independent.update(readiness.list_ancestors(announcement, self._independent, self._order.list_sources))
        for op in gradients:
            if op not in self._independent:
                op._add_control_input(announcement)


def hold_collectives(gradients: Sequence[Any], handles: Sequence[Any]) -> None:
    """Make each collective of the backward pass wait for the gradients of an inline update that were created before it.

    Without this wait, a single thread that runs all ops may compute the gradients before the collective on one rank and
    after it on another; then each rank waits while the other computes. With several threads nothing is added: one
    thread computes gradients while another waits.

    `handles`: the order handle of collectives, if there is one.
    """
    from tensorflow.python.framework import ops

    if not handles or readiness.count_threads() > 1:
        return
    graph = ops.get_default_graph()
    order = _Order(graph, graph.capture(handles[0]))
    if order.sequence:
        readiness.chain_gradients(gradients, order.list_sources)


def _is_in(graph: Any, tensor: Any) -> bool:
    """Whether `tensor` is the output of an op of `graph`, and not a tensor from outside."""
    return getattr(tensor, "graph", None) is graph


class _Order:
    """The order of ops in a function, including the control dependencies that TensorFlow adds at the end of tracing.

    TensorFlow orders ops that share a resource, and stateful ops without one. Here each of them runs after the latest
    older op of its kind.
    """

    def __init__(self, graph: Any, handle: Any):
        self._graph = graph
        self.number = {op: number for number, op in enumerate(graph.get_operations())}
        """The number of each op in the order of creation."""
        self._moved = _get_moved(graph)
        users = (op for op in handle.consumers() if op not in self._moved)
        self.sequence = sorted(users, key=self.number.__getitem__)
        """The collectives, in the order of execution."""
        for op, following in self._moved.items():
            self.sequence.insert(self.sequence.index(following), op)
        self._own_positions = {op: position for position, op in enumerate(self.sequence)}
        self._previous: dict[Any, list[Any]] | None = None
        self._last_positions: dict[Any, int] = {}  # results of `find_position`

    def find_position(self, last: Any) -> int:
        """The position in the sequence of the last collective among the op `last` and its ancestors; -1: none."""
        if not self.sequence:
            return -1
        for op in readiness.list_ancestors(last, self._last_positions, self.list_sources):
            of_sources = (self._last_positions.get(source, -1) for source in self.list_sources(op))
            self._last_positions[op] = max(self._own_positions.get(op, -1), *of_sources, -1)
        return self._last_positions[last]

    def list_sources(self, op: Any) -> list[Any]:
        """The ops that run before `op`: its inputs, its control inputs, and the ops that precede it in some order."""
        return [*readiness.list_direct_sources(op), *self._find_previous().get(op, ())]

    def _find_previous(self) -> dict[Any, list[Any]]:
        """For each op that TensorFlow orders, the latest older ops with the same resources."""
        if self._previous is None:
            from tensorflow.python.framework import auto_control_deps

            unordered = auto_control_deps.MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS
            latest: dict[Any, Any] = {}  # by resource: the last op so far that uses it
            self._previous = {}
            for op in self._graph.get_operations():
                if op in self._moved or op.type in unordered:
                    continue
                shared = set()
                if any(tensor.dtype.name == "resource" for tensor in op.inputs):
                    shared = {tensor.name for tensor, _ in auto_control_deps._get_resource_inputs(op)}
                if not shared and auto_control_deps.op_is_stateful(op):
                    shared = {None}  # stands for the unknown side effects of a stateful op
                if shared:
                    self._previous[op] = [latest[resource] for resource in shared if resource in latest]
                    latest.update(dict.fromkeys(shared, op))
        return self._previous
