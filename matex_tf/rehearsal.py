"""Whether a step of Keras' `fit` or `evaluate` can compute a part of a batch: it is traced for another size first.

A step of the script's own may name its batch's size (`tf.random.normal([BATCH_SIZE, 16])`), know what each row of a
batch is (`anchors, positives = data[0], data[1]`), or have the rows meet (`meetings`). On a slice it would fail, or
compute something else.
"""

from __future__ import annotations

import contextlib
import io
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from matex_tf import gradients, graphs, losses, meetings, metrics, output

NAMED = (
    "a step of the script's own names its batch's size, or takes rows out of the batch by their number, so every rank "
    "computes whole batches: right, but not faster"
)
MEET = (
    "in the model, its loss or a step of the script's own the rows of a batch meet: they are compared with each other, "
    "or a figure of the whole batch goes into the loss or a variable. So every rank computes whole batches: right, but "
    "not faster"
)
# Primes that are hardly a dimension of anything else; rows that a step takes in pairs or halves do not come out even.
ROWS = (107, 109)
_EVEN_ROWS = 2520
"""What can be parted into as many equal parts as one likes, up to ten."""
_OF_FUNCTIONS = {"Lambda", "TFOpLambda", "SlicingOpLambda", "ClassMethod", "InstanceMethod", "InstanceProperty"}
_SUMS_OVER_ROWS = {"L1", "L2", "L1L2"}
_OF_THE_BATCH = {"Dice", "Tversky"}
_REMEMBERED = "_matex_any_rows"
_is_on = False


def why_whole(model: Any, kind: str, spec: Any, batch_size: int | None) -> str:
    """Why the step of `model` for `kind` ("train" or "test") cannot compute a part of a batch; empty where it can.

    Args:
        spec: the element spec of the batches.
        batch_size: their number of rows, where it is known and not in `spec`.
    """
    if not _has_own_code(model, f"{kind}_step") or getattr(model, "run_eagerly", False):
        return ""
    if not _is_built(model) and not hasattr(model, "_symbolic_build"):
        return ""  # Keras 2 draws a layer's first weights where it is built
    known = vars(model).setdefault(_REMEMBERED, {})
    key = (kind, repr(spec), batch_size, id(getattr(model, "optimizer", None)), id(getattr(model, "loss", None)))
    if key not in known:
        known[key] = _rehearse(model, getattr(model, f"{kind}_step"), spec, batch_size)
    return known[key]


def why_call_whole(function: Any, args: tuple, kwargs: dict, rows: int) -> str:
    """Why `function`, a `tf.function` that has run and trains, cannot do with a part of a batch; empty where it can.

    It is traced once more. Where that fails for other reasons than the number of rows the question stays open.

    Args:
        args, kwargs: what it was called with.
        rows: how many rows of a batch are in these.
    """
    import tensorflow as tf

    given = other_rows(rows)
    parts = tf.nest.flatten((args, kwargs))
    if not any(_fixed_rows(part) == rows for part in parts) or any(map(is_of_uneven_rows, parts)):
        return ""

    def fill(part: Any) -> Any:
        if _fixed_rows(part) != rows or not isinstance(part, (tf.Tensor, np.ndarray)):
            return part
        return tf.TensorSpec([given, *part.shape[1:]], part.dtype)

    def traced(args: tuple, kwargs: dict) -> Any:
        again = tf.function(function.python_function, autograph=function._autograph)
        try:
            return again.get_concrete_function(*args, **kwargs).graph
        except Exception:  # of the script's code, any
            return None

    with unnoticed(), losses.held() as inexact:
        other_args, other_kwargs = tf.nest.map_structure(fill, (args, kwargs))
        graph = traced(other_args, other_kwargs)
        if graph is None:
            return NAMED if traced(args, kwargs) is not None else ""
    return _why(graph, given, graphs.accounts(graph), inexact)


