"""The saved state of a call of `fit` in a restarted run, and its restoration."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator, Sequence
from typing import Any

from matex_tf.resilience import callback_state, random_state, state
from matex_tf.runtime import notes
from matex_tf.world import world


class Phase(enum.IntEnum):
    """How far a call with saved state is, in this order. A call that had ended stays in the first phase."""

    OVER = enum.auto()  # the call had ended before the restart, and is skipped
    SKIPS_EPOCHS = enum.auto()  # ended epochs are skipped
    BEGINS_EPOCH = enum.auto()  # the next steps that the data source lists are those of the interrupted epoch
    SKIPS_STEPS = enum.auto()  # the steps of this epoch before the saved step are skipped
    TRAINS = enum.auto()  # `reach_step` has restored the state


class Resumption:
    """What is restored for `fit`, a `fit_state.Fit`, by `saved`, the content of its saved state.

    epoch, step: the saved step, as Keras counts epochs.
    lacks_variables: a saved variable does not exist yet.
    has_created_variables: an extra training step was run to create such variables.
    iterator: Keras 2: the iterator of the interrupted epoch.
    _drawn: the random generators that skipped data have used, by their names in `random_state`.
    """

    def __init__(self, fit: Any, saved: dict[str, Any]):
        self.fit, self.saved = fit, saved
        self.phase = Phase.OVER if saved["ended"] else Phase.SKIPS_EPOCHS
        self.epoch: int = saved["epoch"]
        self.step: int = saved["step"]
        self.lacks_variables = self.has_created_variables = False
        self.iterator: Any = None
        self._drawn: set[str] = set()

    @property
    def is_before_saved_step(self) -> bool:
        """Whether training of an interrupted call has not yet reached the saved step."""
        return Phase.OVER < self.phase < Phase.TRAINS

    def restore(self) -> None:
        """Restore those variables of the model that already exist, and the state of the callbacks."""
        saved_groups = self.saved["variables"]
        counts = state.load_values(self.fit.model, self.fit.source, saved_groups)
        if self.step == 0 and self.phase > Phase.OVER:  # an epoch begins with empty metrics
            saved_groups = {group: values for group, values in saved_groups.items() if group != state.METRICS}
        self.lacks_variables = any(counts.get(group, 0) < len(values) for group, values in saved_groups.items())
        callback_state.restore_states(self.fit.callbacks, self.saved["callbacks"])

    def begin_epoch(self) -> None:
        """Restore the state at the beginning of the interrupted epoch, or after a call that had ended."""
        self.restore()
        # If steps of this epoch are still to be skipped, their data may draw random numbers. Then `reach_step` restores
        # the generators.
        if self.step == 0:
            self._restore_random()
        if self.phase > Phase.OVER:
            self.phase = Phase.BEGINS_EPOCH

    def _restore_random(self) -> None:
        """Restore the random generators, except those that the code of skipped data has advanced to the saved position.
        A call that had ended was saved after its last batch: all of its generators are restored.
        """
        random_state.restore_states(self.saved["random"], () if self.phase == Phase.OVER else self._drawn)

    @contextlib.contextmanager
    def skip_data(self) -> Iterator[None]:
        """Context in which batches are skipped: notes in `_drawn` which random generators their code uses."""
        old_states = random_state.copy_states() if self.fit.calls_python else {}
        try:
            yield
        finally:  # the data may end here
            self._drawn |= random_state.find_drawn(old_states) if old_states else set()

    def reach_step(self) -> None:
        """Restore the state before the first step that is not skipped. Later calls do nothing.

        Raises:
            SetupError: the saved state belongs to another model.
        """
        if not self.is_before_saved_step:
            return
        self.phase = Phase.TRAINS
        if self.step > 0:  # Keras has called the callbacks' on_epoch_begin for this epoch again: undo its effects
            self.restore()
            self._restore_random()
        if self.lacks_variables:
            raise state.describe_difference("fewer variables", "more")
        if self.step > 0 and self.fit.are_rows_already_sharded and self.saved["ranks"] != world.get_world().trainers:
            notes.print_note(
                f"the state was saved with {self.saved['ranks']} ranks, which held other rows: in "
                "this epoch some rows are used twice and some not at all"
            )

    def leave_ended(self, callbacks: Sequence[Any], history: Any) -> Any:
        """Restore the state at the end of a call with these `callbacks`. Returns its history, in place of `history`."""
        for callback in callbacks:
            callback.set_model(self.fit.model)
        self.fit.callbacks = callbacks
        self.restore()
        self._restore_random()
        if self.lacks_variables:
            notes.print_note("variables that only a training step creates cannot be restored for a skipped call of fit")
        # The script may have passed its own History among the callbacks.
        history = next((callback for callback in callbacks if isinstance(callback, type(history))), history)
        callback_state.restore_states([history], [self.saved["history"]])
        self.fit.model.history, self.fit.model.stop_training = history, self.saved["stop"]
        return history
