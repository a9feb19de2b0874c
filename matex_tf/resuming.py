"""Coming back: the state of a run is kept, and a run that is started again goes on from it, by no line of the script.

The script runs from its top again, with the seeds that it had. Its calls of `fit`, counted, are where the state is put
back: one that had ended is passed over, and leaves the model, the callbacks and the history as they were at its end;
the one that was under way goes on at the step at which the state was taken, with the same data, as if nothing had
happened. What the script does between them it does again.

Rank 0 keeps the state, of which all ranks have copies; nothing in it depends on their number. A thread writes it.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from matex_tf import (
    files,
    kept_callbacks,
    kept_files,
    kept_random,
    kept_variables,
    leftovers,
    output,
    plain,
    proof,
    settings,
    watchdog,
    world,
)
from matex_tf.proof import EXIT_REQUEUE

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
_LOOK_SECONDS = 0.5  # how often ranks ask one another whether to save
_MOST_STEPS = 1000

_run: _Run | None = None


def start() -> None:
    """Where MATEX_STATE names a folder, see what is kept there. Collective."""
    global _run
    if settings.current().state:
        _run = _Run(os.path.abspath(os.path.expanduser(settings.current().state)))


def entropy() -> int | None:
    """What the run began with, where this is one that goes on: its random numbers are to be the same."""
    return None if _run is None else _run.entropy


def begin(entropy: int) -> None:
    """Keep the random numbers that all ranks have agreed to begin with."""
    if _run is not None:
        _run.begin(entropy)


def next_fit(model: Any) -> Fit | None:
    """What is to be done about the state in the call of `fit` that begins; None where none is kept. Collective."""
    if _run is None or threading.current_thread() is not threading.main_thread():
        return None
    return Fit(_run, model)


def say_loop() -> None:
    """A loop of the script's own trains: what it has done is not in the state."""
    if _run is not None:
        output.note(
            "of this run only calls of fit are put back when it is started again; a loop of the script's own begins "
            "anew then (or where the script itself has saved and restores)"
        )


class _Writer:
    """A thread that writes states, one after another."""

    def __init__(self, folder: kept_files.Folder):
        self.folder = folder
        self.failed: str | None = None
        self._orders: queue.Queue = queue.Queue(maxsize=1)
        self._thread: threading.Thread | None = None

    @property
    def is_busy(self) -> bool:
        return self._orders.unfinished_tasks > 0

    def write(self, kind: str, number: int, content: Any) -> None:
        """Have `content` written. It is copied before this returns, which waits where two others are to be written."""
        arrays: list[np.ndarray] = []
        packed = plain.pack(content, arrays)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="matex_tf run state", daemon=True)
            self._thread.start()
        self._orders.put((kind, number, packed, arrays))

    def flush(self) -> None:
        """Return when all is on the disk, or has failed."""
        self._orders.join()

    def _work(self) -> None:
        while True:
            order = self._orders.get()
            try:
                with files.plainly():
                    self.folder.write(*order)
                self.failed = None
            except OSError as error:
                # A full disk is no reason to lose the training as well.
                self.failed = f"{type(error).__name__}: {error}"
                output.note(
                    f"the state of this run could not be written to {self.folder.path} ({self.failed}); training goes "
                    "on, and if it has to be started again, it will go on from an older state"
                )
            finally:
                self._orders.task_done()


@dataclass
class _Found:
    """What a rank finds in the folder: the newest state within a call of fit, and which calls have ended."""

    number: int
    fit: int
    ends: list[int]
    begin: dict[str, Any]


