"""Keras `predict`: each rank computes its slice of every batch and gets the whole answer (see `answers`)."""

from __future__ import annotations

from typing import Any

from matex_tf import answers, elastic, elastic_fit, fitting, pipeline, world
from matex_tf.patches import replace


def install(model: type) -> None:
    """Patch `model`, the class of Keras' models that has `predict`."""
    replace(model, "predict", _predict)
    replace(model, "make_predict_function", _make_predict_function)


def _predict(original: Any) -> Any:
    def predict(self, *args, **kwargs):
        if not world.is_active():
            return original(self, *args, **kwargs)
        if not elastic.is_on():
            return shared(self, args, kwargs)
        source = kwargs.get("x", args[0] if args else None)
        return elastic.attempt("predict", lambda: shared(self, args, kwargs), elastic_fit.undo_of(source))

    def shared(self, args, kwargs):
        import tensorflow as tf

        with fitting.run("predict", self) as call:
            try:
                return original(self, *args, **kwargs)
            except (answers.OtherRows, tf.errors.InvalidArgumentError) as error:
                if not answers.give_up(self, error):
                    raise
        if call.answer.once:
            raise world.RankError(
                "predict cannot be shared out over the ranks: its outputs do not belong to the rows of its input, or "
                "the ranks see different rows. This showed when a part of the generator had been consumed; give "
                "predict arrays or a tf.data.Dataset."
            )
        with fitting.run("predict", self) as again:
            again.answer.whole = True
            return original(self, *args, **kwargs)

    return predict


def _make_predict_function(original: Any) -> Any:
    def make_predict_function(self, *args, **kwargs):
        if not world.is_active():
            return original(self, *args, **kwargs)
        if "predict_step" not in vars(self):
            # On the instance, because subclasses have steps of their own.
            vars(self)["predict_step"] = _whole_answer(self.predict_step)
        elastic.forget_after_loss(self, "predict_function")
        before = self.predict_function
        result = original(self, *args, **kwargs)
        made = self.predict_function
        if made is not before:
            self.predict_function = _watched(self, made)
            # Keras 2 takes the function from what is returned, Keras 3 from the model.
            result = self.predict_function if result is made else result
        return result

    return make_predict_function


def _whole_answer(step: Any) -> Any:
    def with_rows_of_all(data):
        if not isinstance(data, pipeline.Batch):
            return step(data)
        return answers.whole(step(data.data), data)

    return with_rows_of_all


def _watched(model: Any, function: Any) -> Any:
    def predict_function(data):
        outputs = function(data)
        call = fitting.current()
        if call is not None and call.kind == "predict" and call.model is model:
            call.answer.after_step()
        return outputs

    return predict_function
