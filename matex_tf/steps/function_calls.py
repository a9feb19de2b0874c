"""Calls of `tf.function` and of ConcreteFunctions in eager code: the steps of custom loops and of Keras.

Their hooks call `call_function`. It finds the plan of the call, and makes one if there is none. Then all ranks compute
the call by the plan, or every rank computes it whole. A function may have several plans: one for each trace, for
example for batches of 64 rows and for the last batch of 16 rows.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from matex_tf import errors, tags
from matex_tf.lazy import tf
from matex_tf.steps import agreement, capture, events, own_data, pieces, report, whole_code
from matex_tf.steps.arguments import Arguments, find_batch_key, is_source
from matex_tf.steps.batches import Batch, LostBatch
from matex_tf.steps.function_plan import FunctionPlan
from matex_tf.steps.tapes import calls
from matex_tf.thread_flag import is_main_thread

_PLANS = "step plans"
_MAX_KEYS = 1024  # of a function: calls that differ in a Python number have different keys, without end
NOT_TRACED = "its code raised an error when it was traced for any number of rows"
NOT_SHARED = "it is compiled by XLA, or a tape records the call"
IN_THREAD = "a thread of the script calls it"
_interceptors: list[Callable[..., Any]] = []  # the innermost last


@contextlib.contextmanager
def intercept_calls(interceptor: Callable[..., Any]) -> Iterator[None]:
    """Within the context, `interceptor(original, function, args, kwargs)` makes the calls of the main thread.

    Asynchronous training uses it (`apart.async_fit`): there a call of Keras' train function is a turn of one rank.
    """
    _interceptors.append(interceptor)
    try:
        yield
    finally:
        _interceptors.remove(interceptor)


class _Plans:
    """The plans of a function.

    by_trace: the plan of each trace that TensorFlow keeps of the function.
    by_key: the plans of earlier calls by `Arguments.make_key`, so that a further call need not look for its trace; with
        `Arguments.references`, which show whether the key is still valid.
    """

    def __init__(self) -> None:
        self.by_trace: dict[Any, FunctionPlan] = {}
        self.by_key: dict[Any, tuple[FunctionPlan, list[Any]]] = {}

    def find(self, function: Any, arguments: Arguments) -> FunctionPlan:
        """The plan of a call of `function` with these arguments. Collective if it is new."""
        key = arguments.make_key()
        plan, references = self.by_key.get(key, (None, []))
        if plan is None or any(reference() is None for reference in references):
            if len(self.by_key) >= _MAX_KEYS:
                self.by_key.clear()
            plan = self._find_by_trace(function, arguments)
            self.by_key[key] = plan, arguments.references
        return plan

    def _find_by_trace(self, function: Any, arguments: Arguments) -> FunctionPlan:
        """The plan of a call by its trace, which is made now if TensorFlow has none. Collective if the plan is new."""
        args, kwargs = arguments.given
        for leaf in arguments.leaves:
            if isinstance(leaf, tf.data.Dataset) and own_data.is_own(leaf):
                own_data.note_dataset(leaf)  # so that the trace knows its rows as this rank's own
        place = report.name_step(function)
        try:
            traced = capture.trace_step(function, args, kwargs)
        except Exception as error:
            if capture.tracing.has_opened:  # the script alone would have a trace for a fixed number of rows
                why = own_data.explain_obstacle(place, NOT_TRACED)
                raise errors.UnsupportedError(f"{why}. Its error: {type(error).__name__}: {error}") from error
            raise
        inputs = _unpack_inputs(traced, arguments)
        are_rows = arguments.find_rows(inputs)
        # Equal traces need different plans if other inputs have the rows, or batches come from other iterators.
        key = id(traced.graph), *are_rows, *map(own_data.is_own, inputs), *map(find_batch_key, inputs)
        if key not in self.by_trace:
            self.by_trace[key] = FunctionPlan(traced, are_rows, inputs, place, arguments.rows)
        return self.by_trace[key]


def call_function(
    original: Callable[..., Any], function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], is_recorded: bool
) -> Any:
    """The result of `original(function, *args, **kwargs)` in eager code, computed by all ranks if possible.

    is_recorded: a gradient tape of the script records the call.
    """
    is_main = is_main_thread()
    if _interceptors and is_main:
        return _interceptors[-1](original, function, args, kwargs)
    if own_data.is_alone():  # work of this rank alone
        return original(function, *args, **kwargs)
    if not is_main:  # ranks do not make the calls of other threads together
        tags.get_or_make_tag(function, IN_THREAD, lambda: _report_thread(function, args, kwargs))
        return call_whole(original, function, args, kwargs, IN_THREAD)
    args, kwargs = own_data.make_arrays_whole((args, kwargs), report.name_step(function))
    try:
        arguments = _bind_arguments(function, args, kwargs)
    except (TypeError, ValueError):  # wrong arguments: the call itself raises the error
        return original(function, *args, **kwargs)
    if is_recorded:  # `calls` decides whether ranks share the call; its gradients are a step of their own
        _prepare_whole_call(function, args, kwargs, NOT_SHARED)
        return calls.call_function(lambda: original(function, *args, **kwargs), function, arguments)
    plan = _get_plans(function).find(function, arguments)
    if plan.why_whole:  # every rank computes the call whole; `note_step` compares the weights that such calls change
        is_training = bool(plan.trained) and agreement.is_watched()
        if is_training:
            agreement.note_step()
        _prepare_whole_call(function, args, kwargs, plan.why_whole)
        result = original(function, *args, **kwargs)
        if is_training:
            events.step_trained(plan)
        return result
    inputs = _unpack_inputs(plan.traced, arguments)
    batch = None
    if plan.inputs.source is not None:
        batch = _take_batch(plan, inputs)
        if batch is None:  # the data have ended
            return plan.call_at_end(inputs)
    return plan.call(inputs, batch, list(filter(is_source, arguments.leaves)))


def _report_thread(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Tell, at the first call, that ranks do not share a function that a thread calls. Loud only if it trains."""
    trained = whole_code.list_trained(capture.find_trace(function, args, kwargs))
    report.say_whole(report.name_step(function), IN_THREAD, is_usual=not trained)