def why_body_whole(body: Callable[[Any], None], element: Any) -> str:
    """Why `body`, that of a loop in a function, cannot do with a part of a batch; empty where it can, or is not known.

    It is traced aside, in the graph that is the default one.

    Args:
        element: what the loop is to give to it first, tensors of a graph.
    """
    import tensorflow as tf
    from tensorflow.python.framework import func_graph

    parts = tf.nest.flatten(element)
    if any(map(is_of_uneven_rows, parts)) or not any(_open_rows(part) for part in parts):
        return ""

    def traced(number: int) -> Any:
        graph = func_graph.FuncGraph("matex_tf_rehearsal")
        with graph.as_default():
            for part in parts:
                rows = [number, *part.shape[1:]] if _open_rows(part) else part.shape
                graph.inputs.append(tf.compat.v1.placeholder(part.dtype, rows))
            try:
                body(tf.nest.pack_sequence_as(element, list(graph.inputs)))
            except Exception:  # of the script's code, any; the trace that counts raises it, too
                return None
        return graph

    with unnoticed(), losses.held() as inexact:
        graph = traced(ROWS[0])
        if graph is None:
            return NAMED if traced(_EVEN_ROWS) is not None else ""
    return _why(graph, ROWS[0], graphs.accounts(graph), inexact)


def other_rows(rows: int | None) -> int:
    """A number of rows to trace for that is not `rows`."""
    return next(number for number in ROWS if number != rows)


def _why(graph: Any, rows: int, accounts: set[int], inexact: Any) -> str:
    if meetings.knows_rows(graph):
        return NAMED
    return MEET if inexact or meetings.rows_meet(graph, rows, accounts) else ""


def _open_rows(part: Any) -> bool:
    return bool(part.shape.rank) and part.shape.as_list()[0] is None


def is_of_uneven_rows(part: Any) -> bool:
    return hasattr(part, "flat_values") or hasattr(part, "dense_shape")


def spec_of(batch: dict[str, Any]) -> Any:
    """The element spec of `batch`, structures of arrays by the names of the arguments of `train_on_batch`."""
    import tensorflow as tf

    parts = tuple(batch[name] for name in ("x", "y", "sample_weight") if name in batch)
    return tf.nest.map_structure(lambda array: tf.TensorSpec(array.shape, tf.as_dtype(array.dtype)), parts)


def _rehearse(model: Any, step: Callable[[Any], Any], spec: Any, batch_size: int | None) -> str:
    size = next((rows for rows in map(_fixed_rows, _flat(spec)) if rows is not None), batch_size)
    rows = other_rows(size)
    if not _is_built(model):
        # With the shapes of the real batches, which a layer may keep, and the numbers that its weights are drawn with.
        with unnoticed(restores=False):
            _trace(model, step, spec)
    with unnoticed():
        before = losses.times_inexact()
        graph = _trace(model, step, _with_rows(spec, rows))
        if graph is None:
            return NAMED if _trace(model, step, _with_rows(spec, size)) is not None else ""
    return _why(graph, rows, _own_accounts(model), losses.times_inexact() > before)


def is_on() -> bool:
    """Whether a step is being traced only to see what becomes of the rows of a batch."""
    return _is_on


def _trace(model: Any, step: Callable[[Any], Any], spec: Any) -> Any:
    global _is_on
    before, _is_on = _is_on, True
    try:
        return _graph_of(model, step, spec)
    finally:
        _is_on = before


def _graph_of(model: Any, step: Callable[[Any], Any], spec: Any) -> Any:
    """The graph of `step` for batches of `spec`; None where it cannot be traced."""
    import tensorflow as tf

    strategy = getattr(model, "distribute_strategy", None) or tf.distribute.get_strategy()

    @tf.autograph.experimental.do_not_convert
    def once(data):
        return strategy.run(step, args=(data,))

    try:
        return tf.function(once).get_concrete_function(spec).graph
    except Exception:  # of the script's code, any: if it is a fault of the script, its real step raises it, too
        return None