class _Run:
    """What is kept of this run, on all ranks."""

    def __init__(self, path: str):
        self.path = path
        self.script = _script()
        self.fits = 0
        self.within: Fit | None = None
        self.asked: str | None = None
        self.saved_at = time.monotonic()
        self.writer: _Writer | None = None
        with files.plainly():
            self.folder = self._open()
            self._look()
        for number in _SIGNALS:
            signal.signal(number, self._hear)
        world.at_end.append(self._end)

    def _open(self) -> kept_files.Folder | None:
        """The folder, where this rank sees it. Rank 0 makes it and is alone in writing to it."""
        me = world.current()
        folder, error = None, None
        try:
            if me.rank == 0 or os.path.isdir(self.path):
                folder = kept_files.Folder(self.path)
            if me.rank == 0:
                self.writer = _Writer(folder)
                if not self._hold():
                    error = "another run that has not ended keeps its state there"
        except OSError as raised:
            error = str(raised)
        for rank, text in enumerate(world.control.allgather(error, "opening the folder of the run's state")):
            if text is not None:
                raise world.RankError(
                    f"MATEX_STATE={self.path} cannot be used on rank {rank} ({me.hosts[rank]}): {text}. Set it to a "
                    "folder of your own, on a file system that all hosts share, that no other run uses."
                )
        return folder

    def _hold(self) -> bool:
        """Whether no other run uses the folder; one that has just been lost may take a moment to be gone."""
        for _ in range(20):
            self._lock = leftovers.hold(self.path)
            if self._lock is not None:
                return True
            time.sleep(0.5)
        return False

    def _look(self) -> None:
        """Find the newest state on any rank, and go on drawing random numbers from where the run began."""
        me = world.current()
        self.saved: Any = None
        mine = self._find() if me.local_rank == 0 else None
        kept = None if mine is None else (len(mine.ends), mine.number, -me.rank)
        everyone = world.control.allgather(kept, "looking for the state of the run")
        newest = max((one for one in everyone if one is not None), default=None)
        self.source = None if newest is None else -newest[2]
        if self.source is None:
            self.entropy, self.ends, self.fit, self.number = None, set(), -1, -1
            if self.writer is not None:
                self.writer.folder.clear()
            return
        if me.rank != self.source:
            mine, self.saved = None, None
        found = world.control.broadcast(mine, "what is kept of the run", root=self.source)
        self.entropy, self.ends, self.fit, self.number = (
            found.begin["entropy"], set(found.ends), found.fit, found.number
        )  # fmt: skip
        kept_random.put_back(found.begin["random"])

    def _find(self) -> _Found | None:
        if self.folder is None or os.path.exists(self.folder.place(kept_files.ENDED)):
            return None
        begin = self.folder.read(kept_files.BEGIN)
        if begin is None:
            return None
        if begin["script"] != self.script:
            output.note(f"the script has changed since its state was kept in {self.path}, so it begins anew")
            return None
        number, self.saved = self.folder.newest()
        fit = -1 if self.saved is None else self.saved["fit"]
        return _Found(number, fit, self.folder.numbers("end"), begin)

    def begin(self, entropy: int) -> None:
        """Write down what a run begins with that goes on from nothing."""
        if self.writer is None or self.source == 0:
            return
        arrays: list[np.ndarray] = []
        content = {"script": self.script, "entropy": entropy, "random": kept_random.states()}
        packed = plain.pack(content, arrays)
        with files.plainly():
            kept_files.write(self.folder.place(kept_files.BEGIN), packed, arrays)

    # What is put back

    def state_of(self, fit: int) -> Any:
        """What is kept of the call of fit with that number: of its end, else within it; None if nothing. Collective."""
        found = None
        if fit in self.ends:
            with files.plainly():
                found = self._send(lambda: self.folder.read(kept_files.name_of("end", fit)))
        if found is None and fit == self.fit:
            found = self._send(lambda: self.saved)
        if fit >= self.fit:
            self.saved = None
        return found

    def _send(self, read: Any) -> Any:
        """What `read` gives on the rank that has the state, on every rank; arrays go one by one."""
        what = "the state of the run"
        arrays: list[np.ndarray] = []
        packed = None
        if world.current().rank == self.source:
            packed = plain.pack(read(), arrays)
        packed, number = world.control.broadcast((packed, len(arrays)), what, root=self.source)
        arrays = [
            world.control.broadcast(arrays[index] if arrays else None, what, root=self.source)
            for index in range(number)
        ]
        return plain.unpack(packed, arrays)

    # What is kept

    def may_save(self, fit: int) -> bool:
        """Whether what is kept of this call of fit would be the newest: not where one before was damaged."""
        return fit >= max([self.fit, *(end + 1 for end in self.ends)])

    def write(self, kind: str, number: int, content: Any) -> None:
        self.writer.write(kind, number, content)

    def is_due(self) -> bool:
        """Whether rank 0 is to save."""
        seconds = settings.current().save_seconds
        return bool(seconds) and time.monotonic() - self.saved_at >= seconds and not self.writer.is_busy

    # The end, asked for or not

    def _hear(self, number: int, frame: Any) -> None:
        self.asked = signal.Signals(number).name
        if self.within is None:
            self._leave_at_once()

    def _leave_at_once(self) -> None:
        """The script is where there is nothing to save: what it has kept is whole."""
        if self.writer is None:
            time.sleep(2)  # rank 0 ends the others, if it was asked as well
        else:
            self.writer.flush()
        proof.ask_again()
        output.tell(f"matex_tf: {self.asked}: ended between calls of fit; {self._how_to_go_on()}\n")
        world.abort(EXIT_REQUEUE)

    def leave(self, asked: str, where: str) -> None:
        """End all ranks, which have come to this together, once all is on the disk. Collective."""
        failed = None
        if self.writer is not None:
            with watchdog.busy(f"saving the state of the run to {self.path}"):
                self.writer.flush()
            failed = self.writer.failed
        failed = world.control.broadcast(failed, "whether the state of the run is on the disk")
        if world.current().rank == 0:
            saved = f"the state could not be saved ({failed})" if failed else f"saved at {where}"
            proof.ask_again()
            output.tell(f"matex_tf: {asked}: {saved}; {self._how_to_go_on()}\n")
        sys.exit(EXIT_REQUEUE)

    def _how_to_go_on(self) -> str:
        return f"the same command goes on from there (exit code {EXIT_REQUEUE}; state in {self.path})"

    def _end(self) -> None:
        """All ranks have ended their script: well, and nothing is kept any more, or not."""
        if self.writer is None:
            return
        self.writer.flush()
        if world.exit_code() == 0:
            with files.plainly():
                self.writer.folder.close(remove=not settings.current().proof)


