"""The record of a rank says how the rank ends. It is a file in the private folder of `matex run`.

mpirun may end with exit code 0 although ranks or hosts were lost, and does not name a killed rank. So `matex run`
judges the end of a run by the records (`launch/run_end.py`). Each process appends to its own file. A line is a JSON
object with some fields of `Record`, such as {"state": "ended"}. A later line overrides an earlier one; an incomplete
line is ignored.

`note_error` puts the message of an error into the record, and `matex run` prints the first one. Without `matex run` the
first rank with an error writes it to the terminal (`show_error`), and the other ranks are silent.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matex_tf import errors
from matex_tf.lazy import MPI
from matex_tf.runtime import objects, real_files
from matex_tf.world import task_environment, terminal, world

BEGUN = "begun"  # attached to the run
SEPARATE = "separate"  # a process without other ranks
LEFT = "left"  # ended with all ranks, to be started again
ENDED = "ended"  # the scripts of all ranks have ended
TRAINING = "training"
"""The name of a file which exists once the ranks have computed a training step since their start."""
# Names of files in the folder.
_NAME = "rank-"  # the prefix of each record
_WRITING = ".writing"  # the ending of the mark of a process that may still write files of the script (`note_writing`)
_REQUEST = "request"  # contains the name of the signal that asks `matex run` to end
_CLAIM = "matex_tf-error-"  # the prefix of the file, in another folder, by which a rank reserves the terminal
_RECENT_SECONDS = 60.0  # an older claim of the terminal belongs to an earlier run

_folder = ""  # the private folder of `matex run`; "" without it
_job = ""  # a name that the ranks of one run have in common
_leaves = False  # see `note_leaving`
_writing: tuple[int, str] | None = None  # see `note_writing`: the process, and the file that exists until its end
_claims: list[int] = []  # open descriptors, whose locks this process keeps until its end


@dataclass(frozen=True)
class Record:
    """What one process of a run reports of itself."""

    rank: int = 0
    size: int = 1
    local_size: int = 1
    host: str = ""
    process: int = 0
    namespace: str = ""  # see `read_namespace`
    mpi: str = ""  # the vendor of the MPI, by mpi4py's name
    state: str = ""  # one of the states above; empty before the ranks have begun
    codes: tuple[int, ...] = ()  # at the end of the script, the exit codes of all ranks, without the code 0
    asks_again: bool = False  # whether the run was asked to end, has saved its state, and is to be started again later
    abort_code: int = 0  # the exit code with which the rank ends all ranks; 0 if it does not
    text: str = ""
    """The message of the error for which the rank ends all ranks: rank, host, the script's line, traceback."""
    number: int = 0  # the number of collectives that the rank had completed at its error
    follows: bool = False  # whether the error is the consequence of another rank's error
    is_loss: bool = False
    """Whether the host or another rank failed, and not the script: the script may succeed at its next start."""
    time: float = 0.0  # seconds since the epoch at the abort, by the clock of the host
    folders: tuple[str, ...] = ()
    """The private folders of the process. It removes them at its end; `matex run` removes those of a killed rank."""
    shared: tuple[tuple[str, int, int], ...] = ()
    """Path, device and inode of each file of shared memory. `matex run` removes those of a killed rank."""

    @property
    def order(self) -> tuple[bool, int, float, int]:
        """The key that sorts errors: the cause first.

        Ranks affect one another by collectives only, so an error after collective n cannot cause an error before it.
        Clocks of hosts may differ, so times are compared only between ranks at the same collective.
        """
        return self.follows, self.number, self.time, self.rank


def note_launcher(environment: Mapping[str, str]) -> None:
    """Keep the folder and the name of the job from the launcher's variables, which are later removed."""
    global _folder, _job
    _folder, _job = environment.get("MATEX_PROOF", ""), task_environment.make_job_name(environment)


def append(folder: str | os.PathLike[str], **fields: Any) -> None:
    """Append `fields` to the record of this process in `folder`."""
    with open(_locate_record(folder), "a") as file:
        file.write(f"\n{json.dumps(fields)}")


def note(**fields: Any) -> bool:
    """Append `fields` to the record of this process. Returns whether this host sees the folder of the run."""
    with real_files.use_real_files():
        sees_folder = bool(_folder) and os.path.isdir(_folder)
        if sees_folder:
            append(_folder, **fields)
    return sees_folder


def read_records(folder: str | os.PathLike[str]) -> list[Record]:
    """The records of all processes of the run."""
    return [_parse_record(path.read_text()) for path in Path(folder).glob(f"{_NAME}*") if path.suffix != _WRITING]


def are_files_written(folder: str | os.PathLike[str]) -> bool:
    """Whether each process that wrote files of the script has ended by itself (`note_writing`)."""
    return not any(Path(folder).glob(f"{_NAME}*{_WRITING}"))


def read_namespace() -> str:
    """Names the boot of this host and the namespace of process numbers. Processes with equal names see one another."""
    return Path("/proc/sys/kernel/random/boot_id").read_text() + os.readlink("/proc/self/ns/pid")


def begin_record() -> None:
    """Record that this rank has begun. Collective; does nothing without `matex run`.

    One host that sees the folder suffices, because the record of any rank shows that all have ended (`note_end`).

    Raises:
        SetupError: on all ranks, if none sees the folder of `matex run`.
    """
    if not _folder:
        return
    if not any(objects.allgather(os.path.isdir(_folder), "looking for the folder of `matex run`")):
        raise errors.SetupError(
            f"no rank sees {_folder}, in which `matex run` expects the records of the ranks. Set "
            "MATEX_CACHE_DIR to a folder on a file system that all hosts share, or start the script with mpirun itself."
        )
    me = world.get_world()
    note(
        rank=me.rank, size=me.size, local_size=me.local_size, host=me.host, process=os.getpid(),
        namespace=read_namespace(), mpi=MPI.get_vendor()[0], state=BEGUN,
    )  # fmt: skip


