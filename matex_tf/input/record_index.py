"""Where the records of files begin: found by all ranks together, each in its part, and kept for later runs.

Of TFRecord a rank reads the headers of its files; of text it reads its part of all bytes. Records of a fixed length
need no index but the sizes of the files.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
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

_NOT_FOUND, _UNAVAILABLE = 5, 14  # of TensorFlow's codes
_VERSION = 1  # of kept files
_YOUNG = 2.0  # seconds
_LONGEST = 90 * 24 * 3600.0
"""Seconds for which what is kept may lie unused."""
_AT_ONCE = 4
"""Files whose headers a rank looks for at a time: each read waits for the disk."""

Problem = tuple[int, str, int]
"""TensorFlow's code of an error (0: a warning), its sentence, and the place in the file from which on it holds."""
NO_PROBLEM: Problem = (0, "", 0)


class State(NamedTuple):
    """Of a file, by its links followed; `size` is -1 where there is none."""

    path: str
    size: int
    mtime_ns: int
    problem: Problem = NO_PROBLEM


class Places(NamedTuple):
    """Where records begin (of TFRecord their headers), and how many bytes of data each has: int64 arrays."""

    offsets: np.ndarray
    lengths: np.ndarray
    problem: Problem = NO_PROBLEM


class Part(NamedTuple):
    """Bytes `first` to `last` of a file, by its number."""

    number: int
    first: int
    last: int


_NONE = np.empty(0, np.int64)
_known: dict[tuple[str, bytes], State] = {}


def name_alike(name: bytes) -> str:
    """The name by which ranks compare a file: the last two parts of its absolute path.

    Each rank may have its own copy of a file that the script writes, in a folder of its own, under the same name. A
    path below the current folder is relative on rank 0 and absolute on the others.
    """
    return "/".join(os.path.abspath(os.fsdecode(name)).split("/")[-2:])


def index_files(names: Sequence[bytes], kind: str, reason: str = "") -> str:
    """Have the ops know where the records of files begin; "", or in words why that cannot be. Collective.

    A file that is broken or not there is an error where its records are read, as it is alone.

    Args:
        names: paths of this rank's. On all ranks files of the same names and sizes have to come in the same order.
        kind: one of `record_files.FORMATS`.
        reason: why this rank has no names.
    """
    found = [] if reason else _look_at_files(names)
    reason = reason if isinstance(found, list) else found
    states: list[State] = found if isinstance(found, list) else []
    has = [_known.get((kind, name)) == one and _is_settled(one) for name, one in zip(names, states)]
    files = [(name_alike(name), one.size) for name, one in zip(names, states)]
    reports = objects.allgather((reason, files, has), "what records of a dataset are known")
    for rank, (text, found_there, _) in enumerate(reports):
        if text:
            return text
        if found_there != reports[0][1]:
            hosts = world.get_world().hosts
            return (
                f"ranks see different files: {_tell_apart(reports[0][1], found_there)} on ranks 0 ({hosts[0]}) and "
                f"{rank} ({hosts[rank]})"
            )
    needed = [number for number, knows in enumerate(zip(*(has for _, _, has in reports))) if not all(knows)]
    if not needed:
        return ""
    for number, places in _find_places(names, states, kind, needed).items():
        name, state = names[number], states[number]
        _known[kind, name] = state
        problem = state.problem if state.problem[0] else places.problem
        if problem[1] and not problem[0]:
            notes.print_note(f"{os.fsdecode(name)}: {problem[1]}")
        record_files.put_records(name, kind, state.size, state.mtime_ns, places.offsets, places.lengths, problem)
    return ""


def _tell_apart(some: Sequence[tuple[str, int]], others: Sequence[tuple[str, int]]) -> str:
    """The first file that differs, in words."""
    for (name, size), (other, other_size) in zip(some, others):
        if (name, size) != (other, other_size):
            return f"{name} of {size} bytes and {other} of {other_size}"
    return f"{len(some)} and {len(others)} files"


def _look_at_files(names: Sequence[bytes]) -> list[State] | str:
    states = []
    with real_files.use_real_files():
        for name in names:
            if b"://" in name:
                return f"{os.fsdecode(name)} is on a file system of another kind"
            try:
                path = os.path.realpath(name)
                found = os.stat(path)
            except OSError as error:
                code = _NOT_FOUND if isinstance(error, FileNotFoundError) else _UNAVAILABLE
                text = f"the file cannot be found: {error.strerror}"
                states.append(State(os.fsdecode(name), record_files.NO_SIZE, 0, (code, text, 0)))
                continue
            if not stat.S_ISREG(found.st_mode):
                return f"{os.fsdecode(name)} is no ordinary file"
            states.append(State(os.fsdecode(path), found.st_size, found.st_mtime_ns))
    return states


def _is_settled(state: State) -> bool:
    """Whether a change of the file from now on changes its state: the clocks of some file systems count seconds."""
    return time.time() - state.mtime_ns / 1e9 > _YOUNG


