"""What rank 0 has made and removed and the other ranks have not come to yet.

All ranks run the same script, rank 0 often first. A rank that asks `if not os.path.exists(folder)` must be answered as
the script alone would be, so what rank 0 made or removed since the ranks last met is not there, or still there, for the
others. Rank 0 writes each such path into one file, with the number of collectives before it; nobody waits for anybody.
Of a file that was there before the run and that rank 0 changes or removes, its content goes there too; of a folder,
what is in it.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from matex_tf import ops
from matex_tf.ops import cache
from matex_tf.runtime import shutdown, temp_folders
from matex_tf.world import world

_PREFIX = "matex_tf-ledger-"
_KINDS = range(1, 8)
# A script that knows of ranks may wait for a file of rank 0 without any collective; it must not wait for ever.
_SECONDS = 60.0
# Larger files are rarely read and changed in one go, and are not copied for that.
_MOST_BYTES = 16 << 20


def meetings() -> int:
    """How many collectives this rank has completed."""
    return sum(ops.count(kind) for kind in _KINDS)


def _locked(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a ledger that several threads of a script may come to, to read files."""

    @functools.wraps(method)
    def locked(self: Ledger, *args: Any) -> Any:
        with self._lock:
            return method(self, *args)

    return locked


class Ledger:
    """The file of rank 0's news: `made`, `changed` and `removed` write on rank 0; the others read.

    Keys are canonical absolute paths, as in `overlay`.
    """

    def __init__(self, path: str):
        self.path = path
        self._offset = 0
        self._made: dict[str, tuple[int, float]] = {}
        self._removed: dict[str, tuple[int, float]] = {}
        self._before: dict[str, tuple[int, float, bytes]] = {}
        self._folders: dict[str, tuple[int, float]] = {}
        self._noted: dict[str, int] = {}
        self._touched: set[str] = set()
        self._renew_lock()
        os.register_at_fork(after_in_child=self._renew_lock)

    def _renew_lock(self) -> None:
        self._lock = threading.RLock()

    def take_over(self) -> None:
        """Write from here on: the rank that did was lost."""
        temp_folders.hold(self.path)
        shutdown.at_end.append(functools.partial(_drop, self.path))

    def made(self, key: str) -> None:
        """Rank 0 is about to make `key`; nothing is written where its new folder says so already."""
        number = meetings()
        self._touched.add(key)
        if self._noted.get(os.path.dirname(key)) == number or self._noted.get(key) == number:
            return
        self._noted[key] = number
        self._write("+", number, key)

    def changed(self, key: str) -> None:
        """Rank 0 is about to write to the file `key`, which is there."""
        if key in self._touched:
            return
        self._touched.add(key)
        if os.path.isfile(key) and os.path.getsize(key) <= _MOST_BYTES and os.access(key, os.R_OK):
            with open(key, "rb") as file:
                self._write("=", meetings(), key, base64.b64encode(file.read()).decode())

    def delivered(self, key: str) -> None:
        """All ranks have the file `key` as it is now: what it holds is noted anew when rank 0 changes it."""
        self._touched.discard(key)

    def caught_up(self) -> None:
        """All ranks have all files as they are now."""
        self._touched.clear()

    def removed(self, key: str) -> None:
        """Rank 0 is about to remove `key`, a file or a folder with all that is in it."""
        if os.path.isdir(key) and not os.path.islink(key):
            self._folder_removed(key)
        else:
            self.changed(key)
        self._noted.pop(key, None)
        self._write("-", meetings(), key)

    def _folder_removed(self, key: str) -> None:
        left = _MOST_BYTES
        for folder, _, names in os.walk(key):
            if folder not in self._touched:
                self._touched.add(folder)
                self._write("/", meetings(), folder)
            for path in (os.path.join(folder, name) for name in names):
                if path not in self._touched and os.path.isfile(path):
                    left -= os.path.getsize(path)
                    if left < 0:
                        return
                    self.changed(path)

    def _write(self, kind: str, number: int, key: str, content: str = "") -> None:
        line = json.dumps([kind, number, time.time(), key, content]) + "\n"
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)

    @_locked
    def is_new(self, key: str) -> bool:
        """Whether rank 0 made `key`, or a folder that it is in, since the ranks last met."""
        return self._is_recent(self._made, key)

    @_locked
    def is_gone(self, key: str) -> bool:
        """Whether rank 0 removed `key`, or a folder that it was in, since the ranks last met."""
        return self._is_recent(self._removed, key)

    @_locked
    def known(self) -> int:
        """A number that grows with rank 0's news."""
        self._read()
        return self._offset

    @_locked
    def has_news(self) -> bool:
        """Whether there may be something that is new, gone or changed."""
        self._read()
        return bool(self._made or self._before or self._folders)

    @_locked
    def before(self, key: str) -> bytes | None:
        """What the file `key` held, if rank 0 changed or removed it since the ranks last met."""
        return self._before[key][2] if self._is_recent(self._before, key, alone=True) else None

    @_locked
    def was_folder(self, key: str) -> bool:
        """Whether `key` was a folder that rank 0 removed since the ranks last met."""
        return self._is_recent(self._folders, key, alone=True)

    @_locked
    def names_before(self, folder: str) -> list[str]:
        """The names of what is in `folder` for which there is a `before`, or that was a folder."""
        self._read()
        inside = [key for key in (*self._before, *self._folders) if os.path.dirname(key) == folder]
        return [os.path.basename(key) for key in inside if self.was_folder(key) or self.before(key) is not None]

    def _is_recent(self, entries: dict[str, Any], key: str, alone: bool = False) -> bool:
        self._read()
        if not entries or not world.is_active():
            return False  # a forked child has no place among the ranks: to it things are as they are
        number, now = meetings(), time.time()
        for path in [key] if alone else upwards(key):
            if path not in entries:
                continue
            before, written = entries[path][:2]
            if number > before or now > written + _SECONDS:
                del entries[path]
            else:
                return True
        return False

    def _read(self) -> None:
        try:
            handle = os.open(self.path, os.O_RDONLY)
        except FileNotFoundError:
            return  # rank 0 has ended, or is on a disk of its own
        try:
            if os.fstat(handle).st_size <= self._offset:
                return
            os.lseek(handle, self._offset, os.SEEK_SET)
            text = b""
            while part := os.read(handle, 1 << 20):
                text += part
        finally:
            os.close(handle)
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.decode().splitlines():
            kind, number, written, key, content = json.loads(line)
            if kind == "=":
                self._before[key] = (number, written, base64.b64decode(content))
            elif kind == "/":
                self._folders[key] = (number, written)
            else:
                (self._made if kind == "+" else self._removed)[key] = (number, written)


def upwards(key: str) -> Iterator[str]:
    """`key` and the folders that it is in, the innermost first."""
    while True:
        yield key
        above = os.path.dirname(key)
        if above == key:
            return
        key = above


def share() -> Ledger:
    """The one ledger of this run. Collective, before the sequence of collectives begins to be checked."""
    me = world.current()
    path = None
    if me.rank == 0:
        # On one node the temporary folder will do; several nodes have a folder in common only where users share one.
        folder = None
        if me.has_several_hosts:
            folder = cache.folder()
            folder.mkdir(parents=True, exist_ok=True)
        temp_folders.sweep(_PREFIX)
        handle, path = tempfile.mkstemp(prefix=_PREFIX, dir=folder)
        os.close(handle)
        temp_folders.hold(path)
        # Others may not have come to the end of the script when rank 0 has, and still ask what is news to them.
        shutdown.at_end.append(functools.partial(_drop, path))
    return Ledger(world.communicator("control").bcast(path))


def _drop(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):  # folders for temporary files may be swept
        os.remove(path)
