"""One call of Keras' `fit`, `evaluate` or `predict`: how its data is sharded and what the ranks agree on."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from matex_tf import ops
from matex_tf.adapt import executor
from matex_tf.gradients import drift, reduction, variables
from matex_tf.keras import data_stage, local_training, model_variables, predict_call, step_check
from matex_tf.loops import explain
from matex_tf.metrics import metrics
from matex_tf.observe import bottlenecks, epochs
from matex_tf.resilience import elastic_step, fit_state
from matex_tf.runtime import notes, objects
from matex_tf.servers import asynchronous, local_sgd
from matex_tf.sharding import fingerprint, iteration, step_weight
from matex_tf.sharding.uneven import leases
from matex_tf.world import world

_state = threading.local()


def get_current() -> Run | None:
    """The innermost call that is under way in this thread."""
    stack = getattr(_state, "stack", None)
    return stack[-1] if stack else None


def get_current_fit() -> Run | None:
    """The innermost call that is under way in this thread, if it is one of `fit`."""
    run = get_current()
    return run if run is not None and run.kind == "fit" else None


@contextlib.contextmanager
def enter_call(kind: str, model: Any) -> Iterator[Run]:
    """Around a call of `kind` "fit", "evaluate" or "predict" on `model`."""
    stack = _state.__dict__.setdefault("stack", [])
    if any(call.turns is not None and call.turns.is_within for call in stack):
        raise world.RankError(
            f"{kind} was called within an epoch of asynchronous training, where each rank is at a batch of its own. "
            "Call it between epochs (on_epoch_end), or set MATEX_STRATEGY=allreduce"
        )
    local_sgd.average_current()  # what is validated or predicted is the same on all ranks
    this = Run(kind, model)
    # The call may stand within a step of a loop of the script's own, which goes on with its slice.
    before = step_weight.read_values() if not stack else None
    stack.append(this)
    if kind != "predict":
        metrics.count_apart(metrics.list_variables(model))
    try:
        if kind == "fit" and len(stack) == 1:
            this.kept = fit_state.begin_fit(model)
        if kind == "evaluate":
            this.agree_on_weights()
        yield this
        if this.unmade:
            this.check_weights(f"made in {kind}")
        if kind == "evaluate":
            this.compare_batches(stack)
        if len(stack) == 1:
            this.finish_call()
    finally:
        stack.pop()
        if this.kept is not None:
            this.kept.close_fit()
        if this.elastic is not None:
            this.elastic.close_training()
        if this.turns is not None:
            this.turns.close_turns()
        if this.averaging is not None:
            this.averaging.close_averaging()
        if before is not None:
            step_weight.go_back_to(before)


class Run:
    """The state of one call."""

    def __init__(self, kind: str, model: Any):
        self.kind = kind
        self.model = model
        self.training: data_stage.Stage | None = None
        self.stage: data_stage.Stage | None = None  # the last one
        self.stages = 0
        self.step = 0
        self.updates = reduction.count_updates()
        self.rows = 0
        self.pace: bottlenecks.Pace | None = None
        self.agreed = self.unmade = False
        self.kept: fit_state.Fit | None = None
        self.elastic: elastic_step.Training | None = None
        self.adapting: executor.Adapting | None = None
        self.averaging: local_sgd.Averaging | None = None
        self.slices = kind != "predict"
        self.callbacks: list[Any] = []
        self.epoch: epochs.Source | None = None  # of what `fit` trains on
        ops.records.mark_between_steps()
        fixed = step_check.has_fixed_batch(model)
        self.answer = predict_call.Answer(model, whole=fixed)
        if fixed:
            notes.print_note(
                "the model has a fixed batch size, so every rank computes whole batches. The result is right, training "
                "is no faster"
            )
            self.slices = False
            if kind == "fit":
                why = "its batches are of a fixed size, or each begins in the state in which the last one ends"
                asynchronous.say_not(f"fit on '{model.name}'", why)
                local_sgd.say_not(f"fit on '{model.name}'", "every rank computes whole batches")
        elif kind == "fit":
            self.averaging = local_training.begin_averaging(model, lambda: model_variables.list_variables(model))

    def decide_later(self, which: str, function: Any, make_anew: Callable[[], Any]) -> None:
        """Before the steps of the last stage, which call `function`: whether ranks can share them. Collective.

        A step that trains is traced no earlier than the script alone traces it, once its data are iterated: callbacks
        have begun by then, and may have set what it reads. `make_anew` makes the function again, where that is needed.
        """
        stages = [call.stage for call in _state.stack if call.stage is not None]
        if not stages:
            return
        stage = stages[-1]  # of what `fit` validates with it may be that of `fit`

        def decide() -> None:
            if not stage.decide_sharing(function, make_anew, self.callbacks):
                make_anew()
            if which == "train" and self.averaging is not None:
                self._begin_averaging(self.averaging, stage)
            if self.turns is not None:
                self.begin_step()

        if which == "train" and stage.pending is not None:
            iteration.prepare_iteration(stage.pending[1], decide)
        else:
            decide()

    def _begin_averaging(self, averaging: local_sgd.Averaging, stage: data_stage.Stage) -> None:
        met = step_check.is_made_whole(self.model, "train")
        if met or stage.whole:
            why = "rows of other ranks have a part in its step" if met else "every rank computes whole batches"
            local_sgd.say_not(f"fit on '{self.model.name}'", why)
            averaging.close_averaging()
            self.averaging = None
        else:
            averaging.say_averaging()

    def add_stage(self) -> data_stage.Stage:
        """The stage of the next data of this call: the first of `fit` trains, others validate."""
        self.stages += 1
        stage = self.stage = data_stage.Stage(self.model, trains=self.kind == "fit" and self.stages == 1)
        if executor.is_on() and not executor.find_obstacle():
            stage.shares = leases.Leases(are_for_good=not stage.trains)
        if stage.trains:
            self.training = stage
            stage.kept = self.kept
            if stage.weak:
                notes.print_note(
                    "weak scaling: the batch given to fit is each rank's own; a step computes "
                    f"{world.get_world().trainers} of them, an epoch takes that many times fewer steps, and learning "
                    "rates are left as they are"
                )
        return stage

    def begin_step(self) -> None:
        """Before a training step. Before the first the variables are the same on all ranks."""
        if not self.agreed:
            self.agree_on_variables()
        if self.step == 0:
            self.adapting = self.adapting or self._begin_adapting()
        if self.adapting is not None:
            self.adapting.begin_step()

    def _begin_adapting(self) -> executor.Adapting | None:
        """What shares out the steps of `fit` by the speed of ranks; said where that is asked for and cannot be."""
        if not executor.is_on():
            return None
        stage, why = self.training, executor.find_obstacle()
        if stage is None:
            why = "the model has a fixed batch size"
        elif stage.whole:
            why = "every rank computes whole batches"
        elif not why and stage.is_dealt:
            why = "its rows are each rank's own"
        if why or stage is None or stage.shares is None:
            executor.say_even("fit", why)
            return None
        return executor.Adapting("fit", bool(getattr(self.model, "jit_compile", False)), stage.shares)

    def agree_on_variables(self) -> bool:
        """Give all ranks the same values of the variables that are made; whether all are made. Collective."""
        self.agreed = model_variables.are_made(self.model)
        variables.synchronize_variables(model_variables.list_variables(self.model))
        return self.agreed

    def agree_on_weights(self) -> None:
        """Before `evaluate` or `predict`: all ranks have the same weights. Collective.

        What a step of a call of `fit` around this one has changed since its last check is an error where it differs.
        """
        self.unmade = not model_variables.are_made(self.model)
        training = [call.model for call in _state.stack if call.kind == "fit" and call.step]
        trained = [weight for model in training for weight in model.trainable_weights]
        names = variables.synchronize_variables(
            model_variables.list_weights(self.model), f"comparing the weights before {self.kind}", trained
        )
        if names:
            notes.print_note(f"{self.kind}: the ranks' weights differ ('{names[0]}' is the first); all take rank 0's")

    def compare_batches(self, stack: list[Run]) -> None:
        """After `evaluate`: the ranks saw the same rows, of data of its own or of those that a call of `fit` keeps."""
        stage = next((call.stage for call in reversed(stack) if call.stage is not None), None)
        if stage is not None and not stage.trains and stage.compares:
            first, stage.first = stage.first, None
            fingerprint.compare_batch(first, "the first batch of evaluate")

    def check_weights(self, when: str) -> None:
        """No weights have drifted apart. Collective."""
        variables.check_drift(model_variables.list_weights(self.model), self.model.trainable_weights, when)

    def end_step(self) -> None:
        """After a training step. After the first of an epoch: the ranks saw the same rows."""
        if self.adapting is not None:
            self.adapting.end_step(step_weight.read_values)
        self.step += 1
        if self.averaging is not None:
            self.averaging.end_step()
        if self.training is not None and self.training.why_whole:
            explain.say_whole(self.training.why_whole)
            self.training.why_whole = ""
        if self.pace is None:
            self.pace = bottlenecks.Pace()
        self.pace.count_step()
        if not self.agreed:
            # Variables that the first step made; the ranks' generators agree, so they should already be the same.
            self.agreed = True
            if self.averaging is not None:
                self.averaging.average_weights()
            variables.synchronize_variables(model_variables.list_variables(self.model))
        if self.step == 1 and self.training is not None and self.training.compares:
            first, self.training.first = self.training.first, None
            self.rows = first[0] if first else 0
            fingerprint.compare_batch(first, "the first batch of an epoch of fit")

    def end_epoch(self, epoch: int) -> None:
        """At the end of an epoch: no weights have drifted apart."""
        self.end_turns()
        if self.averaging is not None:
            self.averaging.average_weights()
        self.step = 0
        if self.elastic is not None:
            self.elastic.end_epoch()
        if self.turns is not None:
            self.turns.forget_counts()
        ops.records.mark_between_steps()
        if self.pace is not None:
            self.pace.rows = self.rows
            self.pace.whole_pipeline = self.training.whole_pipeline if self.training is not None else None
            self.pace.judge_steps()
            self.pace = None
        self.check_weights(f"at the end of epoch {epoch + 1}")
        drift.leave_out(-self.updates + (done := reduction.count_updates()))
        self.updates = done

    def finish_call(self) -> None:
        """At the end of a call of its own: metrics that Keras 2 counts among the weights are the same on all ranks."""
        if self.turns is not None:
            self.turns.report_turns()
        if self.kind != "predict":
            metrics.store_whole_state(model_variables.list_counted(self.model))

    @property
    def turns(self) -> asynchronous.Turns | None:
        """Those that ranks take at whole batches, if they do."""
        return self.training.turns if self.training is not None else None

    def end_turns(self) -> None:
        """Where an epoch of taking turns ends, the ranks meet. Collective there, else nothing."""
        if self.turns is not None:
            if self.model.stop_training:
                self.turns.stop_epoch()
            self.turns.end_epoch()

    def agree_to_stop(self) -> None:
        """If a callback on any rank has stopped training, stop it on all. Collective."""
        stops = objects.allgather(bool(self.model.stop_training), "whether a callback stops training")
        if any(stops):
            if not all(stops) and self.turns is None:
                ranks = [rank for rank, stop in enumerate(stops) if stop]
                notes.print_note(
                    f"a callback stopped training on rank {ranks[0]} and not on every rank; all ranks stop"
                )
            self.model.stop_training = True
