"""Reads and writes the folder with the saved state of a run: files with checksums, which are written atomically.

A file consists of JSON, arrays, and a hash of both; reading runs no code.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from matex_tf.resilience import serialization
from matex_tf.runtime import atomic, temp_folders

GENERATIONS = 2  # how many files of the kind "state" are kept, the newest ones
BEGIN, LOCK = "begin", "lock"  # names of files
_MAGIC = b"matex_tf run state 2\n"  # begins each file; 2 is the version of the format
_WRITE_BYTES = 16 << 20
"""Bytes that are hashed and written at a time."""


class Damaged(ValueError):
    """The file differs from what was written."""


class Foreign(PermissionError):
    """Another user could have written to the folder."""


def write_state(path: str, packed: serialization.Packed) -> None:
    """Write a state to `path` atomically and durably: after a crash of the host the file is complete or absent."""
    array_types = [[serialization.name_dtype(array.dtype), list(array.shape)] for array in packed.arrays]
    header = json.dumps([packed.json, array_types]).encode()
    with atomic.write_beside(path) as temporary_path:
        checksum = hashlib.blake2b(digest_size=32)
        with open(os.open(temporary_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:

            def write_and_hash(data: Any) -> None:
                checksum.update(data)
                file.write(data)

            write_and_hash(_MAGIC)
            write_and_hash(struct.pack("<Q", len(header)))
            write_and_hash(header)
            for array in packed.arrays:
                content = memoryview(array.reshape(-1).view(np.uint8)) if array.nbytes else b""
                for start in range(0, len(content), _WRITE_BYTES):
                    write_and_hash(content[start : start + _WRITE_BYTES])
            file.write(checksum.digest())
    atomic.sync_to_disk(os.path.dirname(path))


def read_state(path: str) -> Any:
    """Read the state in `path`. Raises Damaged or OSError."""
    with open(path, "rb") as file:
        data = file.read()
    # A file is: `_MAGIC`, the length of the header in 8 bytes, the header, arrays, and a checksum of 32 bytes.
    header_start = len(_MAGIC) + 8
    if len(data) < header_start + 32 or data[: len(_MAGIC)] != _MAGIC:
        raise Damaged(f"{path} is not the state of a run of this version of matex_tf, or is truncated")
    content = memoryview(data)[:-32]
    if hashlib.blake2b(content, digest_size=32).digest() != data[-32:]:
        raise Damaged(f"{path} is damaged: its checksum does not match")
    (header_length,) = struct.unpack("<Q", data[len(_MAGIC) : header_start])
    form, array_types = json.loads(bytes(content[header_start : header_start + header_length]))
    arrays, offset = [], header_start + header_length
    for dtype_name, shape in array_types:
        dtype = serialization.find_dtype(dtype_name)
        size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        arrays.append(np.frombuffer(content[offset : offset + size], dtype).reshape(shape).copy())
        offset += size
    return serialization.unpack_value(serialization.Packed(form, arrays))


class Folder:
    """The folder `path`, created if it does not exist. Raises Foreign, or OSError if it cannot be created.

    Its files: `state-NUMBER` is a state inside a call of `fit`; the two newest are kept. `end-NUMBER` is the state at
    the end of call NUMBER of `fit`. `begin` is what a restart needs of the start of the run, such as its random seed.
    """

    def __init__(self, path: str):
        self.path = path
        self._make_folder()

    def _make_folder(self) -> None:
        path = self.path
        os.makedirs(path, mode=0o700, exist_ok=True)
        for status in (os.lstat(path), os.stat(path)):  # if `path` is a link: of the link and of its folder
            if status.st_uid != os.getuid() or not stat.S_ISDIR(os.stat(path).st_mode):
                raise Foreign(f"{path} belongs to another user (number {status.st_uid})")
        if os.stat(path).st_mode & 0o022:
            raise Foreign(f"users other than its owner can write to {path}; run `chmod go-w {path}`")

    def locate_file(self, name: str) -> str:
        return os.path.join(self.path, name)

    def list_numbers(self, kind: str) -> list[int]:
        """The numbers of the files of `kind` "state" or "end", in ascending order."""
        matches = (re.fullmatch(rf"{kind}-(\d+)", name) for name in os.listdir(self.path))
        return sorted(int(match.group(1)) for match in matches if match)

    def read_file(self, name: str) -> Any:
        """The content of the file `name`; None if the file is absent, damaged, or owned by another user."""
        path = self.locate_file(name)
        try:
            if os.lstat(path).st_uid != os.getuid():
                return None
            return read_state(path)
        except (Damaged, serialization.NotPlain, FileNotFoundError, json.JSONDecodeError):
            return None

    def find_newest(self) -> tuple[int, Any]:
        """The number and content of the newest readable file of the kind "state"; (-1, None) if there is none."""
        for number in reversed(self.list_numbers("state")):
            content = self.read_file(name_file("state", number))
            if content is not None:
                return number, content
        return -1, None

    def write_file(self, kind: str, number: int, packed: serialization.Packed) -> None:
        """Write the state `number` of `kind` "state" or "end". Of the kind "state", remove older files than the newest
        `GENERATIONS`.
        """
        write_state(self.locate_file(name_file(kind, number)), packed)
        if kind == "state":
            for old_number in self.list_numbers("state")[:-GENERATIONS]:
                os.unlink(self.locate_file(name_file("state", old_number)))

    def clear_files(self) -> None:
        """Remove all state files, complete and unfinished, but not the folder."""
        atomic.remove_unfinished(self.path)
        for name in os.listdir(self.path):
            if re.fullmatch(rf"(state|end)-\d+|{BEGIN}", name):
                os.unlink(self.locate_file(name))

    def hold_lock(self, tell: Callable[[OSError], None] | None = None) -> int | None:
        """Lock the folder for this process. Returns a descriptor that holds the lock while it is open; None if another
        process holds it.

        The lock is on a file, because hosts that share a file system see locks of files, but not of folders. If another
        run ends meanwhile and removes the folder, it is created again. On a file system without locks every process
        gets the lock, and `tell` is called with the error.
        """
        while True:
            try:
                return temp_folders.hold_file(self.locate_file(LOCK), tell=tell)
            except FileNotFoundError:
                self._make_folder()

    def remove_folder(self) -> None:
        """Remove the state, and the folder if nothing else is in it. Called by the holder of the lock."""
        self.clear_files()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.locate_file(LOCK))
        with contextlib.suppress(OSError):  # the folder has other files
            os.rmdir(self.path)


def name_file(kind: str, number: int) -> str:
    return f"{kind}-{number:06d}"
