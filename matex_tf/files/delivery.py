"""Makes files that rank 0 has saved available to every rank.

Ranks read them from a shared file system. A host without it, or a rank with another path, receives a copy.
"""

from __future__ import annotations

import contextlib
import glob
import os
from typing import Any

from matex_tf.files import journal, overlay
from matex_tf.files.functions import find_real_path
from matex_tf.runtime import objects, real_files
from matex_tf.world import world

_PIECE = 64 << 20


def list_parts(path: str) -> list[tuple[str, int, int]]:
    """The files of a save to `path`: (suffix after `path`, size in bytes, modification time in ns).

    `path` is a file, a folder, or the prefix of a checkpoint's files.
    """
    if os.path.isdir(path):
        names = [os.path.join(folder, name) for folder, _, inside in os.walk(path) for name in inside]
    elif os.path.isfile(path):
        names = [path]
    else:
        start = glob.escape(path)
        names = [*glob.glob(start + ".index"), *glob.glob(start + ".data-*"), *glob.glob(start + ".meta")]
    states = [(name, os.stat(name)) for name in sorted(names)]
    return [(name[len(path) :], state.st_size, state.st_mtime_ns) for name, state in states]


def deliver_file(path: str) -> None:
    """Wait until the files that rank 0 saved to its `path` exist at this rank's `path`. Collective."""
    me = world.get_world()
    origin, made = objects.broadcast((path, list_parts(path)) if me.rank == 0 else None, "the list of saved files")
    # A rank with another path writes its copy to its private folder, except for temporary paths.
    place = path if path == origin else find_real_path(path, "w")
    missing = [part for part in made if not _has_part(place + part[0], *part[1:])]
    if path == origin:
        _show_parts(path, made)
    wanting = objects.allgather((me.host, os.path.realpath(place), missing), "which ranks lack saved files")
    seen: set[tuple[str, str]] = set()
    writers = []
    for rank, (host, where, lacks) in enumerate(wanting):
        if lacks and (host, where) not in seen:
            writers.append(rank)
            seen.add((host, where))
    if writers:
        for part in made:
            if any(part in wanting[rank][2] for rank in writers):
                _send_part(path, place, part, me.rank in writers)
        objects.barrier("copies of saved files are complete")


def _has_part(path: str, size: int, modified: int) -> bool:
    with real_files.use_real_files():
        try:
            handle = os.open(path, os.O_RDONLY)  # opening refreshes the attributes on a network file system
        except FileNotFoundError:
            return False
        state = os.fstat(handle)
        os.close(handle)
        return (state.st_size, state.st_mtime_ns) == (size, modified)


def _show_parts(path: str, made: list[Any]) -> None:
    """From now on this rank sees the files as rank 0 has saved them."""
    view, news = overlay.get_view(), journal.get_writer()
    with real_files.use_real_files():
        if view is not None:
            view.return_to_disk()
        for part in made:
            if news is not None:
                news.mark_delivered(os.path.realpath(path + part[0]))
            elif view is not None and (key := view.find_key(path + part[0])) is not None:
                view.show_file(key)


def _send_part(path: str, place: str, part: tuple[str, int, int], writes: bool) -> None:
    name, size, modified = part
    target = place + name
    temporary = f"{target}.{os.getpid()}.part"
    with real_files.use_real_files(), contextlib.ExitStack() as stack:
        source = stack.enter_context(open(path + name, "rb")) if world.get_world().rank == 0 else None
        sink = None
        if writes:
            os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
            sink = stack.enter_context(open(temporary, "wb"))
        for _ in range(-(-size // _PIECE)):
            piece = objects.broadcast(source.read(_PIECE) if source else None, "a block of a saved file")
            if sink:
                sink.write(piece)
    if writes:
        with real_files.use_real_files():
            os.utime(temporary, ns=(modified, modified))
            os.replace(temporary, target)
