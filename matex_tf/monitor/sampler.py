"""Records this rank in the run's folder: a thread writes a line a second with its resources, progress and waiting.

docs/monitor.md describes the files. Counters are cumulative. No error ends the run: a failure to record is reported
once.
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import secrets
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matex_tf import ops, settings
from matex_tf.monitor.gpu import Gpus
from matex_tf.monitor.log import HALVING_LINES, Log, pick_numbers
from matex_tf.monitor.machine import Machine
from matex_tf.monitor.recording import EVENTS, FORMAT, PROFILE, RANK, START
from matex_tf.observe import bottlenecks, profile
from matex_tf.ops import records
from matex_tf.runtime import notes, objects, real_files, shutdown
from matex_tf.thread_flag import starts_own
from matex_tf.version import __version__
from matex_tf.world import world

_WAITING_SECONDS = 1.0  # seconds at one place that count as waiting for another rank
_END_SECONDS = 5.0  # seconds that a rank's end waits for the disk

_recorder: Recorder | None = None


def start_sampler() -> None:
    """Start recording, if `MATEX_RECORD` or `matex run --record` names a folder. Collective."""
    global _recorder
    record_setting = settings.get_settings().record
    this_rank = world.get_world()
    if not record_setting or this_rank.is_phantom:  # phantom: a process of `matex plan`, whose other ranks do not exist
        return
    with real_files.use_real_files():
        created_folder = _make_folder(Path(record_setting).absolute()) if this_rank.rank == 0 else None
        folder, token, reason = objects.broadcast(created_folder, "the folder in which the run is recorded")
        log = None
        if not reason:  # `reason`: why this rank cannot record; "" if it can
            try:
                if json.loads(Path(folder, START).read_text())["token"] != token:
                    raise OSError("it is another folder of that name")
                log = Log(Path(folder, RANK.format(this_rank.rank)), _report_loss)
            except (OSError, ValueError, KeyError) as error:
                reason = getattr(error, "strerror", None) or str(error)
    _report_failures(objects.allgather(reason, "who can record the run"), record_setting)
    if not records.is_on():  # a timeline records more than totals
        records.set_recording(records.TOTALS)
    _recorder = Recorder(folder, log, settings.get_settings().record_seconds)
    _recorder.start_sampling()


def note_epoch(epoch: int, params: Mapping[str, Any], logs: Mapping[str, Any] | None, call: int | None = None) -> None:
    """Record the end of an epoch of Keras' `fit`, on rank 0: its number from 0, the number of epochs, and its logs.

    `call`, the number of the call of `fit`, identifies an epoch that is repeated after a restart.
    """
    call_member = {} if call is None else {"call": call}
    _write_event(
        epoch=epoch + 1, of=params.get("epochs"), steps=params.get("steps"), logs=pick_numbers(logs), **call_member
    )


def note_loss(became_first: bool) -> None:  # a listener of `events.world_changed`
    """Record that ranks were lost. The other ranks continue to write their files."""
    note_event(f"a rank was lost; {world.get_world().size} ranks go on without it")


def note_event(text: str) -> None:
    """Record an event for the report, on rank 0."""
    _write_event(event=text)


def _write_event(**event: Any) -> None:
    """Record an event if this process is rank 0, and not a fork of a rank."""
    if _recorder is not None and _recorder.process == os.getpid() and world.get_world().rank == 0:
        _recorder.write_event(**event)


def _make_folder(run_folder: Path) -> tuple[str, str, str]:
    """Create the folder of this start. Returns its path, a token, and the error.

    By the token, other ranks verify that they see the same folder.
    """
    this_rank = world.get_world()
    token = secrets.token_hex(8)
    command = sys.argv[1:] if sys.argv[0] == "-m" else sys.argv
    header = {
        "format": FORMAT, "token": token, "at": round(time.time(), 3),
        "command": command, "python": sys.executable,
        "folder": os.getcwd(), "hosts": this_rank.hosts, "scaling": settings.get_settings().scaling,
        "versions": {"matex_tf": __version__, "python": platform.python_version()},
        "settings": {name: value for name, value in os.environ.items() if name.startswith(settings.PREFIX)},
    }  # fmt: skip
    try:
        run_folder.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(1):
            folder = run_folder / f"start-{number}"
            try:
                folder.mkdir()
                break
            except FileExistsError:
                continue
        temporary = folder / f"{START}.part"
        temporary.write_text(json.dumps(header, indent=1))
        temporary.rename(folder / START)
    except OSError as error:
        return "", "", f"rank 0 cannot write there ({error.strerror})"
    return str(folder), token, ""


def _report_failures(errors_of_ranks: list[str], record_setting: str) -> None:
    """Print one note for all ranks that cannot record."""
    failed_ranks = [rank for rank, reason in enumerate(errors_of_ranks) if reason]
    if not failed_ranks:
        return
    hosts = world.get_world().hosts
    if len(failed_ranks) == len(errors_of_ranks):
        notes.print_note(f"MATEX_RECORD={record_setting}: the run is not recorded: {errors_of_ranks[0]}")
        return
    host_names = ", ".join(dict.fromkeys(hosts[rank] for rank in failed_ranks))
    notes.print_note(
        f"MATEX_RECORD={record_setting}: {len(failed_ranks)} of {len(errors_of_ranks)} ranks are not recorded: rank "
        f"{failed_ranks[0]} ({hosts[failed_ranks[0]]}): {errors_of_ranks[failed_ranks[0]]}. Name a folder on a file "
        f"system that {host_names} shares"
    )


def _report_loss(error: OSError) -> None:
    folder = settings.get_settings().record
    notes.print_note(f"MATEX_RECORD={folder}: samples are lost: {error.strerror or error}")


class Recorder:
    """Writes the records of this rank. `log` is None if the rank cannot see the folder."""

    def __init__(self, folder: str, log: Log | None, seconds: float):
        self.folder, self.log, self.seconds = folder, log, seconds  # between samples
        self.rank = world.get_world().rank  # at the start; the rank's files keep this number
        self.events: Log | None = None  # opened at the first event
        self.machine, self.gpus = Machine(), Gpus()
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._write_samples, name="matex_tf monitor", daemon=True)
        self.process = os.getpid()

    def start_sampling(self) -> None:
        shutdown.at_end.append(self.finish_recording)
        shutdown.before_abort.append(lambda: self._write_last_line("ended by an error"))
        if self.log is not None:
            if self.gpus.missing:
                notes.print_note(self.gpus.missing)
            with starts_own.set():  # the thread runs no code of the script
                self.thread.start()

    def take_sample(self) -> dict[str, Any]:
        """A sample: docs/monitor.md describes its members."""
        sample: dict[str, Any] = {**self.machine.take_sample(), **self.gpus.take_sample()}
        sample["up"], sample["rows"] = ops.count_updates(), ops.count_global_rows()
        compute = waiting = sums = steps = 0
        # "com", "wait" and "sum" are the columns compute, waiting, and exposed + other of `observe.profile`.
        for totals in records.read_totals():
            compute += totals.compute
            waiting += totals.meet + totals.exposed_wait
            sums += totals.exposed + totals.collectives
            steps += totals.steps
        sample["com"], sample["wait"], sample["sum"] = (
            round(nanoseconds / 1e9, 4) for nanoseconds in (compute, waiting, sums)
        )
        sample["st"], sample["in"] = steps, round(bottlenecks.read_waited_seconds(), 4)
        blocked = ops.read_waiting()
        if blocked.seconds >= _WAITING_SECONDS:
            sample["now"] = [round(blocked.seconds, 1), blocked.what]
        return sample

    def write_event(self, **event: Any) -> None:
        """Record an event in events-N.jsonl of this rank; N is not 0 if rank 0 was lost."""
        if self.log is None:
            return
        try:
            self.events = self.events or Log(Path(self.folder, EVENTS.format(self.rank)), _report_loss)
        except OSError as error:
            _report_loss(error)
        else:
            self.events.write_line(up=ops.count_updates(), **event)

    def finish_recording(self) -> None:
        """Called at the end of the script. Collective."""
        self._write_last_line("ended")
        with ops.announce_exchange("what was recorded"):
            records_of_ranks = world.get_communicator("control").gather(
                (records.read_totals(), self.log.lost if self.log else 0)
            )
        if records_of_ranks is None:
            return
        text = profile.format_table([totals for totals, _ in records_of_ranks], world.get_world().hosts, None)
        try:
            if self.log is not None:
                with real_files.use_real_files():
                    Path(self.folder, PROFILE).write_text(text)
        except OSError as error:
            _report_loss(error)
        if lossy_ranks := [rank for rank, (_, lost_lines) in enumerate(records_of_ranks) if lost_lines]:
            notes.print_note(
                f"samples of {len(lossy_ranks)} ranks could not be recorded; the first is rank {lossy_ranks[0]}"
            )

    def _write_samples(self) -> None:
        """The thread: write a sample each `seconds`, which double after each `HALVING_LINES` lines."""
        assert self.log is not None  # otherwise the thread is not started
        next_sample_at = time.monotonic()
        while not self.ended.wait(max(next_sample_at - time.monotonic(), 0)):
            self.log.write_line(**self.take_sample())
            if self.log.lines % HALVING_LINES == 0:
                self.seconds *= 2
            next_sample_at = max(next_sample_at + self.seconds, time.monotonic())

    def _write_last_line(self, end_text: str) -> None:
        """Write the last line, unless the disk blocks for too long."""
        if self.log is None or self.ended.is_set() or os.getpid() != self.process:
            return
        self.ended.set()
        if self.thread is not threading.current_thread():
            self.thread.join(_END_SECONDS)
        if not self.thread.is_alive():
            self.log.write_line(**self.take_sample(), end=end_text)
