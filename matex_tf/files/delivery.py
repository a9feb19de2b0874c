"""Makes files that rank 0 has saved available to every rank.

There are three cases:

- The `path` of the save leads to rank 0's files on a file system that this rank shares: nothing is copied.
- The path is the same, but the host does not share the file system: the first rank of the host writes a copy there.
- The path is another one, or leads through a link of this rank to another file: the rank has a copy of its own.

A save may consist of several files, its parts. Its `path` is the path in the script, and its `place` is where this rank
has the files. They differ only if the copy of the third case is in the upper layer.
"""

from __future__ import annotations

import contextlib
import glob
import os
from typing import NamedTuple

from matex_tf.files import journal, overlay
from matex_tf.files.paths import find_real_path
from matex_tf.runtime import objects, real_files
from matex_tf.world import world

_BLOCK_BYTES = 64 << 20


class Part(NamedTuple):
    """A file of a save: the suffix after the path of the save, the size in bytes, the modification time in ns."""

    suffix: str
    size: int
    modified: int


def list_parts(path: str) -> list[Part]:
    """The files of a save to `path`.

    `path` is a file, a folder, or the prefix of a checkpoint's files.
    """
    if os.path.isdir(path):
        paths = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
    elif os.path.isfile(path):
        paths = [path]
    else:
        prefix = glob.escape(path)
        paths = [*glob.glob(prefix + ".index"), *glob.glob(prefix + ".data-*"), *glob.glob(prefix + ".meta")]
    states = [(file_path, os.stat(file_path)) for file_path in sorted(paths)]
    return [Part(file_path[len(path) :], state.st_size, state.st_mtime_ns) for file_path, state in states]


def deliver_file(path: str) -> None:
    """Wait until the files that rank 0 saved to its `path` exist at this rank's `path`. Collective."""
    me = world.get_world()
    path_of_0, parts = objects.broadcast((path, list_parts(path)) if me.rank == 0 else None, "the list of saved files")
    place = os.path.abspath(path)  # as the script sees it: the real working folder may be in the private folder
    is_same_file = path == path_of_0 and _leads_to_same(path)  # else the third case: a copy of this rank's own
    if not is_same_file:
        # `find_real_path` returns the path of the copy in the private folder; or `path`, if the view does not handle
        # it, such as a temporary path that only this rank uses. The folder of `path` may be missing, because the save
        # has created only the folder of rank 0's path.
        os.makedirs(os.path.dirname(path) or os.curdir, exist_ok=True)
        place = find_real_path(path, "w", creates_more_files=True)
    missing_parts = [part for part in parts if not _has_part(place, part)]
    if is_same_file:
        _show_parts(path, parts)  # it may change the working folder, so it comes before `realpath`
    # Of each rank: its host, its place, and the parts that it lacks.
    reports = objects.allgather((me.host, os.path.realpath(place), missing_parts), "which ranks lack saved files")
    # Several ranks of a host may lack the same files. The first of them writes the files for all. It writes every part
    # that is sent, also one that only another place lacks.
    writer_ranks: dict[tuple[str, str], int] = {}  # by host and place
    parts_to_send: set[Part] = set()
    for rank, (host, real_path, rank_missing_parts) in enumerate(reports):
        if rank_missing_parts and writer_ranks.setdefault((host, real_path), rank) == rank:
            parts_to_send.update(rank_missing_parts)
    if writer_ranks:
        for part in parts:
            if part in parts_to_send:
                _send_part(path, place, part, writes=me.rank in writer_ranks.values())
        objects.barrier("copies of saved files are complete")


def _leads_to_same(path: str) -> bool:
    """Whether `path` leads to the same file through this rank's links and through the links on the disk, rank 0's.

    A link such as `runs/latest` may differ, if it leads to a folder that each rank names by its own time.
    """
    view, path = overlay.get_view(), os.path.abspath(path)  # the working folder may be in the private folder
    with real_files.use_real_files():
        if view is None:  # this rank uses the disk itself
            return True
        key = view.find_key(path)  # where this rank's links lead; None: the view does not handle the path
        return key in (None, os.path.realpath(path))


def _has_part(place: str, part: Part) -> bool:
    """Whether this rank finds a file of a save at `place`, of the size and time of rank 0's file."""
    with real_files.use_real_files():
        try:
            # Opening refreshes the attributes on a network file system.
            descriptor = os.open(place + part.suffix, os.O_RDONLY)
        except FileNotFoundError:
            return False
        state = os.fstat(descriptor)
        os.close(descriptor)
        return (state.st_size, state.st_mtime_ns) == (part.size, part.modified)


def _show_parts(path: str, parts: list[Part]) -> None:
    """Let this rank see the files at `path` as rank 0 has saved them.

    - Rank 0 writes the journal, which keeps the old content of a file for ranks that are behind in the script. Mark the
      saved content as known to all ranks. So the journal will keep this content when rank 0 changes the file again.
    - Another rank has a view of the files. If this rank has written or removed a file at `path`, that hides rank 0's
      file in the view: forget it. If the view does not handle the path (`key` is None), nothing hides the file.
    """
    view, writer = overlay.get_view(), journal.get_writer()
    with real_files.use_real_files():
        if view is not None:
            view.return_to_disk()  # the working folder may be in the private folder, which lacks the saved files
        for part in parts:
            if writer is not None:
                writer.mark_delivered(os.path.realpath(path + part.suffix))
            elif view is not None and (key := view.find_key(path + part.suffix)) is not None:
                view.show_file(key)


def _send_part(path: str, place: str, part: Part, writes: bool) -> None:
    """Send a file of rank 0's save to `path` to all ranks. writes: this rank writes it, at `place`. Collective."""
    target_path = place + part.suffix
    temporary_path = f"{target_path}.{os.getpid()}.part"
    with real_files.use_real_files(), contextlib.ExitStack() as stack:
        source_file = stack.enter_context(open(path + part.suffix, "rb")) if world.get_world().rank == 0 else None
        target_file = None
        if writes:
            os.makedirs(os.path.dirname(target_path) or ".", exist_ok=True)
            target_file = stack.enter_context(open(temporary_path, "wb"))
        for _ in range(-(-part.size // _BLOCK_BYTES)):  # rounded up
            block = objects.broadcast(
                source_file.read(_BLOCK_BYTES) if source_file else None, "a block of a saved file"
            )
            if target_file:
                target_file.write(block)
    if writes:
        with real_files.use_real_files():
            os.utime(temporary_path, ns=(part.modified, part.modified))  # `_has_part` compares the time
            os.replace(temporary_path, target_path)
