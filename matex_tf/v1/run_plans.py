"""What the fetches of a `tf.compat.v1` session mean: whether they train, on which rows, and what to fetch instead."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from matex_tf import ops, tags
from matex_tf.analysis import declarations, graph_ops, interpreter, verdict
from matex_tf.analysis.placement import ROWS, SAME, UNKNOWN
from matex_tf.gradients import recombine
from matex_tf.loops import explain
from matex_tf.runtime import notes
from matex_tf.sharding import row_shares, share_arrays
from matex_tf.steps import cond_turns
from matex_tf.v1 import summaries


@dataclass
class Plan:
    """What a set of fetches means: what to fetch in place of each, what to run beside them, and what that needs.

    That is the ops, the turns of ours, the variables (of all and of those trained), and the tensors of the batch that
    an iterator of `tf.data` gives. `whole` says why batches cannot be sliced, if so.
    """

    fetches: Any
    passes: list[Any]
    needed: list[Any]
    turns: list[int]
    variables: list[Any]
    trained: list[Any]
    batches: list[Any]
    whole: str | None
    runs: int = 0
    prepared: weakref.WeakSet = field(default_factory=weakref.WeakSet)


def find_plan(graph: Any, fetches: Any) -> Plan | None:
    """The plan of a training run; None for a run that needs no gradient."""
    plans: dict[Any, Any] = tags.get_or_make_tag(graph, "plans of runs", dict)
    leaves = [_find_element(graph, leaf) for leaf in _list_leaves(fetches)]
    key = (_describe_shape(fetches), tuple(id(leaf) for leaf in leaves))
    if key not in plans:
        plans[key] = (_make_plan(graph, fetches, leaves), leaves)
    return plans[key][0]


def _list_leaves(fetches: Any) -> list[Any]:
    if isinstance(fetches, Mapping):
        return [leaf for key in fetches for leaf in _list_leaves(fetches[key])]
    if isinstance(fetches, (list, tuple)):
        return [leaf for part in fetches for leaf in _list_leaves(part)]
    return [] if fetches is None else [fetches]


def _describe_shape(fetches: Any) -> Any:
    if isinstance(fetches, Mapping):
        return tuple((key, _describe_shape(fetches[key])) for key in fetches)
    if isinstance(fetches, (list, tuple)):
        return (type(fetches).__name__, *(_describe_shape(part) for part in fetches))
    return "."


def _rebuild_fetches(fetches: Any, replace: Any) -> Any:
    kind: Any = type(fetches)
    if isinstance(fetches, Mapping):
        return kind((key, _rebuild_fetches(fetches[key], replace)) for key in fetches)
    if isinstance(fetches, tuple) and hasattr(fetches, "_fields"):
        return kind(*[_rebuild_fetches(part, replace) for part in fetches])
    if isinstance(fetches, (list, tuple)):
        return kind(_rebuild_fetches(part, replace) for part in fetches)
    return None if fetches is None else replace(fetches)


def _find_element(graph: Any, leaf: Any) -> Any:
    try:
        return graph.as_graph_element(leaf, allow_tensor=True, allow_operation=True)
    except (TypeError, ValueError, KeyError):
        return leaf  # sparse tensors and the like; the session knows them


def _make_plan(graph: Any, fetches: Any, leaves: list[Any]) -> Plan | None:
    needed = graph_ops.list_ancestors(leaves)
    training_ops = sorted(graph_ops.list_reductions(needed), key=lambda op: op._id)
    if not training_ops:
        return None
    handles = {op for op in needed if op.type in ("VarHandleOp", "VariableV2", "Variable")}
    with graph.as_default():
        import tensorflow as tf

        known = {
            variable.op: variable
            for variable in [
                *tf.compat.v1.global_variables(),
                *tf.compat.v1.local_variables(),
                *tf.compat.v1.trainable_variables(),
            ]
        }
        trainable = {id(variable) for variable in tf.compat.v1.trainable_variables()}
    used = [known[op] for op in sorted(handles, key=lambda op: op._id) if op in known]
    trained = [variable for variable in used if id(variable) in trainable]
    reason = verdict.find_failure(graph) or verdict.find_side_effect(interpreter.make_interpreter(graph), needed)
    replaced: dict[int, Any] = {}
    if reason is None:
        replaced, reason = _make_fetches_whole(
            graph, leaves, training_ops, [op for op in needed if op.type in ops.OP_TYPES]
        )
    new = _rebuild_fetches(fetches, lambda leaf: replaced.get(id(_find_element(graph, leaf)), leaf))
    collectives = [op for op in needed if op.type in ops.OP_TYPES]
    passes, within_loops = cond_turns.pass_turns(graph, collectives)
    # Of an op in a loop nobody knows how often it runs; the loop orders it.
    turns = sorted(op.get_attr("turn") for op in collectives if op not in within_loops)
    whole = None if reason is None else str(reason)
    if whole is None:
        explain.say_shared("a training run of a session")
    return Plan(new, passes, needed, turns, used, trained, [] if whole else _find_batches(graph, needed), whole)


def declare_rows(graph: Any) -> None:
    """State of what may be fed to `graph`, or comes from its iterators, that it holds this rank's rows.

    That is what has an open first dimension; anything else is the same on all ranks.
    """
    for op in graph.get_operations():
        if op.type in ("Placeholder", "PlaceholderWithDefault", "IteratorGetNext"):
            for tensor in op.outputs:
                if declarations.find_declared(tensor) is None and tensor.dtype.name not in ("resource", "variant"):
                    _declare_tensor(tensor)


def _declare_tensor(tensor: Any) -> None:
    if tensor.shape.rank and tensor.shape.as_list()[0] is None:
        declarations.declare_placement(tensor, ROWS)
    else:
        declarations.declare_placement(tensor, SAME)
        if tensor.shape.rank is None:
            declarations.declare_scalar(tensor)  # a run that is fed anything else computes the whole batch


_DATASETS = "datasets of iterators"


def note_dataset(iterator: Any, dataset: Any) -> None:
    """Remember that the op `iterator` goes through `dataset`; of several that it goes through in turn, all."""
    known: dict[str, list[Any]] = tags.get_or_make_tag(iterator.graph, _DATASETS, dict)
    known.setdefault(iterator.name, []).append(dataset)


def _find_batches(graph: Any, needed: list[Any]) -> list[Any]:
    """The tensors of the batch that the ops `needed` take from an iterator, if it is one whose rows can be dealt."""
    found = [op for op in needed if op.type == "IteratorGetNext"]
    if not found:
        return []
    datasets = tags.get_tag(graph, _DATASETS, {}).get(found[0].inputs[0].op.name, [])
    known = datasets and all(row_shares.is_batched(one) and not share_arrays.is_share(one) for one in datasets)
    shapes = [tensor.shape for tensor in found[0].outputs]
    plain = all(shape.rank and shape.as_list()[0] is None for shape in shapes) and all(
        tensor.dtype.name not in ("variant", "resource") for tensor in found[0].outputs
    )
    if len(found) == 1 and known and plain:
        return list(found[0].outputs)
    notes.print_note(
        "a training run takes its batches from iterators of tf.data in a graph whose rows cannot be dealt (several "
        "iterators, batches of a fixed size, or an iterator that is fed): every rank computes whole batches. The "
        "result is right, training is no faster"
    )
    return []


def _make_fetches_whole(
    graph: Any, leaves: list[Any], training_ops: list[Any], before: list[Any]
) -> tuple[dict[int, Any], verdict.Reason | None]:
    """What to fetch for each tensor of which a rank has a part, in collectives after those `before`; or why not."""
    import tensorflow as tf

    needed = set(training_ops)
    found = interpreter.make_interpreter(graph)
    replaced: dict[int, Any] = {}
    parts = []
    for leaf in {id(leaf): leaf for leaf in [*leaves, *summaries.list_values(leaves)]}.values():
        if not isinstance(leaf, tf.Tensor) or summaries.is_summary(leaf):
            continue
        known, placement = recombine.find_whole(leaf), found.find_placement(leaf)
        if known is not None and known.op in needed and not cond_turns.is_within(known.op):
            replaced[id(leaf)] = known  # by a reduction that runs anyhow
        elif not placement.can_be_whole:
            reason = verdict.find_reason(placement) if placement.kind == UNKNOWN else None
            return {}, reason or verdict.Reason(f"the parts of what is fetched are {placement.kind}", leaf.op)
        elif not placement.is_same:
            parts.append(leaf)
    if not parts and not replaced:
        return replaced, None
    finalized = graph.finalized
    graph._unsafe_unfinalize()
    # What a branch does that is not taken is never over; turns order these after it.
    over = [op for op in [*training_ops, *before] if not cond_turns.is_within(op)]
    with graph.as_default(), tf.control_dependencies(over):
        recombine.forget_graph(graph)  # what another run makes whole is not to be run in this one
        replaced.update(zip(map(id, parts), recombine.make_whole(parts, "a fetch") if parts else ()))
        replaced.update(summaries.rebuild_summaries(leaves, replaced))
    if finalized:
        graph.finalize()
    return replaced, None
