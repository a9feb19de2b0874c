"""Gradient functions of scripts, as of `tf.custom_gradient`, each of which is proved where it is called.

What TensorFlow gives on the way back is the derivative of what was proved forwards. What these give need not be.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from matex_tf import tags
from matex_tf.analysis import declarations, interpreter, programs, verdict
from matex_tf.analysis.placement import (
    PARTIAL,
    REPLICATED,
    SHARDED,
    UNKNOWN,
    Placement,
    as_partial,
    is_aligned,
    make_partial,
    make_replicated,
    make_unknown,
)
from matex_tf.gradients import recombine, tape_stack
from matex_tf.runtime import script_frames
from matex_tf.thread_flag import ThreadFlag

_IT = "a gradient function of its own (tf.custom_gradient)"
NO_TENSORS = f"{_IT} takes or gives what is no dense tensor"
ELSEWHERE = f"{_IT} is called in another function, branch or loop than its op"
GIVES = f"{_IT} gives what is {{}} for what is {{}}"
_CALLED = "its gradient function is proved where it is called"

_trusted = ThreadFlag()


def trust_gradients(are: bool = True) -> contextlib.AbstractContextManager[None]:
    """Within it, where they `are`, gradient functions give derivatives, or what ranks share: it needs no proof."""
    return _trusted.set(are)


def are_trusted() -> bool:
    return bool(_trusted)


def prove_calls(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, as `tf.custom_gradient` takes it, with a gradient function that is proved whenever it is called."""
    from tensorflow.python.util import tf_decorator

    def forward(*args: Any) -> Any:
        import tensorflow as tf

        result, back = function(*args)
        graph = tf.compat.v1.get_default_graph()
        outputs, inputs = tf.nest.flatten(result), tf.nest.flatten(args)

        def gradients(*upstream: Any, **kwargs: Any) -> Any:
            more = list(kwargs.get("variables") or ())

            given: list[Any] = []

            def compute(seeds: Sequence[Any]) -> list[Any]:
                given.append(script_frames.call_as_script(back, *seeds, **kwargs))
                of_inputs, of_variables = given[0] if more else (given[0], [])
                return [*tf.nest.flatten(of_inputs), *of_variables]

            found = prove_gradient(graph, compute, outputs, tf.nest.flatten(upstream), [*inputs, *more])
            if len(found) != len(inputs) + len(more):
                return given[0]  # of which TensorFlow complains
            return (found[: len(inputs)], found[len(inputs) :]) if more else found

        return result, tf_decorator.make_decorator(back, gradients)

    return forward


def note_called(result: Any) -> None:
    """Note that `result` is what an op gives of which the gradient function needs no proof by `prove_other`."""
    import tensorflow as tf

    for one in tf.nest.flatten(result, expand_composites=True):
        if isinstance(one, tf.Tensor):
            tags.set_tag(one.op, _CALLED, True)


def prove_other(op: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, the gradient function of `op`, proved where it is called if it is not that of the op's type."""
    try:
        op.get_attr("_gradient_op_type")
    except ValueError:
        return function
    if tags.get_tag(op, _CALLED):
        return function

    def gradients(op: Any, *upstream: Any) -> list[Any]:
        def compute(seeds: Sequence[Any]) -> list[Any]:
            found = script_frames.call_as_script(function, op, *seeds)
            return list(found) if isinstance(found, (list, tuple)) else [found]

        return prove_gradient(op.graph, compute, op.outputs, upstream, op.inputs)

    return gradients


def prove_gradient(
    of: Any,
    compute: Callable[[Sequence[Any]], list[Any]],
    outputs: Sequence[Any],
    upstream: Sequence[Any],
    sources: Sequence[Any],
) -> list[Any]:
    """What `compute` gives for `upstream`, the gradients with respect to `outputs`: those with respect to `sources`.

    Each is this rank's part of what it is alone. Where that is not proved, the step is not sharded.

    Args:
        of: the graph with `outputs`, and with `sources`, as far as these are no variables.
    """
    import tensorflow as tf

    graph = tf.compat.v1.get_default_graph()
    found = interpreter.make_interpreter(graph)
    reason = None if graph is of else verdict.Reason(ELSEWHERE)
    given = [one for one in upstream if one is not None]
    if len(upstream) != len(outputs) or not all(isinstance(one, tf.Tensor) for one in (*outputs, *given)):
        reason = reason or verdict.Reason(NO_TENSORS)
    seeds = list(upstream)
    if reason is None:
        for index, (one, output) in enumerate(zip(upstream, outputs)):
            if one is not None:
                seeds[index] = tf.identity(one)
                declarations.declare_placement(seeds[index], _derive_placement(_find_placement(found, output)))
    with programs.mark_ours(False), tape_stack.enter_gradient():
        given = compute(seeds)
    if reason is None and len(given) == len(sources):
        found = interpreter.make_interpreter(graph)
        for index, (one, source) in enumerate(zip(given, sources)):
            if one is not None and reason is None:
                given[index], reason = _take_part(found, one, source)
    if reason is not None:
        verdict.note_failure(graph, reason)
    inputs = getattr(of, "inputs", ())
    declarations.note_own_gradient(of, None if reason is not None else map(found.find_placement, inputs))
    return given


def _find_placement(found: Any, source: Any) -> Placement:
    """The placement of a tensor of a graph, of a value, or of a variable."""
    if hasattr(source, "numpy"):  # which variables have, too
        return make_replicated()
    return found.find_placement(source) if source.graph is found.graph else interpreter.find_placement(source)


def _derive_placement(one: Placement) -> Placement:
    """The placement of the gradient with respect to a tensor with placement `one`, if a loss is a sum over the ranks.

    With T = w^k T_r, dL = sum of U_r dT_r gives U = sum of w^-k U_r; with T = sum of w^k T_r, U = w^-k U_r.
    """
    if one.kind == SHARDED and not one.power:
        return one._replace(zero=False, elements=None)
    if one.kind == REPLICATED and not one.is_mixed:
        return make_partial(-one.power)
    if one.kind == PARTIAL:
        return make_replicated(-one.power)
    return one if one.kind == UNKNOWN else make_unknown(None, f"a gradient is taken with respect to what is {one.kind}")


def _take_part(found: Any, gradient: Any, source: Any) -> tuple[Any, verdict.Reason | None]:
    """A gradient with respect to `source` as this rank's part of it, and why that is not proved, if so."""
    import tensorflow as tf

    if isinstance(gradient, tf.IndexedSlices):
        return gradient, verdict.Reason(NO_TENSORS)
    gradient = tf.convert_to_tensor(gradient)
    placement, wanted = _find_placement(found, gradient), _derive_placement(_find_placement(found, source))
    if placement.zero:
        return gradient, None
    known = as_partial(placement) if wanted.kind == PARTIAL else placement
    if known is None or known.kind != wanted.kind or known.is_mixed or UNKNOWN in (known.kind, wanted.kind):
        is_known = placement.kind != UNKNOWN
        clause = GIVES.format(placement.kind, _find_placement(found, source).kind)
        return gradient, verdict.Reason(clause, gradient.op) if is_known else verdict.find_reason(placement)
    if known.kind == SHARDED and (known.axis != wanted.axis or not is_aligned(known, wanted)):
        return gradient, verdict.Reason(GIVES.format("other rows", "rows"), gradient.op)
    power = known.power - wanted.power
    if power:
        weight = recombine.compute_slope_factor(power)
        gradient = tf.where(weight > 0, tf.cast(weight, gradient.dtype) * gradient, tf.zeros_like(gradient))
    return gradient, None
