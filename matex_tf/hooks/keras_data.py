"""The data of Keras' `fit`, `evaluate` and `predict`: each rank's own rows, and batches of its own in weak scaling."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

from matex_tf.runtime.keras_table import KerasTable
from matex_tf.sharding import share_arrays
from matex_tf.steps import own_arrays, own_data, weak_scaling
from matex_tf.world import world

_TRAINING, _TESTED = "the training data of fit", "the data of evaluate"


HOOKS = KerasTable()

_TRAINERS = ("backend.tensorflow.trainer:TensorFlowTrainer", "engine.training:Model")
_LOST = "data of each rank's own is taken for that of all ranks"


def _replace_method(name: str) -> Any:
    return HOOKS.replace_in(_LOST, *(f"{owner}.{name}" for owner in _TRAINERS))


def _wrap_with(prepare: Callable[[dict[str, Any]], None]) -> Callable[[Any], Any]:
    """A wrapper of a method in which `prepare` changes the arguments, by name."""

    def wrap(original: Any) -> Any:
        signature = inspect.signature(original)

        def method(*args, **kwargs):
            if not world.is_active() or own_data.is_alone():
                return original(*args, **kwargs)
            bound = signature.bind(*args, **kwargs)
            prepare(bound.arguments)
            return original(*bound.args, **bound.kwargs)

        return method

    return wrap


def _is_dataset(x: Any) -> bool:
    return hasattr(x, "element_spec")


def _is_source(x: Any) -> bool:
    """Whether `x` is a dataset, a generator or another source of batches, and not arrays."""
    is_sequence = hasattr(x, "__getitem__") and hasattr(x, "on_epoch_end")
    return is_sequence or _is_dataset(x) or hasattr(x, "__next__")


def _prepare_fit(given: dict[str, Any]) -> None:
    weak = weak_scaling.is_on()
    batch_size, steps = given.get("batch_size"), given.get("steps_per_epoch")
    given["validation_batch_size"] = given.get("validation_batch_size") or batch_size
    _prepare_validation(given)
    x = given.get("x")
    if _is_source(x):
        if _is_dataset(x):
            given["x"] = _prepare_dataset(x, _TRAINING)
        if weak and not _is_own(x):
            given["x"] = weak_scaling.group_source(x)
        return
    inputs = _take_inputs(given)
    if not inputs:
        return
    is_own = own_arrays.are_own(inputs, _TRAINING)
    factor = world.get_world().trainers if weak else 1
    if weak:
        weak_scaling.say_weak("the batch given to fit is each rank's own")
    if not is_own:
        given["batch_size"] = (batch_size or 32) * factor if weak else batch_size
        return
    inputs = _cut_validation(given, inputs)
    counts = own_arrays.count_rows(inputs, _TRAINING)
    batch_size = (batch_size or (-(-sum(counts) // steps) if steps else 32)) * factor
    shuffle = bool(given.get("shuffle", True))
    dealt = own_arrays.agree_on_deal(inputs, batch_size, shuffle, _TRAINING)
    _put_dataset(given, own_arrays.make_dataset(inputs, counts, batch_size, shuffle, dealt))
    given["shuffle"] = False  # the dataset does; Keras would say that it does not shuffle one


def _prepare_evaluate(given: dict[str, Any]) -> None:
    x = given.get("x")
    if given.get("kwargs", {}).get("_use_cached_eval_dataset"):
        return  # `fit` validates: its data are prepared
    if _is_dataset(x):
        given["x"] = _prepare_dataset(x, _TESTED)
    elif not _is_source(x) and (inputs := _take_inputs(given)) and own_arrays.are_own(inputs, _TESTED):
        _put_dataset(given, _make_tested(inputs, given.get("batch_size")))


def _take_inputs(given: dict[str, Any]) -> tuple[Any, ...]:
    """(x, y, sample_weight) of the arguments, without what is missing at the end."""
    inputs = [given.get(name) for name in ("x", "y", "sample_weight")]
    while inputs and inputs[-1] is None:
        inputs.pop()
    return tuple(inputs)


def _put_dataset(given: dict[str, Any], dataset: Any) -> None:
    given.update(x=dataset, y=None, sample_weight=None, batch_size=None)


def _prepare_dataset(dataset: Any, name: str) -> Any:
    return own_arrays.pad_batches(dataset, name) if _is_own(dataset) else dataset


def _is_own(x: Any) -> bool:
    return _is_dataset(x) and share_arrays.is_share(x)


def _make_tested(inputs: Any, batch_size: int | None) -> Any:
    counts = own_arrays.count_rows(inputs, _TESTED)
    return own_arrays.make_dataset(inputs, counts, batch_size or 32, False, share_arrays.Dealt())


def _prepare_validation(given: dict[str, Any]) -> None:
    data = given.get("validation_data")
    if _is_dataset(data):
        given["validation_data"] = _prepare_dataset(data, _TESTED)
    elif isinstance(data, (list, tuple)) and own_arrays.are_own(tuple(data), _TESTED):
        given["validation_data"] = _make_tested(tuple(data), given["validation_batch_size"])


def _cut_validation(given: dict[str, Any], inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The rows that train; the last `validation_split` of each rank's rows validate, as Keras takes them."""
    import tensorflow as tf

    share = given.pop("validation_split", 0.0)
    if not share or given.get("validation_data") is not None:
        return inputs

    def cut(part: Callable[[int], slice]) -> Any:
        def take(array: Any) -> Any:
            return None if array is None else array[part(math.floor(len(array) * (1.0 - share)))]

        return tuple(tf.nest.map_structure(take, one) for one in inputs)

    given["validation_data"] = _make_tested(cut(lambda at: slice(at, None)), given["validation_batch_size"])
    return cut(lambda at: slice(0, at))


def _make_batch_whole(given: dict[str, Any]) -> None:
    names = [name for name in ("x", "y", "sample_weight") if given.get(name) is not None]
    whole = own_data.make_arrays_whole([given[name] for name in names], "a call for a single batch")
    given.update(zip(names, whole))


@_replace_method("predict")
@_replace_method("predict_on_batch")
def _wrap_predict(original: Any) -> Any:
    """A rank predicts its own rows by itself: they are its answer. So are the rows of one that has others than all."""
    signature = inspect.signature(original)

    def predict(*args, **kwargs):
        import tensorflow as tf

        given = signature.bind(*args, **kwargs)
        x = given.arguments.get("x")
        if not world.is_active() or own_data.is_alone():
            return original(*args, **kwargs)
        if not (_is_own(x) if _is_source(x) else own_arrays.are_for_one(x, "the data of predict")):
            return original(*args, **kwargs)
        with own_data.compute_alone():
            given.arguments["x"], has_rows = own_arrays.prepare_alone(x)
            answer = original(*given.args, **given.kwargs)
        return answer if has_rows else tf.nest.map_structure(lambda rows: rows[:0], answer)

    return predict


_replace_method("fit")(_wrap_with(_prepare_fit))
_replace_method("evaluate")(_wrap_with(_prepare_evaluate))
_replace_method("train_on_batch")(_wrap_with(_make_batch_whole))
_replace_method("test_on_batch")(_wrap_with(_make_batch_whole))
