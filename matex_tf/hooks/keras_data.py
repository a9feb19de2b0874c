"""Prepares the data that a script gives to Keras' `fit`, `evaluate` and `predict`, if they are each rank's own rows.

Such data are arrays or datasets of `matex_tf.shard`, or of a reader. Ranks may have different numbers of rows, and must
make equally many steps. So `fit` and `evaluate` get a dataset in place of arrays, with this rank's share of the rows of
each step (`own_arrays`). In `predict` each rank computes its rows by itself. Data that all ranks have whole stay as
they are, except in weak scaling, where the batch of `fit` becomes one batch for each rank.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

from matex_tf.lazy import tf
from matex_tf.runtime.keras_table import KerasTable
from matex_tf.sharding import shard_arrays
from matex_tf.steps import agreement, events, own_arrays, own_data, weak_scaling
from matex_tf.world import world

_TRAINING, _TESTED = "the training data of fit", "the data of evaluate"
_INPUTS = ("x", "y", "sample_weight")
_BATCH_SIZE = 32  # Keras' default
_state = threading.local()  # `kind`: "fit" or "predict" before Keras has prepared the data of such a call, else ""

HOOKS = KerasTable()
_TRAINERS = ("models.model:Model", "engine.training:Model")
_IF_HOOK_MISSING = "rows of each rank's own are taken for rows of all ranks"


def _replace_method(name: str) -> Any:
    return HOOKS.replace_in(_IF_HOOK_MISSING, *(f"{owner}.{name}" for owner in _TRAINERS))


def _is_source(data: Any) -> bool:
    """Whether `data` is a dataset, a generator or another source of batches, and not arrays."""
    is_sequence = hasattr(data, "__getitem__") and hasattr(data, "on_epoch_end")
    return is_sequence or hasattr(data, "element_spec") or hasattr(data, "__next__")


def _prepare(arguments: dict[str, Any], trains: bool) -> None:
    """Change the arguments of the object from which Keras takes batches, so that ranks can share the steps.

    arguments: by name, as Keras passes them to that object.
    trains: the data are the training data of `fit`.
    """
    name = _TRAINING if trains else _TESTED
    is_weak = trains and weak_scaling.is_on()
    x, batch_size, steps = arguments.get("x"), arguments.get("batch_size"), arguments.get("steps_per_epoch")
    if _is_source(x):
        if _is_own(x):
            arguments["x"] = own_arrays.pad_batches(x, name)
        elif is_weak:
            arguments["x"] = weak_scaling.group_source(x)
        return
    # Any other data are arrays.
    inputs = _list_inputs(arguments)
    if not inputs:
        return
    are_own = own_arrays.are_own(inputs, name)
    factor = 1  # by which the batch size grows
    if is_weak and (batch_size or not steps):
        factor = world.get_world().trainers
        weak_scaling.say_weak("the batch given to fit is each rank's own")
    elif is_weak:  # with `steps_per_epoch` and no batch size, the number of steps stays
        weak_scaling.say_steps_decide()
    if not are_own:
        if factor > 1:
            arguments["batch_size"] = (batch_size or _BATCH_SIZE) * factor
        return
    # A dataset of this rank's own rows replaces the arrays.
    row_counts = own_arrays.count_rows(inputs, name)
    if not batch_size:
        batch_size = -(-sum(row_counts) // steps) if steps else _BATCH_SIZE  # rounded up
    batch_size *= factor
    shuffle = bool(arguments.get("shuffle"))
    dealt = own_arrays.agree_on_deal(inputs, batch_size, shuffle, name) if trains else shard_arrays.Dealt()
    dataset = own_arrays.make_dataset(inputs, row_counts, batch_size, shuffle, dealt)
    # The dataset shuffles by itself. With shuffle=True, Keras would warn that it does not shuffle a dataset.
    arguments.update(x=dataset, y=None, sample_weight=None, batch_size=None, shuffle=False)


def _list_inputs(arguments: dict[str, Any]) -> tuple[Any, ...]:
    """(x, y, sample_weight) of the arguments, without the None values at the end."""
    inputs = [arguments.get(name) for name in _INPUTS]
    while inputs and inputs[-1] is None:
        inputs.pop()
    return tuple(inputs)


def _is_own(data: Any) -> bool:
    return hasattr(data, "element_spec") and shard_arrays.is_shard(data)


@contextlib.contextmanager
def _call_kind(kind: str) -> Iterator[None]:
    """A context of a call of "fit" or "predict". Only the first data that Keras prepares in it are the call's data."""
    _state.kind = kind
    try:
        yield
    finally:
        _state.kind = ""


