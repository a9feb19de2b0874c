"""The data of Keras' `fit` and `evaluate`: its epoch iterator, and Keras 2's data handler, are given ranks' slices."""

from __future__ import annotations

import inspect
import itertools
import weakref
from typing import Any

from matex_tf.keras import data_stage, fit_call, single_batch
from matex_tf.observe import epochs
from matex_tf.runtime.keras_table import KerasTable
from matex_tf.sharding import iteration, sliced_dataset

HOOKS = KerasTable()

_LOST = "the data of fit, evaluate and predict are not sharded"

# Of Keras 2's data handlers: the stage, and whether the data are arrays.
_stages: weakref.WeakKeyDictionary[Any, tuple[data_stage.Stage, bool]] = weakref.WeakKeyDictionary()


@HOOKS.replace_in(_LOST, "trainers.epoch_iterator:EpochIterator.__init__", takes="x batch_size steps_per_epoch shuffle")
def _wrap_epoch_iterator(original: Any) -> Any:
    signature = inspect.signature(original)

    def __init__(self, *args, **kwargs):
        call = fit_call.get_current()
        if call is None:
            return original(self, *args, **kwargs)
        _note_epoch(call, self)
        if not call.slices:
            original(self, *args, **kwargs)
            self.data_adapter = _Whole(self.data_adapter, call)
            if call.kind == "predict":
                source = signature.bind(self, *args, **kwargs).arguments.get("x")
                arrays = None if _is_source(source) else getattr(self.data_adapter, "_inputs", source)
                call.answer.look_at(source, arrays, call.agree_on_weights)
            return None
        stage = call.add_stage()
        given = signature.bind(self, *args, **kwargs).arguments
        are_arrays = not _is_source(given.get("x"))
        batch_size = given.get("batch_size")
        if are_arrays:
            given["batch_size"] = stage.choose_batch_size(batch_size)
        given.pop("self")
        original(self, **given)
        adapter = self.data_adapter
        if are_arrays and hasattr(adapter, "_inputs"):
            stage.look_at(adapter._inputs, batch_size, given.get("steps_per_epoch"), given.get("shuffle"))
        stage.look_at_source(given.get("x"))
        self.data_adapter = _Distributed(adapter, call, stage, are_arrays)
        self._num_batches = self.data_adapter.num_batches
        stage.is_by_steps, stage.steps = hasattr(self, "_enumerate_iterator"), self.num_batches

    return __init__


@HOOKS.replace_in(
    "an epoch of async training is not shared", "trainers.epoch_iterator:EpochIterator._enumerate_iterator"
)
def _wrap_enumerate(original: Any) -> Any:
    """The steps of an epoch, of which a rank that takes turns makes some."""

    def _enumerate_iterator(self):
        steps = original(self)
        stage = self.data_adapter.stage if isinstance(self.data_adapter, _Distributed) else None
        if stage is None or not stage.trains:
            return steps
        return in_turn(self, stage, steps)

    def in_turn(self, stage, steps):
        first = list(itertools.islice(steps, 1))  # what is decided before the first iteration is so now
        steps = itertools.chain(first, steps)
        if stage.turns is None or not first:
            yield from steps
            return
        stage.first = None
        begins = first[0][0]  # later than 0 in a run that was started again
        left = [self.steps_per_epoch and self.steps_per_epoch - begins]
        left.append(self._num_batches and self._num_batches - self._steps_seen + 1)
        yield from stage.turns.iterate_epoch(
            steps, min(filter(None, left)), self._steps_seen - 1, _Pipeline(self, stage)
        )

    return _enumerate_iterator


def _note_epoch(call: fit_call.Run, iterator: Any) -> None:
    """What is told to `matex plan` of an epoch of `fit`, of which `iterator` (Keras 2: handler) gives the batches."""
    if call.kind != "fit" or call.epoch is not None:
        return

    def count_batches() -> int | None:
        if asked := getattr(iterator, "steps_per_epoch", None) or getattr(iterator, "_steps_per_epoch", None):
            return int(asked)
        # Keras 3 itself counts one batch too many where it learns the number in the first epoch.
        adapter, stage = getattr(iterator, "data_adapter", None), call.training
        known = getattr(iterator, "_inferred_steps", None) if adapter is None else adapter.num_batches
        return int(known) * epochs.count_own_batches(stage is not None and stage.is_dealt) if known else None

    call.epoch = epochs.make_source("what `fit` trains on", count_batches)


class _Pipeline:
    """That of an epoch in which ranks take turns."""

    def __init__(self, iterator: Any, stage: data_stage.Stage):
        self._iterator = iterator
        self._stage = stage

    def get_first(self) -> tuple[int, int] | None:
        return self._stage.first

    def note_end(self, place: int) -> None:
        self._iterator._steps_seen = place + 1  # as many as Keras has asked for then

    def raise_end(self) -> None:
        import tensorflow as tf

        raise tf.errors.OutOfRangeError(None, None, "End of sequence")


