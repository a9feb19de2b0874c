"""Steps that take their batch themselves, such as by `next(iterator)` in a `tf.function`.

If the op that takes the batch, the *source*, comes first, it is left out of the copy: the library takes the batch
before the call, and the batch becomes an input (`find_source`, `give_batch`). Otherwise the op stays in the copy,
followed by ops that slice its outputs to this rank's rows (`place_batch`, `take_rows`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from matex_tf.rewrite.graph_ops import has_op, iterate_nodes
from matex_tf.rewrite.nodes import Decision, Node, Value
from matex_tf.rewrite.placement import BATCH, WHOLE, Sharded, Sizes
from matex_tf.rewrite.subgraphs import Subgraph, reach

_ITERATIONS = ("IteratorGetNext", "IteratorGetNextSync")
SOURCES = frozenset((*_ITERATIONS, "OptionalGetValue"))
"""The types of ops that may return a batch."""


def give_batch(graph: Any, source: Any) -> Subgraph:
    """The graph of a function without the op `source`: the components of its batch become inputs."""
    effects = [op for op in graph.control_outputs if op is not source]
    return Subgraph(graph, [*graph.inputs, *source.outputs], graph.outputs, effects)


def find_source(graph: Any) -> Any:
    """The first op that takes a batch from an iterator which is an input of the function; None if there is none.

    The op waits for no other op, and no op before it uses the iterator or takes another batch. So the batch can be
    taken before the function is called.
    """
    handles = {id(tensor) for tensor in graph.inputs if tensor.dtype.name == "resource"}
    used_ids: set[int] = set()  # the ids of the inputs of the ops so far
    for op in graph.get_operations():
        handle = id(op.inputs[0]) if op.type in _ITERATIONS else None
        is_first_use = handle in handles - used_ids and not op.control_inputs
        if is_first_use and any(find_components([tensor.shape for tensor in op.outputs])):
            return op
        if has_op(op, SOURCES):
            return None
        used_ids.update(map(id, op.inputs))
    return None


def around_pull(pull: Callable[[], list[Any]]) -> list[Any]:
    """Run `pull`, which takes a batch in a copied step. `monitor` replaces this function to time it."""
    return pull()


def has_open_rows(shape: Any) -> bool:
    """Whether a tensor of this static shape may have any number of rows."""
    return bool(shape.rank) and shape.as_list()[0] is None


def find_components(shapes: Sequence[Any]) -> list[bool]:
    """For each component of a batch, whether it has rows, by its length along the first axis.

    If lengths are unknown (None), these components have rows. Otherwise the components of the most common length above
    1 have rows: of lengths 64, 64 and 3, the first two. A wrong choice only makes the step slower.
    """
    are_open = [has_open_rows(shape) for shape in shapes]
    if any(are_open):
        return are_open
    counts = [shape.as_list()[0] if shape.rank else None for shape in shapes]
    rows = choose_rows(counts)
    return [rows > 0 and count == rows for count in counts]


def choose_rows(counts: Iterable[int | None]) -> int:
    """The number of rows of a batch of components with these lengths: the most common one above 1; 0 if there is none.

    None: a component without an axis.
    """
    known_counts = [count for count in counts if count and count > 1]
    return max(known_counts, key=known_counts.count, default=0)


def count_rows(batch: Iterable[Value]) -> int | None:
    """The number of rows of the script's batch, if all components with rows show the same number; else None."""
    lengths = {value.whole_shape[0] for value in batch if value.placement == BATCH and value.whole_shape}
    return lengths.pop() if len(lengths) == 1 else None


def are_in(graph: Any) -> bool:
    """Whether an op that takes a batch is in a graph, or in a function that it calls."""
    return any(node.op in SOURCES for node in iterate_nodes(graph))


def place_batch(node: Node) -> Decision:
    """The rule for the op that takes the batch: the copy has the op and slices its components with rows."""
    are_rows = find_components([tensor.shape for tensor in node.op.outputs])

    def emit(copy: Any, *inputs: Any) -> list[Any]:
        return take_rows(copy, around_pull(lambda: copy.create_op(node, inputs)), are_rows)

    gives = [BATCH if has_rows else WHOLE for has_rows in are_rows]
    return Decision([WHOLE] * len(node.inputs), gives, emit)


def is_batch(node: Node) -> bool:
    """Whether a node takes the batch of its program."""
    return node.type in SOURCES and any(isinstance(placement, Sharded) for placement in node.decision.gives)


def put_first(nodes: list[Node]) -> list[Node]:
    """The nodes of a program, reordered: the op that takes the batch, and the ops that it needs, come first.

    The rank's slice is known when the batch has been taken. Ops that compute sizes may need the slice, but no tensor of
    the batch. So such ops get a control edge from the op that takes the batch.
    """
    source = next(node for node in nodes if is_batch(node))
    needed_nodes = set(reach([source], lambda node: node.predecessors))
    other_nodes = [node for node in nodes if node not in needed_nodes]
    for node in other_nodes:
        if _uses_slice(node) and not node.has_rows and source not in node.controls:
            node.controls = [*node.controls, source]
    return [node for node in nodes if node in needed_nodes] + other_nodes


def _uses_slice(node: Node) -> bool:
    """Whether the results of a node may depend on the rank's slice."""
    is_sliced = any(isinstance(need, Sharded) for need in node.decision.needs)
    takes_sizes = any(isinstance(placement, Sizes) for placement in node.placements)
    return is_sliced or takes_sizes or node.decision.emit is not None  # `emit` may use the slice


def take_rows(copy: Any, tensors: list[Any], are_rows: list[bool]) -> list[Any]:
    """The components `tensors` of a whole batch, cut to this rank's rows if they have rows. Sets the copy's slice.

    `copy.make_slice` finds the slice from the components with rows. If it is None, the components are sliced already.
    """
    if copy.make_slice is None or not any(are_rows):
        return tensors
    copy.batch_slice = copy.make_slice([tensor for tensor, has_rows in zip(tensors, are_rows) if has_rows])

    def slice_rows(tensor: Any) -> Any:
        rows = tensor[copy.batch_slice.first : copy.batch_slice.first + copy.batch_slice.count]
        rows.set_shape([None, *tensor.shape[1:]])
        return rows

    return [slice_rows(tensor) if has_rows else tensor for tensor, has_rows in zip(tensors, are_rows)]
