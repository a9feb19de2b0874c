"""Gradients where the tape gives them: those with respect to variables, within any structure, are reduced at once.

The backward pass begins with what `recombine.seed_targets` says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matex_tf import settings
from matex_tf.analysis import declarations, interpreter, programs, verdict
from matex_tf.analysis.placement import (
    PARTIAL,
    SHARDED,
    UNKNOWN,
    Placement,
    make_partial,
    make_replicated,
    make_unknown,
)
from matex_tf.gradients import drift, recombine, reduction, variables
from matex_tf.loops import model_calls
from matex_tf.loops.parts import split_check
from matex_tf.runtime import notes
from matex_tf.servers import local_sgd
from matex_tf.sharding import step_weight

OWN_ROWS = (
    "a training step in eager code works on each rank's own rows: gradients are averaged over the ranks, weighted by "
    "their rows, which is exact where the loss is a mean over rows. Of a step in a tf.function that is proved"
)


def _is_trained_variable(source: Any) -> bool:
    return hasattr(reduction.find_tf_variable(source), "assign")


def refuse_slices(sources: Any, why: str) -> None:
    """What was made of the weights in `sources` cannot be put together of slices, which `why` says.

    The optimizer reduces what it gets of it.
    """
    import tensorflow as tf

    trained = [source for source in tf.nest.flatten(sources) if _is_trained_variable(source)]
    if not trained:
        return
    reduction.mark_reduced(trained, born=False)
    if not tf.executing_eagerly():
        verdict.note_failure(tf.compat.v1.get_default_graph(), verdict.Reason(why))


def compute_in_graph(
    compute: Callable[[Any, Any], Any], target: Any, sources: Any, upstream: Any, reduces: bool, owed: bool
) -> Any:
    """What a backward pass in the graph being built gives the script, in the structure of `sources`.

    Args:
        compute: gives the gradients of the tensors in its first argument, multiplied by those in its second (None:
            ones), with respect to `sources` (or what `sources` gives once that was called).
        target, upstream: what the script differentiates, and what it multiplies the gradients by (or None).
        reduces: whether gradients of variables are put together here; not while another tape records.
        owed: whether that is left to the optimizer.
    """
    import tensorflow as tf

    with programs.mark_ours():  # no decorator: its frame would stand among the script's, in errors
        flat = tf.nest.flatten(target)
        tensors = [part for part in flat if isinstance(part, tf.Tensor)]
        why: Placement | None
        if len(tensors) != len(flat):
            chosen, factors, why = (
                target,
                upstream,
                make_unknown(None, "a gradient is taken of what is no dense tensor"),
            )
        else:
            given = [None] * len(flat) if upstream is None else tf.nest.flatten(upstream)
            chosen, factors, why = recombine.seed_targets(tensors, given)
            if why is not None:
                chosen, factors = target, upstream
            elif all(one is None for one in factors):
                factors = None
        result = compute(chosen, factors)
        sources = sources() if callable(sources) else sources
        flat_sources = tf.nest.flatten(sources)
        found = _flatten_like(result, len(flat_sources))
        for source, gradient in zip(flat_sources, found):
            declare_gradient(gradient, source, why)
        trained = [
            index
            for index, source in enumerate(flat_sources)
            if _is_trained_variable(source) and (found[index] is None or not reduction.are_same([found[index]]))
        ]
        if not trained or not reduces:
            return result
        of = [flat_sources[index] for index in trained]
        split_check.say_unsplit()
        if owed:
            reduction.mark_reduced(of, born=False)
            return result
        local_sgd.say_only_fit("a loop of the script's own")
        reduction.mark_reduced(of, born=True)
        unknown_yet = [part for part in tensors if _is_reducible(part) and recombine.find_whole(part) is None]
        scalars = [part for part in unknown_yet if why is None and interpreter.find_placement(part).kind == PARTIAL]
        reduced, totals = reduction.reduce_gradients(
            [found[index] for index in trained],
            of,
            [_weigh_loss(part) for part in scalars],
            place="tape.gradient",
        )
        for part, total in zip(scalars, totals):
            recombine.remember_whole(part, total)
        if not step_weight.is_in_session_graph():
            variables.expect_agreement(of)
        for index, value in zip(trained, reduced):
            found[index] = value
        return _pack_like(result, found)


def _is_reducible(part: Any) -> bool:
    """Whether a tensor that is differentiated can travel with its gradients: a loss."""
    return part.dtype.is_floating and part.shape.rank == 0


def _weigh_loss(loss: Any) -> Any:
    """A rank's part of a loss, which travels with its gradients, as a part of a sum."""
    import tensorflow as tf

    weight = recombine.compute_factor(interpreter.find_placement(loss).power)
    return tf.where(weight > 0, loss * tf.cast(weight, loss.dtype), tf.zeros_like(loss))