@_replace_method("fit")
def _wrap_fit(original: Any) -> Any:
    signature = inspect.signature(original)

    def fit(*args, **kwargs):
        call = signature.bind(*args, **kwargs)
        if agreement.is_watched():
            _cut_validation(call.arguments)
        with _call_kind("fit"):
            return original(*call.args, **call.kwargs)

    return fit


def _cut_validation(arguments: dict[str, Any]) -> None:
    """Split off the last `validation_split` of each rank's own rows, as Keras does; a rank may have no row."""
    fraction, inputs = arguments.get("validation_split") or 0.0, _list_inputs(arguments)
    is_split = fraction and arguments.get("validation_data") is None and not _is_source(arguments.get("x"))
    if not is_split or not any(map(shard_arrays.is_shard, tf.nest.flatten(inputs))):
        return

    def slice_all(make_slice: Callable[[int], slice]) -> Any:
        def slice_rows(array: Any) -> Any:
            return None if array is None else array[make_slice(math.floor(len(array) * (1.0 - fraction)))]

        return tuple(tf.nest.map_structure(slice_rows, structure) for structure in inputs)

    arguments.update(zip(_INPUTS, slice_all(lambda split_index: slice(0, split_index))))
    arguments.update(validation_data=slice_all(lambda split_index: slice(split_index, None)), validation_split=0.0)


@HOOKS.replace_in(
    _IF_HOOK_MISSING, "trainers.epoch_iterator:EpochIterator.__init__", "engine.data_adapter:DataHandler.__init__"
)
def _wrap_source(original: Any) -> Any:
    signature = inspect.signature(original)

    def __init__(*args, **kwargs):
        kind, _state.kind = getattr(_state, "kind", ""), ""  # further data of the call are not its own (`_call_kind`)
        call = signature.bind(*args, **kwargs)
        if agreement.is_watched() and kind != "predict":
            events.ranks_meet("preparing data for Keras")
            _prepare(call.arguments, kind == "fit")
        original(*call.args, **call.kwargs)

    return __init__


@_replace_method("train_on_batch")
@_replace_method("test_on_batch")
def _wrap_batch(original: Any) -> Any:
    def compute_batch(*args, **kwargs):
        args, kwargs = own_data.make_arrays_whole((args, kwargs), "a call for a single batch")
        return original(*args, **kwargs)

    return compute_batch


def _predict_apart(original: Any, meets: bool) -> Any:
    """Let a rank predict by itself, if the data are its own rows or arrays that differ between ranks.

    meets: all ranks make the call. False: a rank with its own rows may make it alone.
    """
    signature = inspect.signature(original)

    def predict(*args, **kwargs):
        call = signature.bind(*args, **kwargs)
        x = call.arguments.get("x")
        if not agreement.is_watched():
            return original(*args, **kwargs)
        is_own = _is_own(x) if _is_source(x) else own_arrays.are_computed_alone(x, "the data of predict", meets)
        if not is_own:  # all ranks have the same data, and share the batches
            with _call_kind("predict"):
                return original(*args, **kwargs)
        # A rank without rows predicts a row of zeros, and returns no predictions.
        with own_data.compute_alone():
            call.arguments["x"], has_rows = own_arrays.prepare_alone(x)
            predictions = original(*call.args, **call.kwargs)
        return predictions if has_rows else tf.nest.map_structure(lambda rows: rows[:0], predictions)

    return predict


# Only `predict` compares the ranks' weights (`callbacks`), which all ranks must do together.
_replace_method("predict")(functools.partial(_predict_apart, meets=True))
_replace_method("predict_on_batch")(functools.partial(_predict_apart, meets=False))
