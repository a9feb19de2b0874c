"""One call of `fit` in a run whose state is kept: what is put back in it, and when its state is kept."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from matex_tf import settings
from matex_tf.resilience import callback_state, random_state, run_state, serialization, state
from matex_tf.runtime import notes, objects, rank_records
from matex_tf.steps import events
from matex_tf.thread_flag import ThreadFlag
from matex_tf.world import membership, world

_LOOK_SECONDS = 0.5  # how often ranks ask one another whether to save
_MOST_STEPS = 1000


is_nested = ThreadFlag()
"""Whether the innermost call of `fit` is one within another, of which nothing is kept."""


def find_current() -> Fit | None:
    """The call of `fit` that is under way in this thread, if its state is kept."""
    run = run_state.get_current()
    return None if run is None or is_nested else run.within


class Fit:
    """The call that has the number of calls before it."""

    def __init__(self, run: run_state.Run, model: Any):
        """Find what is kept of the call that begins. Collective."""
        self.run = run
        self.model = model
        self.number = run.fits
        run.fits += 1
        self.saved = run.load_state(self.number)
        self.is_over = self.saved is not None and self.saved["ended"]
        self.goes_on = self.saved is not None and not self.is_over  # from a state that was kept within it
        self.is_away = self.goes_on  # its training has not come to where it was yet
        self.epoch: int = 0 if self.saved is None else self.saved["epoch"]
        self.step: int = 0 if self.saved is None else self.saved["step"]
        if self.saved is not None:
            run.epochs = self.saved["epochs"]
        self.missing = False  # a variable that was kept is not made yet
        self.has_made = False  # a step has trained in vain to make such variables
        self.first_epoch = 0  # with which the script has the call begin
        self.source: Any = None  # Keras' source of the data that it trains on
        self.calls_python = False  # to make a batch: code of the script's own
        self.drawn: set[str] = set()  # from these generators that code draws
        self.are_rows_dealt = False  # to ranks, by their number
        self.seeks_step = False  # the next step of the source is the first of the epoch in which the state was kept
        self.iterator: Any = None  # Keras 2: of that epoch
        self.callbacks: Sequence[Any] = ()
        self.params: dict[str, Any] = {}
        self.takes_turns = False  # at batches, between which ranks do not meet
        self._change: Callable[[str, float], None] | None = None
        self._change_text = ""
        self._at: int | None = None
        self._done = self._made = self._longest = 0  # steps of this epoch, since the start, and of a whole epoch
        self._logs: Any = None  # what the last step gave
        self._told = False
        self._large: dict[Any, Any] = {}
        self._until = 1
        self._looked: tuple[float, int] = (time.monotonic(), 0)
        self._may_save = run.may_save(self.number)
        self._may_change = True
        if self.is_over:
            notes.print_note("calls of fit that had ended before the run was started again are passed over")
        elif self.saved is not None:
            where = f"epoch {self.saved['epoch'] + 1}, step {self.step}"
            notes.print_note(f"going on from the state kept at {where} of call {self.number + 1} of fit")
        run.within = self

    def close_fit(self) -> None:
        self.run.within = None

    # Putting back

    def begin_training(self, callbacks: Sequence[Any], params: dict[str, Any]) -> None:
        """Before the `callbacks` of the call are told that training begins."""
        self.callbacks, self.params = callbacks, params or {}
        self._large = callback_state.find_large(callbacks)

    def put_back(self) -> None:
        """Put back what is there of the model's variables, and what callbacks know."""
        present = state.load_values(self.model, self.source, self.saved["variables"])
        kept = self.saved["variables"]
        if self.step == 0 and not self.is_over:  # an epoch begins with empty metrics
            kept = {group: values for group, values in kept.items() if group != state.METRICS}
        self.missing = not state.is_complete(present, kept)
        callback_state.restore_states(self.callbacks, self.saved["callbacks"])

    def return_to_epoch(self) -> None:
        """Its epoch begins in which the state was kept, or what comes after a call that had ended."""
        self.put_back()
        # Within an epoch the data are passed over first, whose code draws what it drew: see `reach_step`.
        if self.step == 0:
            self.put_back_random()

    def put_back_random(self) -> None:
        """Go on drawing random numbers where the state was kept; generators that data draw from have come there."""
        random_state.restore_states(self.saved["random"], () if self.is_over else self.drawn)

    @contextlib.contextmanager
    def pass_data(self) -> Iterator[None]:
        """Within it batches are passed over: see from which generators their code draws random numbers."""
        before = random_state.copy_states() if self.calls_python else {}
        try:
            yield
        finally:  # the data may come to their end
            self.drawn |= random_state.find_drawn(before) if before else set()

    def begin_epoch(self, epoch: int) -> None:
        self._at = epoch
        self._done = self.step if self.is_away else 0
        self._until, self._looked = 1, (time.monotonic(), self._done)

    def reach_step(self) -> None:
        """The next step is the one after the last that was kept.

        Raises:
            SetupError: what was kept is of another model.
        """
        if not self.is_away:
            return
        self.is_away = False
        if self.step > 0:  # what callbacks do as an epoch begins they had done before
            self.put_back()
            self.put_back_random()
        if self.missing:
            raise state.describe_difference("fewer variables", "more")
        if self.step > 0 and self.are_rows_dealt and self.saved["ranks"] != world.get_world().trainers:
            notes.print_note(
                f"the state was kept where {self.saved['ranks']} ranks trained, to which other rows were dealt: of "
                "this epoch some rows come twice and some not at all"
            )

    def leave_ended(self, callbacks: Sequence[Any], history: Any) -> Any:
        """Put all back as it was at the end of the call, which had these `callbacks`; gives the history."""
        saved, model = self.saved, self.model
        for callback in callbacks:
            callback.set_model(model)
        self.callbacks = callbacks
        self.put_back()
        self.put_back_random()
        if self.missing:
            notes.print_note(
                "of a call of fit that is passed over, variables that only a step of training makes cannot be put back"
            )
        history = next((one for one in callbacks if isinstance(one, type(history))), history)
        callback_state.restore_states([history], [saved["history"]])
        model.history, model.stop_training = history, saved["stop"]
        return history

    # Keeping

    def note_trained(self, plan: Any) -> None:
        """A step has trained, by the `plan` of its function. One whose result is thrown away does not count."""
        if self.is_over or self.is_away:
            return
        if not self.run.has_trained:
            self.run.has_trained = True
            if world.get_world().local_rank == 0:
                rank_records.leave_file(rank_records.TRAINING)
        tells, self._told = self.goes_on and not self._told, True
        if tells and plan is not None and random_state.can_draw(plan.traced.graph):
            notes.print_note(
                "the training step draws by TensorFlow's random ops, whose state cannot be kept: from here on it "
                "draws other numbers than it would have drawn"
            )

    def end_batch(self, done: int, logs: Any) -> None:
        """After `done` steps of an epoch, the last of which gave `logs`."""
        self.reach_step()  # a step of which only the figures were wanted
        self._logs = logs
        self._made += done - self._done
        self._done = done
        if self.takes_turns:
            return
        self._until -= 1
        if self._until > 0 or not self._may_save or done >= (self.params.get("steps") or self._longest or float("inf")):
            return  # of an epoch's last step the epoch's end is the better place
        assert self._at is not None  # an epoch is under way
        now = time.monotonic()
        seconds = (now - self._looked[0]) / max(1, done - self._looked[1])
        patience = min(_LOOK_SECONDS, settings.get_settings().save_seconds / 4 or _LOOK_SECONDS)
        stride = min(max(int(patience / max(seconds, 1e-6)), 1), _MOST_STEPS)
        self._until = self._save_if_due(self._at, done, stride)
        self._looked = (now, done)

    def ask_change(self, text: str, mark: Callable[[str, float], None]) -> None:
        """Have all ranks leave for a change at the next step at which they meet. To be called on all of them.

        Args:
            text: which change, and why.
            mark: tells `matex run` of it, given the place that was kept and when ranks began to keep it.
        """
        self._change, self._change_text = mark, text

    def may_change(self) -> bool:
        """Whether ranks may leave for a change, and have not been asked to."""
        return self._may_change and self._may_save and not self.is_over and self._change is None

    def count_left(self) -> int:
        """The steps that are left of this call; where nobody knows them, as many as it has made since its start."""
        epochs, steps = self.params.get("epochs"), self.params.get("steps") or self._longest
        if not epochs or not steps or self._at is None:
            return self._made
        return max((epochs - self._at) * steps - self._done, 0)

    def is_due(self) -> bool:
        """Whether this rank is to keep the state, or to end the run, where ranks take turns at batches."""
        is_asked = bool(self.run.asked) and not self.model.stop_training
        return self._may_save and not self.is_over and (is_asked or self.run.is_due())

    def keep_within(self, step: int) -> None:
        """Before this step of the epoch, at which ranks that take turns have met. Collective."""
        assert self._at is not None  # an epoch is under way
        self._save_if_due(self._at, step, 1)

    def end_epoch(self, epoch: int) -> None:
        """After callbacks were told that an epoch has ended."""
        self._longest = max(self._longest, self._done)
        run, pause = self.run, settings.get_settings().pause
        run.epochs += 1
        if 0 < pause <= run.epochs and self._may_save:
            run.asked = run.asked or f"the rung of {pause} epochs"
        if self._may_save and epoch + 1 != self.params.get("epochs"):
            self._save_if_due(epoch + 1, 0, 1)

    def end_fit(self, history: Any) -> None:
        """After the call has ended. Collective."""
        self._save_state("end", 0 if self._at is None else self._at + 1, 0, ended=True, history=history)
        asked = self._find_request()
        if asked:
            self.run.leave_run(asked, f"the end of call {self.number + 1} of fit")

    def _find_request(self) -> str | None:
        everyone = objects.allgather(self.run.asked, "whether the run is to end")
        return next((asked for asked in everyone if asked), None)

    def _save_if_due(self, epoch: int, step: int, stride: int) -> int:
        """Save where it is due or the run is to end; after how many steps to look again. Collective."""
        first = world.get_world().rank == 0
        stops = bool(self.model.stop_training)
        mine = (self.run.asked, first and not stops and self.run.is_due(), stops, stride)
        everyone = objects.allgather(mine, "whether to save the state of the run")
        asked = next((asked for asked, *_ in everyone if asked), None)
        _, due, stops, stride = everyone[0]
        # Where training stops, the end of the call is near, and is saved.
        leaves = (asked or self._change) and not stops
        since = time.monotonic()
        if leaves or due:
            self._save_state("state", epoch, step)
        if leaves:
            where = f"epoch {epoch + 1}, step {step}" if step else f"the end of epoch {epoch}"
            where += f" of call {self.number + 1} of fit"
            change = None if asked or self._change is None else functools.partial(self._change, where, since)
            self.run.leave_run(asked, where, change, self._change_text)
            self._may_change, self._change = False, None  # its state could not be kept
        return stride

    def _save_state(self, kind: str, epoch: int, step: int, ended: bool = False, history: Any = None) -> None:
        membership.attempt_collectives(
            "keeping the state of the run", lambda: self._keep_state(kind, epoch, step, ended, history)
        )

    def _keep_state(self, kind: str, epoch: int, step: int, ended: bool, history: Any) -> None:
        run = self.run
        events.ranks_meet("keeping the state of the run")
        variables = state.read_values(self.model, self.source)
        if world.get_world().rank == 0:
            content = {
                "fit": self.number,
                "epoch": epoch,
                "step": step,
                "epochs": run.epochs,
                "ended": ended,
                "ranks": world.get_world().trainers,
                "variables": variables,
                "logs": self._logs if serialization.is_plain(self._logs) else {},
                "callbacks": callback_state.copy_states(self.callbacks, self._large),
                "stop": bool(self.model.stop_training),
                "history": None if history is None else callback_state.copy_states([history], {})[0],
                "random": random_state.copy_states(),
            }
            run.number += kind == "state"
            run.write_state(kind, run.number if kind == "state" else self.number, content)
        run.saved_at = time.monotonic()
