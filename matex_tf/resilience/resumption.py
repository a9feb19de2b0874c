"""The resumption of one call of `fit` in a restarted run: the saved state, and how far the call has come back to it.

`fit_hooks` and `data_hooks` call the methods of a `Resumption` as Keras comes to each place.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator, Sequence
from typing import Any

from matex_tf.resilience import callback_state, random_state, state
from matex_tf.runtime import notes
from matex_tf.world import world


class Progress(enum.Enum):
    """The progress of a call. The *saved step* is the position of the saved state: `step` steps of `epoch` were done.

    A call passes through the last four in this order; `NEW` and `OVER` remain.
    """

    NEW = "it has no saved state, and trains from its beginning"
    OVER = "it had ended before the restart, and is skipped"
    SKIPPING_EPOCHS = "epochs that had ended are skipped"
    AT_EPOCH = "the interrupted epoch is about to begin: the next steps of the data source are its steps"
    SKIPPING_STEPS = "steps of the interrupted epoch that are before the saved step are skipped"
    TRAINING = "the saved step was reached, and the state is restored"


class Resumption:
    """The saved state of a call of `fit`, and its progress. Without a saved state nothing is restored."""

    def __init__(self, model: Any, saved: Any):
        """saved: the content of the saved state (`Fit._save_state`); None if there is none."""
        self.model, self.saved, self.progress = model, saved, Progress.NEW
        if saved is not None:
            self.progress = Progress.OVER if saved["ended"] else Progress.SKIPPING_EPOCHS
        self.epoch: int = 0 if saved is None else saved["epoch"]  # of the saved state, as Keras counts
        self.step: int = 0 if saved is None else saved["step"]  # the complete steps of that epoch
        self.lacks_variables = False  # a saved variable does not exist yet
        self.has_created_variables = False  # an extra training step was run to create such variables
        # The data of the call, and its callbacks
        self.first_epoch = 0  # the script's `initial_epoch`
        self.source: Any = None  # Keras' data source for training
        self.calls_python = False  # the script's Python code makes the batches
        self.drawn: set[str] = set()  # the random generators that this code uses, by their names in `random_state`
        self.are_rows_already_sharded = False  # the ranks already hold shards of the rows
        self.iterator: Any = None  # Keras 2: the iterator of the interrupted epoch
        self.callbacks: Sequence[Any] = ()
        self._continued_logs: list[Any] = []  # see `callback_state.continue_logs`

    @property
    def is_over(self) -> bool:
        return self.progress is Progress.OVER

    @property
    def is_resumed(self) -> bool:
        """Whether the call continues from a state inside it."""
        return self.progress not in (Progress.NEW, Progress.OVER)

    @property
    def is_before_saved_step(self) -> bool:
        return self.is_resumed and self.progress is not Progress.TRAINING

    def report_start(self, number: int) -> None:
        """Tell the user where a call continues. number: the calls of `fit` before it."""
        if self.is_over:
            notes.print_note("calls of fit that had ended before the restart are skipped")
        elif self.is_resumed:
            position = f"epoch {self.epoch + 1}, step {self.step}"
            notes.print_note(f"resuming from the state saved at {position} of call {number + 1} of fit")

    def continue_logs(self) -> None:
        """Let callbacks append to their files of before the restart. Called before training begins."""
        if self.is_resumed:
            has_lines = self.epoch > self.first_epoch
            self._continued_logs = callback_state.continue_logs(self.callbacks, self.saved["log_bytes"], has_lines)

    def close(self) -> None:
        callback_state.leave_logs(self._continued_logs)

    def restore(self) -> None:
        """Restore those variables of the model that already exist, and the state of the callbacks."""
        saved_groups = self.saved["variables"]
        counts = state.load_values(self.model, self.source, saved_groups)
        if self.step == 0 and not self.is_over:  # an epoch begins with empty metrics
            saved_groups = {group: values for group, values in saved_groups.items() if group != state.METRICS}
        self.lacks_variables = any(counts.get(group, 0) < len(values) for group, values in saved_groups.items())
        callback_state.restore_states(self.callbacks, self.saved["callbacks"])

    def return_to_epoch(self) -> None:
        """Restore the state at the beginning of the interrupted epoch, or after a call that had ended."""
        if self.is_resumed:
            self.progress = Progress.AT_EPOCH
        self.restore()
        # If steps of this epoch are still to be skipped, their data may draw random numbers. Then `reach_step` restores
        # the generators.
        if self.step == 0:
            self.restore_random()

    def restore_random(self) -> None:
        """Restore the random generators, except those that the code of skipped data has advanced to the saved position.
        A call that had ended was saved after its last batch: all of its generators are restored.
        """
        random_state.restore_states(self.saved["random"], () if self.is_over else self.drawn)

    @contextlib.contextmanager
    def skip_data(self) -> Iterator[None]:
        """Context in which batches are skipped: notes in `drawn` which random generators their code uses."""
        old_states = random_state.copy_states() if self.calls_python else {}
        try:
            yield
        finally:  # the data may end here
            self.drawn |= random_state.find_drawn(old_states) if old_states else set()

    def reach_step(self) -> None:
        """Restore the state before the first step that is not skipped. Later calls do nothing.

        Raises:
            SetupError: the saved state belongs to another model.
        """
        if not self.is_before_saved_step:
            return
        self.progress = Progress.TRAINING
        if self.step > 0:  # Keras has called the callbacks' on_epoch_begin for this epoch again: undo its effects
            self.restore()
            self.restore_random()
        if self.lacks_variables:
            raise state.describe_difference("fewer variables", "more")
        if self.step > 0 and self.are_rows_already_sharded and self.saved["ranks"] != world.get_world().trainers:
            notes.print_note(
                f"the state was saved with {self.saved['ranks']} ranks, which held other rows: in "
                "this epoch some rows are used twice and some not at all"
            )

    def leave_ended(self, callbacks: Sequence[Any], history: Any) -> Any:
        """Restore the state at the end of a call with these `callbacks`. Returns its history, in place of `history`."""
        saved, model = self.saved, self.model
        for callback in callbacks:
            callback.set_model(model)
        self.callbacks = callbacks
        self.restore()
        self.restore_random()
        if self.lacks_variables:
            notes.print_note("variables that only a training step creates cannot be restored for a skipped call of fit")
        # The script may have passed its own History among the callbacks.
        history = next((callback for callback in callbacks if isinstance(callback, type(history))), history)
        callback_state.restore_states([history], [saved["history"]])
        model.history, model.stop_training = history, saved["stop"]
        return history