def _unpack_inputs(traced: Any, arguments: Arguments) -> list[Any]:
    """The tensor arguments of a call, in the order of the inputs of its trace."""
    args, kwargs = arguments.given
    return list(traced.function_type.unpack_inputs(traced.function_type.bind(*args, **kwargs)))


def _take_batch(plan: FunctionPlan, inputs: list[Any]) -> Batch | None:
    """The batch of a call; None at the end of the data."""
    start_time, handle = time.perf_counter(), plan.inputs.find_iterator(inputs)
    try:
        batch = plan.inputs.take_batch(handle)
    except tf.errors.OpError as error:  # an error of the pipeline, possibly on this rank alone
        return LostBatch(error)  # raises the error within the call, where the other ranks learn of it
    events.batch_taken(plan, time.perf_counter() - start_time, handle)
    return batch


def find_plan(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> FunctionPlan:
    """The plan of a call. Collective if it is new."""
    return _get_plans(function).find(function, _bind_arguments(function, args, kwargs))


def _bind_arguments(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    from tensorflow.python.eager.polymorphic_function import function_type_utils

    # A ConcreteFunction has neither default values nor variables that become tensors.
    options = [getattr(function, name, None) for name in ("_default_values", "_is_pure")]
    bound = function_type_utils.canonicalize_function_inputs(args, kwargs, function.function_type, *options)
    return Arguments(bound.args, bound.kwargs)


def _get_plans(function: Any) -> _Plans:
    return tags.get_or_make_tag(function, _PLANS, _Plans)


def call_whole(
    original: Callable[..., Any], function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], why: str = NOT_SHARED
) -> Any:
    """The result of `original(function, *args, **kwargs)`, computed by every rank by itself.

    why: the reason why ranks do not share the call.
    """
    place = report.name_step(function)
    args, kwargs = own_data.make_arrays_whole((args, kwargs), place)
    if not own_data.is_alone() and not tf.config.functions_run_eagerly():  # in eager code, iterators give whole batches
        if any(is_source(leaf) and own_data.is_own(leaf) for leaf in tf.nest.flatten((args, kwargs))):
            raise errors.UnsupportedError(own_data.explain_obstacle(place, why))
        _prepare_whole_call(function, args, kwargs, why)
    return original(function, *args, **kwargs)


def _prepare_whole_call(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], why: str) -> None:
    pieces.prepare_whole_call(function, args, kwargs, f"{report.name_step(function)} is computed whole: {why}")
