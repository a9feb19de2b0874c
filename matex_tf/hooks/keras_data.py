"""The data of Keras' `fit`, `evaluate` and `predict`: each rank's own rows, and batches of its own in weak scaling."""

from __future__ import annotations

import contextlib
import inspect
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

from matex_tf.lazy import tf
from matex_tf.runtime.keras_table import KerasTable
from matex_tf.sharding import shard_arrays
from matex_tf.steps import events, own_arrays, own_data, weak_scaling
from matex_tf.world import world

_TRAINING, _TESTED = "the training data of fit", "the data of evaluate"
_state = threading.local()


HOOKS = KerasTable()

_TRAINERS = ("models.model:Model", "engine.training:Model")
_IF_HOOK_MISSING = "data of each rank's own is taken for that of all ranks"


def _replace_method(name: str) -> Any:
    return HOOKS.replace_in(_IF_HOOK_MISSING, *(f"{owner}.{name}" for owner in _TRAINERS))


def _is_dataset(x: Any) -> bool:
    return hasattr(x, "element_spec")


def _is_source(x: Any) -> bool:
    """Whether `x` is a dataset, a generator or another source of batches, and not arrays."""
    is_sequence = hasattr(x, "__getitem__") and hasattr(x, "on_epoch_end")
    return is_sequence or _is_dataset(x) or hasattr(x, "__next__")


def _prepare(given: dict[str, Any], trains: bool) -> None:
    """Change the arguments of a source of Keras' data, by name. `trains`: `fit` trains on it."""
    name = _TRAINING if trains else _TESTED
    weak = trains and weak_scaling.is_on()
    x, batch_size, steps = given.get("x"), given.get("batch_size"), given.get("steps_per_epoch")
    if _is_source(x):
        if _is_own(x):
            given["x"] = own_arrays.pad_batches(x, name)
        elif weak:
            given["x"] = weak_scaling.group_source(x)
        return
    inputs = _take_inputs(given)
    if not inputs:
        return
    is_own = own_arrays.are_own(inputs, name)
    factor = world.get_world().trainers if weak else 1
    if weak:
        weak_scaling.say_weak("the batch given to fit is each rank's own")
    if not is_own:
        given["batch_size"] = (batch_size or 32) * factor if weak else batch_size
        return
    counts = own_arrays.count_rows(inputs, name)
    batch_size = (batch_size or (-(-sum(counts) // steps) if steps else 32)) * factor
    shuffle = bool(given.get("shuffle"))
    dealt = own_arrays.agree_on_deal(inputs, batch_size, shuffle, name) if trains else shard_arrays.Dealt()
    dataset = own_arrays.make_dataset(inputs, counts, batch_size, shuffle, dealt)
    # The dataset shuffles; Keras would say that it does not shuffle one.
    given.update(x=dataset, y=None, sample_weight=None, batch_size=None, shuffle=False)


def _take_inputs(given: dict[str, Any]) -> tuple[Any, ...]:
    """(x, y, sample_weight) of the arguments, without what is missing at the end."""
    inputs = [given.get(name) for name in ("x", "y", "sample_weight")]
    while inputs and inputs[-1] is None:
        inputs.pop()
    return tuple(inputs)


def _is_own(x: Any) -> bool:
    return _is_dataset(x) and shard_arrays.is_shard(x)


@contextlib.contextmanager
def _begin(kind: str) -> Iterator[None]:
    """Within it the next source is of the data of a call of this `kind`, which makes none before."""
    _state.begun = kind
    try:
        yield
    finally:
        _state.begun = ""


@_replace_method("fit")
def _wrap_fit(original: Any) -> Any:
    signature = inspect.signature(original)

    def fit(*args, **kwargs):
        given = signature.bind(*args, **kwargs)
        if world.is_active() and not own_data.is_alone():
            _cut_validation(given.arguments)
        with _begin("fit"):
            return original(*given.args, **given.kwargs)

    return fit


def _cut_validation(given: dict[str, Any]) -> None:
    """The last `validation_split` of each rank's own rows validate, as Keras takes them; a rank may have no row."""
    share, inputs = given.get("validation_split") or 0.0, _take_inputs(given)
    is_cut = share and given.get("validation_data") is None and not _is_source(given.get("x"))
    if not is_cut or not any(map(shard_arrays.is_shard, tf.nest.flatten(inputs))):
        return

    def cut(part: Callable[[int], slice]) -> Any:
        def take(array: Any) -> Any:
            return None if array is None else array[part(math.floor(len(array) * (1.0 - share)))]

        return tuple(tf.nest.map_structure(take, one) for one in inputs)

    given.update(zip(("x", "y", "sample_weight"), cut(lambda at: slice(0, at))))
    given.update(validation_data=cut(lambda at: slice(at, None)), validation_split=0.0)


@HOOKS.replace_in(
    _IF_HOOK_MISSING, "trainers.epoch_iterator:EpochIterator.__init__", "engine.data_adapter:DataHandler.__init__"
)
def _wrap_source(original: Any) -> Any:
    signature = inspect.signature(original)

    def __init__(*args, **kwargs):
        kind, _state.begun = getattr(_state, "begun", ""), ""
        bound = signature.bind(*args, **kwargs)
        if world.is_active() and not own_data.is_alone() and kind != "predict":
            events.ranks_meet("preparing data for Keras")
            _prepare(bound.arguments, kind == "fit")
        original(*bound.args, **bound.kwargs)

    return __init__


@_replace_method("train_on_batch")
@_replace_method("test_on_batch")
def _wrap_batch(original: Any) -> Any:
    signature = inspect.signature(original)

    def call(*args, **kwargs):
        given = signature.bind(*args, **kwargs)
        names = [name for name in ("x", "y", "sample_weight") if given.arguments.get(name) is not None]
        inputs = [given.arguments[name] for name in names]
        given.arguments.update(zip(names, own_data.make_arrays_whole(inputs, "a call for a single batch")))
        return original(*given.args, **given.kwargs)

    return call


@_replace_method("predict")
@_replace_method("predict_on_batch")
def _wrap_predict(original: Any) -> Any:
    """A rank predicts its own rows by itself: they are its answer. So are the rows of one that has others than all."""
    signature = inspect.signature(original)

    def predict(*args, **kwargs):
        given = signature.bind(*args, **kwargs)
        x = given.arguments.get("x")
        if not world.is_active() or own_data.is_alone():
            return original(*args, **kwargs)
        if not (_is_own(x) if _is_source(x) else own_arrays.are_for_one(x, "the data of predict")):
            with _begin("predict"):
                return original(*args, **kwargs)
        with own_data.compute_alone():
            given.arguments["x"], has_rows = own_arrays.prepare_alone(x)
            answer = original(*given.args, **given.kwargs)
        return answer if has_rows else tf.nest.map_structure(lambda rows: rows[:0], answer)

    return predict