def declare_gradient(gradient: Any, source: Any, why: Placement | None) -> None:
    """State the placement of a gradient with respect to `source`."""
    import tensorflow as tf

    if gradient is None or hasattr(gradient, "numpy"):
        return
    if reduction.are_same([gradient]):
        placement = make_replicated()
    elif why is not None:
        placement = why if why.kind == UNKNOWN else make_unknown(None, "a gradient is taken of a vector of sizes")
    elif _is_trained_variable(source):
        if isinstance(gradient, tf.IndexedSlices):
            rows = interpreter.find_placement(gradient.indices)
            placement = make_partial(0) if rows.is_same else rows._replace(power=0, elements=None)
            declarations.declare_placement(gradient.values, placement)
            return
        placement = make_partial(0)
    else:
        placement = interpreter.find_placement(source)
        if placement.kind == SHARDED and not placement.power:
            placement = placement._replace(zero=False)
        elif placement.is_same:
            placement = make_partial(0)
        else:
            placement = make_unknown(gradient.op, "a gradient is taken with respect to a figure of the rows")
    for part in (gradient.values, gradient.indices) if isinstance(gradient, tf.IndexedSlices) else (gradient,):
        declarations.declare_placement(part, placement)


def reduce_structure(tape: Any, result: Any, sources: Any, reduces: bool, owed: bool) -> Any:
    """`result`, eager gradients in the structure of `sources`, with those of variables the same on all ranks.

    They are of the whole batch: those that a model's call gave (`model_calls`) are the ranks' sum already, of others
    the first rank's count. Of a batch of this rank's own rows they are averaged over the ranks, weighted by the rows.

    Args:
        tape: that which took them.
        reduces, owed: as for `compute_in_graph`.
    """
    import tensorflow as tf

    flat_sources = tf.nest.flatten(sources)
    chosen = [index for index, source in enumerate(flat_sources) if _is_trained_variable(source)]
    if not chosen:
        return result
    of = [flat_sources[index] for index in chosen]
    split_check.say_unsplit()
    flat = _flatten_like(result, len(flat_sources))
    mine = [flat[index] for index in chosen]
    if reduces:
        model_calls.say_verdict(tape)
        drift.watch_updates()
    are_same = reduction.are_same(mine)
    if are_same or not reduces or owed:
        reduction.mark_reduced(of, born=are_same)
        return result
    reduction.mark_reduced(of, born=True)
    if step_weight.is_sliced() and settings.get_settings().scaling == "strong":
        notes.print_note(OWN_ROWS)
    local_sgd.say_only_fit("a loop of the script's own")
    reduced, _ = reduction.reduce_gradients(mine, of, place="tape.gradient")
    reduction.note_same(reduced)
    variables.expect_agreement(of)
    variables.settle_agreements()
    for index, value in zip(chosen, reduced):
        flat[index] = value
    return _pack_like(result, flat)


def _flatten_like(result: Any, count: int) -> list[Any]:
    import tensorflow as tf

    def leaf(value: Any) -> bool:
        return value is None or isinstance(value, (tf.Tensor, tf.IndexedSlices))

    def walk(value: Any) -> list[Any]:
        if leaf(value):
            return [value]
        parts = value.values() if isinstance(value, dict) else value
        if isinstance(value, dict):
            parts = [value[key] for key in sorted(value)]
        return [item for part in parts for item in walk(part)]

    flat = walk(result)
    if len(flat) != count:
        raise ValueError(f"expected {count} gradients, one for each source, but got {len(flat)}")
    return flat


def _pack_like(structure: Any, flat: list[Any]) -> Any:
    import tensorflow as tf

    supply = iter(flat)

    def fill(value: Any) -> Any:
        if value is None or isinstance(value, (tf.Tensor, tf.IndexedSlices)):
            return next(supply)
        if isinstance(value, dict):
            filled = {key: fill(value[key]) for key in sorted(value)}
            return type(value)((key, filled[key]) for key in value)
        if hasattr(value, "_fields"):
            return type(value)(*[fill(part) for part in value])
        return type(value)(fill(part) for part in value)

    return fill(structure)