def _is_source(x: Any) -> bool:
    """Whether `x` is a dataset, a generator or another source of batches, and not arrays."""
    is_sequence = hasattr(x, "__getitem__") and hasattr(x, "on_epoch_end")
    return is_sequence or hasattr(x, "element_spec") or hasattr(x, "__next__")


class _Whole:
    """A data adapter of Keras whose batches every rank computes whole, unless `predict` can share them out."""

    def __init__(self, adapter: Any, call: fit_call.Run):
        self._adapter = adapter
        self._call = call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._adapter, name)

    def get_tf_dataset(self) -> Any:
        return _exempt_dataset(self._call, self._adapter.get_tf_dataset())


def _exempt_dataset(call: fit_call.Run, dataset: Any) -> Any:
    return call.answer.distribute_dataset(dataset) if call.kind == "predict" else iteration.exempt_dataset(dataset)


class _Distributed(_Whole):
    """A data adapter of Keras whose dataset is sharded."""

    def __init__(self, adapter: Any, call: fit_call.Run, stage: data_stage.Stage, are_arrays: bool):
        super().__init__(adapter, call)
        self.stage = stage
        self._are_arrays = are_arrays

    @property
    def num_batches(self) -> int | None:
        return self.stage.count_batches(self._adapter.num_batches, self._are_arrays)

    def get_tf_dataset(self) -> Any:
        return self.stage.distribute_dataset(self._adapter.get_tf_dataset(), self._are_arrays)


@HOOKS.replace_in(
    _LOST,
    keras2="engine.data_adapter:DataHandler.__init__",
    takes="x y sample_weight batch_size steps_per_epoch initial_epoch epochs shuffle",
)
def _wrap_handler(original: Any) -> Any:
    """Keras 2's counterpart of the epoch iterator."""
    signature = inspect.signature(original)

    def __init__(self, *args, **kwargs):
        call = fit_call.get_current()
        if call is None:
            return original(self, *args, **kwargs)
        _note_epoch(call, self)
        given = signature.bind(self, *args, **kwargs).arguments
        are_arrays = not _is_source(given.get("x"))
        if not call.slices:
            if call.kind == "predict":
                call.answer.look_at(given.get("x"), given.get("x") if are_arrays else None, call.agree_on_weights)
            return original(self, *args, **kwargs)
        stage = call.add_stage()
        batch_size = given.get("batch_size")
        if are_arrays:
            given["batch_size"] = stage.choose_batch_size(batch_size)
            arrays = tuple(
                part for part in (given.get("x"), given.get("y"), given.get("sample_weight")) if part is not None
            )
            stage.look_at(arrays, batch_size, given.get("steps_per_epoch"), given.get("shuffle"))
            stage.epochs = given.get("epochs", 1) - given.get("initial_epoch", 0)
        stage.look_at_source(given.get("x"))
        given.pop("self")
        # The adapter is made inside, and asked for its dataset and size there.
        _stages[self] = (stage, are_arrays)
        original(self, **given)

    return __init__


@HOOKS.replace_in(_LOST, keras2="engine.data_adapter:DataHandler._configure_dataset_and_inferred_steps")
def _wrap_handler_dataset(original: Any) -> Any:
    def _configure_dataset_and_inferred_steps(self, *args, **kwargs):
        found = _stages.get(self)
        call = fit_call.get_current()
        if found is None and call is not None:
            whole = self._adapter.get_dataset
            self._adapter.get_dataset = lambda: _exempt_dataset(call, whole())
        if found is not None:
            stage, are_arrays = found
            plain_dataset, plain_size = self._adapter.get_dataset, self._adapter.get_size
            self._adapter.get_dataset = lambda: stage.distribute_dataset(plain_dataset(), are_arrays)
            self._adapter.get_size = lambda: stage.count_batches(plain_size(), are_arrays)
        result = original(self, *args, **kwargs)
        if found is not None:
            found[0].element_spec = getattr(getattr(self, "_dataset", None), "element_spec", None)
        return result

    return _configure_dataset_and_inferred_steps


@HOOKS.replace_in(
    "class weights do not meet the rows of a slice",
    keras2="engine.data_adapter:_make_class_weight_map_fn",
)
def _wrap_class_weights(original: Any) -> Any:
    """Keras 2 maps class weights over the dataset that it is given: ours, whose elements hold numbers, too."""

    def make_class_weight_map_fn(class_weight):
        weigh = original(class_weight)

        def weigh_rows(*data):
            if len(data) != 1 or not isinstance(data[0], (sliced_dataset.Batch, sliced_dataset.OwnBatch)):
                return weigh(*data)
            rows = data[0].data
            return data[0]._replace(data=weigh(*rows) if type(rows) is tuple else weigh(rows))

        return weigh_rows

    return make_class_weight_map_fn


@HOOKS.replace_in(_LOST, keras2="engine.data_adapter:single_batch_iterator")
def _wrap_single_batch_iterator(original: Any) -> Any:
    def single_batch_iterator(*args, **kwargs):
        return single_batch.feed_slice(original(*args, **kwargs))

    return single_batch_iterator
