"""Error records: what each rank that fails leaves for `matex run`, which shows the one that came first as the cause.

Without `matex run` the first rank that comes to speak of its error does so, and the others leave it at that.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from matex_tf.world import task_environment, terminal

_NAME = "error-"
_CLAIM = "matex_tf-error-"
_RECENT = 60.0  # seconds after which a claim is that of an earlier run
_folder = _job = ""
_held: list[int] = []


@dataclass(frozen=True)
class ErrorRecord:
    """Why a rank ends the job."""

    rank: int
    size: int
    host: str
    exception: str
    """The error's type and message."""
    text: str
    """What people read: rank, host, the script's line, traceback."""
    number: int = 0
    """How many collectives the rank had completed."""
    follows: bool = False
    """Whether another rank had failed first, as far as this one was told."""
    is_loss: bool = False
    """Whether the place or another rank failed, rather than the script, which started again may well succeed."""
    code: int = 1
    """The exit code with which the rank ends the job."""
    time: float = field(default_factory=time.time)
    """Seconds since the epoch, by the clock of the host."""


def note_launcher(environment: Mapping[str, str]) -> None:
    """Keep what the launcher has told this rank in its environment, which its own children are not to see."""
    global _folder, _job
    _folder, _job = environment.get("MATEX_PROOF", ""), task_environment.make_job_name(environment)


def find_cause(folder: str | os.PathLike[str]) -> ErrorRecord | None:
    """Of the records in `folder` the one that came first; None where there is none.

    Ranks learn of one another by collectives. So what fails before collective n is no consequence of what fails after
    it. Time decides only between ranks at the same collective, where the clocks of hosts may differ.
    """
    records = read_records(folder)
    return min(records, key=lambda one: (one.follows, one.number, one.time, one.rank), default=None)


def read_records(folder: str | os.PathLike[str]) -> list[ErrorRecord]:
    paths = glob.glob(os.path.join(glob.escape(os.fspath(folder)), f"{_NAME}*.json"))
    return [ErrorRecord(**json.loads(Path(path).read_text())) for path in paths]


def write_record(record: ErrorRecord, folder: str | os.PathLike[str]) -> None:
    """Write `record` into `folder`, whole or not at all."""
    path = Path(folder, f"{_NAME}{record.host}-{os.getpid()}.json")
    part = path.with_suffix(".part")
    part.write_text(json.dumps(asdict(record)))
    part.replace(path)


def show_record(record: ErrorRecord, shared: str | os.PathLike[str] | None = None, waits: bool = True) -> None:
    """Have `record` shown by `matex run`, or show it, unless another rank has shown its own.

    The other ranks wait in here until that one has ended: who ended first would end it before it has spoken.

    Args:
        shared: a folder that all ranks see; None where they are on one host.
        waits: whether they do; not where they meet that rank before they end.
    """
    if _folder:
        with contextlib.suppress(OSError):  # the folder is not on this host, or the disk is full
            write_record(record, _folder)
            return
    with _claim_terminal(shared or tempfile.gettempdir(), record.rank, waits) as is_first:
        if is_first:
            terminal.write_text(record.text)


@contextlib.contextmanager
def _claim_terminal(folder: str | os.PathLike[str], rank: int, waits: bool) -> Iterator[bool]:
    """Within it this rank alone may speak; gives whether none has. The claim is held until the process ends.

    The same rank twice is two runs, also where no launcher tells them apart.
    """
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        claim = os.open(os.path.join(folder, f"{_CLAIM}{os.getuid()}-{_job}"), flags, 0o600)
        _held.append(claim)
        fcntl.flock(claim, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
    except BlockingIOError:
        yield False
        return
    except OSError:
        yield True  # better twice than not at all
        return
    state = os.fstat(claim)
    me = f"rank {rank}".encode()
    is_first = os.pread(claim, 64, 0) in (b"", me) or abs(time.time() - state.st_mtime) > _RECENT
    yield is_first
    if is_first:
        os.ftruncate(claim, 0)
        os.pwrite(claim, me, 0)