def note_separate() -> None:
    """Record that this process has no other ranks, and an exit code of its own."""
    note(state=SEPARATE)
    os.environ.pop("MATEX_PROOF", None)  # not for other runs, which the script may start


def note_writing() -> None:
    """Record that this process may write files of the script until its end, at which Python flushes files."""
    global _writing
    if not note():  # no fields: asks only whether this host sees the folder
        return
    _writing = os.getpid(), os.path.abspath(_locate_record(_folder)) + _WRITING
    with real_files.use_real_files():
        Path(_writing[1]).touch()
    # Let the C library remove the file after the end of Python, by a call of `unlink` with a copy of the path, which is
    # never freed.
    c_library = ctypes.CDLL(None)
    c_library.strdup.restype = ctypes.c_void_p
    path_copy = ctypes.c_void_p(c_library.strdup(os.fsencode(_writing[1])))
    if not path_copy or c_library.__cxa_atexit(ctypes.cast(c_library.unlink, ctypes.c_void_p), path_copy, None):
        raise MemoryError("the C library cannot register a function for the end of the process")
    # A forked child, which may end sooner than this process, gets an empty path.
    os.register_at_fork(after_in_child=lambda: ctypes.memset(path_copy, 0, 1))


def confirm_end() -> None:
    """Record that the files are written. Called before an exit for which the C library calls no functions."""
    if _writing is not None and _writing[0] == os.getpid():
        with real_files.use_real_files(), contextlib.suppress(FileNotFoundError):
            os.unlink(_writing[1])


def note_leaving() -> None:
    """From now on the end of the ranks counts as `LEFT`: `matex run` starts them again."""
    global _leaves
    _leaves = True


def note_end(codes: set[int]) -> None:
    """Record that all ranks have ended with these exit codes, or have left. The ranks have just agreed on that."""
    note(state=LEFT if _leaves else ENDED, codes=sorted(codes - {0}))


def note_error(text: str, rank: int, **fields: Any) -> bool:
    """Record the error `text` of `rank`, with other `fields`, for `matex run`, which shows the first error of a run.

    Returns whether it is recorded. If not, the caller shows it (`show_error`).
    """
    with contextlib.suppress(OSError):  # the disk is full
        return note(text=text, rank=rank, time=time.time(), **fields)
    return False


def show_error(text: str, rank: int, shared_folder: str | os.PathLike[str] | None = None, waits: bool = True) -> None:
    """Write the error `text` of `rank` to the terminal, if no other rank has written one.

    When a rank ends with an error, the launcher ends all ranks, and could cut off the message that the first rank still
    writes to the terminal. So a rank that is not the first waits here until the first has ended.

    Args:
        shared_folder: a folder that all ranks see; None if they are on one host.
        waits: whether this rank waits for the first; False if the first starts MPI before its end, which needs all.
    """
    with _claim_terminal(shared_folder or tempfile.gettempdir(), rank, waits) as is_first:
        if is_first:
            terminal.write_text(text)


def leave_file(name: str, text: str = "", folder: str | os.PathLike[str] = "") -> None:
    """Write a file to the folder of the run, atomically, for `matex run` or for ranks.

    Does nothing if there is no such folder, or this host does not see it.
    """
    with real_files.use_real_files():
        folder = folder or _folder
        if not folder or not os.path.isdir(folder):
            return
        part_path = Path(folder, f"{name}.{socket.gethostname()}-{os.getpid()}.part")
        part_path.write_text(text)
        part_path.rename(Path(folder, name))


def note_request(folder: str | os.PathLike[str], name: str) -> None:
    """Store the name of the signal that asks `matex run` to end, for ranks, which may get another signal."""
    leave_file(_REQUEST, name, folder)


def read_request() -> str | None:
    """The name of the signal that has asked `matex run` to end; None if this host does not see it."""
    with real_files.use_real_files(), contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return Path(_folder or os.devnull, _REQUEST).read_text()
    return None


def _locate_record(folder: str | os.PathLike[str]) -> str:
    return os.path.join(folder, f"{_NAME}{socket.gethostname()}-{os.getpid()}")


def _parse_record(text: str) -> Record:
    fields: dict[str, Any] = {}
    for line in text.splitlines():
        with contextlib.suppress(ValueError):  # an incomplete line
            for name, value in json.loads(line).items():
                if name in Record.__dataclass_fields__:  # another version may have other fields
                    fields[name] = tuple(value) if isinstance(value, list) else value
    return Record(**fields)


@contextlib.contextmanager
def _claim_terminal(folder: str | os.PathLike[str], rank: int, waits: bool) -> Iterator[bool]:
    """Context that reserves the terminal for this rank, until its process ends. Yields whether this rank is the first
    to write.

    The claim is a file that contains the name of the first rank; it is empty before. An earlier run may have left a
    claim in the same file, if no launcher names the runs. It is recognized if it is old, or names this rank, which
    claims only once.
    """
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        descriptor = os.open(os.path.join(folder, f"{_CLAIM}{os.getuid()}-{_job}"), flags, 0o600)
        _claims.append(descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
    except BlockingIOError:
        yield False
        return
    except OSError:
        yield True  # a duplicate message is better than none
        return
    status = os.fstat(descriptor)
    rank_name = f"rank {rank}".encode()
    is_of_earlier_run = abs(time.time() - status.st_mtime) > _RECENT_SECONDS
    is_first = is_of_earlier_run or os.pread(descriptor, 64, 0) in (b"", rank_name)
    yield is_first
    if is_first:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, rank_name, 0)
