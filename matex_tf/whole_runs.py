"""Training runs of a session that cannot be computed for slices, so that every rank computes the whole batch.

A graph of `tf.compat.v1` is there before it runs, so this is read from it: that it names its batch's size, that it
keeps something of the rows in a variable (moving averages, streaming metrics), or normalises by the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from matex_tf import graphs, meetings, reductions, rehearsal

_NORMALISES = "_matex_normalises"
_ASSIGNS = ("Assign", "Scatter", "ResourceScatter")
_ROWS = ("Placeholder", "PlaceholderWithDefault", "IteratorGetNext")


def note_normalisation(graph: Any) -> None:
    """Remember that `graph` has a layer that normalises by the statistics of its batch."""
    setattr(graph, _NORMALISES, True)


def reason(graph: Any, needed: Iterable[Any]) -> str | None:
    """Why a run of the ops `needed` is to be of whole batches, or None."""
    if getattr(graph, _NORMALISES, False):
        return (
            "a graph of tf.compat.v1 has BatchNormalization, whose statistics are to be those of the whole batch "
            "(MATEX_SYNC_BATCHNORM=off takes each rank's own)"
        )
    kept = _keeps_rows(needed)
    if kept is not None:
        return (
            f"a training run keeps in a variable ('{kept}') what it makes of the rows, such as a moving average or a "
            "streaming metric, which is to be that of the whole batch"
        )
    return None


def _keeps_rows(needed: Iterable[Any]) -> str | None:
    """The name of an op that assigns to a variable what depends on rows other than by way of reduced gradients."""
    seen: set[str] = set()
    for op in needed:
        assigned = list(op.inputs)[1:] if op.type.startswith(_ASSIGNS) else []
        if any(_depends_on_rows(tensor, seen) for tensor in assigned):
            return op.name
    return None


def _depends_on_rows(tensor: Any, seen: set[str]) -> bool:
    """Whether rows lead to `tensor`; not by way of the ops in `seen`, which is added to."""
    pending = [tensor]
    while pending:
        current = pending.pop()
        op = current.op
        if op.name in seen or op.type in reductions.GLOBAL:
            continue
        if op.type in _ROWS and (current.shape.rank is None or current.shape.as_list()[:1] == [None]):
            return True
        seen.add(op.name)
        pending.extend(op.inputs)
    return False


NAMES_ITS_SIZE = "a training run relies on the number of rows of its batch (a constant in the graph)"


def names_its_size(graph: Any, needed: Sequence[Any], fed: Sequence[Any], sizes: Iterable[int], rows: int) -> bool:
    """Whether the ops `needed` fit batches of `rows` rows but not those of `sizes`, by the shapes of their tensors.

    Args:
        fed: the tensors that hold rows.
        sizes: numbers of rows of the ranks' slices.
    """
    sizes = sorted(set(sizes))
    if sizes == [rows]:
        return False
    if 1 in sizes:
        sizes.append(2 * rows)  # a single row would be repeated instead of refused
    definition = _definition(graph, needed)
    return _fits(definition, fed, rows) and not all(_fits(definition, fed, size) for size in sizes)


ROWS_MEET = (
    "a training run has a loss in which the rows of a batch meet: they are compared with each other, or a figure of "
    "the whole batch goes into it otherwise than as a mean or a sum"
)


def rows_meet(graph: Any, needed: Sequence[Any], fed: Sequence[Any]) -> bool:
    """Whether rows meet in a loss of a training run of the ops `needed`, whose tensors `fed` hold them."""
    import tensorflow as tf
    from tensorflow.python.framework import func_graph

    wanted = {op.name for op in needed}
    targets = [target for target in graphs.targets(graph) if target.op.name in wanted]
    if not targets:
        return False
    if graphs.is_inexact(graph):
        return True
    definition = _definition(graph, graphs.behind(targets))
    rows = rehearsal.ROWS[0]
    aside = func_graph.FuncGraph("matex_tf_probe")
    with aside.as_default():
        feeds = {}
        for tensor in fed:
            if tensor.shape.rank:
                feeds[tensor.name] = tf.compat.v1.placeholder(tensor.dtype, [rows, *tensor.shape.as_list()[1:]])
        aside.inputs.extend(feeds.values())
        present = {node.name for node in definition.node}
        feeds = {name: made for name, made in feeds.items() if name.split(":")[0] in present}
        try:
            names = [target.name for target in targets]
            for made in tf.graph_util.import_graph_def(definition, input_map=feeds, return_elements=names, name=""):
                tf.identity(made)  # it is used
        except (ValueError, tf.errors.InvalidArgumentError):
            return False  # whether it names its batch's size is asked by itself
    return meetings.knows_rows(aside) or meetings.rows_meet(aside, rows, set())


def _definition(graph: Any, needed: Sequence[Any]) -> Any:
    from tensorflow.core.framework import graph_pb2

    names = {op.name for op in needed}
    whole = graph.as_graph_def()
    part = graph_pb2.GraphDef(versions=whole.versions, library=whole.library)
    for node in whole.node:
        if node.name in names:
            kept = part.node.add()
            kept.CopyFrom(node)
            kept.attr.pop("_output_shapes", None)
            kept.attr.pop("_class", None)
    return part


def _fits(definition: Any, fed: Iterable[Any], rows: int) -> bool:
    import tensorflow as tf

    with tf.Graph().as_default():
        feeds = {
            tensor.name: tf.compat.v1.placeholder(tensor.dtype, [rows, *tensor.shape.as_list()[1:]])
            for tensor in fed
            if tensor.shape.rank
        }
        try:
            tf.graph_util.import_graph_def(definition, input_map=feeds, name="matex_tf_probe")
        except (ValueError, tf.errors.InvalidArgumentError):
            return False
    return True
