"""Keras metrics: what a rank computed counts once, and a result is that of all ranks.

`update_state` takes effect where the rank's rows count in the step; `result` is computed from the sum of the ranks'
states. Of a method that calls its parent's, or of a metric made of metrics, only the outermost call is treated.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

from matex_tf.analysis import interpreter, programs, verdict
from matex_tf.analysis.placement import SHARDED, UNKNOWN, Placement, as_partial, make_partial, make_replicated
from matex_tf.gradients import recombine, row_mixing
from matex_tf.metrics import custom_metrics, metrics
from matex_tf.runtime.hooks import put_function
from matex_tf.runtime.keras_table import KerasTable
from matex_tf.sharding import step_weight

HOOKS = KerasTable()

_LOST = "metrics are those of a rank's slice"

_depth = threading.local()


def _put_into_subclasses(owner: Any, name: str, make: Any) -> None:
    """Replace `name` where a kind of metrics has one of its own, now or once there is the kind."""
    plain = owner.__init_subclass__

    def __init_subclass__(cls, /, **kwargs):
        plain.__func__(cls, **kwargs) if hasattr(plain, "__func__") else plain(**kwargs)
        put(cls)

    def put(kind: Any) -> None:
        if name in vars(kind):
            put_function(kind, name, make)
        for inner in kind.__subclasses__():
            put(inner)

    for kind in owner.__subclasses__():
        put(kind)
    owner.__init_subclass__ = classmethod(__init_subclass__)


@HOOKS.replace_in(_LOST, "metrics.metric:Metric.add_variable", "metrics.base_metric:Metric.add_weight")
def _wrap_add_variable(original: Any) -> Any:
    def add_variable(self, *args, **kwargs):
        variable = original(self, *args, **kwargs)
        metrics.keep_variables([variable])
        return variable

    return add_variable


class _Outermost:
    """A context that knows whether it is the outermost of its kind in this thread."""

    def __init__(self, kind: str):
        self.kind = kind

    def __enter__(self) -> bool:
        depth = getattr(_depth, self.kind, 0)
        setattr(_depth, self.kind, depth + 1)
        return depth == 0

    def __exit__(self, *error: Any) -> None:
        setattr(_depth, self.kind, getattr(_depth, self.kind) - 1)


@HOOKS.replace_in(_LOST, "metrics.metric:Metric.update_state", put=_put_into_subclasses)
def _wrap_update_state(original: Any) -> Any:
    def update_state(self, *args, **kwargs):
        return _run_update(self, original, functools.partial(original, self), args, kwargs)

    return update_state


def _run_update(metric: Any, code: Any, call: Any, args: tuple, kwargs: dict) -> Any:
    """An update of `metric`, whose method is `code`, by `call`."""
    if step_weight.is_alone():
        return call(*args, **kwargs)
    with _Outermost("update") as outermost, programs.mark_ours():
        if getattr(_depth, "own", False):
            metrics.keep_variables(metric.variables)
            return call(*args, **kwargs)  # it has all rows
        gathered = _gather_arguments(metric, code, args, kwargs)
        metrics.keep_variables(metric.variables)
        if gathered is not None:
            with metrics.count_where_due(metric, step_weight.count_whole()), _enter_own_code():
                return call(*gathered[0], **gathered[1])
        if not outermost:
            with _make_figures_global(metric):
                return call(*args, **_weigh_arguments(metric, args, kwargs))
        args, kwargs, counts = _take_all_rows(metric, args, kwargs)
        with metrics.count_where_due(metric, counts), _make_figures_global(metric):
            return call(*args, **kwargs)


def _gather_arguments(metric: Any, update: Any, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
    """What an update is to be given in place of this rank's rows: those of all, where it lets them meet, or where some
    of what it is given is of the whole batch already; None where its own rows will do.
    """
    with _enter_own_code():
        meet = _has_whole_rows(args, kwargs) or (
            custom_metrics.can_update_mix_rows(metric, update, args, kwargs)
            if _is_own(update)
            else custom_metrics.can_function_mix_rows(metric, _find_own_function(metric), args, kwargs)
        )
        return custom_metrics.gather_rows(args, kwargs) if meet else None


def _has_whole_rows(args: tuple, kwargs: dict) -> bool:
    """Whether, in a step in which rows have met, something that is no scalar is of the whole batch."""
    import tensorflow as tf

    if tf.executing_eagerly() or not row_mixing.are_resolved():
        return False
    found = interpreter.make_interpreter(tf.compat.v1.get_default_graph())
    leaves = [leaf for leaf in tf.nest.flatten((args, kwargs)) if isinstance(leaf, tf.Tensor)]
    return any(
        leaf.shape.rank != 0 and not hasattr(leaf, "numpy") and found.find_placement(leaf).is_same for leaf in leaves
    )


def _is_own(code: Any) -> bool:
    return not str(getattr(code, "__module__", "")).startswith(("keras.", "tf_keras.", "tensorflow."))


@contextlib.contextmanager
def _enter_own_code() -> Iterator[None]:
    before, _depth.own = getattr(_depth, "own", False), True
    try:
        yield
    finally:
        _depth.own = before


def _find_own_function(metric: Any) -> Any:
    """The function of the script's own that the mean `metric` is taken of; None if there is none."""
    function = vars(metric).get("_fn")
    module = str(getattr(function, "__module__", ""))
    return None if module.startswith(("keras.", "tf_keras.", custom_metrics.__name__)) else function


@contextlib.contextmanager
def _make_figures_global(metric: Any) -> Iterator[None]:
    """Within it a function of the script's own that the mean `metric` is taken of gives the whole batch's figures."""
    function = _find_own_function(metric)
    if function is None:
        yield
        return
    vars(metric)["_fn"] = custom_metrics.make_global(function)
    try:
        yield
    finally:
        vars(metric)["_fn"] = function


