"""The folder in which compiled ops are kept, and the lock under which one process builds them.

However many processes ask at once, one builds and the others wait for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from matex_tf import settings

_PATIENCE = 2.0  # seconds of waiting before a word about it
_POLL = 0.05


class BuildError(RuntimeError):
    """The ops cannot be built or loaded; the text says why and what to do."""


def find_cache_folder() -> Path:
    """Where compiled ops are kept: MATEX_CACHE_DIR, else matex_tf in the user's cache folder, else, where that cannot
    be used, one of the user's own beneath the folder for temporary files.

    What is kept there is loaded as code: a folder that another user could have written to is not used.

    Raises:
        BuildError: MATEX_CACHE_DIR cannot be written to, or by others too, or there is no folder to be used.
    """
    chosen = settings.get_settings().cache_dir
    if chosen:
        mine = Path(chosen).expanduser()
        if not can_write(mine):
            raise BuildError(
                f"MATEX_CACHE_DIR={chosen}: this folder cannot be made or written to, and the compiled "
                "ops are kept there. Set it to one that can, on a file system that all nodes see."
            )
        if exposed := find_exposure(mine):
            raise BuildError(
                f"MATEX_CACHE_DIR={chosen}: {exposed}, and what is kept there is loaded as code. Set it to a folder of "
                "your own that only you can write to."
            )
        return mine
    user = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    usual = Path(user, "matex_tf")
    spare = Path(tempfile.gettempdir(), f"matex_tf-{os.getuid()}")
    reasons: list[str] = []
    for candidate in (usual, spare):
        # A user without a home has none of these folders, and "~" is none.
        usable = candidate.is_absolute() and can_write(candidate)
        exposed = find_exposure(candidate) if usable else f"{candidate} cannot be written to"
        if not exposed:
            if reasons and usual not in _told:
                _told.add(usual)
                print_message(f"{reasons[0]}: the compiled ops are kept in {candidate}")
            return candidate
        reasons.append(exposed)
    raise BuildError(
        f"{' and '.join(reasons)}, but the compiled ops must be kept somewhere. Set MATEX_CACHE_DIR to a folder of "
        "your own."
    )


_told: set[Path] = set()


def find_exposure(path: Path) -> str:
    """How another user could have written to the file or folder `path`; "" if none but this user could."""
    itself, target = path.lstat(), path.stat()
    for state in (itself, target):
        if state.st_uid != os.getuid():
            return f"{path} belongs to another user (number {state.st_uid})"
    if target.st_mode & 0o022:
        return f"others than its owner can write to {path} (`chmod go-w {path}` ends that, or else another file system)"
    return ""


def can_write(folder: Path) -> bool:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


@contextlib.contextmanager
def hold_lock(folder: Path, key: str, what: str) -> Iterator[None]:
    """Holds the lock of the build of `key`, waiting for whoever has it; the kernel frees it if that process dies."""
    with _open_lock(folder / f"{key}.lock") as lock:
        start = time.monotonic()
        told = False
        while not _try_lock(lock):
            if not told and time.monotonic() - start > _PATIENCE:
                told = True
                _say_once_for_all(folder, key, f"other ranks wait while one of them builds {what}")
            time.sleep(_POLL)
        yield


def _open_lock(path: Path) -> Any:
    try:
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600), "w")
    except OSError as error:
        raise BuildError(
            f"{path}: expected a lock file of your own, found: {error.strerror}. Remove it and try again."
        ) from error


def _try_lock(file: Any) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks: each builds for itself, under a name of its own
    return True


def _say_once_for_all(folder: Path, key: str, text: str) -> None:
    """Says it in one of the waiting processes: the one that takes a second lock, and keeps it while it waits."""
    waiting = _open_lock(folder / f"{key}.waiting")
    if _try_lock(waiting):
        print_message(text)
    _kept_open.append(waiting)


_kept_open: list[Any] = []


def print_message(text: str) -> None:
    if not settings.get_settings().quiet:
        print(f"matex_tf: {text}", file=sys.stderr, flush=True)
