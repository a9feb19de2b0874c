"""A folder made to look like another, in which a script may write without touching the user's own files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

COPIED_BYTES, ENTRIES = 16 << 20, 5000
NOT_MIRRORED = {".git", ".venv", "venv", "__pycache__", "node_modules"}


def mirror_folder(source: Path, target: Path) -> dict[str, tuple[int, int]]:
    """Make `target` look like the folder `source`: small files copied, large ones linked.

    A script that reads and writes beside itself then leaves the user's own files alone. Returns size and time of
    modification of everything in it.
    """
    count = 0
    for folder, inside, names in os.walk(source):
        inside[:] = [name for name in inside if name not in NOT_MIRRORED]
        there = target / os.path.relpath(folder, source)
        there.mkdir(parents=True, exist_ok=True)
        for name in names:
            count += 1
            if count > ENTRIES:
                return list_files(target)
            file = Path(folder, name)
            if not file.is_file():
                continue
            if file.stat().st_size <= COPIED_BYTES:
                shutil.copy2(file, there / name)
            else:
                (there / name).symlink_to(file.resolve())
    return list_files(target)


def list_files(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of modification of every file in `folder`, by its path."""
    files = (Path(above, name) for above, _, names in os.walk(folder) for name in names)
    return {
        str(file.relative_to(folder)): (file.stat().st_size, file.stat().st_mtime_ns)
        for file in files
        if "__pycache__" not in file.parts
    }


def make_mirror_command(target: Sequence[str], source: Path, place: Path) -> list[str]:
    """`target`, a script with its arguments or `-m` and a module, as it is started in `place`, the mirror of `source`.

    The script is the one that lies there, if it does, so that it also finds and leaves files beside itself there.
    """
    if target[0] == "-m":
        return list(target)
    path = (source / target[0]).resolve()  # beside which Python looks for modules
    if path.is_relative_to(source) and (place / path.relative_to(source)).exists():
        return [str(place / path.relative_to(source)), *target[1:]]
    return [os.path.abspath(source / target[0]), *target[1:]]