def _script() -> str:
    """What tells this script and its arguments from others."""
    words = sys.orig_argv[1:]
    content = b""
    for word in words:
        if word.endswith(".py") and os.path.isfile(word):
            with files.plainly(), open(word, "rb") as file:
                content = file.read()
            break
    return kept_files.digest("\0".join(words).encode() + b"\0" + content)


class Fit:
    """One call of `fit`: what is put back in it, and when its state is kept."""

    def __init__(self, run: _Run, model: Any):
        self.run = run
        self.model = model
        self.number = run.fits
        run.fits += 1
        self.saved = run.state_of(self.number)
        self.is_over = self.saved is not None and self.saved["ended"]
        self.epoch: int | None = None if self.saved is None else self.saved["epoch"]
        self.step: int = 0 if self.saved is None else self.saved["step"]
        self.missing = self.saved is not None
        self.first_epoch = 0  # with which the script has the call begin
        self.source: Any = None  # Keras' source of the data that it trains on
        self.data_taken = self.data_are_back = False
        self.callbacks: Sequence[Any] = ()
        self.params: dict[str, Any] = {}
        self._at: int | None = None
        self._told = False
        self._present: dict[str, int] = {}
        self._large: dict = {}
        self._until = 1
        self._looked: tuple[float, int] = (time.monotonic(), 0)
        self._may_save = run.may_save(self.number)
        if self.is_over:
            output.note("calls of fit that had ended before the run was started again are passed over")
        elif self.saved is not None:
            where = f"epoch {self.epoch + 1}, step {self.step}"
            output.note(f"going on from the state kept at {where} of call {self.number + 1} of fit")
        run.within = self

    def close(self) -> None:
        self.run.within = None

    # Putting back

    def begins(self, callbacks: Sequence[Any], params: dict[str, Any]) -> None:
        """After callbacks were told that training begins."""
        self.callbacks, self.params = callbacks, params or {}
        self._large = kept_callbacks.large(callbacks)
        if self.saved is None:
            return
        self.put_back()
        if self.is_over:
            if hasattr(self.model, "_initial_epoch") and not self.missing:
                self.model._initial_epoch = self.epoch  # there is no step to be made
            return
        if getattr(self.model, "_initial_epoch", None) is not None:
            self.model._initial_epoch = self.epoch  # `BackupAndRestore` may have put it elsewhere
        for what in kept_callbacks.begin_anew(callbacks):
            output.note(f"of the callbacks of fit, {what} cannot be kept and begins anew")

    def epoch_begins(self, epoch: int) -> None:
        """After callbacks were told that an epoch begins, which within an epoch they had been told before."""
        resumes = self.saved is not None and not self.is_over and epoch == self.epoch
        if resumes and self.step > 0:
            self.put_back()
        self._at = epoch
        self._until, self._looked = 1, (time.monotonic(), self.step if resumes else 0)

    def put_back(self) -> None:
        """Put back what is there of the model's variables, and what the callbacks know."""
        self._present = kept_variables.put_back(self.model, self.saved["variables"])
        self.missing = not self._is_complete(self._present)
        if not self.is_over:
            kept_callbacks.put_back(self.callbacks, self.saved["callbacks"])

    def _is_complete(self, present: dict[str, int]) -> bool:
        kept = self.saved["variables"]
        if self.step == 0:  # an epoch begins with empty metrics
            kept = {group: values for group, values in kept.items() if group != kept_variables.METRICS}
        return kept_variables.is_complete(present, kept)

    def needs_step(self) -> bool:
        """Whether the first step of training makes variables that are to be put back."""
        return self.saved is not None and not self.is_over and self.missing

    def put_back_rest(self, make: Callable[[], Any]) -> None:
        """`make` makes the variables that are not there yet, and changes others: put all of them back."""
        before = kept_variables.values(self.model)
        make()
        kept_variables.set_values(self.model, before)
        if not self._is_complete(kept_variables.put_back(self.model, self.saved["variables"], self._present)):
            raise kept_variables.other_model("fewer variables", "more")
        self.missing = False
        if not self.source._matex_calls_python:
            self.put_back_random()  # variables that were made have drawn their first values

    def takes_data(self) -> bool:
        """Whether training is about to begin with data that are to be brought to where they were."""
        return self.saved is not None and bool(self.callbacks) and self.source is not None and not self.data_taken

    def say_rows(self) -> None:
        """The data are dealt for as many ranks as there are: say so where that number was another."""
        if self.step > 0 and self.saved["ranks"] != world.current().size:
            output.note(
                f"the state was kept on {self.saved['ranks']} ranks, for which other rows were dealt: of this epoch "
                "some rows come twice and some not at all"
            )

    def put_back_random(self) -> None:
        """Go on drawing random numbers where the state was taken."""
        kept_random.put_back(self.saved["random"])

    def leave_ended(self, callbacks: Sequence[Any], history: Any) -> Any:
        """Put all back as it was at the end of the call, whose `callbacks` were; gives the history."""
        saved, model = self.saved, self.model
        if not kept_variables.is_complete(kept_variables.put_back(model, saved["variables"]), saved["variables"]):
            output.note(
                "of a call of fit that is passed over, variables that only a step of training makes cannot be put back"
            )
        for callback in callbacks:
            callback.set_model(model)
        kept_callbacks.put_back(callbacks, saved["callbacks"])
        history = next((one for one in callbacks if type(one).__name__ == "History"), history)
        kept_callbacks.put_back([history], [saved["history"]])
        model.history, model.stop_training = history, saved["stop"]
        self.put_back_random()
        return history

    # Keeping

    def batch_ended(self, done: int) -> None:
        """After `done` steps of an epoch."""
        if self.is_over:
            self.model.stop_training = True  # it was for what the step makes
            return
        if self.saved is not None and not self._told:
            self._told = True
            if kept_random.step_draws():
                output.note(
                    "the training step draws by TensorFlow's random ops, whose state cannot be kept: from here on it "
                    "draws other numbers than it would have drawn"
                )
        self._until -= 1
        if self._until > 0 or not self._may_save or done >= (self.params.get("steps") or float("inf")):
            return  # of an epoch's last step the epoch's end is the better place
        now = time.monotonic()
        seconds = (now - self._looked[0]) / max(1, done - self._looked[1])
        patience = min(_LOOK_SECONDS, settings.current().save_seconds / 4 or _LOOK_SECONDS)
        stride = min(max(int(patience / max(seconds, 1e-6)), 1), _MOST_STEPS)
        self._until = self._look(self._at, done, stride)
        self._looked = (now, done)

    def epoch_ended(self, epoch: int) -> None:
        """After callbacks were told that an epoch has ended."""
        if self._may_save and not self.is_over and epoch + 1 != self.params.get("epochs"):
            self._look(epoch + 1, 0, 1)

    def ended(self, history: Any) -> None:
        """After the call has ended. Collective."""
        self._save("end", 0 if self._at is None else self._at + 1, 0, ended=True, history=history)
        asked = self._who_asks()
        if asked:
            self.run.leave(asked, f"the end of call {self.number + 1} of fit")

    def _who_asks(self) -> str | None:
        everyone = world.control.allgather(self.run.asked, "whether the run is to end")
        return next((asked for asked in everyone if asked), None)

    def _look(self, epoch: int, step: int, stride: int) -> int:
        """Save where it is due or the run is to end; after how many steps to look again. Collective."""
        first = world.current().rank == 0
        stops = bool(self.model.stop_training)
        mine = (self.run.asked, first and not stops and self.run.is_due(), stops, stride)
        everyone = world.control.allgather(mine, "whether to save the state of the run")
        asked = next((asked for asked, *_ in everyone if asked), None)
        _, due, stops, stride = everyone[0]
        # Where training stops, the end of the call is near, and is saved.
        if asked and not stops or due:
            self._save("state", epoch, step)
        if asked and not stops:
            where = f"epoch {epoch + 1}, step {step}" if step else f"the end of epoch {epoch}"
            self.run.leave(asked, f"{where} of call {self.number + 1} of fit")
        return stride

    def _save(self, kind: str, epoch: int, step: int, ended: bool = False, history: Any = None) -> None:
        run = self.run
        with kept_variables.whole(self.model) as variables:
            if world.current().rank == 0:
                content = {
                    "fit": self.number,
                    "epoch": epoch,
                    "step": step,
                    "ended": ended,
                    "ranks": world.current().size,
                    "variables": variables,
                    "callbacks": kept_callbacks.states(self.callbacks, self._large),
                    "stop": bool(self.model.stop_training),
                    "history": None if history is None else kept_callbacks.states([history], {})[0],
                    "random": kept_random.states(),
                }
                run.number += kind == "state"
                run.write(kind, run.number if kind == "state" else self.number, content)
        run.saved_at = time.monotonic()