def _find_places(
    names: Sequence[bytes], states: Sequence[State], kind: str, needed: Sequence[int]
) -> dict[int, Places]:
    """Of the files of the numbers `needed`, in their order. Collective."""
    empty = Places(_NONE, _NONE)
    there = [number for number in needed if states[number].size >= 0]
    if kind == "fixed":
        return dict.fromkeys(needed, empty)
    folder = _find_folder() if world.get_world().rank == 0 else None
    kept = {} if folder is None else {number: _read_kept(folder, states[number], kind) for number in there}
    kept = objects.broadcast({number: one for number, one in kept.items() if one}, "the kept index of records")
    missing = [number for number in there if number not in kept]
    if missing:
        me = world.get_world()
        parts = deal_parts([states[number].size for number in missing], kind, me.size)[me.rank]
        parts = [part._replace(number=missing[part.number]) for part in parts]
        found = [*zip(parts, _find_parts(parts, names, states, kind))]
        gathered = [one for of_rank in objects.allgather(found, "the index of records") for one in of_rank]
        for number in missing:
            pieces = [what for part, what in sorted(gathered, key=lambda one: one[0]) if part.number == number]
            kept[number] = _join_pieces(pieces, kind, states[number].size)
            if folder is not None and kept[number].problem == NO_PROBLEM and _is_settled(states[number]):
                _keep(folder, states[number], kind, kept[number])
    return {number: kept.get(number, empty) for number in needed}


def deal_parts(sizes: Sequence[int], kind: str, ranks: int) -> list[list[Part]]:
    """What each rank looks through of files of so many bytes: equal parts; of TFRecord, a chain of records, files."""
    ends = np.cumsum(sizes, dtype=np.int64).tolist()
    total = ends[-1] if ends else 0
    dealt: list[list[Part]] = [[] for _ in range(ranks)]
    for number, (size, end) in enumerate(zip(sizes, ends)):
        if kind == "tfrecord":
            middle = 2 * end - size  # doubled: whole numbers
            dealt[min(ranks - 1, middle * ranks // (2 * total)) if total else 0].append(Part(number, 0, size))
            continue
        for rank in range(ranks):
            first = max(end - size, total * rank // ranks)
            last = min(end, total * (rank + 1) // ranks)
            if first < last:
                dealt[rank].append(Part(number, first - (end - size), last - (end - size)))
    return dealt


def _find_parts(
    parts: Sequence[Part], names: Sequence[bytes], states: Sequence[State], kind: str
) -> list[record_files.Found]:
    def find(part: Part) -> record_files.Found:
        state = states[part.number]
        return record_files.find_records(names[part.number], kind, state.size, state.mtime_ns, part.first, part.last)

    with starts_own.set(), futures.ThreadPoolExecutor(_AT_ONCE) as threads:
        return list(threads.map(find, parts))


def _join_pieces(pieces: Sequence[record_files.Found], kind: str, size: int) -> Places:
    """The records of a file by what was found in its parts, in their order."""
    problem = next(((one.code, one.problem, one.place) for one in pieces if one.problem), NO_PROBLEM)
    if kind == "tfrecord":
        [only] = pieces
        return Places(only.offsets, only.lengths, problem)
    if problem[0]:
        return Places(_NONE, _NONE, (problem[0], problem[1], 0))
    ends = np.concatenate([_NONE, *(one.offsets for one in pieces)])
    starts = np.concatenate([np.zeros(1, np.int64), ends + 1])
    if max((one.content for one in pieces), default=-1) >= starts[-1]:
        ends = np.append(ends, size)  # the last line has no end
    starts = starts[: len(ends)]
    return Places(starts, ends - starts)


# What is kept: of each file a line of JSON that says which it is, and the numbers, 16 bytes a record.


def _find_folder() -> Path | None:
    try:
        folder = cache.find_cache_folder() / "records"
        folder.mkdir(mode=0o700, exist_ok=True)
    except (errors.BuildError, OSError) as error:
        notes.print_note(f"where records begin in files is looked for in each run, since it cannot be kept: {error}")
        return None
    return folder


def _name_kept(folder: Path, state: State, kind: str) -> Path:
    return folder / f"{hashlib.blake2b(os.fsencode(state.path), digest_size=16).hexdigest()}.{kind}"


def _make_header(state: State, count: int) -> bytes:
    facts = {"version": _VERSION, "path": state.path, "size": state.size, "mtime_ns": state.mtime_ns, "records": count}
    return json.dumps(facts).encode() + b"\n"


def _read_kept(folder: Path, state: State, kind: str) -> Places | None:
    place = _name_kept(folder, state, kind)
    try:
        header, _, rest = place.read_bytes().partition(b"\n")
        os.utime(place)  # it is in use
    except OSError:
        return None  # none is kept, or by somebody else
    count = len(rest) // 16
    if header + b"\n" != _make_header(state, count) or len(rest) != 16 * count:
        return None
    offsets, lengths = np.frombuffer(rest, np.int64).reshape(2, count)
    return Places(offsets, lengths)


def _keep(folder: Path, state: State, kind: str, places: Places) -> None:
    numbers = np.stack([places.offsets, places.lengths])
    try:
        _drop_unused(folder)
        with real_files.use_real_files(), atomic.write_beside(str(_name_kept(folder, state, kind))) as place:
            Path(place).write_bytes(_make_header(state, len(places.offsets)) + numbers.tobytes())
    except OSError as error:
        notes.print_note(
            f"where records begin in {state.path} is looked for in each run, since it cannot be kept: {error}"
        )


@functools.cache
def _drop_unused(folder: Path) -> None:
    """Remove what no run has used for long: most likely the files are not there any more."""
    for place in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another run removes it
            if time.time() - place.stat().st_mtime > _LONGEST:
                place.unlink()
