"""The ranks' own word that all of them have ended, kept in a private folder of `matex run`.

mpirun ends with exit code 0 in some cases in which ranks or hosts were lost, so `matex run` does so only with this
proof. It is written when the ranks have met at the end of the script, by those whose host has the folder.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
from collections.abc import Collection
from pathlib import Path

from matex_tf import settings
from matex_tf.runtime import objects, real_files
from matex_tf.world import error_records, mpi_timeout_process, rank_ends, world

EXIT_STALLED = 70
EXIT_REQUEUE = 75  # EX_TEMPFAIL of sysexits.h

_ENDED, _ENDING, _NEEDLESS = "ended", "ending-", "each-for-itself"
_BEGUN, _ASK_AGAIN, _TRAINING, _REQUEST = "begun", "ask-again", "training", "request"

_ABORTED = "aborted"

_leaves = False
_ending: tuple[int, str] | None = None


def announce_ranks() -> None:
    """See that there is a rank that can give the proof. Collective; nothing without `matex run`."""
    folder = settings.get_settings().proof
    if folder and not any(objects.allgather(os.path.isdir(folder), "looking for the folder of `matex run`")):
        raise world.RankError(
            f"no rank sees {folder}, in which `matex run` looks for the proof that all ranks have ended well. Set "
            "MATEX_CACHE_DIR to a folder on a file system that all hosts share, or start the script with mpirun itself."
        )
    if not folder:
        return
    from mpi4py import MPI

    write_mark(_BEGUN)
    me = world.get_world()
    write_mark(*rank_ends.note_rank(me.rank, me.size, me.local_size, me.host, MPI.get_vendor()[0]))


def mark_ended(codes: Collection[int] = ()) -> None:
    """Say that all ranks have ended, which they have just agreed on, with these exit codes; or that they have left."""
    if world.get_world().local_rank == 0:
        write_mark(rank_ends.LEFT if _leaves else _ENDED, " ".join(map(str, sorted(filter(None, codes)))))


def mark_ending() -> None:
    """Say that this process has something to write, until it has ended by itself: Python writes files as it ends."""
    global _ending
    me = world.get_world()
    if write_mark(f"{_ENDING}{me.rank}"):
        _ending = os.getpid(), os.path.abspath(os.path.join(settings.get_settings().proof, f"{_ENDING}{me.rank}"))
        # The C library calls it when there is no Python any more; of what is given to it nobody frees the text.
        c = ctypes.CDLL(None)
        c.strdup.restype = ctypes.c_void_p
        path = ctypes.c_void_p(c.strdup(os.fsencode(_ending[1])))
        if not path or c.__cxa_atexit(ctypes.cast(c.unlink, ctypes.c_void_p), path, None):
            raise MemoryError("the C library has no room for a function that it is to call at the end")
        # A forked child ends sooner than this process: it has no path to remove.
        os.register_at_fork(after_in_child=lambda: ctypes.memset(path, 0, 1))


def confirm_end() -> None:
    """This process ends now, without what the C library calls at its end; what it had to write is written."""
    if _ending is not None and _ending[0] == os.getpid():
        with real_files.use_real_files(), contextlib.suppress(FileNotFoundError):
            os.unlink(_ending[1])


def note_leaving() -> None:
    """All ranks leave to be started again: even where nothing else of that is seen, there is no proof of a good end."""
    global _leaves
    _leaves = True


def mark_separate_processes() -> None:
    """Say that each process that mpirun started is for itself, with an exit code of its own."""
    write_mark(_NEEDLESS)
    os.environ.pop("MATEX_PROOF", None)  # not for other runs, which the script may start


def mark_requeue() -> bool:
    """Say that the run was asked to end and has kept its state: it is to be started again, later.

    Gives whether `matex run` has that word, so that the exit code of ranks need not say it.
    """
    return write_mark(_ASK_AGAIN)


def note_request(folder: str | os.PathLike[str], name: str) -> None:
    """Keep by which signal `matex run` is asked to end, which it may pass on as another one."""
    write_file(folder, _REQUEST, name)


def read_request() -> str | None:
    """The name of the signal by which `matex run` was asked to end; None where this host sees no word of that."""
    with real_files.use_real_files(), contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return Path(settings.get_settings().proof or os.devnull, _REQUEST).read_text()
    return None


def mark_training() -> None:
    """Say that a step of training was made since the start."""
    if world.get_world().local_rank == 0:
        write_mark(_TRAINING)


def has_trained(folder: str | os.PathLike[str]) -> bool:
    return Path(folder, _TRAINING).exists()


def has_begun(folder: str | os.PathLike[str]) -> bool:
    return Path(folder, _BEGUN).exists()


def has_failed(folder: str | os.PathLike[str], code: int) -> bool:
    """Whether the script itself has failed, of which `code` is mpirun's exit code: started again it would fail again.

    A code above 128 may also be that of a rank that was killed, of which others fail.
    """
    failed = (record for record in error_records.read_records(folder) if not record.is_loss)
    return any(code <= 128 or record.code == code for record in failed)


def needs_requeue(folder: str | os.PathLike[str]) -> bool:
    return Path(folder, _ASK_AGAIN).exists()


def mark_abort(code: int) -> None:
    """Say with which exit code a rank ends all: of a run that may lose ranks mpirun says 0 then."""
    if not Path(settings.get_settings().proof, _ABORTED).exists():  # the first counts
        write_mark(_ABORTED, str(code))


def translate_exit_code(code: int, folder: str | os.PathLike[str]) -> int:
    """What mpirun's exit code means: `EXIT_STALLED` where a rank was killed since it had waited too long.

    Where mpirun says 0 of ranks that were aborted, it is the code with which they were.
    """
    if code == 0 and Path(folder, _ABORTED).exists() and not is_proof_given(folder):
        return int(Path(folder, _ABORTED).read_text())
    return EXIT_STALLED if code and Path(folder, mpi_timeout_process.MARK).exists() else code


def is_proof_given(folder: str | os.PathLike[str]) -> bool:
    """Whether exit code 0 may be believed."""
    return has_ended(folder) or Path(folder, _NEEDLESS).exists()


def has_word(folder: str | os.PathLike[str]) -> bool:
    """Whether the ranks have said how they end, so that none of them has ended without a word."""
    return has_come_to_end(folder) or is_proof_given(folder) or needs_requeue(folder)


def has_come_to_end(folder: str | os.PathLike[str]) -> bool:
    """Whether all ranks have come to the end of the script together."""
    return Path(folder, _ENDED).exists()


def has_chosen(folder: str | os.PathLike[str], code: int) -> bool:
    """Whether a script that has come to its end has given `code` to `sys.exit`, for which mpirun ends all ranks."""
    return has_come_to_end(folder) and str(code) in Path(folder, _ENDED).read_text().split()


def has_ended(folder: str | os.PathLike[str]) -> bool:
    """Whether they have, and those that write what the script writes have then ended by themselves."""
    return has_come_to_end(folder) and not any(name.startswith(_ENDING) for name in os.listdir(folder))


def write_mark(name: str, text: str = "") -> bool:
    """Leave `text` for `matex run`, where this rank sees its folder; whether it does."""
    folder = settings.get_settings().proof
    with real_files.use_real_files():
        if sees_folder := bool(folder) and os.path.isdir(folder):
            write_file(folder, name, text)
    return sees_folder


def write_file(folder: str | os.PathLike[str], name: str, text: str) -> None:
    """Write a word to be read whole or not at all.

    Several may write the same at once: ranks, or processes of which each takes itself for the only one.
    """
    part = Path(folder, f"{name}.{socket.gethostname()}-{os.getpid()}.part")
    part.write_text(text)
    part.rename(Path(folder, name))
