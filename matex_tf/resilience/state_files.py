"""The folder in which a run's state is kept: whole files with a checksum, two generations of the newest state.

A file is JSON, arrays, and a hash of both; no part of it is run. `Folder` has the names.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from matex_tf.resilience import serialization
from matex_tf.runtime import atomic, temp_folders

GENERATIONS = 2
BEGIN, ENDED, LOCK = "begin", "ended", "lock"
_MAGIC = b"matex_tf run state 1\n"
_PIECE = 16 << 20


class Damaged(ValueError):
    """A file is not what was written."""


class Foreign(PermissionError):
    """Another user could have written what is in the folder."""


def write_state(path: str, packed: Any, arrays: Sequence[np.ndarray]) -> None:
    """Write a state to `path`, whole or not at all, also where the host goes down."""
    header = json.dumps(
        [packed, [[serialization.name_dtype(array.dtype), list(array.shape)] for array in arrays]]
    ).encode()
    with atomic.write_beside(path) as place:
        checksum = hashlib.blake2b(digest_size=32)
        with open(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:

            def put(data: Any) -> None:
                checksum.update(data)
                file.write(data)

            put(_MAGIC)
            put(struct.pack("<Q", len(header)))
            put(header)
            for array in arrays:
                content = memoryview(array.reshape(-1).view(np.uint8)) if array.nbytes else b""
                for start in range(0, len(content), _PIECE):
                    put(content[start : start + _PIECE])
            file.write(checksum.digest())
    atomic.sync_to_disk(os.path.dirname(path))


def read_state(path: str) -> Any:
    """What was written to `path`. Raises Damaged or OSError."""
    with open(path, "rb") as file:
        data = file.read()
    start = len(_MAGIC) + 8
    if len(data) < start + 32 or data[: len(_MAGIC)] != _MAGIC:
        raise Damaged(f"{path} is no state of a run, or was cut off")
    content = memoryview(data)[:-32]
    if hashlib.blake2b(content, digest_size=32).digest() != data[-32:]:
        raise Damaged(f"{path} is damaged: its checksum is another")
    (length,) = struct.unpack("<Q", data[len(_MAGIC) : start])
    packed, shapes = json.loads(bytes(content[start : start + length]))
    arrays, at = [], start + length
    for name, shape in shapes:
        dtype = serialization.find_dtype(name)
        size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        arrays.append(np.frombuffer(content[at : at + size], dtype).reshape(shape).copy())
        at += size
    return serialization.unpack_value(packed, arrays)


class Folder:
    """The folder `path`, made if it is not there. Raises Foreign, or OSError where it cannot be made.

    `state-NUMBER` is a state within a call of `fit`; the two newest are kept. `end-NUMBER` is the state at the end of
    the call of `fit` with that number. `begin` is what the run began with.
    """

    def __init__(self, path: str):
        self.path = path
        self._make_folder()

    def _make_folder(self) -> None:
        path = self.path
        os.makedirs(path, mode=0o700, exist_ok=True)
        for state in (os.lstat(path), os.stat(path)):
            if state.st_uid != os.getuid() or not stat.S_ISDIR(os.stat(path).st_mode):
                raise Foreign(f"{path} belongs to another user (number {state.st_uid})")
        if os.stat(path).st_mode & 0o022:
            raise Foreign(f"others than its owner can write to {path} (`chmod go-w {path}` ends that)")

    def locate_file(self, name: str) -> str:
        return os.path.join(self.path, name)

    def list_numbers(self, kind: str) -> list[int]:
        """The numbers of the files of `kind` "state" or "end", the least first."""
        found = (re.fullmatch(rf"{kind}-(\d+)", name) for name in os.listdir(self.path))
        return sorted(int(match.group(1)) for match in found if match)

    def read_file(self, name: str) -> Any:
        """The content of the file `name`; None where it is not there, damaged or another user's."""
        path = self.locate_file(name)
        try:
            if os.lstat(path).st_uid != os.getuid():
                return None
            return read_state(path)
        except (Damaged, serialization.NotPlain, FileNotFoundError, json.JSONDecodeError):
            return None

    def find_newest(self) -> tuple[int, Any]:
        """The number and the content of the newest state that is whole; (-1, None) where none is."""
        for number in reversed(self.list_numbers("state")):
            content = self.read_file(name_file("state", number))
            if content is not None:
                return number, content
        return -1, None

    def write_file(self, kind: str, number: int, packed: Any, arrays: Sequence[np.ndarray]) -> None:
        """Write a state; of the kind "state" only the newest generations stay."""
        write_state(self.locate_file(name_file(kind, number)), packed, arrays)
        if kind == "state":
            for old in self.list_numbers("state")[:-GENERATIONS]:
                os.unlink(self.locate_file(name_file("state", old)))

    def clear_files(self) -> None:
        """Remove what is kept and what was being written, not the folder."""
        atomic.remove_unfinished(self.path)
        for name in os.listdir(self.path):
            if re.fullmatch(rf"(state|end)-\d+|{BEGIN}|{ENDED}", name):
                os.unlink(self.locate_file(name))

    def hold_lock(self, tell: Callable[[OSError], None] | None = None) -> int | None:
        """The descriptor by which this process holds the folder while it is open; None where another one does.

        A file in it, since other hosts see locks of files, not of folders, on a file system that they share. A run that
        has ended well removes the folder, which is then made anew. `tell` is given the error of a file system without
        locks, where the folder is held by each process that asks.
        """
        while True:
            try:
                return temp_folders.hold_file(self.locate_file(LOCK), tell=tell)
            except FileNotFoundError:
                self._make_folder()

    def close_folder(self, remove: bool) -> None:
        """The run has ended well: nothing goes on from here. Without `remove` that is only noted."""
        if not remove:
            with open(os.open(self.locate_file(ENDED), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600), "wb"):
                return
        self.clear_files()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.locate_file(LOCK))
        with contextlib.suppress(OSError):  # there is something else in it
            os.rmdir(self.path)


def name_file(kind: str, number: int) -> str:
    return f"{kind}-{number:06d}"


def digest_content(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
