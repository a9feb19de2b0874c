"""A call of `fit` whose state is saved: what is saved, and when.

Ranks vote about every half second (`_Vote`) whether to save, and whether to leave the run: for a request to end
(`Run.end_request`), or for a change of the ranks by `--adapt=ranks` (`ask_change`).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from matex_tf import settings
from matex_tf.resilience import callback_state, random_state, run_state, serialization, state
from matex_tf.resilience.resumption import Phase, Resumption
from matex_tf.rewrite.graph_ops import has_sequence
from matex_tf.runtime import notes, objects, rank_records
from matex_tf.steps import events
from matex_tf.thread_flag import ThreadFlag
from matex_tf.world import membership, world

_CHECK_SECONDS = 0.5  # interval at which ranks agree whether to save
_MAX_CALLS_BETWEEN_CHECKS = 1000

is_nested = ThreadFlag()
"""Whether the innermost call of `fit` runs inside another call. Its state is not saved."""


def find_current() -> Fit | None:
    """The call of `fit` that runs in this thread, if its state is saved."""
    run = run_state.get_current()
    return None if run is None or is_nested else run.current_fit


class _Vote(NamedTuple):
    """What a rank sends to the others in a vote. A request counts on any rank, the other fields on rank 0 only."""

    request: str | None  # why the run is to end; None if it is not
    is_due: bool  # whether a state is to be saved
    stops: bool  # whether training stops (`model.stop_training`)
    calls_until_check: int  # the number of calls of `end_batch` until the next vote


class Fit:
    """A call of `fit`. Its number is the number of calls before it in the run. The constructor is collective."""

    def __init__(self, run: run_state.Run, model: Any):
        self.run = run
        self.model = model
        self.number = run.fits
        run.fits += 1
        saved = run.load_state(self.number)
        self.resumption = None if saved is None else Resumption(self, saved)  # None: there is no saved state
        self.first_epoch = 0  # the script's `initial_epoch`
        self.source: Any = None  # Keras' data source for training
        self.calls_python = False  # the script's Python code makes the batches
        self.are_rows_already_sharded = False  # the ranks already hold shards of the rows
        self.callbacks: Sequence[Any] = ()
        self._continued_logs: list[Any] = []  # see `callback_state.continue_logs`
        self.params: dict[str, Any] = {}  # Keras' parameters of callbacks: "epochs", and "steps" of an epoch if known
        # What is to be saved, and when ranks vote about it
        self.takes_turns = False  # ranks take turns at batches (`apart.turns`), and do not meet between batches
        self._mark_change: Callable[[str, float], None] | None = None  # see `ask_change`
        self._change_text = ""  # see `ask_change`
        self._epoch: int | None = None  # the running epoch; None before the first
        self._epoch_steps = self._steps_since_start = 0  # steps of the running epoch; of all since the start
        self._longest_epoch_steps = 0  # steps of the longest epoch that has ended
        self._logs: Any = None  # of the last step
        self._has_checked_random = False  # the step was searched for random ops whose state cannot be saved
        # Large arrays of callbacks when training began (`callback_state.find_large`): not saved while unchanged.
        self._large_arrays: dict[Any, Any] = {}
        # Ranks vote again after this number of calls of `end_batch`, each of one or several steps
        # (`steps_per_execution`). The number of calls since the last vote, and its time:
        self._calls_until_check, self._calls, self._last_check = 1, 0, time.monotonic()
        self._may_save = run.may_save(self.number)
        self._may_change = True  # False after a change that failed
        if saved is not None:
            run.epochs = saved["epochs"]
            position = f"epoch {saved['epoch'] + 1}, step {saved['step']} of call {self.number + 1} of fit"
            notes.print_note(
                "calls of fit that had ended before the restart are skipped"
                if saved["ended"]
                else f"resuming from the state saved at {position}"
            )
        run.current_fit = self

    @property
    def is_over(self) -> bool:
        """Whether the call had ended before the restart."""
        return self.resumption is not None and self.resumption.phase == Phase.OVER

    @property
    def is_resumed(self) -> bool:
        """Whether the call continues from a state inside it."""
        return self.resumption is not None and not self.is_over

    def close_fit(self) -> None:
        callback_state.leave_logs(self._continued_logs)
        self.run.current_fit = None

    def begin_training(self, callbacks: Sequence[Any], params: dict[str, Any]) -> None:
        """Called before the `callbacks` are told that training begins."""
        self.callbacks, self.params = callbacks, params or {}
        self._large_arrays = callback_state.find_large(callbacks)
        resumption = self.resumption
        if resumption is not None and not self.is_over:
            has_lines = resumption.epoch > self.first_epoch
            self._continued_logs = callback_state.continue_logs(callbacks, resumption.saved["log_bytes"], has_lines)

    def begin_epoch(self, epoch: int) -> None:
        """Called when an epoch begins. In the interrupted epoch, the steps before the saved step count as complete."""
        self._epoch, resumption = epoch, self.resumption
        self._epoch_steps = resumption.step if resumption is not None and resumption.is_before_saved_step else 0
        self._calls_until_check, self._calls, self._last_check = 1, 0, time.monotonic()

    def note_trained(self, plan: Any) -> None:
        """Called after a step of `plan` has trained. Steps whose result is discarded do not count."""
        if self.resumption is not None and self.resumption.phase < Phase.TRAINS:
            return
        if not self.run.has_trained:
            self.run.has_trained = True
            if world.get_world().local_rank == 0:
                rank_records.leave_file(rank_records.TRAINING)  # `matex run` looks for this file
        if self.resumption is None or self._has_checked_random:
            return
        self._has_checked_random = True
        if plan is not None and has_sequence(plan.traced.graph):
            notes.print_note(
                "the training step uses TensorFlow's random ops, whose state cannot be saved: from here on, its "
                "random numbers differ from those of an uninterrupted run"
            )

    def end_batch(self, step_count: int, logs: Any) -> None:
        """Called after `step_count` steps of an epoch; `logs` are those of the last step."""
        if self.resumption is not None:
            self.resumption.reach_step()  # not called yet if the last step was only replayed for its logs
        self._logs = logs
        self._steps_since_start += step_count - self._epoch_steps
        self._epoch_steps = step_count
        if self.takes_turns:
            return  # ranks vote where they meet: `keep_within`
        self._calls += 1
        if self._calls < self._calls_until_check or not self._may_save:
            return
        epoch_length = self.params.get("steps") or self._longest_epoch_steps
        if epoch_length and step_count >= epoch_length:
            return  # the last step of the epoch: `end_epoch` saves
        assert self._epoch is not None  # an epoch is running
        # Choose the number of calls until the next vote, from the seconds of a call since the last one. Ranks vote at
        # least four times in the interval of saves, if it is not 0.
        now = time.monotonic()
        call_seconds = (now - self._last_check) / self._calls
        check_seconds = min(_CHECK_SECONDS, settings.get_settings().save_seconds / 4 or _CHECK_SECONDS)
        calls_until_check = min(max(int(check_seconds / max(call_seconds, 1e-6)), 1), _MAX_CALLS_BETWEEN_CHECKS)
        self._calls_until_check = self._save_if_due(self._epoch, step_count, calls_until_check)
        self._calls, self._last_check = 0, now

    def ask_change(self, text: str, mark: Callable[[str, float], None]) -> None:
        """Let all ranks leave for a change of the run at the next vote. Call this on all ranks.

        Args:
            text: the change and its reason.
            mark: reports the change to `matex run`, given the saved position and the time at which saving began.
        """
        self._mark_change, self._change_text = mark, text

    def may_change(self) -> bool:
        """Whether the ranks may leave for a change, and no change is pending."""
        return self._may_change and self._may_save and not self.is_over and self._mark_change is None

    def count_left(self) -> int:
        """The remaining steps of this call; if unknown, the number of steps since its start."""
        epochs, steps = self.params.get("epochs"), self.params.get("steps") or self._longest_epoch_steps
        if not epochs or not steps or self._epoch is None:
            return self._steps_since_start
        return max((epochs - self._epoch) * steps - self._epoch_steps, 0)

    def is_due(self) -> bool:
        """If ranks take turns at batches: whether this rank requests a meeting (`keep_within`), to save or to end."""
        is_to_end = bool(self.run.end_request) and not self.model.stop_training
        return self._may_save and not self.is_over and (is_to_end or self.run.is_due())

    def keep_within(self, step: int) -> None:
        """Save if due, before `step` of the epoch. Called where ranks that take turns at batches meet. Collective."""
        assert self._epoch is not None  # an epoch is running
        self._save_if_due(self._epoch, step, 1)

    def end_epoch(self, epoch: int) -> None:
        """Called after callbacks were told that an epoch has ended."""
        self._longest_epoch_steps = max(self._longest_epoch_steps, self._epoch_steps)
        run, pause = self.run, settings.get_settings().pause
        run.epochs += 1
        if 0 < pause <= run.epochs and self._may_save:  # `matex tune --rungs` pauses its trials after so many epochs
            run.end_request = run.end_request or f"the rung of {pause} epochs"
        if self._may_save and epoch + 1 != self.params.get("epochs"):
            self._save_if_due(epoch + 1, 0, 1)

    def end_fit(self, history: Any) -> None:
        """Called after the call of `fit` has ended: save its end, and leave the run if asked to. Collective."""
        self._save_state("end", 0 if self._epoch is None else self._epoch + 1, 0, ended=True, history=history)
        requests = objects.allgather(self.run.end_request, "whether the run is to end")
        request = next((request for request in requests if request), None)
        if request:
            self.run.leave_run(request, f"the end of call {self.number + 1} of fit")

    def _save_if_due(self, epoch: int, step: int, calls_until_check: int) -> int:
        """Save if a state is due; leave the run if that is asked for or a change is pending. Collective.

        Returns:
            `calls_until_check` of rank 0.
        """
        stops = bool(self.model.stop_training)
        is_due = not stops and self.run.is_due()  # if training stops, the call ends soon, and its end is saved
        own_vote = _Vote(self.run.end_request, is_due, stops, calls_until_check)
        votes: list[_Vote] = objects.allgather(own_vote, "whether to save the state of the run")
        request = next((vote.request for vote in votes if vote.request), None)
        first_vote = votes[0]
        is_leaving = (request or self._mark_change) and not first_vote.stops
        started_at = time.monotonic()
        if is_leaving or first_vote.is_due:
            self._save_state("state", epoch, step)
        if is_leaving:
            position = f"epoch {epoch + 1}, step {step}" if step else f"the end of epoch {epoch}"
            position += f" of call {self.number + 1} of fit"
            mark = None
            if not request and self._mark_change is not None:
                mark = functools.partial(self._mark_change, position, started_at)
            self.run.leave_run(request, position, mark, self._change_text)
            # `leave_run` returns only if a change was asked for and the state could not be saved: train on without it.
            self._may_change, self._mark_change = False, None
        return first_vote.calls_until_check

    def _save_state(self, kind: str, epoch: int, step: int, ended: bool = False, history: Any = None) -> None:
        """Save the state before `step` of `epoch` (kind "state"), or after the call (kind "end"). Collective."""
        run, operation = self.run, "saving the state of the run"

        def save() -> None:  # repeated if a rank is lost meanwhile
            events.ranks_meet(operation)
            variables = state.read_values(self.model, self.source)
            if run.writer is not None:  # on rank 0
                content = {
                    "fit": self.number,
                    "epoch": epoch,
                    "step": step,
                    "epochs": run.epochs,
                    "ended": ended,
                    "ranks": world.get_world().trainers,
                    "variables": variables,
                    "logs": self._logs if serialization.is_plain(self._logs) else {},
                    "callbacks": callback_state.copy_states(self.callbacks, self._large_arrays),
                    "log_bytes": callback_state.measure_logs(self.callbacks),
                    "stop": bool(self.model.stop_training),
                    "history": None if history is None else callback_state.copy_states([history], {})[0],
                    "random": random_state.copy_states(),
                }
                # A "state" has the next number of all states of the run; an "end" has the number of its call.
                run.state_number += kind == "state"
                run.writer.write(kind, run.state_number if kind == "state" else self.number, content)
            run.saved_at = time.monotonic()

        membership.attempt_collectives(operation, save)