@contextlib.contextmanager
def unnoticed(restores: bool = True) -> Iterator[None]:
    """What is traced within it prints nothing; with `restores`, no random numbers of Python and NumPy are used up."""
    states = random.getstate(), np.random.get_state()
    try:
        with contextlib.redirect_stdout(io.StringIO()), _no_warnings(), output.unsaid():
            yield
    finally:
        if restores:
            random.setstate(states[0])
            np.random.set_state(states[1])


@contextlib.contextmanager
def _no_warnings() -> Iterator[None]:
    """Within it nothing warns. `warnings.catch_warnings` would have all that was shown be shown once more later."""
    before = warnings.warn
    warnings.warn = lambda *args, **kwargs: None
    try:
        yield
    finally:
        warnings.warn = before


def _flat(spec: Any) -> list[Any]:
    import tensorflow as tf

    return tf.nest.flatten(spec)


def _fixed_rows(part: Any) -> int | None:
    shape = getattr(part, "shape", None)
    return shape[0] if shape is not None and shape.rank else None


def _with_rows(spec: Any, rows: int | None) -> Any:
    import tensorflow as tf

    def fill(part: Any) -> Any:
        if not isinstance(part, tf.TensorSpec) or not part.shape.rank:
            return part
        return tf.TensorSpec([rows, *part.shape[1:]], part.dtype)

    return tf.nest.map_structure(fill, spec)


def _of_keras(thing: Any) -> bool:
    return str(getattr(thing, "__module__", "")).startswith(("keras.", "tf_keras."))


def _is_built(model: Any) -> bool:
    """Whether tracing makes no layer's weights. A model that is never called has none but those of its layers."""
    own = not _of_keras(getattr(type(model), "build", None))
    return all(getattr(layer, "built", True) for layer in metrics.layers_of(model) if layer is not model or own)


def _has_own_code(model: Any, step: str) -> bool:
    """Whether a step may be something else than a mean over rows: by the script's own step, layers or losses."""
    if not all(_of_keras(getattr(type(model), name, None)) for name in (step, "compute_loss", "call")):
        return True
    if any(map(_may_mix_rows, metrics.layers_of(model))):
        return True
    # Of a functional model of Keras 3: functions of keras.ops.
    if any(not hasattr(one, "add_weight") for one in getattr(model, "operations", None) or ()):
        return True
    own = [loss for loss in _flat(getattr(model, "loss", None)) if callable(loss)]
    return any(not _of_keras(loss) or type(loss).__name__ in _OF_THE_BATCH for loss in own)


def _may_mix_rows(layer: Any) -> bool:
    """Whether a layer of a model may do something with rows of a batch that no layer of Keras does by itself."""
    if not _of_keras(type(layer)) or type(layer).__name__ in _OF_FUNCTIONS:
        return True
    axes = [getattr(layer, name, None) for name in ("axis", "axes")]
    if any(axis == 0 for axis in _flat(axes) if isinstance(axis, int)):
        return True
    regularizer = getattr(layer, "activity_regularizer", None)
    if regularizer is not None and type(regularizer).__name__ not in _SUMS_OVER_ROWS:
        return True
    return any(callable(value) and not _is_of_library(value) for value in vars(layer).values())


def _is_of_library(thing: Any) -> bool:
    """Whether a callable part of a layer is one of Keras' or TensorFlow's, or a wrapper of ours around such a one."""
    while hasattr(thing, "__wrapped__"):
        thing = thing.__wrapped__
    module = getattr(thing, "__module__", None) or type(thing).__module__
    return str(module).startswith(("keras.", "tf_keras.", "tensorflow.", "matex_tf."))


def _own_accounts(model: Any) -> set[int]:
    """The ids of the handles of variables in which the ranks' parts may stand: those of metrics and optimizers."""
    kept = [metrics.variables_of(model)]
    for value in (*vars(model).values(), getattr(model, "optimizer", None)):
        if hasattr(value, "apply_gradients"):
            kept.append(value.variables() if callable(value.variables) else value.variables)
    found = (gradients.underlying(variable) for variables in kept for variable in variables)
    return {id(variable.handle) for variable in found if hasattr(variable, "handle")}
