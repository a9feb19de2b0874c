"""Keras `fit` and `evaluate`: each rank computes its slice of every batch, and logs are those of all the data.

The pipeline is sliced ahead of the step and carries the step's numbers beside the rows (`sliced_dataset.Batch`); the
training step unpacks them. Keras' own training step leaves its gradients to the optimizer, which reduces them.
"""

from __future__ import annotations

import inspect
from contextlib import nullcontext
from typing import Any

from matex_tf.analysis import verdict
from matex_tf.gradients import local_gradients, row_mixing
from matex_tf.keras import data_stage, fit_call, local_training, single_batch, step_check
from matex_tf.loops import model_calls, traces
from matex_tf.metrics import metrics
from matex_tf.patches.keras import fast_forward, resume
from matex_tf.resilience import elastic, elastic_step
from matex_tf.runtime import script_frames
from matex_tf.runtime.keras_table import KerasTable
from matex_tf.servers import asynchronous, taken_batches
from matex_tf.sharding import fingerprint, sliced_dataset, step_weight
from matex_tf.world import membership, world

HOOKS = KerasTable()

_LOST = "each rank computes all of fit and evaluate"


def _wrap_call(kind: str) -> Any:
    def make(original: Any) -> Any:
        def method(self, *args, **kwargs):
            if not world.is_active():
                return original(self, *args, **kwargs)
            if kind == "evaluate" and elastic.is_on():
                source = kwargs.get("x", args[0] if args else None)
                return elastic.attempt_work(
                    kind, lambda: _evaluate(self, source, args, kwargs), elastic_step.make_undo(source)
                )
            return _call(self, args, kwargs)

        def _evaluate(self, source, args, kwargs):
            fit = fit_call.get_current_fit()
            if fit is not None and fit.elastic is not None:
                fit.elastic.end_epoch()
            if fit is not None and fit.turns is not None:
                fit.turns.forget_counts()
            if elastic.count_losses():
                if hasattr(source, "__next__"):
                    raise membership.make_loss_error("what a generator had given to validate with does not come again")
                # What was made for the ranks of before would give a part of the batches.
                kwargs.pop("_use_cached_eval_dataset", None)
            return _call(self, args, kwargs)

        def _call(self, args, kwargs):
            with fit_call.enter_call(kind, self) as call:
                if call.kept is not None:
                    return resume.resume_fit(original, self, call.kept, args, kwargs)
                return original(self, *args, **kwargs)

        return method

    return make


HOOKS.replace_in(_LOST, "backend.tensorflow.trainer:TensorFlowTrainer.fit", "engine.training:Model.fit", takes="x")(
    _wrap_call("fit")
)
HOOKS.replace_in(
    _LOST,
    "backend.tensorflow.trainer:TensorFlowTrainer.evaluate",
    "engine.training:Model.evaluate",
    takes="x",
)(_wrap_call("evaluate"))


@HOOKS.replace_in(
    _LOST,
    "backend.tensorflow.trainer:TensorFlowTrainer.train_on_batch",
    "engine.training:Model.train_on_batch",
    takes="x y sample_weight",
)
def _wrap_train_on_batch(original: Any) -> Any:
    signature = inspect.signature(original)

    def train_on_batch(self, *args, **kwargs):
        if not world.is_active() or fit_call.get_current() is not None:
            return original(self, *args, **kwargs)
        given = signature.bind(self, *args, **kwargs).arguments
        batch = {name: given[name] for name in ("x", "y", "sample_weight") if given.get(name) is not None}
        with single_batch.enter_step(self, batch):
            return original(**given)

    return train_on_batch


def _wrap_make_function(which: str) -> Any:
    def make(original: Any) -> Any:
        def make_function(self, *args, **kwargs):
            if not world.is_active():
                return original(self, *args, **kwargs)
            step = f"{which}_step"
            if step not in vars(self):
                # On the instance, because subclasses have training steps of their own.
                vars(self)[step] = _unpack_batches(getattr(self, step), self, which)
            before = getattr(self, f"{which}_function", None)
            result = original(self, *args, **kwargs)
            if which == "test":
                elastic.forget_after_loss(self, "test_function")
            made = getattr(self, f"{which}_function")
            if made is not before:
                step_check.forget_step(self, which)
            if which == "train" and made is not before:
                self.train_function = _wrap_train_function(self, made)
                # Keras 2 takes the function from what is returned, Keras 3 from the model.
                result = self.train_function if result is made else result
            call = fit_call.get_current()
            if call is not None and call.model is self:
                call.decide_later(which, getattr(made, "plain", made), lambda: _remake_step(self, which, original))
            return result if which == "train" else getattr(self, f"{which}_function")

        return make_function

    return make


HOOKS.replace_in(
    _LOST,
    "backend.tensorflow.trainer:TensorFlowTrainer.make_train_function",
    "engine.training:Model.make_train_function",
)(_wrap_make_function("train"))
HOOKS.replace_in(
    _LOST,
    "backend.tensorflow.trainer:TensorFlowTrainer.make_test_function",
    "engine.training:Model.make_test_function",
)(_wrap_make_function("test"))


def _remake_step(model: Any, which: str, make: Any) -> Any:
    """What the model calls for a step, made once more.

    A trace that failed leaves functions in a state in which they can make no variables; one for slices is not one for
    whole batches in which the calls of the model are shared, nor one in which values are made whole.
    """
    setattr(model, f"{which}_function", None)
    make(model)
    made = getattr(model, f"{which}_function")
    if not step_check.is_made_whole(model, which):
        step_check.note_made_for_whole(made)
    if which == "train":
        model.train_function = _wrap_train_function(model, made)
    return made


