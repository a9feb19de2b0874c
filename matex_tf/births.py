"""Gradients where they are born: those with respect to variables, within any structure, are reduced at once."""

from __future__ import annotations

from typing import Any

from matex_tf import figures, gradients, graphs, loops, losses, steps, variables


def _is_trained_variable(source: Any) -> bool:
    return hasattr(gradients.underlying(source), "assign")


def leave_to_optimizer(sources: Any) -> None:
    """Note that gradients of the variables in `sources` were taken while another tape records."""
    import tensorflow as tf

    trained = [source for source in tf.nest.flatten(sources) if _is_trained_variable(source)]
    if not trained:
        return
    losses.inexact(
        "gradients are taken of gradients: what a penalty on gradients is made of are those of each rank's slice, so "
        "the result is close to that of the script alone but not the same"
    )
    gradients.entangle(trained)


def not_of_slices(sources: Any, why: str) -> None:
    """What was made of the weights in `sources` cannot be put together of slices, which `why` says.

    The optimizer reduces what it gets of it.
    """
    import tensorflow as tf

    trained = [source for source in tf.nest.flatten(sources) if _is_trained_variable(source)]
    if not trained:
        return
    gradients.mark(trained, born=False)
    if tf.executing_eagerly():
        loops.compute_whole(why)
    else:
        graphs.note_whole(why)


def reduce_structure(result: Any, sources: Any, target: Any, owed: bool = False) -> Any:
    """`result`, gradients in the structure of `sources`, with those of variables reduced.

    With `owed` they are left to the optimizer.
    """
    import tensorflow as tf

    flat_sources = tf.nest.flatten(sources)
    chosen = [index for index, source in enumerate(flat_sources) if _is_trained_variable(source)]
    if not chosen:
        return result
    variables_of = [flat_sources[index] for index in chosen]
    owed = owed or gradients.are_entangled(variables_of)
    gradients.mark(variables_of, born=not owed)
    if owed:
        return result
    flat = _flatten_like(result, len(flat_sources))
    target_scalars = losses.reducible(target)
    # The loss goes there as this rank's part, not as what the script would read of it.
    with figures.left_alone():
        reduced, totals = gradients.reduce(
            [flat[index] for index in chosen],
            variables_of,
            target_scalars,
            weight=losses.weight(target),
            place="tape.gradient",
        )
    losses.remember(target_scalars, totals)
    if not steps.in_session_graph():
        variables.expect(variables_of)
    if tf.executing_eagerly():
        variables.settle()
        loops.notice_update()
    for index, value in zip(chosen, reduced):
        flat[index] = value
    return _pack_like(result, flat)


def _flatten_like(result: Any, count: int) -> list:
    import tensorflow as tf

    def leaf(value: Any) -> bool:
        return value is None or isinstance(value, (tf.Tensor, tf.IndexedSlices))

    def walk(value: Any) -> list:
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


def _pack_like(structure: Any, flat: list) -> Any:
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
