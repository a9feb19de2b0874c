"""Mirrors a folder, so that a script can run in the mirror and leave the user's files as they are: in `matex run
--check`, in `matex plan`, and in the trials of `matex tune`.

Small files are copied, so that the script can change them. Large files and large folders are links to the originals; a
script that writes them changes the originals (`Mirror.list_changed_originals`).

A mirror may be made again in the same place, as when a trial of `matex tune` goes on. Files, folders and links that a
script has written there stay.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

COPIED_BYTES = 16 << 20  # the limit of one copy, by default
ALL_COPIED_BYTES = 256 << 20  # the limit of all copies
ENTRIES = 5000
"""The limit of the entries of all mirrored folders: further folders are linked. Also the limit of the copied files,
because `source` is mirrored even if it has more entries.
"""
NOT_MIRRORED = {".git", "__pycache__", "node_modules"}

Stamp = tuple[int, int]  # size in bytes and modification time in ns, which tell whether a file has changed


@dataclass
class Mirror:
    """The contents of a mirror.

    copies: the copied files, by their paths in the mirror.
    links: the targets of the links, by the paths of the links.
    files, folders: the originals that are linked because they are too large or unreadable: files by their own paths,
        folders by the paths of the links in the mirror, relative to it.
    """

    copies: dict[Path, Stamp] = field(default_factory=dict)
    links: dict[Path, str] = field(default_factory=dict)
    files: dict[Path, Stamp] = field(default_factory=dict)
    folders: list[Path] = field(default_factory=list)

    def copy_file(self, path: Path, copy: Path) -> None:
        """Copy `path` to `copy`, where a file of a script, or an earlier copy, stays."""
        if not copy.exists():
            shutil.copy2(path, copy)
        if read_stamp(copy) == read_stamp(path):  # else the script's file
            self.copies[copy] = read_stamp(copy)

    def make_link(self, link: Path, target: Path) -> bool:
        """Create a link at `link` unless something is there. Returns whether `link` is a link to `target`."""
        if not os.path.lexists(link):
            link.symlink_to(target)
        if is_link_to_target := link.is_symlink() and os.readlink(link) == str(target):
            self.links[link] = str(target)
        return is_link_to_target

    def list_changed_originals(self) -> list[Path]:
        """The linked original files that have changed since they were linked."""
        return [path for path, stamp in self.files.items() if not path.exists() or read_stamp(path) != stamp]


def mirror_folder(source: Path, target: Path, leave_out: Collection[Path] = (), largest: int | None = None) -> Mirror:
    """Mirror the folder `source` in `target`, without `leave_out`: copy files, and link large files and large folders.

    Folders are visited breadth-first, so that the limits are reached in deep folders. A link to an entry of `source`
    becomes a link to the same entry of `target`. If a link leads elsewhere, the file or folder that it leads to is
    mirrored in its place. `target` and the entries of `leave_out` are not mirrored, also if links lead to them.

    `largest`: size limit of a copied file in bytes (default: COPIED_BYTES).
    """
    source, largest = source.resolve(), COPIED_BYTES if largest is None else largest
    real_left_out, real_target = {path.resolve() for path in leave_out}, target.resolve()
    # Nothing in `skipped` is mirrored, so that the mirror contains neither itself nor other mirrors. `skipped` is the
    # target, or the folder of `leave_out` around it. Of several folders it is the innermost, the search of a trial: a
    # link of the user to another run in the outer folder `runs` is mirrored.
    around_target = [path for path in real_left_out if real_target.is_relative_to(path)]
    skipped = max(around_target, key=lambda path: len(path.parts), default=real_target)
    mirror, copied_bytes, entry_count = Mirror(), 0, len(os.listdir(source))
    places = {source: target}  # the path in the mirror of each mirrored folder
    folders = [source]  # the mirrored folders; the loop appends their subfolders
    target.mkdir(parents=True, exist_ok=True)
    for folder in folders:
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            path, mirrored_path = Path(entry.path), places[folder] / entry.name
            real_path = Path(os.path.realpath(path))
            if NOT_MIRRORED & {entry.name, real_path.name} or path in leave_out or real_path in real_left_out:
                continue
            if real_path.is_relative_to(skipped) or _is_environment(real_path):
                continue
            # A link to an entry of a mirrored folder becomes a link within the mirror. So does a folder that is
            # mirrored already, because a link led to it.
            if (entry.is_symlink() or real_path in places) and (
                mirrored_target := _find_place(real_path, places, real_left_out)
            ):
                mirror.make_link(mirrored_path, mirrored_target)
                continue
            is_folder, is_file = os.path.isdir(path), os.path.isfile(path)
            # `mirrored_path` may be an earlier mirror's or a script's link, or a script's file in place of a folder.
            can_copy = not mirrored_path.is_symlink() and os.access(path, os.R_OK)
            if is_folder and can_copy and os.access(path, os.X_OK) and not mirrored_path.is_file():
                folder_entry_count = len(os.listdir(real_path))  # without subfolders
                if entry_count + folder_entry_count <= ENTRIES:
                    entry_count += folder_entry_count
                    mirrored_path.mkdir(exist_ok=True)
                    places[real_path] = mirrored_path
                    folders.append(real_path)
                    continue
            elif is_file and can_copy and len(mirror.copies) < ENTRIES:
                size = entry.stat().st_size
                if size <= min(largest, ALL_COPIED_BYTES - copied_bytes):
                    copied_bytes += size
                    mirror.copy_file(path, mirrored_path)
                    continue
            # The rest is too large, unreadable, or linked by an earlier mirror: a link to the original.
            if not (is_folder or is_file) or not mirror.make_link(mirrored_path, real_path):
                continue
            if is_folder:
                mirror.folders.append(mirrored_path.relative_to(target))
            else:
                mirror.files[real_path] = read_stamp(real_path)
    return mirror


def _find_place(real_path: Path, places: Mapping[Path, Path], leave_out: Collection[Path]) -> Path | None:
    """The path of `real_path` in the mirror, in which `places` has the path of each folder; None if it is not there."""
    for folder in (real_path, *real_path.parents):
        if folder.name in NOT_MIRRORED or folder in leave_out or _is_environment(folder):
            return None
        if folder in places:
            return places[folder] / real_path.relative_to(folder)
    return None


def _is_environment(folder: Path) -> bool:
    """Whether `folder` is an environment of venv or conda, whose packages are found from any folder."""
    return os.path.isfile(folder / "pyvenv.cfg") or os.path.isdir(folder / "conda-meta")


def read_stamp(path: Path) -> Stamp:
    """Size in bytes and modification time in ns of a file."""
    state = path.stat()
    return state.st_size, state.st_mtime_ns


def list_files(folder: Path) -> dict[str, Stamp]:
    """Size and modification time of every file in `folder`, by relative path."""
    files = (Path(parent, name) for parent, _, names in os.walk(folder) for name in names)
    return {
        str(file.relative_to(folder)): read_stamp(file)
        for file in files
        if "__pycache__" not in file.parts and file.exists()
    }


def make_mirror_command(target: Sequence[str], source: Path, place: Path) -> list[str]:
    """The words that run `target` in `place`, the mirror of `source`. They name the script in the mirror, if it is
    there, so that the script finds and writes files next to itself there.

    target: a script with its arguments, or `-m` and a module. A script may be a link. If it leads to a file of
        `source`, the words name this link in the mirror; if it leads out of `source`, they name the original link.
    """
    if target[0] == "-m":
        return list(target)
    named_path, real_path = Path(os.path.abspath(source / target[0])), (source / target[0]).resolve()
    if real_path.is_relative_to(source):
        for path in (named_path, real_path):  # `named_path` is outside of `source` if a link to `source` is in it
            if path.is_relative_to(source) and (place / path.relative_to(source)).exists():
                return [str(place / path.relative_to(source)), *target[1:]]
    return [str(named_path), *target[1:]]