def _unpack_batches(step: Any, model: Any, which: str) -> Any:
    def with_numbers(data):
        if isinstance(data, taken_batches.Taken):
            return _call_in_turn(step, data.data)
        if not isinstance(data, (sliced_dataset.Batch, sliced_dataset.OwnBatch)):
            return step(data)
        import tensorflow as tf

        step_weight.set_values(sliced_dataset.find_numbers(data))
        if tf.executing_eagerly():
            return step(data.data)
        call = fit_call.get_current()
        if which == "train" and call is not None and call.training is not None and call.training.is_model_shared():
            with model_calls.share_models(call.model is model and not getattr(model, "jit_compile", False)):
                return step(data.data)
        is_met = step_check.is_made_whole(model, which)
        is_own = which == "train" and call is not None and call.averaging is not None and not is_met
        with (
            row_mixing.resolve_mixing(is_met),
            local_gradients.keep_local(local_training.list_trained(model)) if is_own else nullcontext(),
        ):
            traces.declare_rows(data.data)
            row_mixing.watch_graph(tf.compat.v1.get_default_graph())
            logs = traces.make_outputs_whole(script_frames.call_as_script(step, data.data))
        step_check.note_traced(model, which, verdict.find_failure(tf.compat.v1.get_default_graph()))
        return logs

    return with_numbers


def _call_in_turn(step: Any, data: Any) -> Any:
    """The step on a whole batch that this rank trains by itself."""
    call = fit_call.get_current()
    proof = call.training.proof if call is not None and call.training is not None else None
    if proof is None:
        return step(data)
    with proof.enter_trace():
        return step(data)


def _wrap_train_function(model: Any, function: Any) -> Any:
    def train_function(iterator):
        if made.generation != elastic.count_losses():
            return elastic_step.remake_function(model)(iterator)
        run = fit_call.get_current()
        if run is None or run.model is not model:
            return function(iterator)
        if run.kept is not None and run.kept.needs_step():
            iterator = resume.take_first_step(run.kept, function, iterator)
        if run.training is not None and run.training.gives_whole_batches:
            return _run_step_of_fewer(run, run.training, iterator)
        if run.turns is not None:
            return _run_step_in_turn(run.turns, function, iterator)
        elastic.refuse_after_loss("this call of fit")
        run.begin_step()
        logs = function(iterator)
        if run.epoch is not None:
            run.epoch.end_batches(fast_forward.read_steps_per_execution(model))
        run.end_step()
        return logs

    made: Any = train_function
    made.plain, made.generation = function, elastic.count_losses()
    return made


def _run_step_in_turn(turns: asynchronous.Turns, function: Any, iterator: Any) -> Any:
    import tensorflow as tf

    try:
        logs = function(iterator)
    except tf.errors.OutOfRangeError:
        turns.note_end_of_data()
        raise
    turns.note_trained()
    return logs


def _run_step_of_fewer(run: fit_call.Run, stage: data_stage.Stage, iterator: Any) -> Any:
    """A step that fewer ranks can make again."""
    import tensorflow as tf

    most = fast_forward.read_steps_per_execution(run.model)
    try:
        batches = fast_forward.take_batches(iterator, most)
    except tf.errors.OutOfRangeError:
        if run.elastic is None:
            raise
        return run.elastic.run_end()
    if run.elastic is None:
        run.elastic = elastic_step.Training(run.model, stage)
    run.begin_step()
    if run.step == 0:
        stage.first = fingerprint.digest_batch(batches[0])
        run.elastic.begin_epoch()
    logs = run.elastic.run_step(batches, iterator.element_spec, most)
    run.end_step()
    return logs


@HOOKS.replace_in("a model is built by the shapes of a slice", "trainers.trainer:Trainer._symbolic_build")
def _wrap_build(original: Any) -> Any:
    def _symbolic_build(self, *args, **kwargs):
        ours = (sliced_dataset.Batch, sliced_dataset.OwnBatch, taken_batches.Taken)
        args = tuple(part.data if isinstance(part, ours) else part for part in args)
        kwargs = {key: part.data if isinstance(part, ours) else part for key, part in kwargs.items()}
        return original(self, *args, **kwargs)

    return _symbolic_build


@HOOKS.replace_in("async training logs a rank's own figures", "trainers.trainer:Trainer._get_metrics_result_or_logs")
def _wrap_epoch_figures(original: Any) -> Any:
    def _get_metrics_result_or_logs(self, logs):
        run = fit_call.get_current_fit()
        if run is not None and run.model is self and run.turns is not None:
            run.end_turns()
            logs = run.turns.choose_last(logs)
        return original(self, logs)

    return _get_metrics_result_or_logs


@HOOKS.replace_in(
    "the figures of fit are those of a rank's slice",
    "trainers.trainer:Trainer.get_metrics_result",
    "engine.training:Model.get_metrics_result",
)
def _wrap_metrics_result(original: Any) -> Any:
    def get_metrics_result(self):
        if not world.is_active() or metrics.is_in_whole_state() or step_weight.is_alone():
            return original(self)
        import tensorflow as tf

        run = fit_call.get_current()
        if run is not None and run.model is self and tf.executing_eagerly():
            run.end_turns()

        def whole_result() -> Any:
            with metrics.hold_whole_state([variable for metric in self.metrics for variable in metric.variables]):
                return metrics.copy_result(original(self))

        return membership.attempt_collectives("the metrics", whole_result) if tf.executing_eagerly() else whole_result()

    return get_metrics_result
