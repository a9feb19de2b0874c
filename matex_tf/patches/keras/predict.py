"""Keras `predict`: each rank computes its slice of every batch and gets the whole answer (see `predict_call`)."""

from __future__ import annotations

from typing import Any

from matex_tf.keras import fit_call, predict_call
from matex_tf.resilience import elastic, elastic_step
from matex_tf.runtime.keras_table import KerasTable
from matex_tf.sharding import sliced_dataset
from matex_tf.world import world

HOOKS = KerasTable()

_LOST = "each rank computes all of predict"


@HOOKS.replace_in(
    _LOST,
    "backend.tensorflow.trainer:TensorFlowTrainer.predict",
    "engine.training:Model.predict",
    takes="x",
)
def _wrap_predict(original: Any) -> Any:
    def predict(self, *args, **kwargs):
        if not world.is_active():
            return original(self, *args, **kwargs)
        source = kwargs.get("x", args[0] if args else None)
        instead = predict_call.stand_in(source)

        def work() -> Any:
            if instead is None:
                return shared(self, args, kwargs)
            import tensorflow as tf

            rest = {name: value for name, value in kwargs.items() if name != "x"}
            return tf.nest.map_structure(lambda part: part[:0], shared(self, (instead, *args[1:]), rest))

        return elastic.attempt_work("predict", work, elastic_step.make_undo(source)) if elastic.is_on() else work()

    def shared(self, args, kwargs):
        import tensorflow as tf

        with fit_call.enter_call("predict", self) as call:
            try:
                return original(self, *args, **kwargs)
            except (predict_call.OtherRows, tf.errors.InvalidArgumentError) as error:
                if not predict_call.fall_back_to_whole(self, error):
                    raise
        if call.answer.once:
            raise world.RankError(
                "predict cannot be sharded over the ranks: its outputs do not belong to the rows of its input, or "
                "the ranks see different rows. This showed when a part of the generator had been consumed; give "
                "predict arrays or a tf.data.Dataset."
            )
        with fit_call.enter_call("predict", self) as again:
            again.answer.whole = True
            return original(self, *args, **kwargs)

    return predict


@HOOKS.replace_in(
    _LOST,
    "backend.tensorflow.trainer:TensorFlowTrainer.make_predict_function",
    "engine.training:Model.make_predict_function",
)
def _wrap_make_predict_function(original: Any) -> Any:
    def make_predict_function(self, *args, **kwargs):
        if not world.is_active():
            return original(self, *args, **kwargs)
        if "predict_step" not in vars(self):
            # On the instance, because subclasses have steps of their own.
            vars(self)["predict_step"] = _wrap_step(self.predict_step)
        elastic.forget_after_loss(self, "predict_function")
        before = self.predict_function
        result = original(self, *args, **kwargs)
        made = self.predict_function
        if made is not before:
            self.predict_function = _watch_function(self, made)
            # Keras 2 takes the function from what is returned, Keras 3 from the model.
            result = self.predict_function if result is made else result
        return result

    return make_predict_function


def _wrap_step(step: Any) -> Any:
    def with_rows_of_all(data):
        if not isinstance(data, sliced_dataset.Batch):
            return step(data)
        return predict_call.gather_outputs(step(data.data), data)

    return with_rows_of_all


def _watch_function(model: Any, function: Any) -> Any:
    def predict_function(data):
        outputs = function(data)
        call = fit_call.get_current()
        if call is not None and call.kind == "predict" and call.model is model:
            call.answer.end_step()
        return outputs

    return predict_function
