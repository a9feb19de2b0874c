"""Keras' `fit` with `MATEX_STRATEGY=async`, in which ranks take turns at batches (`turns`).

Taking turns means: of the numbered batches of an epoch, each rank takes the next one that no rank has taken, and trains
it completely. `keras_fit` makes an `AsyncFit` for each call of `fit`. At its first epoch the ranks decide whether they
can take turns. If not, they report the obstacle, and train as with `allreduce` (`choice.report_fallback`). Within an
epoch a rank computes by itself; at its end the ranks meet: they have equal weights again, and combine their logs.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

from matex_tf import errors, settings
from matex_tf.apart import choice
from matex_tf.apart.epoch_metrics import EpochMetrics
from matex_tf.apart.shared_step import SharedStep
from matex_tf.apart.turns import Turns, read_bound
from matex_tf.lazy import tf
from matex_tf.resilience import run_state
from matex_tf.runtime import notes, objects
from matex_tf.steps import function_calls, own_data
from matex_tf.world import world


class _StepFoundError(Exception):
    """The plan of the step in a model's training function was found."""


class AsyncFit:
    """A call of `fit`. Its steps come from `source`, the first data source that it creates.

    is_within: it runs within another call, in which ranks take turns.
    """

    def __init__(self, model: Any, is_within: bool):
        self.model, self.source = model, None
        self._is_within = is_within
        self.turns: Turns | None = None
        self._callbacks: Any = ()
        self._has_begun = False  # an epoch has begun
        self._is_decided = False  # the ranks have decided whether they take turns
        self._step: SharedStep | None = None
        self._function: Any = None  # the train function of Keras whose copy is `_step`
        self._epoch_metrics = EpochMetrics()
        self._alone = contextlib.ExitStack()  # entered while this thread computes for its own rank only

    def begin(self, callbacks: Any) -> None:
        """Called when callbacks are told that training begins."""
        if self.source is None:  # in Keras 2
            choice.report_fallback("async", f"fit on '{self.model.name}'", "it is that of Keras 2")
        self._callbacks = getattr(callbacks, "callbacks", ())

    def begin_epoch(self) -> None:
        """Called when the next steps of the source are steps of an epoch of training."""
        self._has_begun = True

    def iterate_epoch(self, steps: Iterator[Any]) -> Iterator[Any]:
        """The steps that this rank computes, among `steps`, all steps of an epoch.

        A step is a tuple of Keras: the numbers of its first and last batch, and the iterator of the data.
        """
        # Before the first epoch, Keras may take a step only to build the model: it is no turn.
        first_steps = list(itertools.islice(steps, 1)) if self._has_begun else []
        steps = itertools.chain(first_steps, steps)
        if first_steps and not self._is_decided:
            self._is_decided = True
            self._decide(first_steps[0][-1])
        if self.turns is None or not first_steps:  # ranks take no turns, or there is no step
            yield from steps
            return
        source: Any = self.source
        first_number = first_steps[0][0]  # greater than 0 in a restarted run
        # The number of steps of this epoch: the lesser of the steps that the call asks for, and the batches left in the
        # iterator. Each may be None: unknown.
        step_limits = [source.steps_per_epoch - first_number] if source.steps_per_epoch else []
        if source._num_batches:
            step_limits.append(source._num_batches - source._steps_seen + 1)  # Keras has counted the first step as seen
        for step in self.turns.iterate_epoch(steps, min(step_limits)):
            if not own_data.is_alone():  # from now until the ranks meet, this thread computes for its own rank only
                self._alone.enter_context(own_data.compute_alone())
                self._alone.enter_context(function_calls.intercept_calls(self._run))
            yield step

    def _decide(self, iterator: Any) -> None:
        """Decide whether ranks take turns. Collective. If `async` is not chosen, `matex plan` only wants the reason."""
        source: Any = self.source
        why = "it is called within another one that trains so" if self._is_within else ""
        why = why or _find_obstacle(self.model, source.num_batches, iterator, self._callbacks)
        if choice.is_chosen("async") and not why:
            why = self._open_turns(source.num_batches, iterator)
        if why:
            choice.report_fallback("async", f"fit on '{self.model.name}'", why)

    def _open_turns(self, max_batches: int, iterator: Any) -> str:
        """Begin to take turns. Returns the reason if ranks cannot. Collective."""
        # Call Keras' train function only to find the plan of its step: `_find_step` ends the call. The dataset is
        # empty, so that eager code before the step trains nothing.
        empty_dataset = tf.data.Dataset.from_generator(lambda: iter(()), output_signature=iterator.element_spec)
        expected_errors = (_StepFoundError, StopIteration, tf.errors.OutOfRangeError)
        with function_calls.intercept_calls(self._find_step), contextlib.suppress(*expected_errors):
            self.model.train_function(iter(empty_dataset))
        step = self._step
        own_obstacle = "its step cannot be traced by itself" if step is None else step.why_not
        parts = [] if step is None else step.parts
        answers = objects.allgather((own_obstacle, parts), "whether ranks can take turns at batches")
        why = next((obstacle for obstacle, _ in answers if obstacle), "")
        if not why and any(parts != answers[0][1] for _, parts in answers):
            why = "its step changes variables in another order on each rank"
        if why or step is None:
            return why
        run = run_state.get_current()
        fit_state = run.current_fit if run is not None else None
        turns = Turns(step, max_batches, fit_state, self._note_meeting)
        if not turns.open_turns():
            return "the ranks have no memory in common, or too little of it is left"
        self.turns = turns
        if fit_state is not None:
            fit_state.takes_turns = True
        _report_turns()
        return ""

    def _find_step(self, original: Any, function: Any, args: Any, kwargs: Any) -> Any:
        plan = function_calls.find_plan(function, args, kwargs)
        if plan is not None:
            self._function, self._step = function, SharedStep(plan, self.model)
        raise _StepFoundError

    def _run(self, original: Any, function: Any, args: Any, kwargs: Any) -> Any:
        """A call of a `tf.function` in an epoch. Keras' train function takes a turn."""
        if function is not self._function or self.turns is None:
            return original(function, *args, **kwargs)
        return self.turns.run_step(args[0])

    def _note_meeting(self, is_stopped: bool) -> None:
        """The ranks have met: this thread again computes together with all ranks. is_stopped: see `Turns`."""
        self._alone.close()
        self._epoch_metrics.read_metrics(self.model)
        self.model.stop_training = self.model.stop_training or is_stopped

    def meet(self, doing: str) -> None:
        """Called before `doing`, for which all ranks must hold the same state. Ends an epoch that a callback has
        stopped, which is collective.

        Raises UnsupportedError within an epoch that goes on.
        """
        if self.turns is None or not self.turns.is_within:
            return
        if not self.model.stop_training:
            raise errors.UnsupportedError(
                f"{doing} was called within an epoch of asynchronous training, where each rank is at a batch of its "
                "own. Call it between epochs (on_epoch_end), or set MATEX_STRATEGY=allreduce"
            )
        self.turns.stop_epoch()
        self.turns.end_epoch()

    def update_logs(self, logs: dict[str, Any]) -> None:
        """Combine the ranks' logs of an epoch; a value that is no metric comes from the newest batch. Collective."""
        if self.turns is not None:
            self._epoch_metrics.update_logs(logs, lambda values: values[-1], order=self.turns.newest)

    def end(self) -> None:
        """Called after training has ended normally. Collective."""
        if self.turns is not None:
            self.turns.report_turns()

    def close(self) -> None:
        """Called after training has ended, also within an epoch."""
        self._alone.close()
        if self.turns is not None:
            self.turns.close_turns()


