"""Finds the files of a path, a pattern or a list; compares files between ranks, and describes them, by first bytes."""

from __future__ import annotations

import difflib
import glob
import hashlib
import os
import zipfile
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from matex_tf import arguments
from matex_tf.errors import ReaderError

_COMPARED_BYTES = 1 << 16  # ranks compare the first bytes of files, up to this number
# By the first bytes of a file, its kind and how to read it, for messages.
_KINDS = {
    b"PK\x03\x04": "a zip archive; unpack it (a Zarr store or a spreadsheet is one, too)",
    b"\x1f\x8b": "a file compressed by gzip; decompress it",
    b"BZh": "a file compressed by bz2; decompress it",
    b"\xfd7zXZ\x00": "a file compressed by xz; decompress it",
    b"\x28\xb5\x2f\xfd": "a file compressed by zstd; decompress it",
    b"\x89HDF\r\n\x1a\n": "an HDF5 file",
    b"PAR1": "a Parquet file",
    b"CDF": "a classic NetCDF file",
    b"GRIB": "a GRIB file; convert it, such as by `cdo -f nc copy`",
    b"\x0e\x03\x13\x01": "an HDF4 file; convert it, such as by h4toh5",
    b"<": "an HTML or XML page, such as an error page of the download server",
    b"version https://git-lfs": "a pointer of Git LFS; `git lfs pull` loads the file",
}


def find_files(path: str | PathLike[str] | Sequence[Any], allow_folder: bool = False) -> list[Path]:
    """The files that `path` names: one file, a pattern such as "run_*.nc" (sorted by name), or a list of these.

    Raises FileNotFoundError with similar names if there is none, and TypeError if `path` is not a path.
    """
    if isinstance(path, (list, tuple)):
        if not path:
            raise FileNotFoundError("expected at least one file, given an empty list")
        return [file for entry in path for file in find_files(entry, allow_folder)]
    text = decode_path(path)
    named_path = Path(text)
    if named_path.is_file() or (allow_folder and named_path.is_dir()):
        return [named_path]
    if glob.has_magic(text):
        names = [name for name in glob.glob(text) if os.path.isfile(name) or (allow_folder and os.path.isdir(name))]
        matches = sorted(map(Path, names))
        if matches:
            return matches
    if named_path.is_dir():
        raise FileNotFoundError(
            f"{text}: expected a file, found a folder, which holds {format_names(os.listdir(named_path))}"
        )
    raise FileNotFoundError(f"{text}: expected a file, found none (from {os.getcwd()}){describe_near(named_path)}")


def decode_path(path: Any) -> str:
    """Return `path` as text. Raises TypeError if it is not a path."""
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(text, str):
        raise TypeError(
            f"DataSet: expected a path, a pattern or a list of them; given {arguments.describe_value(path)}"
        )
    return text


def describe_near(path: Path) -> str:
    """For messages about a missing `path`: "; near names ...", or the contents of its folder."""
    folder = path.parent
    if not folder.is_dir():
        return f"; there is no folder {folder}"
    names = os.listdir(folder)
    similar_names = difflib.get_close_matches(path.name, names, n=3, cutoff=0.5)
    if similar_names:
        return f"; near names in {folder} are {', '.join(similar_names)}"
    return f"; {folder} holds {format_names(names)}"


def format_names(names: Iterable[str], most: int = 12) -> str:
    """Up to `most` names, joined for a message."""
    names = sorted(map(str, names))
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "") if names else "nothing"


def suggest_similar(name: Any, choices: Iterable[str]) -> str:
    """Returns "; did you mean 'x'?" if one of `choices` resembles `name`, else ""."""
    similar = arguments.find_similar(str(name), map(str, choices))
    return f"; did you mean {similar!r}?" if similar else ""


def compute_fingerprint(paths: Iterable[Path]) -> str:
    """Size and a hash of the first bytes of each file, as text; equal on ranks that see the same files.

    Time stamps inside gzip and zip files are ignored: a script may compress a file on each rank.
    """
    descriptions = []
    for path in paths:
        with open(path, "rb") as file:
            head = file.read(_COMPARED_BYTES)
            size = os.fstat(file.fileno()).st_size
            if head.startswith(b"\x1f\x8b"):
                head = head[:4] + head[8:]  # without the time stamp
            elif head.startswith(b"PK\x03\x04"):
                with zipfile.ZipFile(file) as archive:
                    head = repr([(entry.filename, entry.CRC) for entry in archive.infolist()]).encode()
        descriptions.append(f"{Path(path).name} of {size} bytes ({hashlib.blake2b(head, digest_size=4).hexdigest()})")
    return ", ".join(descriptions)


def read_head(path: Path, count: int = 8) -> bytes:
    """The first `count` bytes of a file, or all if there are fewer; none for a folder."""
    if path.is_dir():
        return b""
    with open(path, "rb") as file:
        return file.read(count)


def read_all(file: Any, count: int) -> bytes:
    """The next `count` bytes of a file object whose `read` may return fewer; fewer only at its end."""
    data = b""
    while len(data) < count and (piece := file.read(count - len(data))):
        data += piece
    return data


def read_at(descriptor: int, start: int, count: int) -> bytes:
    """`count` bytes of an open file from offset `start`; fewer only at its end."""
    pieces = []  # `pread` may return fewer bytes than requested
    while count > 0 and (piece := os.pread(descriptor, count, start)):
        pieces.append(piece)
        start, count = start + len(piece), count - len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def describe_head(head: bytes) -> str:
    """Describe a file by its first bytes, `head`."""
    first_bytes = head[:8].hex(" ") or "nothing"
    # `head` may be shorter than the first bytes of a kind.
    kind = next((kind for magic, kind in _KINDS.items() if head and head[: len(magic)] == magic[: len(head)]), None)
    return first_bytes if kind is None else f"{first_bytes}: {kind}"


def make_magic_error(path: Path, expected: str, head: bytes) -> ReaderError:
    """The error for a file that begins with `head`, unlike the files of its format."""
    return ReaderError(f"{path}: wrong magic number: expected {expected}; found {describe_head(head)}")
