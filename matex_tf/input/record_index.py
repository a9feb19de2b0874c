"""The index of records: where the records of files begin. All ranks make it together; rank 0 keeps it for later runs.

Of TFRecord files, each rank reads some files, and there only the headers of the records. Of text files, each rank reads
an equal part of all bytes. Records of a fixed length need no index: the sizes of the files suffice.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
import stat
import time
from collections.abc import Sequence
from concurrent import futures
from pathlib import Path
from typing import NamedTuple

import numpy as np

from matex_tf import errors
from matex_tf.ops import cache, record_files
from matex_tf.runtime import atomic, notes, objects, real_files
from matex_tf.thread_flag import starts_own
from matex_tf.world import world

_NOT_FOUND, _UNAVAILABLE = 5, 14  # TensorFlow's codes of errors
_VERSION = 3  # of kept files
_SETTLED_SECONDS = 2.0
"""Some file systems count modification times in seconds. So a younger file may change without a change of its time."""
_MAX_UNUSED_SECONDS = 90 * 24 * 3600.0
"""Kept files that no run has used for this time are removed."""
_THREADS = 4
"""The number of files that a rank reads at a time: each read waits for the disk."""


class State(NamedTuple):
    """The state of a file, by which a change is noticed. `path` has no links.

    size: in bytes; `record_files.NO_SIZE` if the file cannot be found.
    mtime_ns, ctime_ns: `os.stat_result.st_mtime_ns` and `st_ctime_ns`. Programs that copy files may set the first.
    code, problem: TensorFlow's code of the error, and its text, if the file cannot be found.
    """

    path: str
    size: int
    mtime_ns: int
    ctime_ns: int
    code: int = 0
    problem: str = ""


class Part(NamedTuple):
    """Bytes `first` to `last` - 1 of a file, which one rank reads. file: the index of the file in a list of files."""

    file: int
    first: int
    last: int


_NO_NUMBERS = np.empty(0, np.int64)
_NEW = -1
_known: dict[tuple[str, bytes], tuple[State, int]] = {}
"""The states of indexed files and their numbers in tickets, by their formats and names."""
_next_number = 0
"""The number of the next file that is new or has changed."""


def name_alike(name: bytes) -> str:
    """The name by which ranks compare a file: the last two parts of its absolute path.

    The whole path may differ: each rank may have its own copy of a file that the script writes, in a private folder,
    and a path below the current folder is relative on rank 0 and absolute on the others.
    """
    return "/".join(os.path.abspath(os.fsdecode(name)).split("/")[-2:])


def index_files(names: Sequence[bytes], kind: str, reason: str = "") -> str:
    """Give the index of files to the ops that read them. Returns the reason if that is impossible, else "". Collective.

    A broken or missing file is an error only when its records are read, as in the script alone.

    Args:
        names: this rank's paths. All ranks must have files of the same names and sizes in the same order.
        kind: the format, one of `record_files.FORMATS`.
        reason: the reason why this rank has no names; "" if it has.
    """
    global _next_number
    states: list[State] = []
    if not reason:
        states, reason = _read_states(names)
    known_files = [(_find_number(name, kind, state), _is_settled(state)) for name, state in zip(names, states)]
    own_files = [(name_alike(name), state.size) for name, state in zip(names, states)]
    reports = objects.allgather((reason, own_files, known_files, _next_number), "what records of a dataset are known")
    first_files = reports[0][1]
    for rank, (other_reason, other_files, *_) in enumerate(reports):
        if other_reason:
            return other_reason
        if other_files != first_files:
            hosts = world.get_world().hosts
            return (
                f"ranks see different files: {_describe_difference(first_files, other_files)} on ranks 0 ({hosts[0]}) "
                f"and {rank} ({hosts[rank]})"
            )
    # Ranks compare hashes of tickets, so a file has the same number on all ranks. If it has changed for some, as
    # their own copies may, it gets a new number on all.
    _next_number = max(number for *_, number in reports)
    needed_indices: list[int] = []
    numbers: dict[int, int] = {}
    for index, known_by_ranks in enumerate(zip(*(known_on_rank for _, _, known_on_rank, _ in reports))):
        numbers_of_ranks, are_settled = zip(*known_by_ranks)
        is_new = numbers_of_ranks[0] == _NEW or len(set(numbers_of_ranks)) > 1
        if is_new or not all(are_settled):
            needed_indices.append(index)
            numbers[index] = _next_number if is_new else numbers_of_ranks[0]
            _next_number += is_new
    if not needed_indices:
        return ""
    for index, file_records in _find_records(names, states, kind, needed_indices).items():
        name, state = names[index], states[index]
        _known[kind, name] = state, numbers[index]
        if file_records.problem and not file_records.code:
            notes.print_note(f"{os.fsdecode(name)}: {file_records.problem}")
        record_files.put_records(numbers[index], name, kind, state.size, state.mtime_ns, file_records)
    return ""


def _find_number(name: bytes, kind: str, state: State) -> int:
    """The number in tickets of a file that was indexed in this state; `_NEW` if it was not."""
    known_state, number = _known.get((kind, name), (None, _NEW))
    return number if state == known_state else _NEW


def _describe_difference(first_files: Sequence[tuple[str, int]], other_files: Sequence[tuple[str, int]]) -> str:
    """Text about the first file that differs between two ranks."""
    for (name, size), (other_name, other_size) in zip(first_files, other_files):
        if (name, size) != (other_name, other_size):
            return f"{name} of {size} bytes and {other_name} of {other_size}"
    return f"{len(first_files)} and {len(other_files)} files"


def _read_states(names: Sequence[bytes]) -> tuple[list[State], str]:
    """The states of files, and the reason if one of them cannot be indexed, else ""."""
    states: list[State] = []
    with real_files.use_real_files():
        for name in names:
            if b"://" in name:
                return [], f"{os.fsdecode(name)} is on a file system of another kind"
            try:
                path = os.path.realpath(name)
                status = os.stat(path)
            except OSError as error:
                code = _NOT_FOUND if isinstance(error, FileNotFoundError) else _UNAVAILABLE
                text = f"the file cannot be found: {error.strerror}"
                states.append(State(os.fsdecode(name), record_files.NO_SIZE, 0, 0, code, text))
                continue
            if not stat.S_ISREG(status.st_mode):
                return [], f"{os.fsdecode(name)} is no ordinary file"
            states.append(State(os.fsdecode(path), status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    return states, ""


def _is_settled(state: State) -> bool:
    """Whether a later change of the file certainly changes its state; see `_SETTLED_SECONDS`."""
    return time.time() - state.mtime_ns / 1e9 > _SETTLED_SECONDS


def _find_records(
    names: Sequence[bytes], states: Sequence[State], kind: str, needed_indices: Sequence[int]
) -> dict[int, record_files.Found]:
    """The records of files by their indices in `names`: kept by an earlier run, or found by all ranks. Collective.

    Of a text file, the offsets are the beginnings of lines, and the lengths are the bytes of lines.
    """
    records = {
        index: record_files.Found(_NO_NUMBERS, _NO_NUMBERS, code=states[index].code, problem=states[index].problem)
        for index in needed_indices
    }
    if kind == "fixed":
        return records
    existing_indices = [index for index in needed_indices if states[index].size >= 0]
    folder = _find_folder() if world.get_world().rank == 0 else None
    kept_records: dict[int, record_files.Found] = {}
    if folder is not None:
        found = ((index, _read_kept(folder, states[index], kind)) for index in existing_indices)
        kept_records = {index: file_records for index, file_records in found if file_records is not None}
    kept_records = objects.broadcast(kept_records, "the kept index of records")
    records.update(kept_records)
    missing_indices = [index for index in existing_indices if index not in kept_records]
    if missing_indices:
        me = world.get_world()
        own_parts = deal_parts([states[index].size for index in missing_indices], kind, me.size)[me.rank]
        # With indices in `names`, not in `missing_indices`.
        parts = [part._replace(file=missing_indices[part.file]) for part in own_parts]
        own_records = [*zip(parts, _find_parts(parts, names, states, kind))]
        all_records = itertools.chain(*objects.allgather(own_records, "the index of records"))
        ordered_records = sorted(all_records, key=lambda part_and_records: part_and_records[0])
        for index in missing_indices:
            pieces = [found_records for part, found_records in ordered_records if part.file == index]
            records[index] = _join_pieces(pieces, kind, states[index].size)
            if folder is not None and not records[index].problem and _is_settled(states[index]):
                _keep(folder, states[index], kind, records[index])
    return records


def deal_parts(sizes: Sequence[int], kind: str, ranks: int) -> list[list[Part]]:
    """The parts of files, of these sizes in bytes, that each rank reads: equally many bytes of text, or whole files.

    One rank reads a whole TFRecord file, because the place of a record follows from the record before it.
    """
    ends = np.cumsum(sizes, dtype=np.int64).tolist()
    total_bytes = ends[-1] if ends else 0
    parts_by_rank: list[list[Part]] = [[] for _ in range(ranks)]
    for file, (size, end) in enumerate(zip(sizes, ends)):
        if kind == "tfrecord":
            # The rank whose equal part of all bytes has the middle of the file.
            twice_middle = 2 * end - size
            rank = min(ranks - 1, twice_middle * ranks // (2 * total_bytes)) if total_bytes else 0
            parts_by_rank[rank].append(Part(file, 0, size))
            continue
        begin = end - size  # of the file, in the bytes of all files
        for rank in range(ranks):
            first = max(begin, total_bytes * rank // ranks)
            last = min(end, total_bytes * (rank + 1) // ranks)
            if first < last:
                parts_by_rank[rank].append(Part(file, first - begin, last - begin))
    return parts_by_rank


def _find_parts(
    parts: Sequence[Part], names: Sequence[bytes], states: Sequence[State], kind: str
) -> list[record_files.Found]:
    """The records of each part, found by threads that run no code of the script (`starts_own`)."""

    def find(part: Part) -> record_files.Found:
        state = states[part.file]
        return record_files.find_records(names[part.file], kind, state.size, state.mtime_ns, part.first, part.last)

    with starts_own.set(), futures.ThreadPoolExecutor(_THREADS) as threads:
        return list(threads.map(find, parts))


def _join_pieces(pieces: Sequence[record_files.Found], kind: str, size: int) -> record_files.Found:
    """The index of a file from the records of its parts, in order."""
    if kind == "tfrecord":  # one rank has read the whole file
        [whole_file] = pieces
        return whole_file
    for piece in pieces:
        if piece.code:
            return record_files.Found(_NO_NUMBERS, _NO_NUMBERS, code=piece.code, problem=piece.problem)
    # In a part of a text file, `offsets` are the ends of lines. A line begins after the end of the line before. If the
    # last line has an end, the last of `starts` is the end of the file. `content` is the last byte that is in a line.
    ends = np.concatenate([_NO_NUMBERS, *(piece.offsets for piece in pieces)])
    starts = np.concatenate([np.zeros(1, np.int64), ends + 1])
    if max((piece.content for piece in pieces), default=-1) >= starts[-1]:
        ends = np.append(ends, size)  # the last line has no end
    starts = starts[: len(ends)]
    return record_files.Found(starts, ends - starts)


# A kept file is an array of two rows, offsets and lengths. Its name is a hash of the state of the indexed file.


def _find_folder() -> Path | None:
    try:
        folder = cache.find_cache_folder() / "records"
        folder.mkdir(mode=0o700, exist_ok=True)
    except (errors.BuildError, OSError) as error:
        _say_not_kept("files", error)
        return None
    return folder


def _say_not_kept(subject: str, error: Exception) -> None:
    notes.print_note(f"where records begin in {subject} is looked for in each run, since it cannot be kept: {error}")


def _name_kept(folder: Path, state: State, kind: str) -> Path:
    key = repr((_VERSION, kind, state)).encode()
    return folder / f"{hashlib.blake2b(key, digest_size=16).hexdigest()}.npy"


def _read_kept(folder: Path, state: State, kind: str) -> record_files.Found | None:
    path = _name_kept(folder, state, kind)
    try:
        offsets, lengths = np.load(path)
        os.utime(path)  # so that it is not removed as unused
    except (OSError, ValueError, EOFError):
        return None  # none is kept, it is cut off, or another user keeps it
    return record_files.Found(offsets, lengths)


def _keep(folder: Path, state: State, kind: str, found_records: record_files.Found) -> None:
    try:
        _drop_unused(folder)
        with real_files.use_real_files(), atomic.write_beside(str(_name_kept(folder, state, kind))) as temporary_path:
            np.save(temporary_path, np.stack([found_records.offsets, found_records.lengths]))
    except OSError as error:
        _say_not_kept(state.path, error)


@functools.cache
def _drop_unused(folder: Path) -> None:
    """Remove kept files that no run has used for long: most likely the indexed files have changed or are gone."""
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another run removes it
            if time.time() - path.stat().st_mtime > _MAX_UNUSED_SECONDS:
                path.unlink()