def _find_obstacle(model: Any, batches: int | None, iterator: Any, callbacks: Any) -> str:
    """Why ranks cannot take turns at the batches of a call of `fit`, as far as is known before its step is traced."""
    user_settings, current_world = settings.get_settings(), world.get_world()
    # `save_freq` is a number of batches, or "epoch".
    saving_callback = next(
        (callback for callback in callbacks if isinstance(getattr(callback, "save_freq", "epoch"), int)), None
    )
    reasons = {
        "the ranks are on several hosts, which have no memory in common": current_world.has_several_nodes,
        "with MATEX_SCALING=weak a batch is each rank's own already": user_settings.scaling == "weak",
        "with MATEX_MICROBATCH a model is called in parts": user_settings.microbatch,
        "its weights are in the memory of a GPU": tf.config.list_logical_devices("GPU"),
        "its data are each rank's own": own_data.is_own(iterator),
        "its number of batches is not known before they are read": batches is None,
        f"an epoch has {batches} batches, fewer than there are ranks": (batches or 0) < current_world.size,
        "XLA compiles its step (jit_compile=True)": getattr(model, "jit_compile", False),
        f"a callback, {type(saving_callback).__name__}, saves within an epoch": saving_callback,
    }
    return next((why for why, holds in reasons.items() if holds), choice.find_obstacle(model))


def _report_turns() -> None:
    description = "one at a time; the result is that of the script alone, but for draws of tf.random"
    if bound := read_bound():
        description = (
            f"at most {bound} ahead of the oldest under way; results are statistical, not those of the script alone"
        )
    notes.print_note(
        f"asynchronous: {world.get_world().size} ranks, whole batches in turn, {description} (docs/strategies.md)"
    )