def _weigh_arguments(metric: Any, args: tuple, kwargs: dict) -> dict:
    """The keywords of the update of a mean by what a function gave: a single number weighs as this rank's rows do."""
    value: Any = args[0] if args else kwargs.get("values")
    own = "_fn" in vars(metric) and custom_metrics.is_single(value)
    if not own or len(args) > 1 or kwargs.get("sample_weight") is not None:
        return kwargs
    import tensorflow as tf

    return {**kwargs, "sample_weight": tf.cast(step_weight.read_numbers()[0], value.dtype)}


def _take_all_rows(metric: Any, args: tuple, kwargs: dict) -> tuple[tuple, dict, Any]:
    """The arguments of an update, and whether it counts here (None: as the step says).

    Where placements tell: figures are made whole, unless the ranks' parts of an update add up.
    """
    import tensorflow as tf

    if tf.executing_eagerly():
        return args, kwargs, None
    if step_weight.is_in_session_graph():
        return _take_in_session_graph(args, kwargs)
    leaves = tf.nest.flatten((args, kwargs))
    graph = tf.compat.v1.get_default_graph()
    places = [at for at, leaf in enumerate(leaves) if isinstance(leaf, tf.Tensor) and not hasattr(leaf, "numpy")]
    places = [at for at in places if leaves[at].graph is graph]
    placements = [interpreter.find_placement(leaves[at]) for at in places]
    for placement in placements:
        if placement.kind == UNKNOWN:
            verdict.note_failure(graph, verdict.find_reason(placement))
    if not all(one.can_be_whole and one.kind != SHARDED for one in placements):
        return args, kwargs, None  # rows, each of which counts where it is
    value, weight = _find_value_and_weight(args, kwargs)
    of_value = as_partial(_find_placement(value))
    is_figure = custom_metrics.is_number(value)  # of a vector a mean counts the entries
    if type(metric).__name__ == "Mean" and is_figure and of_value is not None and len(leaves) <= 2:
        if weight is None and of_value == make_partial(1):
            factor = recombine.compute_factor(1)
            share = tf.cast(factor, value.dtype) if isinstance(value, tf.Tensor) else factor
            return args, {**kwargs, "sample_weight": share}, None
        if weight is not None and of_value == make_partial(1) and _find_placement(weight) == make_replicated(-1):
            return args, kwargs, None
    for at, one in zip(places, recombine.make_whole([leaves[at] for at in places], "a metric") if places else ()):
        leaves[at] = one
    args, kwargs = tf.nest.pack_sequence_as((args, kwargs), leaves)
    return args, kwargs, step_weight.count_whole()


def _find_placement(number: Any) -> Placement:
    """The placement of a tensor, without what is known of its entries; a number is the same on all ranks."""
    import tensorflow as tf

    if not isinstance(number, tf.Tensor) or hasattr(number, "numpy"):
        return make_replicated()
    return interpreter.find_placement(number)._replace(elements=None)


def _find_value_and_weight(args: tuple, kwargs: dict) -> tuple[Any, Any]:
    """What an update of a mean or a sum is given."""
    return args[0] if args else kwargs.get("values"), args[1] if len(args) > 1 else kwargs.get("sample_weight")


def _take_in_session_graph(args: tuple, kwargs: dict) -> tuple[tuple, dict, Any]:
    """Nothing is known there of a figure that a mean is fed, since which rows are fed shows when it is run."""
    import tensorflow as tf

    value, _ = _find_value_and_weight(args, kwargs)
    if isinstance(value, tf.Tensor) and value.shape.rank == 0:
        verdict.note_failure(value.graph, verdict.Reason("a metric is given a figure of the rows", value.op))
    return args, kwargs, None


@HOOKS.replace_in(_LOST, "metrics.metric:Metric.result", put=_put_into_subclasses)
def _wrap_result(original: Any) -> Any:
    def result(self, *args, **kwargs):
        with _Outermost("result") as outermost:
            if not outermost or metrics.is_in_whole_state() or step_weight.is_alone():
                return original(self, *args, **kwargs)
            with metrics.hold_whole_state(self.variables):
                return metrics.copy_result(original(self, *args, **kwargs))

    return result


@HOOKS.replace_in(_LOST, keras2="metrics.base_metric:Reduce.update_state")
def _wrap_keras2_mean(original: Any) -> Any:
    def update_state(self, *args, **kwargs):
        return original(self, *args, **_weigh_arguments(self, args, kwargs))

    return update_state


@HOOKS.replace_in(_LOST, keras2="utils.metrics_utils:update_state_wrapper")
def _wrap_keras2_update(original: Any) -> Any:
    def update_state_wrapper(update_state_fn):
        wrapped = original(update_state_fn)

        def decorated(metric_obj, *args, **kwargs):
            call = functools.partial(wrapped, metric_obj)
            return _run_update(metric_obj, type(metric_obj).update_state, call, args, kwargs)

        return functools.wraps(wrapped)(decorated)

    return update_state_wrapper


@HOOKS.replace_in(_LOST, keras2="utils.metrics_utils:result_wrapper")
def _wrap_keras2_result(original: Any) -> Any:
    def result_wrapper(result_fn):
        wrapped = original(result_fn)

        def decorated(metric_obj, *args):
            with _Outermost("result") as outermost:
                if not outermost or metrics.is_in_whole_state():
                    return wrapped(metric_obj, *args)
                with metrics.hold_whole_state(metric_obj.variables):
                    return metrics.copy_result(wrapped(metric_obj, *args))

        return functools.wraps(wrapped)(decorated)

    return result_wrapper
