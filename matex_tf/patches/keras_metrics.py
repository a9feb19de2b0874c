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

from matex_tf import figures, losses, metric_figures, metrics, rehearsal, steps
from matex_tf.patches import replace, when_imported

_depth = threading.local()


def install() -> None:
    when_imported("keras.src.metrics.metric", _keras3)
    for package in ("keras", "tf_keras"):
        when_imported(f"{package}.src.utils.metrics_utils", _keras2_wrappers)
        when_imported(f"{package}.src.metrics.base_metric", _keras2_means)


def _keras3(module: Any) -> None:
    _wrap_future_subclasses(module.Metric)
    pending = list(module.Metric.__subclasses__())
    while pending:
        kind = pending.pop()
        _wrap_methods(kind)
        pending.extend(kind.__subclasses__())


def _wrap_future_subclasses(base: type) -> None:
    plain = base.__init_subclass__

    def __init_subclass__(cls, **kwargs):
        plain.__func__(cls, **kwargs) if hasattr(plain, "__func__") else plain(**kwargs)
        _wrap_methods(cls)

    base.__init_subclass__ = classmethod(__init_subclass__)


def _wrap_methods(kind: type) -> None:
    if "update_state" in vars(kind):
        replace(kind, "update_state", _update_state)
    if "result" in vars(kind):
        replace(kind, "result", _result)


def _keras2_wrappers(module: Any) -> None:
    replace(module, "update_state_wrapper", _keras2_update)
    replace(module, "result_wrapper", _keras2_result)


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


def _update_state(original: Any) -> Any:
    def update_state(self, *args, **kwargs):
        return _update(self, original, functools.partial(original, self), args, kwargs)

    return update_state


def _update(metric: Any, code: Any, call: Any, args: tuple, kwargs: dict) -> Any:
    """An update of `metric`, whose method is `code`, by `call`."""
    if rehearsal.is_on() and _is_own(code):
        return None  # it is to be given all rows: what it does with them says nothing of the step
    with _Outermost("update") as outermost:
        gathered = _of_own_code(metric, code, args, kwargs)
        if gathered is not None:
            with metrics.counted(metric, steps.whole_count()), _within_own_code():
                return call(*gathered[0], **gathered[1])
        if not outermost:
            with _with_global_figures(metric):
                return call(*args, **_weighed(metric, args, kwargs))
        args, kwargs, counts = _of_all_rows(metric, args, kwargs)
        with metrics.counted(metric, counts), _with_global_figures(metric):
            return call(*args, **kwargs)


def _of_own_code(metric: Any, update: Any, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
    """What an update by the script's own code is to be given instead of this rank's rows, if anything."""
    if getattr(_depth, "own", False) or not _is_own(update):
        return None
    with _within_own_code():
        return metric_figures.rows_of_all(metric, update, args, kwargs)


def _is_own(code: Any) -> bool:
    return not str(getattr(code, "__module__", "")).startswith(("keras.", "tf_keras.", "tensorflow."))


@contextlib.contextmanager
def _within_own_code() -> Iterator[None]:
    before, _depth.own = getattr(_depth, "own", False), True
    try:
        yield
    finally:
        _depth.own = before


@contextlib.contextmanager
def _with_global_figures(metric: Any) -> Iterator[None]:
    """Within it a function of the script's own that the mean `metric` is taken of gives the whole batch's figures."""
    function = vars(metric).get("_fn")
    module = str(getattr(function, "__module__", ""))
    if function is None or module.startswith(("keras.", "tf_keras.", metric_figures.__name__)):
        yield
        return
    vars(metric)["_fn"] = _nothing if rehearsal.is_on() else metric_figures.of_all_rows(function)
    try:
        yield
    finally:
        vars(metric)["_fn"] = function


def _nothing(*args: Any, **kwargs: Any) -> Any:
    """In place of a metric's function that is given all rows."""
    import tensorflow as tf

    return tf.constant(0.0)


def _weighed(metric: Any, args: tuple, kwargs: dict) -> dict:
    """The keywords of the update of a mean by what a function gave: a single number weighs as this rank's rows do."""
    value = args[0] if args else kwargs.get("values")
    own = "_fn" in vars(metric) and metric_figures.is_single(value)
    if not own or len(args) > 1 or kwargs.get("sample_weight") is not None:
        return kwargs
    import tensorflow as tf

    return {**kwargs, "sample_weight": tf.cast(steps.numbers()[0], value.dtype)}


def _of_all_rows(metric: Any, args: tuple, kwargs: dict) -> tuple[tuple, dict, Any]:
    """The arguments of an update, and whether it counts here (None: as the step says).

    A loss or a sum over rows among them is replaced by the global one, which counts on rank 0 alone. Another scalar
    that a mean is fed without a weight is a figure of this rank's rows and weighs as they do.
    """
    import tensorflow as tf

    value = args[0] if args else kwargs.get("values")
    known = losses.global_value(value)
    part = figures.part_of(value)
    if known is None and part is not None and part.kind == "sum":
        known = figures.total(value)
    if known is not None:
        args, kwargs = ((known, *args[1:]), kwargs) if args else (args, {**kwargs, "values": known})
        return args, kwargs, steps.whole_count()
    unweighed = len(args) < 2 and kwargs.get("sample_weight") is None
    if type(metric).__name__ == "Mean" and unweighed and isinstance(value, tf.Tensor) and value.shape.rank == 0:
        kwargs = {**kwargs, "sample_weight": tf.cast(steps.numbers()[0], value.dtype)}
    return args, kwargs, None


def _result(original: Any) -> Any:
    def result(self, *args, **kwargs):
        with _Outermost("result") as outermost:
            if not outermost or metrics.inside_whole_state():
                return original(self, *args, **kwargs)
            with metrics.whole_state(self.variables):
                return metrics.detached(original(self, *args, **kwargs))

    return result


def _keras2_means(module: Any) -> None:
    if hasattr(module, "Reduce"):
        replace(module.Reduce, "update_state", _keras2_weighed)


def _keras2_weighed(original: Any) -> Any:
    def update_state(self, *args, **kwargs):
        return original(self, *args, **_weighed(self, args, kwargs))

    return update_state


def _keras2_update(original: Any) -> Any:
    def update_state_wrapper(update_state_fn):
        wrapped = original(update_state_fn)

        def decorated(metric_obj, *args, **kwargs):
            call = functools.partial(wrapped, metric_obj)
            return _update(metric_obj, type(metric_obj).update_state, call, args, kwargs)

        return functools.wraps(wrapped)(decorated)

    return update_state_wrapper


def _keras2_result(original: Any) -> Any:
    def result_wrapper(result_fn):
        wrapped = original(result_fn)

        def decorated(metric_obj, *args):
            with _Outermost("result") as outermost:
                if not outermost or metrics.inside_whole_state():
                    return wrapped(metric_obj, *args)
                with metrics.whole_state(metric_obj.variables):
                    return metrics.detached(wrapped(metric_obj, *args))

        return functools.wraps(wrapped)(decorated)

    return result_wrapper
