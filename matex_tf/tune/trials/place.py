"""Where a trial runs: a folder that looks like the user's, in which it may write, and what it is told there."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from matex_tf.arguments import describe_unknown
from matex_tf.io.mirror import COPIED_BYTES, ENTRIES, NOT_MIRRORED
from matex_tf.tune.space import ON, Choice, Config, Space, format_value
from matex_tf.tune.space_file import Asked, SpaceError

ALL_COPIED_BYTES = 256 << 20
_PLACEHOLDER = re.compile(r"\{\{\s*([A-Za-z_]\w*)\s*\}\}")

Stamp = tuple[int, int]


@dataclass
class Layout:
    """What was laid out: the copies, with size and time of modification, and what trials share with the user."""

    copies: dict[Path, Stamp] = field(default_factory=dict)
    links: dict[Path, tuple[Path, Stamp]] = field(default_factory=dict)
    folders: list[Path] = field(default_factory=list)


def lay_out_folder(source: Path, place: Path, leave_out: Collection[Path]) -> Layout:
    """Make `place` look like the folder `source`, less `leave_out`: files copied, large ones and what is much linked.

    The uppermost folders come first, so that what is linked whole is deep down. What a trial that goes on has written
    there stays.
    """
    made, waiting, entries, copied = Layout(), [source], 0, 0
    place.mkdir(parents=True, exist_ok=True)
    while waiting:
        folder = waiting.pop(0)
        for entry in sorted(os.scandir(folder), key=lambda one: one.name):
            path = Path(entry.path)
            target = place / path.relative_to(source)
            if entry.name in NOT_MIRRORED or path in leave_out:
                continue
            entries += 1
            if (
                entry.is_dir()
                and not entry.is_symlink()
                and entries <= ENTRIES
                and _count_entries(path) <= ENTRIES - entries
            ):
                target.mkdir(exist_ok=True)
                waiting.append(path)
            elif entry.is_file() and entry.stat().st_size <= min(COPIED_BYTES, ALL_COPIED_BYTES - copied):
                copied += entry.stat().st_size
                if not target.exists():
                    shutil.copy2(path, target)
                elif _read_stamp(target) != _read_stamp(path):
                    continue  # it is the trial's own
                made.copies[target] = _read_stamp(target)
            elif entry.is_dir() or entry.is_file():
                if not os.path.lexists(target):
                    target.symlink_to(path.resolve())
                if entry.is_dir():
                    made.folders.append(path)
                else:
                    made.links[target] = path.resolve(), _read_stamp(path)
    return made


def _count_entries(folder: Path) -> int:
    """How much is in a folder itself."""
    with os.scandir(folder) as entries:
        return sum(1 for _ in entries)


def _read_stamp(path: Path) -> Stamp:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def list_changed_originals(made: Layout) -> list[Path]:
    """The user's own files that have changed since, which trials share."""
    return [path for path, stamp in made.links.values() if not path.exists() or _read_stamp(path) != stamp]


def clean_folder(place: Path, made: Layout) -> None:
    """Leave in `place` only what its trial has written."""
    for path, stamp in made.copies.items():
        if path.is_file() and not path.is_symlink() and _read_stamp(path) == stamp:
            path.unlink()
    for above, inside, names in os.walk(place, topdown=False):
        for name in (*names, *inside):
            path = Path(above, name)
            if path.is_symlink():
                path.unlink()
            elif name == "__pycache__":
                shutil.rmtree(path, ignore_errors=True)
            elif name in inside and not any(path.iterdir()):
                path.rmdir()


# What the script is told


def list_options(space: Space, config: Config) -> list[str]:
    """The options of the command line."""
    told = []
    for parameter in space.parameters:
        if not parameter.name.startswith("-") or parameter.name not in config:
            continue
        value = format_value(config[parameter.name])
        if isinstance(parameter, Choice) and parameter.is_flag:
            told += [parameter.name] if value == ON else []
        else:
            told += [f"{parameter.name}={value}"] if parameter.name.startswith("--") else [parameter.name, value]
    return told


def list_variables(config: Config) -> dict[str, str]:
    """The variables of the environment."""
    return {name[1:]: format_value(value) for name, value in config.items() if name.startswith("$")}


def fill_placeholders(place: Path, asked: Asked, config: Config) -> None:
    """Put values in the place of placeholders, in the trial's own copies of the files that have some."""
    values = {**dict(asked.otherwise), **{name: format_value(value) for name, value in config.items()}}
    for name in asked.files:
        path = place / name
        text = path.read_text(encoding="utf-8")
        path.unlink()  # it may be a link
        path.write_text(_PLACEHOLDER.sub(lambda found: values[found[1]], text), encoding="utf-8")


def check_files(asked: Asked, source: Path) -> None:
    """See that each placeholder of the space stands in a file, and each of the files in the space.

    Raises:
        SpaceError: with the file and the line.
    """
    names = [one.name for one in asked.space.parameters if one.name[0] not in "-$"]
    missing = set(names)
    for name in asked.files:
        path = source / name
        if os.path.isabs(name) or not Path(os.path.abspath(path)).is_relative_to(source):
            raise SpaceError(f"files: {name} is not within {source}, of which each trial has a copy")
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise SpaceError(f"files: {name}: {getattr(error, 'strerror', None) or error}") from None
        for number, line in enumerate(lines, 1):
            for word in _PLACEHOLDER.findall(line):
                missing.discard(word)
                if word not in names:
                    raise SpaceError(
                        f"{name}, line {number}: {{{{{word}}}}}: {describe_unknown('placeholder', word, names)}"
                    )
    if missing:
        word = min(missing)
        raise SpaceError(f"{{{{{word}}}}} is searched, and stands in none of {', '.join(asked.files)}")
